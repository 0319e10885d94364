"""Put a PNG beside each plotly figure in the committed outputs, as viewers that run no script (GitHub) show a picture alone.

    python .ci/pictures.py             the figures that have none, or one of another figure
    python .ci/pictures.py --check     list them, and draw nothing

A picture carries the digest of its figure as text in the file, so that one that is out of date is found."""
import base64, hashlib, json, sys
from pathlib import Path

root = Path(__file__).resolve().parent.parent
figure, picture = "application/vnd.plotly.v1+json", "image/png"
width = 900

def digest(data): return hashlib.sha256(json.dumps(data[figure], sort_keys=True).encode()).hexdigest()[:16]

def is_current(data):
    "Tell if a bundle of outputs has a picture of its own figure."
    return digest(data).encode() in base64.b64decode(data.get(picture, ""))

def drawn(data):
    "Return the PNG of a figure, with its digest behind the end of the image, where readers of PNG ignore it."
    from plotly.graph_objects import Figure
    fig = Figure(data[figure]["data"], data[figure]["layout"])
    png = fig.to_image("png", width=width, height=data[figure]["layout"].get("height") or 450)
    return base64.b64encode(png + digest(data).encode()).decode()

def bundles(nb):
    "The outputs of a notebook that hold a figure."
    outputs = [o for cell in nb["cells"] for o in cell.get("outputs", ())]
    return [o["data"] for o in outputs if figure in o.get("data", {})]

def main(check):
    "Draw what lacks a picture, or list it; the number of those."
    lacking = 0
    for path in sorted((root/"nbs").rglob("*.ipynb")):
        nb = json.loads(path.read_text(encoding="utf-8"))
        old = [data for data in bundles(nb) if not is_current(data)]
        lacking += len(old)
        if old: print(f"{path.relative_to(root)}: {len(old)}")
        if old and not check:
            for data in old: data[picture] = drawn(data)
            path.write_text(json.dumps(nb, sort_keys=True, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return lacking

if __name__ == "__main__":
    check = sys.argv[1:] == ["--check"]
    lacking = main(check)
    sys.exit(check and lacking > 0)

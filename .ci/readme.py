"""Make README.md from nbs/index.ipynb: text as it is, code in blocks, text outputs below.

    python .ci/readme.py            from the notebook as it is
    python .ci/readme.py --run      run the notebook first, and photograph the report of the same result
    python .ci/readme.py --check    say if README.md is another one"""
import json, re, subprocess, sys, tempfile
from pathlib import Path

root = Path(__file__).resolve().parent.parent

def block(cell):
    "One cell as Markdown; cells marked for the site or for tests alone give nothing."
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown": return "" if source.startswith("<!-- site -->") else re.sub(r"\]\((?=(?:images|docs|tutorials)/)", "](nbs/", source)
    if re.match(r"#\|\s*(hide|default_exp)", source) or not source: return ""
    texts = ["".join(o.get("text") or o.get("data", {}).get("text/plain", "")) for o in cell["outputs"] if o.get("name") != "stderr"]
    shown = "".join(t.rstrip() + "\n" for t in texts if t.strip() and not t.startswith("Figure("))
    return f"```python\n{source}\n```" + (f"\n\n```\n{shown}```" if shown else "")

def readme():
    cells = json.loads((root/"nbs/index.ipynb").read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(filter(None, map(block, cells))) + "\n"

def run():
    "Run the notebook and keep its outputs; the picture is of the report of its `ra`."
    from execnb.shell import CaptureShell
    shell, path = CaptureShell(), root/"nbs/index.ipynb"
    shell.execute(path, path, exc_stop=True)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder)/"report.html"
        shell.run(f"ra.to_html({str(page)!r})")
        photograph = [root/"tests/benchmarks/screenshots.py", root/"nbs/images", "--pages", page, "--picture", "report.png"]
        subprocess.run([sys.executable, *photograph], check=True)
    subprocess.run(["nbdev-clean", "--fname", path], check=True, cwd=root)

if __name__ == "__main__":
    if sys.argv[1:] == ["--run"]: run()
    if sys.argv[1:] == ["--check"]: sys.exit(0 if (root/"README.md").read_text(encoding="utf-8") == readme() else "README.md is not what nbs/index.ipynb makes: run python .ci/readme.py")
    (root/"README.md").write_text(readme(), encoding="utf-8")

"""What a start imports: no verb imports PyTorch's compiler, or what comes with it, for a plain model, and torch is
imported without the garbage collector, which has more than a quarter of the time of a plain `import torch`."""
import subprocess, sys

import pytest

from conftest import heavy, heavy_only, nightly_only, root
from trace_files import step, written

# pandas and onnx come with the compiler. sympy does not count: fake tensors (`torch/_subclasses/fake_tensor.py`,
# `_dispatch_impl`) and `torch.device("meta")` (`torch/__init__.py`, `_check`) import it for every operator and size.
# Nor does torch.distributed.tensor: PyTorch's C++ imports it at the first call on any subclass of a tensor
# (`torch.where` in
# `_refs.nn.functional.relu`), to ask whether it is one of its own.
heavy_modules = ("torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "pandas", "torch.onnx", "plotly")

program = """import contextlib, gc, io, sys
from fasterbench.cli.main import main

for line in sys.argv[1].split(";"):
    sys.argv, out = ["fasterbench", *line.split()], io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try: code = main()
        except SystemExit as error: code = error.code
    assert not code, (line, out.getvalue())
    found = [m for m in (*HEAVY, *(["torch"] if line.endswith("--help") else [])) if m in sys.modules]
    assert not found, f"{line} imports {found}"
    assert gc.isenabled() and (gc.get_freeze_count() > 100_000) == ("torch" in sys.modules), line
"""

def test_no_verb_imports_the_compiler_for_a_plain_model(tmp_path):
    "One process runs them one after the other, the lightest first, and looks at what it has imported after each."
    (tmp_path/"m.py").write_text("""import torch
def make():
    first = torch.nn.Linear(8, 8)
    torch.nn.init.kaiming_normal_(first.weight)
    return torch.nn.Sequential(first, torch.nn.LayerNorm(8)), torch.randn(4, 8)
""")
    written(tmp_path, step(), deviceProperties=[dict(id=0, name="NVIDIA H100 80GB HBM3")])
    roofs = "" if heavy else " --peaks h100-sxm"                        # measuring them takes longer than all the rest
    lines = ["--help", "compare --help", "count m.py:make", "trace trace.json", "predict m.py:make --on h100-sxm",
             *["peaks"] * heavy, f"roofline m.py:make --no-html --json a.json{roofs}",
             f"roofline m.py:make --no-html --json b.json{roofs}", "compare a.json b.json"]
    done = subprocess.run([sys.executable, "-c", program.replace("HEAVY", repr(heavy_modules)), ";".join(lines)],
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]

@pytest.mark.parametrize("models", [pytest.param("quick", marks=heavy_only("counts models of torch twice")),
                                    pytest.param("all", marks=nightly_only("counts thirty models twice"))])
def test_counts_are_those_of_pytorchs_own_fake_tensors(models):
    done = subprocess.run([sys.executable, root/"tests"/"benchmarks"/"fakes.py", models], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]

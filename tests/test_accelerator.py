"""Devices: one place names their types."""
import io, re, tokenize
from pathlib import Path

import pytest

package = Path(__file__).resolve().parent.parent/"fasterbench"
types = re.compile(r"(?<![A-Za-z])(cuda|xpu|mps)(?![A-Za-z])")

# What may name them beside the seam: the reports of NVIDIA's own tool, which are read without PyTorch; and a help text.
others = {"interop/ncu.py": 2, "cli/trace.py": 1, "cli/app.py": 1}

def names_of_types(source):
    "Lines whose code names a type of device: a name or a text, comments and docstrings aside."
    found, before = [], tokenize.NEWLINE
    for t in tokenize.generate_tokens(io.StringIO(source).readline):
        text = t.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None))
        docstring = t.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if (t.type == tokenize.NAME or text and not docstring) and types.search(t.string): found.append(t.start[0])
        if t.type not in (tokenize.COMMENT, tokenize.NL): before = t.type
    return found

@pytest.mark.parametrize("line, n", [('if device.type == "cuda": torch.cuda.synchronize()', 2), ('"Runs on cuda."', 0), ("x = 1 # on cuda", 0),
                                     ('def f():\n    "Of cuda."\n    return "mps"', 1), ('g(f"xpu:{i}")', 1), ("barracuda = CUDA", 0)])
def test_names_of_types_are_found(line, n): assert len(names_of_types(line + "\n")) == n

def test_devices_are_named_in_one_place():
    named = {p.relative_to(package).as_posix(): names_of_types(p.read_text(encoding="utf-8")) for p in package.rglob("*.py") if p.name != "_modidx.py"}
    assert len(named.pop("engine/accelerator.py")) > 20                           # the search finds what is there
    assert {path: len(lines) for path, lines in named.items() if lines} == others

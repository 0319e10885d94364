"""What `help()` and the reference say of a parameter is the comment that stands beside it, as `fastcore.docments`
reads it."""
import inspect, sys
from pathlib import Path

import pytest
from fastcore.docments import docments

import fasterbench

sys.path.insert(0, str(Path(__file__).resolve().parent.parent/"nbs"))
import site_objects

functions = [n for n in fasterbench.__all__ if inspect.isfunction(getattr(fasterbench, n))]

def commented(name):
    "Parameter → its comment, in one line."
    comments = docments(getattr(fasterbench, name), returns=False, args_kwargs=True)
    return {k: " ".join(v.split()) for k, v in comments.items() if v}

def test_there_are_functions_with_comments():
    assert len(functions) > 12 and sum(len(commented(n)) for n in functions) > 80

@pytest.mark.parametrize("name", functions)
def test_help(name):
    lines = (inspect.getdoc(getattr(fasterbench, name)) or "").partition("\nParameters:\n")[2].splitlines()
    said = [line.strip().partition(":") for line in lines]
    assert {k: text.strip() for k, _, text in said} == commented(name)

@pytest.mark.parametrize("name", functions)
def test_reference(name):
    rows = site_objects.parameter_table(getattr(fasterbench, name))[2:]
    cells = [row.replace("\\|", "¦").strip("| ").split(" | ") for row in rows if row]
    said = {row[0].strip("`* "): row[-1].replace("¦", "|") for row in cells}
    assert {k: said[k] for k in commented(name)} == commented(name)

"Every notebook runs top to bottom in a fresh kernel, as it stands."
import re

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from conftest import heavy, root

notebooks = sorted(p for p in (root/"nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)

def runs(cell):
    "Whether a code cell is executed here: `cuda` needs a GPU, `notest` and `slow` the full run."
    flag = re.match(r"#\|\s*(\w+)", cell.source)
    return not flag or (flag[1] not in ("notest", "slow") or heavy) and (flag[1] != "cuda" or torch.cuda.is_available())

@pytest.mark.parametrize("path", notebooks, ids=lambda p: str(p.relative_to(root/"nbs")))
def test_notebook(path):
    nb = nbformat.read(path, as_version=4)
    nb.cells = [c for c in nb.cells if c.cell_type != "code" or runs(c)]
    NotebookClient(nb, timeout=900, kernel_name="python3", resources=dict(metadata=dict(path=str(path.parent)))).execute()
    executed = [c for c in nb.cells if c.cell_type == "code" and c.get("execution_count")]
    assert executed, "no cell was executed"

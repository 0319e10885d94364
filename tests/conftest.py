"Where the project is, and which tests run: FASTERBENCH_TESTS=all adds the heavy ones."
import os
from pathlib import Path

root = Path(__file__).resolve().parent.parent
heavy = os.environ.get("FASTERBENCH_TESTS") == "all"

# Notebooks run in kernels of their own: nothing draws bars or opens browsers there.
os.environ.update(TQDM_DISABLE="1", PLOTLY_RENDERER="plotly_mimetype")

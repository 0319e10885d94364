"The house is in order: notebooks are the source, and what they make is what is here."
import filecmp, json, re, shutil, subprocess, sys

import pytest

from conftest import root

modules = sorted(p.stem for p in (root/"fasterbench").glob("*.py") if p.stem != "_modidx")
notebooks = [p for p in (root/"nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts]

def python(*args, cwd=root, **kwargs): return subprocess.run([sys.executable, *args], cwd=cwd, capture_output=True, text=True, **kwargs)

@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    "The project as it stands, somewhere else, exported and cleaned anew."
    there = tmp_path_factory.mktemp("house")/"project"
    shutil.copytree(root, there, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__", "*.egg-info", "_site", ".pytest_cache", ".hypothesis"))
    for verb in ("export", "clean"):
        done = python("-c", f"from nbdev.cli import *; import nbdev.cli, sys; sys.argv = ['nbdev-{verb}']; nbdev.cli.nbdev_{verb}()", cwd=there)
        assert done.returncode == 0, done.stderr
    return there

def test_export_changes_nothing(copied):
    here, there = ({p.name for p in (d/"fasterbench").glob("*.py")} for d in (root, copied))
    assert here == there
    _, different, errors = filecmp.cmpfiles(root/"fasterbench", copied/"fasterbench", sorted(here), shallow=False)
    assert not different and not errors

def test_clean_changes_nothing(copied):
    names = [str(p.relative_to(root)) for p in notebooks]
    _, different, errors = filecmp.cmpfiles(root, copied, names, shallow=False)
    assert not different and not errors

def test_every_module_has_a_notebook():
    sources = "".join("".join(c["source"]) + "\n" for p in notebooks for c in json.loads(p.read_text(encoding="utf-8"))["cells"])
    exported = re.findall(r"^#\|\s*default_exp\s+(\w+)", sources, re.M)
    assert sorted(exported) == modules and len(set(exported)) == len(exported)

@pytest.mark.parametrize("module", modules)
def test_module_imports_in_a_fresh_process(module):
    done = python("-c", f"import fasterbench.{module}")
    assert done.returncode == 0, done.stderr

def test_roofline_imports_without_plotly_pandas_and_nbdev():
    block = "import sys\nfor m in ('plotly', 'pandas', 'nbdev', 'IPython', 'typer', 'rich'): sys.modules[m] = None\n"
    done = python("-c", block + "import fasterbench.roofline as r, torch\n"
                  "ra = r.RooflineAnalyzer(torch.nn.Linear(4, 4), torch.ones(2, 4), r.HardwarePeaks(1e12, 1e11)).profile(steps=2)\nra.summary()\n"
                  "for view in (ra.plot, ra.to_frame):\n    try: view()\n    except ImportError as e: print(e)")
    assert done.returncode == 0, done.stderr
    assert "the chart needs plotly: pip install plotly" in done.stdout and "to_frame needs pandas: pip install pandas" in done.stdout

def test_reports_of_nsight_compute_need_no_torch():
    block = "import sys\nfor m in ('torch', 'plotly', 'pandas', 'nbdev', 'IPython', 'typer', 'rich', 'numpy'): sys.modules[m] = None\n"
    done = python("-W", "ignore", "-c", block + "from fasterbench.ncu import read_ncu\nread_ncu('tests/data/ncu/saxpy.csv').summary()")
    assert done.returncode == 0 and "saxpy_kernel" in done.stdout, done.stderr

def test_readme_is_what_the_index_makes():
    done = python(".ci/readme.py", "--check")
    assert done.returncode == 0, done.stderr

def test_wheel_from_the_source_distribution(tmp_path):
    "What the package needs besides modules is in both distributions."
    there = tmp_path/"src"
    shutil.copytree(root, there, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__", "*.egg-info", "_site", "nbs"))
    done = python("-c", f"import setuptools.build_meta as b; print(b.build_sdist({str(tmp_path)!r}))", cwd=there)
    assert done.returncode == 0, done.stderr
    sdist = next(tmp_path.glob("*.tar.gz"))
    shutil.unpack_archive(sdist, tmp_path/"unpacked", filter="data") if sys.version_info >= (3, 12) else shutil.unpack_archive(sdist, tmp_path/"unpacked")
    inside = next((tmp_path/"unpacked").iterdir())
    done = python("-c", f"import setuptools.build_meta as b; print(b.build_wheel({str(tmp_path)!r}))", cwd=inside)
    assert done.returncode == 0, done.stderr
    import zipfile
    wheel = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    names = wheel.namelist()
    assert {f"fasterbench/{m}.py" for m in modules} | {f"fasterbench/assets/{p.name}" for p in (root/"fasterbench/assets").iterdir()} <= set(names)
    assert not [n for n in names if not n.startswith("fasterbench")]
    metadata = wheel.read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert "Requires-Dist: torch" in metadata and "Provides-Extra: dev" in metadata

"What type checkers say of a user's script that touches every public function."
import ast, json, re, shutil, subprocess, sys
from importlib.util import find_spec

import pytest

import fasterbench
from conftest import heavy_only, nightly_only, root

script = root/"tests/programs/typed.py"
text = script.read_text(encoding="utf-8")
names = list(dict.fromkeys(n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)
                           and isinstance(n.ctx, ast.Store)))

def test_the_script_touches_every_public_function():
    used = {n.attr for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Attribute)}
    functions = {n for n in fasterbench.__all__ if n[0].islower()} | {"RooflineAnalyzer"}
    assert sorted(functions - used) == []

@pytest.fixture
def asked(tmp_path):
    "A folder with the script, which asks for the type of each of its names."
    (tmp_path/"script.py").write_text(text + "".join(f"reveal_type({n})\n" for n in names))
    return tmp_path

def checked(command, module, folder):
    if find_spec(module) is None: pytest.skip(f"{module} is not installed")
    done = subprocess.run([sys.executable, "-m", *map(str, command)], cwd=folder, capture_output=True, text=True)
    return done.stdout + done.stderr

def untyped(types):
    "Names whose type says nothing, or nothing of its parts."
    assert len(types) == len(names), types
    return {n: t for n, t in zip(names, types) if re.search(r"\b(Any|Unknown)\b", t)}

# pandas and plotly bring no types that mypy reads; types of transformers and lightning, which callbacks need, take it
# minutes
@nightly_only("mypy reads the types of torch")
def test_mypy_has_no_errors_and_knows_every_type(asked):
    (asked/"mypy.ini").write_text(
        f"[mypy]\nmypy_path = {root}\nfollow_imports = silent\ncache_dir = "
        f"{asked/'cache'}\n[mypy-transformers.*,lightning.*]\nfollow_imports = skip\n")
    said = checked(["mypy", "script.py"], "mypy", asked)
    assert ": error:" not in said and "Success" in said, said
    assert (untyped(re.findall(r'Revealed type is "(.*)"',
                               said)).keys() <= {"figure", "frame", "sheets", "callbacks"}), said

@heavy_only("a type checker that reads the types of torch")
def test_pyright_has_no_errors_and_knows_every_type(asked):
    (asked/"pyrightconfig.json").write_text(json.dumps(dict(
        include=["script.py"], extraPaths=[str(root)], typeCheckingMode="standard")))
    said = checked(["basedpyright", "--pythonpath", sys.executable, "-p", "."], "basedpyright", asked)
    assert " error: " not in said and "0 errors" in said, said
    assert untyped(re.findall(r'Type of "\w+" is "(.*)"', said)) == {}, said

@nightly_only("a type checker that reads the types of torch")
def test_a_renamed_function_of_a_feature_is_noticed(tmp_path):
    "What the core asks a feature goes through typed modules: the asker has an error where a function is gone."
    package = shutil.copytree(root/"fasterbench", tmp_path/"fasterbench", ignore=shutil.ignore_patterns("__pycache__"))
    asking = [str(p) for p in package.rglob("*.py")
              if re.search(r"\bfeatures\.[a-z]+\.", p.read_text(encoding="utf-8"))]
    rules = dict(include=asking, typeCheckingMode="off", reportAttributeAccessIssue="error")
    (tmp_path/"pyrightconfig.json").write_text(json.dumps(rules))
    door = package/"compiled/door.py"
    door.write_text(door.read_text(encoding="utf-8").replace("def generated_rows(", "def rows_of_inductor("))
    said = checked(["basedpyright", "--pythonpath", sys.executable, "-p", "."], "basedpyright", tmp_path)
    missing = re.findall(r'"(\w+)" is not a known attribute of module "fasterbench\.(\w+)\.door"', said)
    assert len(asking) > 8 and missing == [("generated_rows", "compiled")], said

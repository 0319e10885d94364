"""Python in a process of its own without the seconds that imports take: a server that has torch loaded and nothing of
fasterbench forks a child per piece of code. The child has a clean `__main__`; its output and exit status come back as
those of `subprocess.run` do."""
import atexit, importlib, json, os, signal, subprocess, sys, tempfile, traceback
from pathlib import Path

loaded = ("torch", "torch._dynamo", "torchvision", "numpy", "pandas", "plotly.graph_objects", "plotly.io", "tqdm",
          "typer", "jinja2", "filelock", "IPython.core.interactiveshell", "unittest.mock", "subprocess")

# ---- in the server

def child(job):
    "Run the code of a job as `python -c` does; never returns."
    for stream, path in ((0, os.devnull), (1, job["out"]), (2, job["err"])):
        opened = os.open(path, os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_TRUNC)
        os.dup2(opened, stream)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    signal.alarm(job["timeout"])
    main = type(sys)("__main__")
    sys.modules["__main__"], sys.argv, sys.path[:] = main, ["-c"], ["", *job["path"]]
    code = 0
    try: exec(compile(job["code"], "<string>", "exec"), main.__dict__)
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
        if isinstance(e.code, str): print(e.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally: os._exit(code)

def serve():
    "Fork a child for every line of standard input, and print its exit status."
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)                           # what an import prints is no answer
    for name in loaded:
        try: importlib.import_module(name)
        except ImportError: pass
    lines = os.fdopen(os.dup(0), "r")
    for line in lines:
        pid = os.fork()
        if pid == 0: child(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=channel, flush=True)

# ---- in the tests

_server = []

def server():
    if not _server:
        quiet = os.environ | dict(PYTHONUNBUFFERED="")
        _server.append(subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet))
        atexit.register(_server[0].stdin.close)
    return _server[0]

def python(code, cwd=None, timeout=900, env=None):
    "What `subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)` gives; -14 is a timeout."
    with tempfile.TemporaryDirectory() as folder:
        out, err = (Path(folder)/name for name in ("out", "err"))
        for path in (out, err): path.touch()
        path = [os.path.abspath(p) for p in (env or os.environ).get("PYTHONPATH", "").split(os.pathsep) if p]
        job = dict(code=code, cwd=str(cwd or os.getcwd()), timeout=timeout, out=str(out), err=str(err), env=dict(env or os.environ),
                   path=path + [p for p in sys.path if p and p not in path])
        print(json.dumps(job), file=server().stdin, flush=True)
        answer = server().stdout.readline()
        if not answer: raise RuntimeError("the server of forked processes has ended")
        return subprocess.CompletedProcess(["python", "-c", code], int(answer), out.read_text(errors="replace"), err.read_text(errors="replace"))

if __name__ == "__main__": serve()

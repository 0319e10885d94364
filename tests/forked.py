"""Python in a process of its own without the seconds that imports take: a server that has torch loaded, and nothing of
fasterbench unless it is asked for, forks a child per piece of code. The child has a clean `__main__`; its output and exit status come back as
those of `subprocess.run` do."""
import atexit, importlib, json, os, signal, socket, subprocess, sys, tempfile, traceback
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

def serve(more):
    "Fork the children that a line of standard input asks for, all at once, and print their exit statuses."
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)                           # what an import prints is no answer
    for name in (*loaded, *more):
        try: importlib.import_module(name)
        except ImportError: pass
    lines = os.fdopen(os.dup(0), "r")
    for line in lines:
        pids = []
        for job in json.loads(line):
            if not (pid := os.fork()): child(job)
            pids.append(pid)
        print(*(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids), file=channel, flush=True)

# ---- in the tests

# For code that uses the package and does not test how it is imported.
package = ("fasterbench.roofline", "fasterbench.views.report", "fasterbench.views.plot", "torch.distributed.fsdp",
           "torch.distributed.tensor.parallel")
_servers = {}

def server(more):
    if more not in _servers:
        quiet = os.environ | dict(PYTHONUNBUFFERED="")
        _servers[more] = subprocess.Popen([sys.executable, __file__, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet)
        atexit.register(_servers[more].stdin.close)
    return _servers[more]

def processes(code, cwd, timeout, environments, more=()):
    "The code in as many processes at once as there are environments, with `more` loaded beside torch."
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for i, env in enumerate(environments):
            out, err = (Path(folder)/f"{i}.{name}" for name in ("out", "err"))
            for path in (out, err): path.touch()
            path = [os.path.abspath(p) for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
            jobs.append(dict(code=code, cwd=str(cwd or os.getcwd()), timeout=timeout, out=str(out), err=str(err), env=env,
                             path=path + [p for p in sys.path if p and p not in path]))
        print(json.dumps(jobs), file=server(more).stdin, flush=True)
        answer = server(more).stdout.readline()
        if not answer: raise RuntimeError("the server of forked processes has ended")
        text = lambda path: Path(path).read_text(errors="replace")
        return [subprocess.CompletedProcess(["python", "-c", code], int(status), text(job["out"]), text(job["err"]))
                for status, job in zip(answer.split(), jobs)]

def python(code, cwd=None, timeout=900, env=None, more=()):
    "What `subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)` gives; -14 is a timeout."
    return processes(code, cwd, timeout, [dict(env or os.environ)], more)[0]

def command_line(*args):
    "The code of a command line of fasterbench."
    return f"import sys\nsys.argv = {['fasterbench', *map(str, args)]!r}\nfrom fasterbench.cli.main import main\nsys.exit(main())"

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]

def ranks(code, n=2, cwd=None, timeout=100, **env):
    "The code in `n` ranks of one job, with the environment that `torchrun` gives them and one thread each."
    job = os.environ | dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n), TORCHELASTIC_RUN_ID="tests") | env
    return processes("import torch\ntorch.set_num_threads(1)\n" + code, cwd, timeout, [job | dict(RANK=str(i), LOCAL_RANK=str(i)) for i in range(n)],
                     package)

if __name__ == "__main__": serve(sys.argv[1:])

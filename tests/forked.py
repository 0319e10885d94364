"""Python in a process of its own without the seconds that imports take: a server that has torch loaded forks a
child per piece of code, and a second one has the package loaded too. Both serve all workers of a run of the tests.
A child has a clean `__main__`; its output and exit status come back as those of `subprocess.run` do."""
import gc, importlib, json, os, signal, socket, socketserver, subprocess, sys, tempfile, time, traceback, warnings
from contextlib import contextmanager
from pathlib import Path

outside = ("torch", "torch._dynamo", "torchvision", "numpy", "pandas", "plotly.graph_objects", "plotly.io", "tqdm",
           "typer", "jinja2", "filelock", "IPython.core.interactiveshell", "_pytest.assertion.rewrite",
           "unittest.mock", "subprocess")
patience_s = 900        # after which a process hangs; a slow machine, or one stopped for a while, is given this long
inside = ("fasterbench.roofline", "fasterbench.views.report", "fasterbench.views.plot", "torch.distributed.fsdp",
          "torch.distributed.tensor.parallel", "torch._inductor.graph", "transformers.models.llama.modeling_llama",
          "hypothesis",
          "plotly.graph_objs._figure", "plotly.graph_objs._scatter", "plotly.graph_objs._layout",
          "plotly.graph_objs._bar", "plotly.subplots", "fastcore.test", "fasterbench.cli.main")

# ---- in the servers

quiet = warnings.catch_warnings()           # Python warns of a fork beside the threads of PyTorch, which wait here

def child(job):
    "Run the code of a job as `python -c` does; never returns."
    for stream, path in ((0, os.devnull), (1, job["out"]), (2, job["err"])):
        opened = os.open(path, os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_TRUNC)
        os.dup2(opened, stream)
    quiet.__exit__()
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

class Jobs(socketserver.StreamRequestHandler):
    def handle(self):
        "Fork the children that a line asks for, all at once, and answer with their exit statuses."
        pids = []
        for job in json.loads(self.rfile.readline()):
            if not (pid := os.fork()): child(job)
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        self.wfile.write(json.dumps(codes).encode())

class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    "Answers each connection from a process of its own; ends with the process that started it."
    max_children, request_queue_size = 100, 100
    def service_actions(self):
        super().service_actions()
        if os.getppid() != self.starter: os._exit(0)

@contextmanager
def socket_in(folder, kind):
    "The path of a socket in `folder`, which may be long: a system takes some hundred letters."
    opened = os.open(folder, os.O_RDONLY)
    try: yield f"/proc/self/fd/{opened}/{kind}.sock" if len(folder) > 80 else f"{folder}/{kind}.sock"
    finally: os.close(opened)

def load(names):
    gc.disable()
    for name in names:
        try: importlib.import_module(name)
        except ImportError: pass
    gc.freeze()                         # no child looks through what is imported, or copies its pages
    gc.enable()

def serve(folder, starter):
    "Both servers, as sockets in `folder`."
    Server.starter = starter
    quiet.__enter__()
    warnings.simplefilter("ignore", DeprecationWarning)
    load(outside)
    kind = "outside"
    if not os.fork():
        Server.starter, kind = os.getppid(), "inside"
        load(inside)
    try:
        with socket_in(folder, kind) as path: server = Server(path, Jobs)
        server.serve_forever()
    except (KeyboardInterrupt, FileNotFoundError): os._exit(0)                          # the run was ended, or is over

# ---- in the tests

_started = []

def start():
    "Start the servers of this run; the first process of it that calls this does."
    folder = os.environ["FASTERBENCH_TEST_FOLDER"]
    try: write_command(Path(folder)/"bin")
    except FileExistsError: return
    command = [sys.executable, __file__, folder, str(os.getpid())]
    _started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))

def write_command(folder):
    "`fasterbench` in a new folder, for notebooks: a command whose process is forked."
    folder.mkdir()
    path = folder/"fasterbench"
    path.write_text(f"""#!{sys.executable}
import sys
sys.path[0] = {str(Path(__file__).resolve().parent)!r}
import forked
done = forked.python(forked.command_line(*sys.argv[1:]), package=True)
sys.stdout.write(done.stdout)
sys.stderr.write(done.stderr)
sys.exit(done.returncode)
""")
    path.chmod(0o755)

def statuses(jobs, package, start_s=patience_s):
    "The exit statuses of the jobs."
    start()
    folder, end = os.environ["FASTERBENCH_TEST_FOLDER"], time.monotonic() + start_s
    with socket_in(folder, "inside" if package else "outside") as path, socket.socket(socket.AF_UNIX) as s:
        while s.connect_ex(path):
            if time.monotonic() > end: raise RuntimeError(f"the server of forked processes does not answer at {path}")
            time.sleep(0.05)
        s.sendall(json.dumps(jobs).encode() + b"\n")
        with s.makefile() as answer: text = answer.read()
    if not text: raise RuntimeError("the server of forked processes has ended")
    return json.loads(text)

def processes(code, cwd, timeout, environments, package=False):
    "The code in as many processes at once as there are environments, with the package loaded or torch alone."
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for i, env in enumerate(environments):
            out, err = (Path(folder)/f"{i}.{name}" for name in ("out", "err"))
            for path in (out, err): path.touch()
            path = [os.path.abspath(p) for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
            jobs.append(dict(code=code, cwd=str(cwd or os.getcwd()), timeout=timeout, out=str(out), err=str(err),
                             env=env,
                             path=path + [p for p in sys.path if p and p not in path]))
        def text(path): return Path(path).read_text(errors="replace")
        return [subprocess.CompletedProcess(["python", "-c", code], status, text(job["out"]), text(job["err"]))
                for status, job in zip(statuses(jobs, package), jobs)]

def python(code, cwd=None, timeout=patience_s, env=None, package=False):
    """Run `code` as `subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)` does; -14 is a
    timeout."""
    return processes(code, cwd, timeout, [dict(env or os.environ)], package)[0]

def command_line(*args):
    "The code of a command line of fasterbench."
    return (
        f"import sys\nsys.argv = {['fasterbench', *map(str, args)]!r}\nfrom fasterbench.cli.main import "
        "main\nsys.exit(main())")

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]

def ranks(code, n=2, cwd=None, timeout=patience_s, **env):
    "The code in `n` ranks of one job, with the environment that `torchrun` gives them and one thread each."
    job = os.environ | dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(n),
                            LOCAL_WORLD_SIZE=str(n), TORCHELASTIC_RUN_ID="tests") | env
    return processes("import torch\ntorch.set_num_threads(1)\n" + code, cwd, timeout,
                     [job | dict(RANK=str(i), LOCAL_RANK=str(i)) for i in range(n)],
                     package=True)

if __name__ == "__main__": serve(sys.argv[1], int(sys.argv[2]))

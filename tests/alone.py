"Who has the machine: many at once, or one alone that compares times."
import os
from contextlib import contextmanager

try: import fcntl
except ImportError: fcntl = None                                # not Unix: tests run in one process there

def cores():
    "How many cores this process may use."
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

@contextmanager
def machine(alone):
    "Within the context nothing else of this run is at work, or nothing that has to be alone."
    if fcntl is None:
        yield
        return
    folder = os.environ["FASTERBENCH_TEST_FOLDER"]
    with open(f"{folder}/gate.lock", "w") as gate, open(f"{folder}/machine.lock", "w") as lock:
        fcntl.flock(gate, fcntl.LOCK_EX)                    # who waits to be alone is overtaken by nobody
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield

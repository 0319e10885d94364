"Who has the machine: many at once, or one alone that compares times."
import fcntl, os
from contextlib import contextmanager

@contextmanager
def machine(alone):
    "Within the context nothing else of this run is at work, or nothing that has to be alone."
    folder = os.environ["FASTERBENCH_TEST_FOLDER"]
    with open(f"{folder}/gate.lock", "w") as gate, open(f"{folder}/machine.lock", "w") as lock:
        fcntl.flock(gate, fcntl.LOCK_EX)                    # who waits to be alone is overtaken by nobody
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield

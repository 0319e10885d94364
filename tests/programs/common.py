"""What the programs of this folder share: their numbers bit for bit, and `watch` or a callback where the
environment asks for it."""
import contextlib, hashlib, os

import torch

def curve(*losses):
    "Losses of a step, with every bit."
    print(*(torch.as_tensor(l, dtype=torch.float64).item().hex() for l in losses), flush=True)

def weights(*models):
    "Return a digest of all parameters and buffers after training, and of the next random number."
    tensors = [t.detach().contiguous().view(-1).view(torch.uint8) for m in models
               for t in (*m.parameters(), *m.buffers())]
    print(hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest(), torch.rand(1).item(), flush=True)

def settings(folder, i):
    from fasterbench import HardwarePeaks
    return dict(every=20, active=2, log=f"{folder}/{i}.jsonl", peaks=HardwarePeaks(1e12, 1e11))

@contextlib.contextmanager
def called_back(kind):
    """Yields the callbacks of a trainer: that of fasterbench, where $CALLBACK names a folder; its result goes
    there, and what it sent."""
    folder = os.environ.get("CALLBACK")
    if not folder: yield []; return
    import fasterbench, json
    sent = []
    callback = getattr(fasterbench, f"{kind}_callback")(
        on_sample=lambda *given: sent.append(given), **settings(folder, 0))
    yield [callback]
    callback.watch.result.to_json(f"{folder}/0.json")
    with open(f"{folder}/sent.json", "w") as f: json.dump(sent, f)

@contextlib.contextmanager
def watched(*models):
    "Within the context each model is watched, where $WATCH names a folder; the results go there."
    folder = os.environ.get("WATCH")
    if not folder: yield; return
    import fasterbench
    with contextlib.ExitStack() as stack:
        watches = [stack.enter_context(fasterbench.watch(m, **settings(folder, i))) for i, m in enumerate(models)]
        try: yield
        finally:
            for i, w in enumerate(watches):
                if len(w.series): w.result.to_json(f"{folder}/{i}.json")

"""What counting takes with the log of storages, over counting without it.

    python tests/benchmarks/memory_cost.py [--rounds N]

Each pair of counts is made one after the other, in turn with and without, and the ratio is that of the medians. Without:
storages are numbered as FLOPs and bytes need it, and are not followed; no memory is found at the end."""
import argparse, gc, time, warnings
from contextlib import contextmanager
from statistics import median
from unittest.mock import patch

import torch, torchvision

from fasterbench.work import count, trace
from fasterbench.work.lives import Lives
from fasterbench.work.memory import Memory, part_names

class NoLives(Lives):
    "A log that follows nothing."
    def begin(self, storage): self.sizes.append(0)
    def resize(self, n, nbytes): pass
    def note(self, *entry): pass

@contextmanager
def without_memory():
    nothing = Memory(0, dict.fromkeys(part_names, 0), "", "forward", "", [])
    with patch.object(trace, "Lives", NoLives), patch.object(count, "memory_of_run", lambda *a, **k: nothing): yield

def models():
    "Name, model and sample on meta, and whether a step is counted."
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=8, vocab_size=1000)
    ids = dict(input_ids=torch.zeros(1, 128, dtype=torch.long, device="meta"), use_cache=False)
    image = torch.empty(1, 3, 224, 224, device="meta")
    with torch.device("meta"):
        for name in ("resnet50", "vit_b_16", "densenet121"):
            for backward in (False, True): yield name, getattr(torchvision.models, name)(weights=None), image, backward
        yield "Llama, 8 layers", LlamaForCausalLM(config), ids, True

def seconds(model, sample, backward):
    gc.collect()
    start = time.process_time()
    count.count_work(model, sample, backward=backward)
    return time.process_time() - start

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, model, sample, backward in models():
        seconds(model, sample, backward)
        pairs = []
        for _ in range(given.rounds):
            with without_memory(): plain = seconds(model, sample, backward)
            pairs.append((seconds(model, sample, backward), plain))
        memory, plain = (median(t) for t in zip(*pairs))
        print(f"{name:18}{'step' if backward else 'forward':9}{memory * 1e3:8.0f} ms with,{plain * 1e3:8.0f} ms without: ×{memory / plain:.3f}", flush=True)

if __name__ == "__main__": main()

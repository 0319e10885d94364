"""What `serve` says of every class of transformers with a causal head, beside a real decode step of a small model.

    python tests/benchmarks/serve_models.py [MODEL_TYPE ...]

Each row: bytes that the cache object holds, FLOPs of the step as the model's code runs it, and bytes of weights read (experts
and tables aside), each counted without data and of the real step; what the model needs of the FLOPs; experts and how many a
token chooses. A class that cannot be counted has its sentence. The last lines sum up."""
import logging, sys, time, warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]/"serving"))
warnings.filterwarnings("ignore")
logging.disable(logging.ERROR)
from small_models import causal, compared, problem

def main(names):
    alike, sentences, differ, raw = [], [], [], []
    for name in names or causal:
        start = time.perf_counter()
        try: c = compared(name)
        except Exception as error:
            (sentences if problem(error) else raw).append(name)
            print(f"{name:24} {'' if problem(error) else '(raw) '}{type(error).__name__}: {str(error)[:230]}", flush=True)
            continue
        same = [a == b or abs(a / b - 1) < 1e-3 if b else a == b for a, b in (c.cache, c.flops, c.weights)]
        (alike if all(same) else differ).append(name)
        pairs = "  ".join(f"{a:>9.0f} {b:>9.0f} {'=' if s else '≠'}" for (a, b), s in zip((c.cache, c.flops, c.weights), same))
        experts = " ".join(f"{k:g} of {n}" for n, k in sorted(c.experts))
        print(f"{name:24} {pairs}  {c.needed:>9.0f} {experts:12} {time.perf_counter() - start:.1f} s", flush=True)
    print(f"\n{len(alike)} alike in cache, FLOPs and weights; {len(differ)} differ: {', '.join(differ)}")
    print(f"{len(sentences)} with a sentence: {', '.join(sentences)}")
    print(f"{len(raw)} with an error that is not explained: {', '.join(raw)}")

if __name__ == "__main__": main(sys.argv[1:])

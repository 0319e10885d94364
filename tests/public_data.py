"""Fetch public files that claims of the documentation were checked against, by repository, commit and hash.

    python tests/public_data.py FOLDER && FASTERBENCH_SHARED=FOLDER python -m pytest

A file of another hash than the one named here is refused. No test needs them: those that read them are skipped
without."""
import hashlib, sys, urllib.request
from pathlib import Path

host = "https://raw.githubusercontent.com"
timm, hta = "huggingface/pytorch-image-models", "facebookresearch/HolisticTraceAnalysis"
tracelens = "AMD-AGI/TraceLens"

# Place below FOLDER/data → repository, commit, path there, SHA-256
files = {
    "timm/benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv": (timm, "7479d451a6dfd8af27f941b8e82a7402461fae80",
        "results/benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv",
        "229c10d809d5ef0cc28cc5d875f1170e5554c25ad5251bbcd8cfe1890380981d"),
    "timm/benchmark-infer-amp-nchw-pt240-cu124-rtx4090-dynamo.csv": (timm, "7479d451a6dfd8af27f941b8e82a7402461fae80",
        "results/benchmark-infer-amp-nchw-pt240-cu124-rtx4090-dynamo.csv",
        "0a2d19507b039cd840b19c336dc139873b1a3b612a500859abceda5ea11317aa"),
    "timm/benchmark-infer-amp-nchw-pt240-cu124-rtx4090.csv": (timm, "5c33776aa59f0f05bfb8008ff546ed4c09083f1a",
        "results/benchmark-infer-amp-nchw-pt240-cu124-rtx4090.csv",
        "3ead09bcdd508312cd52f69eeefca1e7edae714b2fd55e2daec5d32e2325f396"),
    "other_accelerators/mtia_inference.json.gz": (hta, "4494b09bf4a6b6c5a233eae0f3816d6db1df6227",
        "tests/data/mtia_inference_trace/mtia_inference_rank_0.json.gz",
        "ed1b118e53f23f3a3a055dec52f6cc45eaf32c6354e8693335cfca608cff84f5"),
    "traces/a100_alexnet_2023_wrong_external_id.json.gz": (hta, "66e3c5475683bd5f2cc79884dfe9a60a085f5cb6",
        "tests/data/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz",
        "b9febb1abc8cc729a2890fb6a4171de9867ba72c944437ee046067e7c89912dc"),
    "traces/a100_alexnet_cupti_counters.json.gz": (hta, "c6f397ba4b466f2b145c6de89dce8da81661b37c",
        "tests/data/cupti_profiler/benchmark_result_924719_1679055439_trace.json.gz",
        "07e7e02da9cfda66f5b6fc5fd17e1f93185321504496f4c00e8d375fb162bf84"),
    "traces/mi300x_norm_layers_train.json.gz": (tracelens, "8c1d4e50484780c9e5a4b0703f3128e0584fe19c",
        "tests/traces/perf_model/normalization/normalization_layer_test.json.gz",
        "5769509a529bddc8972b5be2a7e8f8be2f08622529f4c4bf208a79062dff260f"),
    "traces/mi300x_sd35_compiled.json.gz": (tracelens, "b0be6c252b3bf10955ce0cc8d3f540fdeae4f84f",
        "tests/traces/inference/xdit_sd_3.5/profile_trace_rank_0.json.gz",
        "27e093d746edcc776524b4fa09ba20381e2dbc04767ef0dbd97fd670c3b03920"),
    "traces/vllm_gptoss_decode_capture.json.gz": (tracelens, "fe4f8537d0f90a23e55421dc4c696ecb567d73d8",
        "tests/traces/inference/vllm_decode_full/capture_traces/"
        "graph_capture_rank_0.1773709742341309550.pt.trace.json.gz",
        "1324913759fbb1a80c9b9b7bb6fb2c8c3e8cbf0443af4d9a5abf03c94ae82961"),
}

def fetched(name, folder):
    "Put one file into `folder`; what is wrong with it, or nothing."
    repository, commit, path, digest = files[name]
    there = Path(folder)/"data"/name
    if there.exists() and hashlib.sha256(there.read_bytes()).hexdigest() == digest: return ""
    try:
        with urllib.request.urlopen(f"{host}/{repository}/{commit}/{path}", timeout=60) as answer: data = answer.read()
    except OSError as error: return f"{name}: {error}"
    if (found := hashlib.sha256(data).hexdigest()) != digest:
        return f"{name}: SHA-256 is {found}, not {digest}; it is not written"
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_bytes(data)
    return ""

if __name__ == "__main__":
    if len(sys.argv) != 2: sys.exit(__doc__)
    wrong = list(filter(None, (fetched(name, sys.argv[1]) for name in files)))
    print("\n".join(wrong) or f"{len(files)} files in {sys.argv[1]}/data")
    sys.exit(bool(wrong))

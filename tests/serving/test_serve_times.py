"""Expected times of a server, function by function: every expected value is worked out by hand, all factors written
out.

Roofs and chip are made up, so that one term decides at a time: 100 TFLOP/s in bfloat16, twice that in fp8, 100
GB/s, a clock of 1 GHz. Roofs that no datasheet gives count as measured: tensor cores reach 0.92 of them, attention
0.69."""
import math
from dataclasses import replace

import pytest

pytest.importorskip("transformers")
from fasterbench import HardwarePeaks, serve
from fasterbench.predicting.kernel_times import AttentionKernel, Chip
from fasterbench.roofs.hardware import Ceiling
from fasterbench.serving.serve_times import (Heads, Product, ServedTimes, attention_of_forward, heads_of, others_time,
                                             products_of,
                                             products_time, reduce_time)
from fasterbench.serving.serve_work import CacheContents, KeptByLayers, StepWork, Weight
from fasterbench.work.quantized_checkpoints import StoredWeights

bf16, fp8 = "bfloat16", "float8_e4m3fn"
def roofs(flops=1e14, bandwidth=1e11):
    return HardwarePeaks(flops, bandwidth, ceilings=(Ceiling(bf16, flops), Ceiling(fp8, 2 * flops)))

wide = Chip(units=1000, clock=1e9, feed=1e6)    # products wait for memory alone
one = Chip(units=1, clock=1e9, feed=64)         # one multiprocessor
endless = 1e29                                  # a rate that takes no time

def near(x): return pytest.approx(x, rel=1e-12)

# -- products -------------------------------------------------------------------------------------------------------

def took(product, tokens, devices=1, math=bf16, peaks=roofs(), chip=wide):
    return products_time([product], tokens, devices, peaks, chip, math, bf16)

def test_a_product_that_waits_for_memory():
    "3 layers; weights of 2 B, inputs and results of 2 B for each of 5 tokens; 0.77 of 100 GB/s; 4400 cycles to start."
    product = Product(columns=4096, depth=2048, layers=3, stored=2, quantized=False)
    assert took(product, 5) == near(3 * ((4096*2048*2 + 2 * 5 * (2048 + 4096)) / (0.77 * 1e11) + 4400 / 1e9))

def test_devices_divide_the_columns():
    product = Product(4096, 2048, 3, 2, False)
    assert (took(product, 5, devices=2) == near(3 * ((2048*2048*2 + 2 * 5 * (2048 + 2048)) / (0.77 * 1e11) + 4400
                                                     / 1e9)))

def test_weights_that_are_unpacked_reach_less_of_the_bandwidth():
    "Stored in half a byte, multiplied in the dtype of the model: 0.65. Multiplied in their own dtype: 0.77."
    product = Product(4096, 2048, 1, 0.5, True)
    moved = 4096*2048*0.5 + 2 * 5 * (2048 + 4096)
    assert took(product, 5) == near(moved / (0.65 * 1e11) + 4400 / 1e9)
    assert took(product, 5, math=fp8) == near(moved / (0.77 * 1e11) + 4400 / 1e9)

def test_experts_are_read_as_often_as_they_are_expected_to_be_chosen():
    "3 tokens choose 2 of 8: 8 · (1 - (6/8)³) = 4.625 experts are read, each for 3 · 2 / 4.625 rows."
    product = Product(4096, 2048, 1, 2, False, experts=8, chosen=2)
    rows = 6 / 4.625
    assert took(product, 3) == near(4.625 * (4096*2048*2 + 2 * rows * (2048 + 4096)) / (0.77 * 1e11) + 4400 / 1e9)

def test_a_product_that_waits_for_the_arithmetic():
    """256 · 128 · 64 multiply-accumulates at 0.92 of the peak: of the model's dtype, or of that in which quantized
    weights multiply."""
    peaks, chip = roofs(1e14, endless), Chip(1, endless, 64)
    def at(quantized, math): return took(Product(128, 64, 7, 1, quantized), 256, 1, math, peaks, chip)
    assert at(False, bf16) == at(False, fp8) == at(True, bf16) == near(7 * 2*256*128*64 / (0.92 * 1e14))
    assert at(True, fp8) == near(7 * 2*256*128*64 / (0.92 * 2e14))

def test_a_product_that_waits_for_its_feed():
    """One block of 256 rows and 128 columns, 64 deep, fed with 0.52 of 64 B in a clock; 1000 cycles for the block,
    4400 to start. Rows are of 2 B, or as narrow as the weights where those multiply in their own dtype."""
    peaks = roofs(endless, endless)
    def fed(a, b): return near(64 * (256*a + 128*b) / (0.52 * 64 * 1e9) + 1000 / 1e9 + 4400 / 1e9)
    assert took(Product(128, 64, 1, 2, False), 256, 1, bf16, peaks, one) == fed(2, 2)
    assert took(Product(128, 64, 1, 1, True), 256, 1, fp8, peaks, one) == fed(1, 1)
    assert took(Product(128, 64, 1, 1, True), 256, 1, bf16, peaks, one) == fed(2, 1)
    assert took(Product(128, 64, 1, 4, True), 256, 1, fp8, peaks, one) == fed(2, 4)

def test_products_add_up():
    a, b = Product(4096, 2048, 3, 2, False), Product(4096, 1024, 2, 2, False)
    assert products_time([a, b], 5, 1, roofs(), wide, bf16, bf16) == near(took(a, 5) + took(b, 5))

# -- what a model has -----------------------------------------------------------------------------------------------

def kind(layers, kv_heads, head_dim, length, at="layers.0", **more):
    "Layers that keep keys and values of 2 B."
    pairs = layers * 2 * kv_heads * head_dim * length * 2
    return KeptByLayers(layers, kv_heads, head_dim, pairs, 0, pairs / max(length, 1), pairs, length, length, at,
                        **more)

def step(tokens, context, kinds, heads, layers, weights=()):
    held = CacheContents(tuple(kinds))
    return StepWork(tokens, context, 0.0, 0.0, 0.0, tuple(weights), held, held.new, 0.0, 0.0, heads, layers)

def test_heads_are_those_of_the_cache():
    """Layers with a window and layers without; heads of queries by layer, as many as of keys where none were seen;
    states have none."""
    states = KeptByLayers(3, 0, 0, 0, 4096, 0, 4096, 0, 0, "layers.5")
    kinds = (kind(10, 2, 16, 24), kind(2, 4, 32, 72, "layers.1"), replace(kind(1, 2, 16, 72, "layers.2"), needed=8),
             states)
    assert heads_of(step(1, 72, kinds, {"layers.0": 8, "layers.2": 4}, 16)) == \
        [Heads(10, 8, 2, 16, 24), Heads(2, 4, 4, 32, 72), Heads(1, 4, 2, 16, 8)]

def test_products_are_those_that_an_engine_runs():
    """Queries, keys and values are one product, and so are gate and up: they read one input. What comes last in a
    module is a product of its own. Experts are one for each. Tables and vectors are none."""
    def weight(name, *shape, role="matrix", **more):
        return Weight(tuple(f"layers.{i}.{name}.weight" for i in range(4)), role, shape, 2, **more)
    weights = [weight("attn.q", 64, 64), weight("attn.k", 32, 64), weight("attn.v", 32, 64), weight("attn.o", 64, 64),
               weight("mlp.gate", 96, 64), weight("mlp.up", 96, 64), weight("mlp.down", 64, 96),
               weight("norm", 64, role="other"),
               weight("embed", 320, 64, role="rows"), weight("moe.experts", 8, 48, 64, role="experts", chosen=2)]
    work = step(1, 72, (), {}, 4, weights)
    expected = [Product(64, 48, 4, 2, False, 8, 2),
                Product(64 + 32 + 32, 64, 4, 2, False), Product(64, 64, 4, 2, False),
                Product(96 + 96, 64, 4, 2, False), Product(64, 96, 4, 2, False)]
    assert products_of(work, StoredWeights()) == expected
    # one byte, and a scale of 2 B for each row
    def packed(w): return math.prod(w.shape) + 2 * math.prod(w.shape[:-1])
    eight = products_of(work, StoredWeights({n: packed(w) for w in weights if w.role in ("matrix", "experts")
                                             for n in w.names}))
    assert ([p.stored for p in eight] == [1 + 2 / 64, 1 + 2 / 64, 1 + 2 / 64, 1 + 2 / 64, 1 + 2 / 96]
            and all(p.quantized for p in eight))
    assert [p.columns for p in eight] == [p.columns for p in expected]
    one = products_of(work, StoredWeights({"layers.3.mlp.down.weight": 64 * 96}))          # in one of the four layers
    assert [p for p in one if p not in expected] == [Product(64, 96, 3, 2, False), Product(64, 96, 1, 1, True)]

# -- attention ------------------------------------------------------------------------------------------------------

def attended(work, batch, devices, cache, chip=Chip(10, 1e9, 64), kernel=AttentionKernel()):
    return attention_of_forward(work, batch, devices, cache, roofs(), chip, bf16, kernel)

def test_attention_of_a_token():
    """3 sequences; 4 layers with 16 heads of 16, keys of 8 heads; 72 keys. By layer: 16 000 cycles to start, 4200
    for each round of 10 multiprocessors, 4500 to join; keys and values, queries and results of 2 B each at 0.85 of
    100 GB/s; products at 0.69."""
    work, cache = step(1, 72, [kind(4, 8, 16, 72)], {"layers.0": 16}, 4), 4 * 2*8*16*72*2
    memory = 3 * (2*8*16*72*2 + 4 * 16*16) / (0.85 * 1e11)
    products = 4 * 3 * 16*16 * 72 / (0.69 * 1e14)
    # 24 blocks: 3 rounds
    assert attended(work, 3, 1, [cache]) == near(4 * (16e-6 + memory + 3 * 4.2e-6 + products + 4.5e-6))

def test_attention_on_several_devices():
    """Heads stay whole: of 8 heads of keys, one of 3 devices has 3, with 6 of 16 heads of queries; of 2 on 4
    devices each has one, and 4."""
    def by_layer(own, shared, cache, rounds):
        return (16e-6 + 3 * (cache + 4 * own*16) / (0.85 * 1e11) + rounds * 4.2e-6 + 4 * 3 * own*16 * 72
                / (0.69 * 1e14) + 4.5e-6)
    work = step(1, 72, [kind(4, 8, 16, 72)], {"layers.0": 16}, 4)
    # 9 blocks: 1 round
    assert attended(work, 3, 3, [4 * 2*3*16*72*2]) == near(4 * by_layer(6, 3, 2*3*16*72*2, 1))
    few = step(1, 72, [kind(4, 2, 16, 72)], {"layers.0": 16}, 4)
    assert attended(few, 3, 4, [4 * 2*1*16*72*2]) == near(4 * by_layer(4, 1, 2*1*16*72*2, 1))

def test_attention_within_a_window():
    "24 of 72 keys; a layer more sees all: the kinds add up."
    kinds = kind(4, 8, 16, 24), kind(1, 8, 16, 72, "layers.1")
    work = step(1, 72, kinds, {"layers.0": 16, "layers.1": 16}, 5)
    def by_layer(keys): return (16e-6 + 3 * (2*8*16*keys*2 + 4 * 16*16) / (0.85 * 1e11) + 3 * 4.2e-6 + 4.5e-6
                                + 4 * 3 * 16*16 * keys / (0.69 * 1e14))
    assert attended(work, 3, 1, [4 * 2*8*16*24*2, 2*8*16*72*2]) == near(4 * by_layer(24) + by_layer(72))

def test_attention_of_a_prompt():
    """100 tokens in blocks of 96: 2 for each of 3 · 16 heads, 96 blocks on 10 multiprocessors in 10 rounds, 5900
    cycles each, and the products of 96 queries with their share of the keys. Below the diagonal there are 100 · 101
    / 2 pairs; within a window of 40, 40 · 41 / 2 and 60 rows of 40."""
    for window, pairs in ((100, 5050), (40, 820 + 2400)):
        work = step(100, 100, [kind(4, 8, 16, window)], {"layers.0": 16}, 4)
        cache = 2*8*16*window*2
        memory = 3 * (cache + 4 * 100 * 16*16) / (0.85 * 1e11)
        flops = 4 * 3 * 16*16 * pairs
        block = 96 * flops / (3 * 16 * 100) / (0.69 * 1e14 / 10)
        assert attended(work, 3, 1, [4 * cache]) == near(4 * (16e-6 + memory + 10 * (block + 5.9e-6)))

# -- the rest -------------------------------------------------------------------------------------------------------

def test_other_kernels():
    """5 kernels a layer, 10 with experts: each starts, and reads and writes the hidden state of 7 tokens at 0.88 of
    100 GB/s."""
    each = 4400 / 1e9 + 2 * 7 * 128 / (0.88 * 1e11)
    assert others_time(3, 7, 128, False, roofs(), one) == near(3 * 5 * each)
    assert others_time(3, 7, 128, True, roofs(), one) == near(3 * (5 + 5) * each)

def test_what_is_sent():
    """An all-reduce sends 2 (n - 1) / n of its bytes at 0.75 of the link, and takes 8 µs more; alone, a device
    sends nothing."""
    assert reduce_time(4, 8192, 6, 1e9) == near(6 * (8e-6 + 2 * 3/4 * 8192 / (0.75 * 1e9)))
    assert reduce_time(2, 8192, 6, 1e9) == near(6 * (8e-6 + 8192 / (0.75 * 1e9)))
    assert reduce_time(4, 8192, 6, None) == near(6 * 8e-6) and reduce_time(1, 8192, 6, 1e9) == 0

product = Product(4096, 2048, 3, 2, False)
def served(**more):
    given = dict(peaks=roofs(), chip=wide, products=dict(prefill=[product], decode=[product]), devices=2, width=128,
                 dtype=bf16, math=bf16,
                 kernel=AttentionKernel(), link=1e9)
    return ServedTimes(**given | more)

def test_a_forward_has_four_parts():
    """3 sequences of a token, on 2 devices: the parts are those of its functions, for 3 tokens of 128 B, in 5
    layers with 2 all-reduces each."""
    work = step(1, 72, [kind(4, 8, 16, 72)], {"layers.0": 16}, 5)
    parts = served().forward("decode", work, 3, [4 * 2*4*16*72*2])
    assert parts == dict(
        products=near(3 * ((2048*2048*2 + 2 * 3 * (2048 + 2048)) / (0.77 * 1e11) + 4400 / 1e9)),
        attention=near(4 * (16e-6 + 3 * (2*4*16*72*2 + 4 * 8*16) / (0.85 * 1e11) + 4.2e-6 + 4 * 3 * 8*16 * 72
                            / (0.69 * 1e14) + 4.5e-6)),
        others=near(5 * 5 * (4400 / 1e9 + 2 * 3*128 / (0.88 * 1e11))),
        reduce=near(2 * 5 * (8e-6 + 3*128 / (0.75 * 1e9))))
    experts = served(products=dict(decode=[replace_product(
        experts=8, chosen=2)])).forward("decode", work, 3, [4 * 2*4*16*72*2])
    assert experts["others"] == near(2 * parts["others"])
    prompt = served().forward("prefill", step(100, 100, [kind(4, 8, 16, 100)], {"layers.0": 16}, 5), 3,
                              [4 * 2*4*16*100*2])
    assert prompt["reduce"] == near(2 * 5 * (8e-6 + 3*100*128 / (0.75 * 1e9)))
    assert prompt["products"] == near(took(product, 3 * 100, 2))

def test_matrices_that_are_not_quantized_multiply_in_the_dtype_that_is_asked_for():
    "3 layers of 128 · 4096 · 2048 multiply-accumulates at 0.92 of 100 TFLOP/s in bfloat16, of 200 in fp8."
    fast = dict(peaks=roofs(1e14, endless), chip=Chip(1, endless, 64), devices=1, link=None)
    def products(**how):
        return served(**fast, **how).forward("prefill", step(128, 128, [kind(4, 8, 16, 128)], {"layers.0": 16}, 5), 1,
                                             [4 * 2*8*16*128*2])["products"]
    assert products() == near(3 * 2*128*4096*2048 / (0.92 * 1e14)) and products(math=fp8) == near(products() / 2)
    # what is kept stays in the dtype of the model
    mixed = dict(prefill=[product, replace_product(quantized=True, stored=1)])
    assert products(math=fp8, products=mixed) == near(1.5 * products())

def replace_product(**more): return product._replace(**more)

def test_a_token_of_a_server():
    """Between two of 16 tokens of a request, 8 requests bring a sixteenth of their prompts each; the server takes
    half a millisecond."""
    parts = dict(products=1.0, others=2.0)
    assert served().token(parts, 0.4, 8, 16) == dict(products=1.0, others=2.0, prefills=8 * 0.4 / 16, server=0.5e-3)
    assert served(engine="bare").token(parts, 0.4, 8, 16) == parts

def test_the_interval():
    "Eight of ten runs lie within 1.2816 standard deviations: 0.28 of the logarithm for a token, 0.34 for a prompt."
    llama = dict(model_type="llama", hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                 vocab_size=320)
    result = serve(llama, 64, 8, 1, "NVIDIA H100 80GB HBM3")
    for phase, deviation in (("decode", 0.28), ("prefill", 0.34)):
        point = result.point(phase, 1)
        assert point.high_s == pytest.approx(point.expected_s * math.exp(1.2816 * deviation), rel=1e-4)
        assert point.low_s == pytest.approx(point.expected_s * math.exp(-1.2816 * deviation), rel=1e-4)

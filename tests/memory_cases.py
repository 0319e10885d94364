"""Runs whose memory is counted and measured: forwards and training steps, small, of many kinds.

`live_peak` and `tracked_peak` measure the same runs without any code of the library: a sum of live storages by weak
references, and PyTorch's own MemTracker."""
import weakref

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

def storages(t):
    "The storages of a tensor of any kind."
    if t.layout is torch.sparse_coo: return [s for part in (t._indices(), t._values()) for s in storages(part)]
    if t.layout is torch.sparse_csr:
        return [s for part in (t.crow_indices(), t.col_indices(), t.values()) for s in storages(part)]
    if hasattr(t, "__tensor_flatten__"):
        return [s for name in t.__tensor_flatten__()[0] if isinstance(v := getattr(t, name), torch.Tensor)
                for s in storages(v)]
    return [t.untyped_storage()]

class Live(TorchDispatchMode):
    "The sum of the storages that are alive, and its maximum after an operator."
    def __init__(self): super().__init__(); self.alive, self.refs, self.peak = {}, {}, 0
    def add(self, tree):
        for t in tree_leaves(tree):
            for s in storages(t) if isinstance(t, torch.Tensor) else ():
                if s._cdata in self.alive: continue
                self.alive[s._cdata] = s.nbytes()
                self.refs[s._cdata] = weakref.ref(s, lambda _, key=s._cdata: self.alive.pop(key))
        self.peak = max(self.peak, sum(self.alive.values()))
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        # no leaf copies a sparse gradient that lies in rows, unless a mode sees it
        taken = op is torch.ops.aten.clone.default and args[0].layout is torch.sparse_coo
        if taken and args[0]._values().is_contiguous(): return args[0]
        out = op(*args, **kwargs or {})
        self.add(out)
        return out

def given_to(model, sample, optimizer):
    return [*model.parameters(), *model.buffers(), *tree_leaves(sample),
            *tree_leaves([*(optimizer.state.values() if optimizer else ())])]

def run(model, sample, backward=False, loss=None, optimizer=None):
    "The forward or the step; what it returns stays alive."
    args, kwargs = (((), sample) if isinstance(sample, dict)
                    else (sample if isinstance(sample, tuple) else (sample,), {}))
    if not backward: return model(*args, **kwargs)
    out = model(*args, **kwargs)
    value = loss(out) if loss else total(out)
    value.backward()
    if optimizer: optimizer.step()
    return out

def total(out):
    sums = [t.sum() for t in flat(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    return sum(sums[1:], sums[0])

def flat(out):
    if isinstance(out, dict): out = list(out.values())
    return [x for o in out for x in flat(o)] if isinstance(out, (list, tuple)) else [out]

def prepared(case):
    "Model, sample and how it is run; the state of an optimizer is there, and no gradient."
    torch.manual_seed(0)
    made = case()
    model, sample, how = made[0], made[1], dict(made[2]) if len(made) > 2 else {}
    model.train(bool(how.get("backward")))
    if "optimizer" in how:
        how["optimizer"] = how["optimizer"](model.parameters())
        run(model, sample, **how)
        how["optimizer"].zero_grad()
    return model, sample, how

def live_peak(case):
    model, sample, how = prepared(case)
    live = Live()
    live.add(given_to(model, sample, how.get("optimizer")))
    with torch.set_grad_enabled(bool(how.get("backward"))), live: out = run(model, sample, **how)
    return live.peak

def tracked_peak(case):
    from torch.distributed._tools.mem_tracker import MemTracker
    model, sample, how = prepared(case)
    tracker = MemTracker()
    tracker.track_external(model, *[t for t in tree_leaves(sample) if isinstance(t, torch.Tensor)])
    if how.get("optimizer"): tracker.track_external(how["optimizer"])
    with torch.set_grad_enabled(bool(how.get("backward"))), tracker: out = run(model, sample, **how)
    return sum(d["Total"] for d in tracker.get_tracker_snapshot("peak").values())

# ---- models

def mlp(n=8, d=64): return nn.Sequential(*[nn.Linear(d, d) for _ in range(n)])

class Returns(nn.Module):
    "Returns what each layer gave."
    def __init__(self): super().__init__(); self.layers = mlp(10)
    def forward(self, x):
        given = []
        for l in self.layers: x = l(x); given.append(x)
        return given

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
    def forward(self, ids): return self.head(torch.tanh(self.body(self.embed(ids))))

class Views(nn.Module):
    "Three products with parts of one parameter, and views of one result."
    def __init__(self): super().__init__(); self.qkv = nn.Parameter(torch.randn(48, 16))
    def forward(self, x):
        q, k, v = (x @ self.qkv.t()).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)

class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.blocks, self.reentrant = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
                                                    for _ in range(4)), reentrant
    def forward(self, x):
        for b in self.blocks: x = checkpoint(b, x, use_reentrant=self.reentrant)
        return x

class Sparse(nn.Module):
    def __init__(self):
        super().__init__(); self.embed, self.out = nn.Embedding(1000, 32, sparse=True), nn.Linear(32, 4)
    def forward(self, ids): return self.out(self.embed(ids).mean(1))

class Experts(nn.Module):
    "Each token goes to one of four experts."
    def __init__(self):
        super().__init__()
        self.gate, self.experts = (nn.Linear(16, 4),
                                   nn.ModuleList(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
                                                 for _ in range(4)))
    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, e in enumerate(self.experts):
            rows = (chosen == i).nonzero()[:, 0]
            out = out.index_add(0, rows, e(x[rows]) * weight[rows, None])
        return out

class Cached(nn.Module):
    "Keeps keys and values as attributes."
    def __init__(self): super().__init__(); self.k, self.q = nn.Linear(16, 16), nn.Linear(16, 16); self.cache = None
    def forward(self, x):
        self.cache = self.k(x)
        return (self.q(x) @ self.cache.transpose(-1, -2)).softmax(-1) @ self.cache

class Autocast(nn.Module):
    def __init__(self, *layers): super().__init__(); self.net = nn.Sequential(*layers)
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16): return self.net(x)

def wide(): return Autocast(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 8))
def norms(): return Autocast(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.GroupNorm(4, 16), nn.LayerNorm([16, 6, 6]))

class LastOfLstm(nn.Module):
    def __init__(self):
        super().__init__(); self.lstm, self.out = nn.LSTM(16, 32, 2, batch_first=True), nn.Linear(32, 4)
    def forward(self, x): return self.out(self.lstm(x)[0][:, -1])

def sgd(p): return torch.optim.SGD(p, lr=0.1)
def momentum(p): return torch.optim.SGD(p, lr=0.1, momentum=0.9)
def adamw(p): return torch.optim.AdamW(p, lr=0.1)
def fused(p): return torch.optim.AdamW(p, lr=0.1, fused=True)
def foreach(p): return torch.optim.Adam(p, lr=0.1, foreach=True)
def sparse_adam(p): return torch.optim.SGD(p, lr=0.1)

def squares(out): return out.square().sum()          # unlike that of a sum, its gradient is copied by no product
def cross_entropy(out):
    return F.cross_entropy((out.logits if hasattr(out, "logits") else out).flatten(0, -2),
                           torch.zeros((out.logits if hasattr(out, "logits") else out).flatten(0, -2).shape[0],
                                       dtype=torch.long))

def vision(name, **more):
    import torchvision
    return getattr(torchvision.models, name)(**more)

# The kinds of layers of resnet18, densenet121, swin_t and vit_b_16, each once or twice.
def residual():
    from torchvision.models.resnet import BasicBlock, ResNet
    return ResNet(BasicBlock, [1, 1, 1, 1])

def dense(): return vision("DenseNet", growth_rate=8, block_config=(2, 2), num_init_features=16)
def swin():
    return vision("SwinTransformer", patch_size=[4, 4], embed_dim=48, depths=[2, 2], num_heads=[3, 6],
                  window_size=[7, 7], stochastic_depth_prob=0.2)
def vit():
    return vision("VisionTransformer", image_size=32, patch_size=16, num_layers=2, num_heads=4, hidden_dim=64,
                  mlp_dim=128)
def pictures(model, **how): return model, torch.randn(2, 3, 64, 64), how

def llama(layers=2):
    from transformers import LlamaConfig, LlamaForCausalLM
    return LlamaForCausalLM(LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=layers,
                                        num_attention_heads=4, num_key_value_heads=2, vocab_size=100))

def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=100, n_positions=64))

def bert():
    from transformers import BertConfig, BertModel
    return BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                                vocab_size=100))

def mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM
    return MixtralForCausalLM(MixtralConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                            num_attention_heads=4, num_key_value_heads=2, vocab_size=100,
                                            num_local_experts=4))

def timm_model(name, **more):
    import timm
    return timm.create_model(name, pretrained=False, **more)

def ids(n=24): return torch.arange(2 * n).reshape(2, n) % 100
def step(**more): return dict(backward=True, **more)

cases = {
    "MLP, forward": lambda: (mlp(), torch.randn(4, 64)),
    "MLP, step": lambda: (mlp(), torch.randn(4, 64), step()),
    "MLP, step with SGD": lambda: (mlp(), torch.randn(4, 64), step(optimizer=sgd)),
    "MLP, step with momentum": lambda: (mlp(), torch.randn(4, 64), step(optimizer=momentum)),
    "MLP, step with AdamW": lambda: (mlp(), torch.randn(4, 64), step(optimizer=adamw)),
    "MLP, step with fused AdamW": lambda: (mlp(), torch.randn(4, 64), step(optimizer=fused)),
    "MLP, step with Adam over lists": lambda: (mlp(), torch.randn(4, 64), step(optimizer=foreach)),
    "returns ten layers": lambda: (Returns(), torch.randn(1024, 64)),
    "returns ten layers, step": lambda: (Returns(), torch.randn(1024, 64), step()),
    "tied weights, step": lambda: (Tied(), ids() % 50, step(loss=cross_entropy, optimizer=adamw)),
    "views of one storage": lambda: (Views(), torch.randn(2, 8, 16)),
    "views of one storage, step": lambda: (Views(), torch.randn(2, 8, 16), step()),
    "in-place activations, step": lambda: (nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Linear(64, 64), nn.SiLU(inplace=True)), torch.randn(32, 64),
                                           step()),
    "checkpointing": lambda: (Checkpointed(False), torch.randn(128, 64), step()),
    "checkpointing, reentrant": lambda: (Checkpointed(True), torch.randn(128, 64).requires_grad_(), step()),
    "LSTM": lambda: (LastOfLstm(), torch.randn(4, 12, 16)),
    "LSTM, step": lambda: (LastOfLstm(), torch.randn(4, 12, 16), step(optimizer=adamw)),
    "sparse embedding, step": lambda: (Sparse(), torch.arange(60).reshape(4, 15), step(optimizer=sparse_adam)),
    "sparse bag, step": lambda: (nn.EmbeddingBag(100, 16, mode="sum", sparse=True), ids(), step(loss=squares)),
    "bag of means, step": lambda: (nn.EmbeddingBag(100, 16), ids(), step(loss=squares)),
    "sparse gradient of an expanded one, step": lambda: (
        nn.Embedding(1000, 64, sparse=True), torch.arange(1000).reshape(4, 250), step()),
    "sparse sample": lambda: (nn.Linear(64, 64), torch.eye(64).to_sparse()),
    "experts": lambda: (Experts(), torch.randn(64, 16)),
    "experts, step": lambda: (Experts(), torch.randn(64, 16), step()),
    "cache in an attribute": lambda: (Cached(), torch.randn(2, 32, 16)),
    "autocast, step": lambda: (wide(), torch.randn(64, 64), step(optimizer=sgd)),
    "norms under autocast, step": lambda: (norms(), torch.randn(2, 3, 8, 8), step()),
    "batch norm of a sample, step": lambda: (nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 8)),
                                             torch.randn(128, 64), step(loss=squares)),
    "encoder layer, step": lambda: (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), torch.randn(2, 16, 32),
                                    step()),
    "encoder layer, forward": lambda: (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
                                       torch.randn(2, 16, 32)),
    "GRU and batch norm, step": lambda: (nn.Sequential(
        nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Softmax(-1)), torch.randn(2, 4, 32), step()),
    "squeezenet1_1, forward": lambda: pictures(vision("squeezenet1_1")),
    "squeezenet1_1, step with AdamW": lambda: pictures(vision("squeezenet1_1"), **step(optimizer=adamw)),
    "residual blocks, forward": lambda: pictures(residual()),
    "residual blocks, step with AdamW": lambda: pictures(residual(), **step(optimizer=adamw)),
    "dense blocks, forward": lambda: pictures(dense()),
    "dense blocks, step with AdamW": lambda: pictures(dense(), **step(optimizer=adamw)),
    "swin blocks, forward": lambda: (swin(), torch.randn(1, 3, 64, 64)),
    "swin blocks, step": lambda: (swin(), torch.randn(1, 3, 64, 64), step(optimizer=sgd)),
    "vit of 32 pixels, step": lambda: (vit(), torch.randn(1, 3, 32, 32), step(optimizer=sgd)),
    "timm convnext, step": lambda: (timm_model("convnext_atto"), torch.randn(2, 3, 64, 64), step(optimizer=adamw)),
    "timm vit, forward": lambda: (timm_model("vit_tiny_patch16_224", img_size=32), torch.randn(2, 3, 32, 32)),
    "Llama, prefill with its cache": lambda: (llama(), dict(input_ids=ids(), use_cache=True)),
    "Llama, step": lambda: (llama(), dict(input_ids=ids(), use_cache=False),
                            step(loss=cross_entropy, optimizer=adamw)),
    "GPT-2, step": lambda: (gpt2(), dict(input_ids=ids(), use_cache=False), step(loss=cross_entropy, optimizer=sgd)),
    "BERT, forward": lambda: (bert(), dict(input_ids=ids())),
    "Mixtral, step": lambda: (mixtral(), dict(input_ids=ids(), use_cache=False), step(loss=cross_entropy)),
}

whole = {       # once a week
    "mobilenet_v3_small, forward": lambda: pictures(vision("mobilenet_v3_small")),
    "mobilenet_v3_small, step with AdamW": lambda: pictures(vision("mobilenet_v3_small"), **step(optimizer=adamw)),
    "resnet18, step with AdamW": lambda: pictures(vision("resnet18"), **step(optimizer=adamw)),
    "densenet121, step with AdamW": lambda: pictures(vision("densenet121"), **step(optimizer=adamw)),
    "swin_t, step": lambda: (vision("swin_t"), torch.randn(1, 3, 64, 64), step(optimizer=sgd)),
    "vit_b_16 of 32 pixels, step": lambda: (vision("vit_b_16", image_size=32), torch.randn(1, 3, 32, 32),
                                            step(optimizer=sgd)),
}

"""A training step of every class of transformers with a causal head, small: counted without data beside counted
while it runs."""
import copy, sys
from pathlib import Path

import pytest, torch
from conftest import heavy_only, nightly_only

sys.path[:0] = [str(Path(__file__).parents[1]/"serving"), str(Path(__file__).parents[1])]
transformers, small_models = pytest.importorskip("transformers"), pytest.importorskip("small_models")

from fasterbench import count_work, predict
from test_without_data import check

few = "gpt_neox", "qwen3_moe"       # attention, experts

def step(name):
    "Model and sample of a training step, with data; skips what transformers itself cannot run."
    try:
        torch.manual_seed(0)
        config = small_models.small_config(name)
        model = transformers.AutoModelForCausalLM.from_config(config).train()
    except Exception as error: pytest.skip(f"the defaults of its configuration, made small, are not valid: {error}")
    ids = torch.randint(0, 200, (2, 16))
    sample = dict(input_ids=ids, labels=ids.clone(), use_cache=False)
    try: copy.deepcopy(model)(**sample).loss.backward()          # a copy: some change themselves in their first step
    except Exception as error: pytest.skip(f"the model does not train so: {error}")
    return config, model, sample

def of_step(output): return output.loss

def counts_alike(name):
    config, model, sample = step(name)
    with torch.device("meta"): empty = transformers.AutoModelForCausalLM.from_config(config).train()
    given = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in sample.items()}
    try: found = count_work(empty, given, backward=True, loss=of_step)
    except ValueError as error:
        assert "reads what is in a tensor" in str(error)
        return
    ran = count_work(model, sample, backward=True, loss=of_step)
    check(found, ran)
    states = ran.memory.start_bytes - found.memory.start_bytes      # that the model kept of the step before
    assert states >= 0 and found.memory.peak_bytes == ran.memory.peak_bytes - states
    limit = predict(empty, given, on="NVIDIA H100 SXM", backward=True, loss=of_step)
    assert {row.phase for row in limit.rows()} >= {"forward", "backward"}

@heavy_only("trains two models")
@pytest.mark.parametrize("name", few)
def test_a_step_without_data_is_a_real_step(name): counts_alike(name)

@nightly_only("trains some two hundred models")
@pytest.mark.parametrize("name", [n for n in small_models.causal if n not in few])
def test_every_class_is_counted_without_data(name): counts_alike(name)

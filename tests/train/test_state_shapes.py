"""The shapes of what a job trains, by formula and from files, against the modules themselves."""

import importlib.util
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.data.model_folder import ModelFolder
from planner.data.stored_shapes import stored_shapes
from planner.job import GptModel, HfModel, Job
from planner.job.model import gpt_shapes
from planner.plan.commit_size import CommitSize, NotKnown
from planner.runner.commit_size import commit_size
from planner.train.models.gpt import Gpt
from planner.train.shard import blocks_of, hf_shapes

ADAPTERS = [{}, {"rank": 3}, {"rank": 2, "targets": ["q_proj", "mlp.down_proj"]}, {"targets": ["layers.1.mlp.up_proj"]}]
FAMILIES = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "max_shard_size": "20KB"}),
    ("llama", {"tie_word_embeddings": True, "dtype": "bfloat16"}),
    ("mistral", {}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("qwen3", {"tie_word_embeddings": False}),
    ("smollm3", {}),
]


@given(
    layers=st.integers(1, 5),
    heads=st.integers(1, 4),
    features=st.integers(1, 9),
    context=st.integers(1, 300),
    tied=st.booleans(),
)
def test_planners_own_model_has_the_shapes_of_the_formula(layers, heads, features, context, tied):
    """Every parameter, and the blocks that FSDP gathers."""
    config = GptModel(
        kind="gpt", layers=layers, width=heads * features, heads=heads, context=context, tied_embeddings=tied
    )
    with torch.device("meta"):
        model = Gpt(config)
    found = gpt_shapes(config)
    assert found.trained == Counter(tuple(parameter.shape) for parameter in model.parameters())
    assert found.num_blocks == len(blocks_of(model))
    assert found.num_parameters == sum(parameter.numel() for parameter in model.parameters())


def hf(folder, **settings):
    return HfModel.model_validate({"kind": "hf", "path": str(folder), "context": 24, **settings})


def told_shapes(model):
    """What the model's files tell."""
    return stored_shapes(ModelFolder.find(model))


def built_shapes(model):
    """What transformers builds."""
    return hf_shapes(ModelFolder.find(model))


@pytest.mark.parametrize(("family", "changes"), FAMILIES)
def test_files_tell_what_transformers_would_build(tiny_model, family, changes):
    """The shapes of all parameters, or of the adapters, to the last one."""
    folder = tiny_model(family, **changes)
    for lora in (None, *ADAPTERS):
        model = hf(folder, lora=lora)
        found = told_shapes(model)
        assert found is not None
        assert found == built_shapes(model), lora


def test_a_stored_head_that_is_shared_counts_once(tiny_model):
    """Some files hold the embedding a second time, under the head's name."""
    from safetensors.torch import load_file, save_file

    folder = tiny_model("qwen2")
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, file, {"format": "pt"})
    assert told_shapes(hf(folder)) == built_shapes(hf(folder))


JOB = {
    "name": "test",
    "data": {"kind": "chat", "path": "chat.jsonl"},
    "objective": {"kind": "sft"},
    "batch": {"global": 6, "max_micro": 2, "equality": "bitwise"},
    "train": {"steps": 4, "optimizer": {"kind": "sgd", "lr": 1e-3}},
}


def test_a_dry_run_builds_the_model_if_its_files_do_not_tell(tiny_model, monkeypatch):
    """A plan does not, because that takes seconds. Without transformers, the reason says what to install."""
    model = hf(tiny_model("gpt_neox"), weights="random")
    job = Job.model_validate({**JOB, "model": model.model_dump()})
    planned, built = (commit_size(job, may_build=may_build) for may_build in (False, True))
    assert isinstance(planned, NotKnown)
    assert isinstance(built, CommitSize)
    assert built.shapes == built_shapes(model)
    assert built.state_bytes == 4 * built.shapes.num_parameters + 8 * (2 + 1 + 1)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    lacking = commit_size(job, may_build=True)
    assert isinstance(lacking, NotKnown)
    assert lacking.reason.startswith("only transformers can tell for this model: pip install ")


def test_a_name_on_the_hub_needs_the_library_that_finds_it(monkeypatch):
    """It is a reason, and not an error: the plan is shown without transformers, too."""
    job = Job.model_validate({**JOB, "model": hf("nobody/nothing").model_dump()})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    found = commit_size(job, may_build=True)
    assert isinstance(found, NotKnown)
    assert found.reason.startswith("model.kind hf needs transformers: ")


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("gpt_neox", {}),
        ("gemma4_text", {}),
        ("llama", {"weights": "random"}),
        ("llama", {"lora": {"targets": ["embed_tokens"]}}),
        ("llama", {"lora": {"targets": ["q_proj", "no_such_layer"]}}),
    ],
)
def test_files_do_not_tell_where_they_could_be_wrong(tiny_model, family, settings):
    """Other families, whose files may hold buffers, weights that are not read, and adapters outside of the blocks."""
    folder = tiny_model(family)
    assert told_shapes(hf(folder, **settings)) is None


def test_a_tensor_that_no_layer_is_known_to_have_makes_files_useless(tiny_model):
    """Such as the frequencies that old files hold."""
    from safetensors.torch import load_file, save_file

    folder = tiny_model("llama")
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    save_file({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, file, {"format": "pt"})
    assert told_shapes(hf(folder)) is None
    del tensors["lm_head.weight"]
    save_file(tensors, file, {"format": "pt"})
    assert told_shapes(hf(folder)) is None

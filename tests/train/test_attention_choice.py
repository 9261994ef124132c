"""A worker takes the first attention of the rule that it has."""

import pytest
import torch

from planner.data.model_folder import ModelFolder
from planner.errors import UserError
from planner.job import HfModel
from planner.job.compute import FLASH, VARLEN
from planner.train.models import varlen_attention
from planner.train.models.hf import _first_that_fits, build_for_shapes, build_on_meta, computable_attention
from planner.train.shard import hf_shapes


@pytest.fixture(params=[True, False], ids=["installed", "not installed"])
def installed(request, monkeypatch):
    """Whether flash attention is installed here."""
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: request.param)
    return request.param


@pytest.mark.parametrize("has_kernel", [True, False])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_worker_takes_what_it_can_compute(installed, device, has_kernel, monkeypatch):
    """Of what a dry run says. sdpa is always there."""
    monkeypatch.setattr(varlen_attention, "is_there", lambda _device: has_kernel)
    found = computable_attention((VARLEN, FLASH, "sdpa"), torch.device(device))
    takes_flash = installed and device == "cuda"
    assert found == tuple(name for name, takes in ((VARLEN, has_kernel), (FLASH, takes_flash), ("sdpa", True)) if takes)


def test_the_kernel_is_not_on_cpus():
    assert not varlen_attention.is_there(torch.device("cpu"))


@pytest.mark.parametrize(
    ("family", "changes", "attention", "says"),
    [
        ("llama", {}, VARLEN, ()),
        ("mistral", {}, VARLEN, ()),
        ("llama", {"attention_dropout": 0.1}, "sdpa", ("varlen: the model drops 0.1 of its attention, and the ker",)),
    ],
)
def test_auto_is_the_first_that_a_model_has(tiny_model, family, changes, attention, says):
    """The reasons against the ones before it are told."""
    config = HfModel(kind="hf", path=str(tiny_model(family, **changes)), context=24)
    model = build_on_meta(ModelFolder.find(config), auto_attention=(VARLEN, "sdpa"))
    assert model.hf.config._attn_implementation == attention
    assert model.chosen.attention == attention
    assert len(model.chosen.passed_over) == len(says)
    assert all(one.startswith(other) for one, other in zip(model.chosen.passed_over, says, strict=True))


def test_what_transformers_cannot_make_is_passed_over():
    """The last choice raises its error."""

    def built(attention):
        raise {VARLEN: KeyError, FLASH: ValueError, "sdpa": TypeError}[attention](attention)

    with pytest.raises(TypeError):
        _first_that_fits(built, (VARLEN, FLASH, "sdpa"))
    model, chosen = _first_that_fits(lambda name: name if name == "sdpa" else built(name), (VARLEN, FLASH, "sdpa"))
    assert (model, chosen.attention) == ("sdpa", "sdpa")
    cannot = "transformers cannot make the model with it"
    assert chosen.passed_over == (f"varlen: {cannot} ('varlen')", f"{FLASH}: {cannot} ({FLASH})")


def test_auto_takes_no_kernel_that_only_training_would_try(tiny_model, monkeypatch):
    """A model that looks at values cannot run on the meta device. Named in a job, the kernel is tried."""
    from transformers import LlamaModel

    def looks(*_, **__):
        raise RuntimeError("Tensor.item() cannot be called on meta tensors")

    monkeypatch.setattr(LlamaModel, "forward", looks)
    config = HfModel(kind="hf", path=str(tiny_model("llama")), context=24)
    model = build_on_meta(ModelFolder.find(config), auto_attention=(VARLEN, "sdpa"))
    assert model.chosen.passed_over == ("varlen: llama shows only in training whether it can compute with it",)
    named = build_on_meta(ModelFolder.find(config.model_copy(update={"attention": VARLEN})))
    assert (named.hf.config._attn_implementation, named.chosen) == (VARLEN, None)


def test_flash_attention_that_is_not_installed_is_refused_with_what_to_write(tiny_model):
    """By workers. A driver on a node without GPUs, and an export, do not compute with the model and need no package."""
    config = HfModel(kind="hf", path=str(tiny_model("llama")), context=24, attention="flash_attention_2")
    folder, automatic = (ModelFolder.find(each) for each in (config, config.model_copy(update={"attention": "auto"})))
    says = r"^model\.attention flash_attention_2 needs GPUs and the package flash-attn .* Write model\.attention: auto$"
    with pytest.raises(UserError, match=says):
        build_on_meta(folder)
    assert build_for_shapes(folder).hf.config._attn_implementation == "sdpa"
    assert hf_shapes(folder) == hf_shapes(automatic)

"""A worker takes the first attention of the rule that it has."""

import pytest
import torch

from planner.errors import UserError
from planner.job import HfModel
from planner.job.compute import FLASH, attention_choices
from planner.train.models.hf import build_on_meta, fastest_attention
from planner.train.shard import hf_shapes


@pytest.fixture(params=[True, False], ids=["installed", "not installed"])
def installed(request, monkeypatch):
    """Whether flash attention is installed here."""
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: request.param)
    return request.param


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_a_worker_takes_what_a_dry_run_says(installed, device, precision, is_deterministic):
    """Flash attention first, where the rule names it. Deterministic runs never have it."""
    choices = attention_choices(precision, on_gpu=device == "cuda", is_deterministic=is_deterministic)
    torch.use_deterministic_algorithms(is_deterministic)
    try:
        found = fastest_attention(torch.device(device), precision)
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert found == (choices[0] if installed else "sdpa")
    assert (found == FLASH) == (installed and (device, precision, is_deterministic) == ("cuda", "bf16", False))


def test_a_worker_without_the_package_says_so(tiny_model):
    """It does not blame the model's files. The package has no wheels for CPUs, so it is not installed for tests."""
    path = str(tiny_model("llama"))
    model = HfModel.model_validate({"kind": "hf", "path": path, "context": 24, "attention": FLASH})
    with pytest.raises(
        UserError, match=r"^model\.attention flash_attention_2: the package flash-attn cannot be used"
    ) as caught:
        build_on_meta(model)
    assert str(caught.value).endswith("Install it there, or write model.attention: auto")


def test_names_and_shapes_are_known_without_the_package(tiny_model):
    """Where a job is checked, submitted and exported, nobody computes attention."""
    path = str(tiny_model("llama"))
    plain = HfModel.model_validate({"kind": "hf", "path": path, "context": 24})
    flash = plain.model_copy(update={"attention": FLASH})
    assert hf_shapes(flash) == hf_shapes(plain)
    built, _ = build_on_meta(flash, is_computing=False)
    assert built.state_dict().keys() == build_on_meta(plain)[0].state_dict().keys()

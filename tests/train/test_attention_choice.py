"""A worker takes the first attention of the rule that it has."""

import pytest
import torch

from planner.data.model_folder import ModelFolder
from planner.errors import UserError
from planner.job import HfModel
from planner.job.compute import FLASH, attention_choices
from planner.train.models.hf import build_for_shapes, build_on_meta, fastest_attention
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


def test_flash_attention_that_is_not_installed_is_refused_with_what_to_write(tiny_model):
    """By workers. A driver on a node without GPUs, and an export, do not compute with the model and need no package."""
    config = HfModel(kind="hf", path=str(tiny_model("llama")), context=24, attention="flash_attention_2")
    folder, automatic = (ModelFolder.find(each) for each in (config, config.model_copy(update={"attention": "auto"})))
    says = r"^model\.attention flash_attention_2 needs GPUs and the package flash-attn .* Write model\.attention: auto$"
    with pytest.raises(UserError, match=says):
        build_on_meta(folder)
    assert build_for_shapes(folder).hf.config._attn_implementation == "sdpa"
    assert hf_shapes(folder) == hf_shapes(automatic)

"""A worker takes the first attention of the rule that it has."""

import pytest
import torch

from planner.job.compute import FLASH, attention_choices
from planner.train.models.hf import fastest_attention


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

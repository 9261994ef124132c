"""The settings of torch for `bitwise` jobs, and that other jobs get the usual ones back."""

import os

import pytest
import torch

from planner.job import Job
from planner.train.exact import determinism


@pytest.fixture(autouse=True)
def _settings_of_this_process(monkeypatch):
    """What torch had before."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(), torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.set_num_threads(before[1])
    torch.backends.cudnn.benchmark = before[2]
    torch.utils.deterministic.fill_uninitialized_memory = True


def job(equality):
    return Job.model_validate(
        {
            "name": "small",
            "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16},
            "data": {"kind": "text", "path": "text"},
            "batch": {"global": 2, "max_micro": 1, "equality": equality},
            "train": {"steps": 4, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            "workers": {"gpus": 0, "cpus": 1},
        }
    )


def test_a_bitwise_job_is_deterministic_and_fills_no_memory_that_it_will_write():
    """torch would fill each new tensor first, and a step does not need that."""
    determinism.set_up(job("bitwise"))
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_the_next_job_of_the_process_gets_the_usual_settings():
    """A user's own loop may want torch's own determinism, with all of it."""
    determinism.set_up(job("bitwise"))
    determinism.set_up(job("balanced"))
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory

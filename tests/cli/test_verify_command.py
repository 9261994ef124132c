"""`planner verify` in processes that it starts itself, and what it refuses.

`tests/fsdp/test_training_faults.py` has the faults that it finds.
"""

import json

import pytest

from planner.cli.counts import parse_history
from planner.cli.verify_command import verdict
from planner.errors import UserError
from planner.job import HfModel, Job
from planner.provenance.compare import Check
from planner.runner.verify_job import through_processes


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A bitwise job with dropout and a prime global batch."""
    text = tmp_path_factory.mktemp("data") / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    return Job.model_validate(
        {
            "name": "verified",
            "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16, "dropout": 0.1},
            "data": {"kind": "text", "path": str(text)},
            "batch": {"global": 7, "max_micro": 2, "equality": "bitwise"},
            "train": {"steps": 2, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            "eval": {"samples": 3, "every": 2},
            "workers": {"gpus": 0},
            "checkpoint": {"every": 2},
        }
    )


def failed(checks):
    return {check.what: check.detail for check in checks if not check.passed}


@pytest.mark.fsdp
def test_a_bitwise_job_is_identical(job, tmp_path):
    """Every check passes, and the last line says so."""
    checks = through_processes(job, [2, 1], tmp_path / "runs")
    assert failed(checks) == {}
    assert checks[0].detail == "2, 1"
    last = verdict(job, checks, [2, 1])[-1]
    assert last.startswith("verify: IDENTICAL to the last bit: 2 steps at 2 = through 2 -> 1 workers (on the CPU, ")


@pytest.mark.parametrize("text", ["", "0", "4,,3", "a", "4-3", "17", "-1"])
def test_an_invalid_history_is_refused(text):
    """The message says what to write."""
    with pytest.raises(UserError, match="--history"):
        parse_history(text, most=16)


def test_an_invalid_history_is_answered_with_a_valid_one():
    """After what was found."""
    with pytest.raises(UserError, match=r"'x' is not a count from 1 to 65536\. Write counts such as 4,3,5,1$"):
        parse_history("x", most=16)


def test_missing_gpus_are_refused(cli, tmp_path):
    """Before a worker starts. On Ray, it trains on CPUs."""
    (tmp_path / "text").write_text("x" * 4000)
    assert cli("init", "job.yaml").code == 0
    answer = cli("verify", "job.yaml", "--gpu", "--history", "2,1", "--steps", "2")
    assert (answer.code, answer.err) == (
        2,
        "planner: --gpu: torch sees no GPU on this machine. Leave out --gpu to train on the CPU\n",
    )
    answer = cli("verify", "job.yaml", "--gpu", "--ray", "--history", "2,1", "--steps", "2")
    assert (answer.code, answer.out) == (2, "")
    assert "--gpu trains in local processes. Leave out --ray" in answer.err


def test_workers_with_a_gpu_each_use_nccl_and_others_share_one(monkeypatch):
    """NCCL refuses two ranks on one GPU."""
    import torch

    from planner.rehearsal.on_processes import gpu_backend

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert gpu_backend(3) == "cpu:gloo,cuda:nccl"
    assert gpu_backend(4) == "gloo"


def test_a_rehearsal_on_the_cpu_has_no_kernels_of_gpus(job):
    """A job for GPUs can be verified without one."""
    from planner.runner.verify_job import rehearsal_of

    asks = job.model_copy(update={"train": job.train.model_copy(update={"kernels": "liger"})})
    assert rehearsal_of(asks, 3).train.kernels == "own"
    assert rehearsal_of(asks, 3, on_gpus=True).train.kernels == "liger"
    for attention in ("varlen", "flash_attention_2"):
        model = HfModel.model_validate({"kind": "hf", "path": "m", "context": 64, "attention": attention})
        asks = job.model_copy(update={"model": model})
        assert rehearsal_of(asks, 3).model.attention == "auto"
        assert rehearsal_of(asks, 3, on_gpus=True).model.attention == attention


@pytest.mark.parametrize("on_gpus", [True, False])
@pytest.mark.parametrize("setting", [{"train": {"kernels": "liger"}}, {"model": {"attention": "varlen"}}])
def test_the_stored_job_of_a_rehearsal_can_be_read_again(setting, on_gpus):
    """Its audit does. Some settings are refused without GPUs."""
    from planner.runner.verify_job import rehearsal_of

    asks = Job.model_validate(
        {
            "name": "a",
            "model": {"kind": "hf", "path": "m", "context": 64, **setting.get("model", {})},
            "data": {"kind": "chat", "path": "rows"},
            "objective": "sft",
            "batch": {"global": 8, "max_micro": 2},
            "train": {
                "steps": 3,
                "precision": "bf16",
                "optimizer": {"kind": "adamw", "lr": 1e-3},
                **setting.get("train", {}),
            },
            "workers": {"gpus": 1},
        }
    )
    rehearsed = rehearsal_of(asks, 3, on_gpus=on_gpus)
    assert Job.model_validate(rehearsed.model_dump(by_alias=True)) == rehearsed


def check(what, passed=True):
    return Check(what=what, passed=passed, detail="the numbers")


@pytest.fixture(scope="module")
def balanced(job):
    """The same job, whose weights only agree within rounding."""
    return job.model_copy(update={"batch": job.batch.model_copy(update={"equality": "balanced"})})


def test_a_comparison_without_dropout_says_so_in_its_last_line(balanced):
    """It says nothing about runs with dropout, which differ."""
    last = verdict(balanced, [check("losses"), check("dropout")], [2, 1])[-1]
    assert last.startswith("verify: the same samples, and without dropout equal within rounding (batch.equality: bal")
    last = verdict(balanced, [check("losses")], [2, 1])[-1]
    assert last.startswith("verify: the same samples, and equal within rounding")


def test_runs_that_cannot_be_compared_are_not_called_failed(balanced):
    """The last line names both ways out."""
    checks = [check("samples"), check("losses", passed=False), check("random numbers", passed=False)]
    lines = verdict(balanced, checks, [2, 1])
    assert [line[:3] for line in lines[:3]] == ["ok ", "?  ", "?  "]
    assert lines[-1].startswith("verify: NOT COMPARED. ")
    assert "Turn them off" in lines[-1]
    assert "--set batch.equality=bitwise" in lines[-1]


def test_runs_that_cannot_be_compared_end_with_1(cli, tmp_path, monkeypatch):
    """As in docs/reference/exit-codes.md. JSON has the outcome."""
    (tmp_path / "text").write_text("x" * 4000)
    assert cli("init", "job.yaml").code == 0
    checks = [check("losses", passed=False), check("random numbers", passed=False)]
    monkeypatch.setattr("planner.cli.verify_command.verify_job", lambda *_arguments, **_named: checks)
    answer = cli("verify", "job.yaml", "--json")
    found = json.loads(answer.out)
    assert (answer.code, found["passed"], found["outcome"]) == (1, False, "not compared")

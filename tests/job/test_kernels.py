"""Compiled blocks and Liger's kernels: which jobs may have them."""

import copy

import pytest
from pydantic import ValidationError

from planner.job import Job

HF = {
    "name": "a",
    "model": {"kind": "hf", "path": "m", "context": 64},
    "data": {"kind": "chat", "path": "rows"},
    "objective": {"kind": "sft"},
    "batch": {"global": 8, "max_micro": 2},
    "train": {"steps": 1, "optimizer": {"kind": "adamw", "lr": 1e-4}},
}


def job_with(train, **sections):
    job = copy.deepcopy(HF)
    job["train"] |= train
    for name, section in sections.items():
        job[name] = {**job.get(name, {}), **section}
    return Job.model_validate(job)


def test_jobs_on_gpus_may_have_both():
    """In balanced runs. Neither is the default."""
    assert job_with({}).train.compile is False
    assert job_with({}).train.kernels == "auto"
    job = job_with({"compile": "blocks", "kernels": "liger"})
    assert (job.train.compile, job.train.kernels) == ("blocks", "liger")


@pytest.mark.parametrize(
    ("train", "sections", "says"),
    [
        ({"compile": "blocks"}, {"batch": {"equality": "bitwise"}}, "train.compile blocks may change bits"),
        ({"kernels": "liger"}, {"batch": {"equality": "bitwise"}}, "train.kernels liger may change bits"),
        ({"kernels": "liger"}, {"workers": {"gpus": 0}}, "needs GPUs, and workers.gpus is 0. Write train.kernels: own"),
        ({"compile": True}, {}, "train.compile"),
        (
            {"precision": "bf16"},
            {"model": {"attention": "flash_attention_2"}, "batch": {"equality": "bitwise"}},
            "flash_attention_2 may change bits",
        ),
        (
            {},
            {"model": {"attention": "flash_attention_2"}},
            "flash_attention_2 computes in bf16, and train.precision is",
        ),
        (
            {"precision": "bf16"},
            {"model": {"attention": "flash_attention_2"}, "workers": {"gpus": 0}},
            "flash_attention_2 needs GPUs, and workers.gpus is 0. Write model.attention: auto",
        ),
        ({"compile": "blocks"}, {"model": {"lora": {"rank": 2}, "frozen": "nf4"}}, "cannot compile 4-bit weights"),
    ],
)
def test_contradictory_settings_are_refused(train, sections, says):
    with pytest.raises(ValidationError) as caught:
        job_with(train, **sections)
    assert says in str(caught.value).replace("\n", ".").replace("train.compile.", "train.compile ")


VARLEN = {"model": {"attention": "varlen"}}


def test_varlen_is_for_jobs_in_bf16_on_gpus():
    assert job_with({"precision": "bf16"}, **VARLEN).model.attention == "varlen"


@pytest.mark.parametrize(
    ("train", "sections", "says"),
    [
        ({}, {}, "computes in bf16, and train.precision is fp32"),
        ({"precision": "bf16"}, {"workers": {"gpus": 0}}, "needs GPUs, and workers.gpus is 0"),
        ({"precision": "bf16"}, {"batch": {"equality": "bitwise"}}, "may change bits from one world size to another"),
        ({"precision": "bf16", "compile": "blocks"}, {}, "was not tried in compiled blocks"),
    ],
)
def test_varlen_is_refused_in_other_jobs(train, sections, says):
    with pytest.raises(ValidationError, match=rf"model\.attention varlen {says}.*Write model\.attention: auto"):
        job_with(train, **VARLEN, **sections)


def test_a_worker_without_liger_says_what_to_install(tiny_model):
    """Before any weight is read."""
    from planner.data.model_folder import ModelFolder
    from planner.errors import UserError
    from planner.job import HfModel
    from planner.train.models.hf import build_on_meta

    model = HfModel.model_validate({"kind": "hf", "path": str(tiny_model("llama")), "context": 24})
    with pytest.raises(
        UserError, match=r"train\.kernels: liger-kernel cannot be imported .* Install it there .*\[liger\]"
    ):
        build_on_meta(ModelFolder.find(model), use_liger=True)

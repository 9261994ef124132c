"""How workers compute a job's passes: the choices that a job leaves open."""

import pytest

from planner.job import Job
from planner.job.compute import FLASH, VARLEN, attention_order, compute_rule
from planner.report.compute_text import compute_text, compute_value

HF = {"kind": "hf", "path": "m", "context": 64}


def job_with(*, model=None, train=None, batch=None, data=None, objective="sft"):
    return Job.model_validate(
        {
            "name": "a",
            "model": {**HF, **(model or {})},
            "data": {"kind": "chat", "path": "rows", **(data or {})},
            "objective": {"kind": objective},
            "batch": {"global": 8, "max_micro": 2, **(batch or {})},
            "train": {"steps": 1, "optimizer": {"kind": "adamw", "lr": 1e-4}, **(train or {})},
        }
    )


GPT = Job.model_validate(
    {
        "name": "a",
        "model": {"kind": "gpt", "layers": 1, "width": 8, "heads": 1, "context": 32},
        "data": {"kind": "text", "path": "a"},
        "batch": {"global": 8, "max_micro": 2},
        "train": {"steps": 1, "precision": "bf16", "optimizer": {"kind": "adamw", "lr": 1e-4}},
    }
)


def packed_gpt(**changes):
    values = GPT.model_dump(by_alias=True, mode="json", exclude_unset=True)
    values["batch"] |= {"max_tokens": 64, **changes.pop("batch", {})}
    return Job.model_validate(values | {"model": values["model"] | changes.pop("model", {})})


BF16, PACKED = {"precision": "bf16"}, {"max_tokens": 64}
ALL = (VARLEN, FLASH, "sdpa")


@pytest.mark.parametrize(
    ("job", "on_gpu", "attention"),
    [
        (job_with(train=BF16), True, (FLASH, "sdpa")),
        (job_with(train=BF16), False, ("sdpa",)),
        (job_with(), True, ("sdpa",)),
        (job_with(train=BF16, batch={"equality": "bitwise"}), True, ("sdpa",)),
        (job_with(model={"attention": "eager"}, train=BF16), True, ("eager",)),
        (job_with(train=BF16, batch=PACKED), True, ALL),
        (job_with(train=BF16, data={"packing": True}), True, ALL),
        (job_with(train=BF16, batch=PACKED), False, ("sdpa",)),
        (job_with(batch=PACKED), True, ("sdpa",)),
        (job_with(train=BF16, batch={**PACKED, "equality": "bitwise"}), True, ("sdpa",)),
        (job_with(train={**BF16, "compile": "blocks"}, batch=PACKED), True, (FLASH, "sdpa")),
        (job_with(model={"attention": "sdpa"}, train=BF16, batch=PACKED), True, ("sdpa",)),
        (GPT, True, ("sdpa",)),
        (packed_gpt(), True, (VARLEN, "sdpa")),
        (packed_gpt(), False, ("sdpa",)),
        (packed_gpt(batch={"equality": "bitwise"}), True, ("sdpa",)),
        (packed_gpt(model={"dropout": 0.1}), True, ("sdpa",)),
    ],
)
def test_flash_attention_is_for_bf16_on_gpus(job, on_gpu, attention):
    """In `balanced` jobs that leave the choice to planner. torch's own is for packed rows."""
    rule = compute_rule(job, on_gpu=on_gpu)
    assert rule.attention == attention
    packs = job.data.packing_setting or "batch.max_tokens"
    assert rule.attention_because == (f"{packs} puts several texts into one row" if attention[0] == VARLEN else "")


@pytest.mark.parametrize(
    ("before", "order"),
    [
        (None, ALL),
        ("", (FLASH, "sdpa")),
        ("sdpa", ("sdpa", VARLEN, FLASH)),
        (FLASH, (FLASH, VARLEN, "sdpa")),
        (VARLEN, ALL),
        ("eager", ALL),
    ],
)
def test_a_later_generation_takes_what_the_run_computed_with(before, order):
    """A commit of an earlier planner names nothing, and its `auto` was never varlen."""
    assert attention_order(ALL, before) == order
    assert attention_order(("sdpa",), before) == ("sdpa",)


KEPT = "blocks not compiled, activations kept"
AGAIN = "activations computed again but those of attention and of every second matrix product"
FLASH_THERE = "flash attention where it is installed (else sdpa)"


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (job_with(), f"fp32, sdpa attention, torch's kernels, {KEPT}"),
        (
            job_with(train={"precision": "bf16", "compile": "blocks", "activation_checkpointing": "selective"}),
            f"bf16, {FLASH_THERE}, torch's kernels, blocks compiled, {AGAIN}",
        ),
        (
            job_with(train=BF16, batch=PACKED),
            (
                "bf16, varlen attention where it can be used, because batch.max_tokens puts several texts into one row "
                f"(else flash, sdpa), torch's kernels, {KEPT}"
            ),
        ),
        (
            job_with(
                model={"attention": FLASH},
                train={"precision": "bf16", "kernels": "liger", "activation_checkpointing": True},
            ),
            "bf16, flash attention, Liger's kernels, blocks not compiled, activations computed again",
        ),
        (
            job_with(model={"lora": {"rank": 2}, "frozen": "nf4"}),
            f"fp32, sdpa attention, torch's kernels, {KEPT}, frozen layers in 4 bits (nf4)",
        ),
    ],
)
def test_every_setting_is_told(job, text):
    """Each in words of its own, in one line."""
    assert compute_text(compute_rule(job, on_gpu=True)) == text


def test_the_same_for_json():
    """The values of the job, with `auto` resolved as far as it can be from here."""
    assert compute_value(compute_rule(job_with(train={"precision": "bf16"}), on_gpu=True)) == {
        "precision": "bf16",
        "attention": (FLASH, "sdpa"),
        "attention_because": "",
        "kernels": "own",
        "compile": False,
        "activation_checkpointing": False,
        "frozen": "fp32",
    }


def test_a_loop_of_ones_own_decides_by_itself():
    own = Job.model_validate(
        {
            "name": "a",
            **{name: {"kind": "own"} for name in ("model", "objective")},
            "data": {"kind": "own", "path": "loop.py"},
            "batch": {"global": 8, "max_micro": 2},
            "train": {"steps": 1, "optimizer": {"kind": "own"}},
        }
    )
    rule = compute_rule(own, on_gpu=True)
    assert (rule, compute_text(rule), compute_value(rule)) == (None, "your own loop decides it", None)
    assert own.data.sample_tokens(own.model) is None


@pytest.mark.parametrize(
    ("job", "tokens"),
    [(job_with(data={"packing": True}), 64), (job_with(), None), (GPT, 32)],
)
def test_the_length_of_samples_is_known_where_all_are_full(job, tokens):
    """Packed rows and windows of a text. Conversations that are not packed may be shorter."""
    assert job.data.sample_tokens(job.model) == tokens

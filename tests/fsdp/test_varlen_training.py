"""Training with `model.attention: varlen`, with a stand-in for torch's kernel: the losses of sdpa at every size."""

import math
from unittest import mock

import pytest
from test_hf_training import hf, hf_job, run_hf
from test_objectives import sample_job
from varlen_stand_in import stand_in
from worker_functions import make_job, records, run_job

from planner.errors import UserError
from planner.job import Job

pytestmark = pytest.mark.fsdp


def run_varlen(rank, job, url):
    """One generation on a CPU that passes for a GPU, and how often the kernel was called."""
    from planner.train.models import varlen_attention

    kernel = mock.create_autospec(stand_in, side_effect=stand_in)
    with mock.patch.multiple(varlen_attention, require=lambda _device: None, kernel=lambda: kernel):
        run_hf(rank, job, url)
    return kernel.call_count


@pytest.mark.parametrize("recomputes", [False, True])
def test_losses_are_those_of_sdpa(workers, texts, tiny_model, tmp_path, recomputes):
    """Packed rows through Mistral's window of 4 tokens, with the check before the first step, at W = 1 and 2."""
    train = {"activation_checkpointing": recomputes}
    masked = hf_job(texts, hf(tiny_model("mistral")), data={"packing": True}, train=train)
    # A job on CPUs in float32 may not name it.
    job = masked.model_copy(update={"model": masked.model.model_copy(update={"attention": "varlen"})})
    workers.run(run_hf, 1, masked, str(tmp_path / "masked"))
    expected = [record["loss"] for record in records(tmp_path / "masked")]
    for world_size in (1, 2):
        url = str(tmp_path / str(world_size))
        assert min(workers.run(run_varlen, world_size, job, url)) > 0
        found = [record["loss"] for record in records(url)]
        assert len(found) == len(expected) == 3
        assert all(math.isclose(one, other, rel_tol=1e-5) for one, other in zip(found, expected, strict=True))


def test_workers_without_gpus_refuse_it(workers, texts, tiny_model, tmp_path):
    plain = hf_job(texts, hf(tiny_model("llama")))
    job = plain.model_copy(update={"model": plain.model.model_copy(update={"attention": "varlen"})})
    with pytest.raises(UserError, match="varlen needs a GPU"):
        workers.run(run_hf, 2, job, str(tmp_path))


def run_auto(rank, job, url, have_kernel, stop_at=None):
    """One generation on CPUs that pass for GPUs, some of which have the kernel. Returns how often it was called."""
    from planner.train import lifecycle
    from planner.train.models import varlen_attention

    kernel = mock.create_autospec(stand_in, side_effect=stand_in)
    auto = ("varlen", "flash_attention_2", "sdpa")
    with (
        mock.patch.object(lifecycle, "attention_choices", return_value=auto),
        mock.patch.multiple(varlen_attention, is_there=lambda _: have_kernel[rank], kernel=lambda: kernel),
    ):
        run_hf(rank, job, url, stop_at)
    return kernel.call_count


def on_record(url):
    """What the generations' headers say, and what their ledgers tell of it."""
    told = [record["facts"] for record in records(url, "event") if record["event"] == "attention_chosen"]
    return [header["facts"].get("attention") for header in records(url, "generation")], told


def told(attention, before="", lacking=()):
    """The facts of such an event."""
    passed_over = [f"{name}: not every worker has it" for name in lacking]
    return {"attention": attention, "passed_over": passed_over, "before": before}


def test_auto_is_recorded_and_a_resume_keeps_it(workers, texts, tiny_model, tmp_path):
    """On workers that lack the kernel, a resume tells that it computes with another attention."""
    job = hf_job(texts, hf(tiny_model("llama")), data={"packing": True})
    workers.run(run_hf, 1, job, str(tmp_path / "masked"))
    expected = [record["loss"] for record in records(tmp_path / "masked")]
    url = str(tmp_path / "run")
    assert min(workers.run(run_auto, 2, job, url, (True, True), 1)) > 0
    assert min(workers.run(run_auto, 1, job, url, (True,), 1)) > 0
    assert max(workers.run(run_auto, 2, job, url, (True, False))) == 0
    names, events = on_record(url)
    assert names == ["varlen", "varlen", "sdpa"]
    assert events == [told("varlen"), told("sdpa", before="varlen", lacking=("varlen", "flash_attention_2"))]
    found = [record["loss"] for record in records(url)]
    assert all(math.isclose(one, other, rel_tol=1e-5) for one, other in zip(found, expected, strict=True))


def test_a_run_of_an_earlier_planner_keeps_what_auto_was(workers, texts, tiny_model, tmp_path):
    """Its commits do not say what that was, and varlen was no part of it."""
    job, url = hf_job(texts, hf(tiny_model("llama")), data={"packing": True}), str(tmp_path)
    workers.run(run_hf, 1, job, url, 1)
    assert workers.run(run_auto, 1, job, url, (True,), 1) == [0]
    assert workers.run(run_auto, 1, job, url, (True,)) == [0]
    assert on_record(url) == ([None, "sdpa", "sdpa"], [told("sdpa", lacking=("flash_attention_2",))])


@pytest.mark.parametrize("is_older", [True, False], ids=["an earlier planner", "workers without the kernel"])
def test_a_setting_that_does_not_decide_attention_leaves_it(workers, texts, tiny_model, tmp_path, is_older):
    """Another job that keeps other commits, or more tokens in a micro-batch."""
    model, url = hf(tiny_model("llama")), str(tmp_path)
    job = hf_job(texts, model, batch={"max_tokens": 200})
    workers.run(*((run_hf, 1, job, url, 1) if is_older else (run_auto, 1, job, url, (False,), 1)))
    other = hf_job(texts, model, batch={"max_tokens": 210}, checkpoint={"keep": 7})
    assert workers.run(run_auto, 1, other, url, (True,)) == [0]
    assert on_record(url)[0] == [None if is_older else "sdpa", "sdpa"]


def test_a_setting_that_decides_attention_chooses_it_anew(workers, texts, tiny_model, tmp_path):
    """The ledger says what the run computed with before."""
    model, url = hf(tiny_model("llama")), str(tmp_path)
    workers.run(run_auto, 1, hf_job(texts, model), url, (False,), 1)
    assert min(workers.run(run_auto, 1, hf_job(texts, model, batch={"max_tokens": 200}), url, (True,))) > 0
    names, events = on_record(url)
    assert names == ["sdpa", "varlen"]
    assert events[1] == told("varlen", before="sdpa")


def test_workers_with_one_choice_tell_that_attention_changes(workers, texts, tiny_model, tmp_path):
    """A run of GPUs goes on on CPUs, and back."""
    job, url = hf_job(texts, hf(tiny_model("llama")), data={"packing": True}), str(tmp_path)
    workers.run(run_auto, 1, job, url, (True,), 1)
    workers.run(run_hf, 1, job, url, 1)
    workers.run(run_auto, 1, job, url, (True,))
    assert on_record(url) == (["varlen", "sdpa", "sdpa"], [told("varlen"), told("sdpa", before="varlen")])


def run_checked(rank, job, url, have_kernel, stop_at=None):
    """As `run_auto`. Returns the attention of the models that were checked."""
    from planner.train import generation

    check, checked = generation.require_packed, []

    def noted(model, setting, **settings):
        checked.append(model.chosen.attention)
        check(model, setting, **settings)

    with mock.patch.object(generation, "require_packed", noted):
        run_auto(rank, job, url, have_kernel, stop_at)
    return checked


def test_a_resume_with_another_attention_checks_the_model_again(workers, texts, tiny_model, tmp_path):
    """Documents that the kernel keeps apart might see each other without it."""
    job, url = hf_job(texts, hf(tiny_model("llama")), data={"packing": True}), str(tmp_path)
    assert workers.run(run_checked, 1, job, url, (True,), 1) == [["varlen"]]
    assert workers.run(run_checked, 1, job, url, (True,), 1) == [[]]
    assert workers.run(run_checked, 2, job, url, (False, False)) == [["sdpa"]] * 2


def run_own(rank, job, url):
    """One generation of planner's own model on a CPU that passes for a GPU. How often the kernel was called."""
    import torch

    from planner.train import log_probs
    from planner.train.models import varlen_attention
    from planner.train.models.document_attention import Documents

    kernel = mock.create_autospec(stand_in, side_effect=stand_in)
    on_gpu = mock.patch.object(log_probs, "documents_on", side_effect=lambda device, found: Documents.of(found, device))
    with on_gpu, mock.patch.multiple(varlen_attention, is_there=lambda _: True, kernel=lambda: kernel):
        run_job(rank, job, url)
    assert all(call.args[0].dtype == torch.bfloat16 for call in kernel.call_args_list)
    return kernel.call_count


@pytest.mark.parametrize("recomputes", [False, True, "selective"])
def test_planners_own_model_in_bf16(workers, texts, tmp_path, recomputes):
    """`Documents` pass FSDP as they are, and passes are in bf16 there. Losses are those without the kernel."""
    train = {"precision": "bf16", "activation_checkpointing": recomputes}
    model, batch = {"heads": 4, "layers": 2}, {"max_tokens": 60}
    job = make_job(texts, steps=3, train=train, model=model, batch=batch, eval={"samples": 3, "every": 2})
    workers.run(run_job, 1, job, str(tmp_path / "plain"))
    expected = [record["loss"] for record in records(tmp_path / "plain")]
    for world_size in (1, 2):
        url = str(tmp_path / str(world_size))
        assert min(workers.run(run_own, world_size, job, url)) > 0
        found = [record["loss"] for record in records(url)]
        assert all(math.isclose(one, other, rel_tol=1e-3) for one, other in zip(found, expected, strict=True))


def run_noted(rank, job, url, have_kernel, stop_at=None):
    """As `run_auto`. Returns the attention of a reference that is another model."""
    from planner.train.reference import frozen

    make, made = frozen.make_model, []

    def noted(*given, **settings):
        made.append(make(*given, **settings))
        return made[-1]

    with mock.patch.object(frozen, "make_model", noted):
        run_auto(rank, job, url, have_kernel, stop_at)
    return [model.chosen.attention for model in made]


def test_a_reference_keeps_its_attention_over_a_resume(workers, tiny_model, tmp_path):
    """It takes what the policy takes. This policy drops some of its attention, which the kernel cannot."""
    policy, other = str(tiny_model("llama", attention_dropout=0.1)), str(tiny_model("qwen2"))
    plain = sample_job(tmp_path, "dpo", steps=2, eval={"samples": 0}, batch={"max_tokens": 120})
    job = Job.model_validate(
        plain.model_dump(by_alias=True, mode="json", exclude_unset=True)
        | {
            "model": {"kind": "hf", "path": policy, "context": 24},
            "objective": {"kind": "dpo", "reference_model": other},
        }
    )
    url = str(tmp_path / "run")
    assert workers.run(run_noted, 1, job, url, (True,), 1) == [["sdpa"]]
    assert workers.run(run_noted, 1, job, url, (True,)) == [["sdpa"]]
    assert on_record(url)[0] == ["sdpa", "sdpa"]

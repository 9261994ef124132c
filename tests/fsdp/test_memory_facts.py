"""What a worker tells when it runs out of memory, in jobs of planner's objectives and in the user's own loops."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from own_loops import HEAD, own_job
from planted_memory import ASKED_BYTES, Planter, plant
from verifiers import audited, run_script
from worker_functions import make_job, records

from planner.base.memory_errors import OutOfMemory, memory_error_in
from planner.plan.lowered_caps import Caps, LoweredCap, LoweredCaps
from planner.train.generation import train
from planner.train.hooks import Hooks
from planner.train.models import head
from planner.train.setup import Launch
from planner.train.world import cpu_device

OWN = (
    HEAD
    + """
def total(model, batch):
    return errors(model, batch).sum()

def train(run):
    model, optimizer = made(run)
    for step in run.steps(model, optimizer, evaluate=lambda batch: errors(model, batch).sum()):
        for batch in step.micro_batches():
            step.backward(total(model, batch))
"""
)


def planted(_rank, job, url, folder, caps=None):
    """One worker that meets the planted fault: its facts, and whether anything still holds the model."""
    planter, models = Planter(folder), []

    def begin(model):
        models.append(weakref.ref(model))
        planter.in_model(model)

    def should_stop(step):
        planter.step = step
        return False

    def observe(step, state, _work):
        planter.in_optimizer(step, state.optimizer)

    hooks = Hooks(begin=begin, should_stop=should_stop, observe=observe, caps=lambda: caps)
    plain = head._LogProbSum.forward
    with pytest.raises(OutOfMemory) as caught:
        train(Launch(job=job, url=url), cpu_device, hooks)
    head._LogProbSum.forward = staticmethod(plain)  # the planted one refers to the model
    gc.collect()
    return caught.value.facts, [model() is not None for model in models]


def facts_of(workers, tmp_path, job, place, caps=None):
    plant(tmp_path, [(2, place, 0)])
    facts, is_held = workers.run(planted, 1, job, str(tmp_path / "run"), str(tmp_path), caps)[0]
    assert is_held == [False]
    return facts


@pytest.mark.parametrize("place", ["forward", "loss", "backward", "optimizer", "evaluation"])
def test_it_tells_place_caps_and_largest_micro_batch_and_holds_no_model(workers, texts, tmp_path, place):
    """13 samples with a cap of 4 are four rounds of at most 4. 5 held-out ones are two rounds of at most 3."""
    job = make_job(texts, max_micro=4, eval={"samples": 5, "every": 2})
    facts = facts_of(workers, tmp_path, job, place)
    assert (facts.device, facts.place, facts.max_micro, facts.max_tokens) == ("CPU", place, 4, None)
    assert (facts.samples, facts.asked_bytes) == (3 if place == "evaluation" else 4, ASKED_BYTES)
    assert "DefaultCPUAllocator: can't allocate memory" in facts.error


@pytest.mark.parametrize("place", ["forward", "backward", "optimizer", "evaluation"])
def test_so_does_a_loop_of_the_users_own(workers, tmp_path, place):
    """It needs nothing for it. 7 samples with a cap of 2 are four rounds."""
    file = tmp_path / f"{tmp_path.name}.py"  # a name of its own in a process that serves all tests
    file.write_text(OWN)
    job = own_job(file, eval={"samples": 5, "every": 2})
    facts = facts_of(workers, tmp_path, job, place)
    assert (facts.place, facts.max_micro, facts.samples) == (place, 2, 2)


def test_an_error_of_a_users_loss_is_found_where_it_is_wrapped(workers, tmp_path):
    """`raise ... from` a lack of memory, outside of the model."""
    file = tmp_path / f"{tmp_path.name}.py"  # a name of its own in a process that serves all tests
    raising = """
def total(model, batch):
    errors(model, batch)
    try:
        raise MemoryError
    except MemoryError as error:
        raise KeyError("batch") from error
"""
    file.write_text(OWN.replace("def train(run)", f"{raising}\ndef train(run)"))
    plant(tmp_path, [])
    facts, _ = workers.run(planted, 1, own_job(file), str(tmp_path / "run"), str(tmp_path))[0]
    assert (facts.place, facts.error, facts.asked_bytes) == ("loss", "MemoryError: out of memory", None)


def test_before_the_first_step_no_micro_batch_was_computed(workers, tmp_path):
    """While the user's function makes its model."""
    file = tmp_path / f"{tmp_path.name}.py"  # a name of its own in a process that serves all tests
    file.write_text(OWN.replace("    model, optimizer = made(run)", "    raise MemoryError"))
    plant(tmp_path, [])
    facts, _ = workers.run(planted, 1, own_job(file), str(tmp_path / "run"), str(tmp_path))[0]
    assert facts.place == "start"


def test_with_a_cap_on_tokens_it_tells_its_own_largest_micro_batch(workers, texts, tmp_path):
    """And the most that a sample may have, below which no cap can be."""
    job = make_job(texts, batch={"global": 13, "max_micro": 9, "max_tokens": 60})
    facts = facts_of(workers, tmp_path, job, "backward")
    assert (facts.max_micro, facts.max_tokens, facts.longest) == (9, 60, 24)
    assert 1 < facts.samples <= 9
    assert 24 < facts.tokens <= 60


def test_a_group_trains_with_the_caps_of_its_devices(workers, texts, tmp_path):
    """Those for other kinds of devices are none of its own, nor those of a job with another cap."""
    job = make_job(texts, max_micro=4)
    of, half = Caps(max_micro=4), Caps(max_micro=2)
    lowered = LoweredCap(device="CPU", place="forward", was=of, now=half)
    for number, (caps, in_force) in enumerate(
        [
            (LoweredCaps(of=of, lowered=(lowered,)), 2),
            (LoweredCaps(of=of, lowered=(replace(lowered, device="NVIDIA H100"),)), 4),
            (LoweredCaps(of=Caps(max_micro=8), lowered=(lowered,)), 4),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert facts_of(workers, folder, job, "forward", caps).max_micro == in_force


def with_caps(_rank, job, url, caps, stop_at):
    """A generation of a group whose run has lowered these caps."""
    hooks = Hooks(caps=lambda: caps, should_stop=lambda step: step >= stop_at)
    return train(Launch(job=job, url=url), cpu_device, hooks).step


@pytest.mark.parametrize(
    ("written", "max_tokens", "later"), [(None, None, None), (120, 120, 50), ("auto", 6 * 24, 2 * 24)]
)
def test_a_run_with_lowered_caps_is_audited_and_has_the_same_losses(
    workers, texts, tmp_path, written, max_tokens, later
):
    """From step 3 on, with another number of workers. Both audits derive who computed what by the lower caps.

    With `auto` on a machine that has room, a cap on tokens is what the samples of the cap on samples can have.
    """
    batch = {"global": 13, "max_micro": 6, "max_tokens": written}
    job = make_job(texts, batch=batch, eval={"samples": 5, "every": 2})
    of, now = Caps(max_micro=6, max_tokens=max_tokens), Caps(max_micro=2, max_tokens=max_tokens and 50)
    caps = LoweredCaps(of=of, lowered=(LoweredCap(device="CPU", place="loss", was=of, now=now),))
    plain, lowered = str(tmp_path / "plain"), str(tmp_path / "lowered")
    workers.run(with_caps, 2, job, plain, None, 6)
    assert workers.run(with_caps, 2, job, lowered, None, 3) == [3, 3]
    assert workers.run(with_caps, 3, job, lowered, caps, 6) == [6, 6, 6]
    headers = records(lowered, "generation")
    assert [(header["max_micro"], header.get("max_tokens")) for header in headers] == [
        (6, max_tokens),
        (2, later),
    ]
    losses = [[each["loss"] for kind in ("step", "eval") for each in records(url, kind)] for url in (plain, lowered)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    found = audited(lowered)
    assert (found.clean, found.lost, found.repeated) == (True, 0, 0), found.findings
    code, output = run_script(lowered)
    assert code == 0, output


def test_torchs_errors_of_cuda_are_recognized():
    """By the types that torch raises, on a machine without CUDA, too."""
    for kind in (torch.OutOfMemoryError, torch.AcceleratorError):
        assert memory_error_in(kind("CUDA error: out of memory")) is not None

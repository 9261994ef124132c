"""Workers that run out of memory: the run lowers the cap on micro-batches and does the step again."""

import random
from functools import partial

import pytest
import torch
from live_runs import fit, make_job, records, run_of
from own_loops import HEAD, own_job
from planted_memory import ASKED_BYTES, PLACES, plant, planted_hooks, raised
from verifiers import run_script

from planner.errors import TrainingFailed
from planner.events.failures import CapLowered
from planner.events.kinds import event_of
from planner.job import Job
from planner.plan.lowered_caps import Caps, LoweredCaps
from planner.provenance.audit import audit
from planner.rehearsal.local_workers import LocalWorkers
from planner.store.lowered_caps import read_caps
from planner.store.records import LoweredCapRecord
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.checkpoints import checkpoint
from planner.train.generation import train
from planner.train.hooks import Hooks
from planner.train.setup import Launch
from planner.train.world import cpu_device

OWN_LOOP = f"""{HEAD}
def train(run):
    model, optimizer = made(run)
    for step in run.steps(model, optimizer, evaluate=lambda batch: errors(model, batch).sum()):
        for batch in step.micro_batches():
            step.backward(errors(model, batch).sum())
"""
_WORKERS = 4
_MAX_MICRO = 32


@pytest.fixture
def four(cluster):
    """The shared cluster with four nodes."""
    added = []
    while len(cluster.nodes()) < _WORKERS:
        cluster.add_node()
        added.append(cluster.nodes()[-1])
    yield cluster
    for node in added:
        cluster.kill_node(node)


def job_of(tmp_path, *, steps, workers=_WORKERS, **batch):
    """A job whose workers have 32 samples of a step each, in one micro-batch."""
    sections = make_job(tmp_path, steps=steps, most=workers, every_steps=3).model_dump(by_alias=True)
    sections["batch"] = {"global": workers * _MAX_MICRO, "max_micro": _MAX_MICRO, **batch}
    sections["eval"] = {"samples": 64, "every": 2}
    sections["workers"]["min"] = workers
    sections["train"]["optimizer"]["eps"] = 1e-4  # else rounding decides the direction of gradients close to 0
    return Job.model_validate(sections)


def trains_with(job, tmp_path, faults):
    """Train on Ray with planted faults. All of them must have been raised."""
    plant(tmp_path, faults)
    fit(job, hooks=partial(planted_hooks, str(tmp_path)))
    assert raised(tmp_path) == list(range(len(faults)))


def lowerings(job):
    """What the ledgers say of caps that were lowered, in order, without repetition."""
    found = [event_of(note["event"], note["facts"]) for note in records(run_of(job), "event")]
    return list(dict.fromkeys(event for event in found if isinstance(event, CapLowered)))


def tells_each(job, faults):
    """Where each was planted, and how much it asked for."""
    told = [each.reason for each in lowerings(job)]
    assert [(each.place, each.rank, each.device) for each in told] == [
        (place, rank, "CPU") for _, place, rank in faults
    ]
    assert {each.asked_bytes for each in told} == {ASKED_BYTES}


def is_sound(job):
    """Audited by planner and by the script: no position is lost, and none is counted twice."""
    found = audit(run_of(job))
    assert found.clean, found.findings
    assert (found.lost, found.repeated, found.mismatched, found.steps) == (0, 0, 0, job.train.steps)
    code, output = run_script(job.run_path)
    assert code == 0, output


def one_stage(_rank, job, url, stop_at, caps):
    """In a local worker, without a fault: from the newest commit to a step, with caps that were lowered."""
    asked = []

    def should_stop(step):
        asked.append(step)
        return step >= stop_at

    return train(Launch(job=job, url=url), cpu_device, Hooks(should_stop=should_stop, caps=lambda: caps)).step


def weights_with_those_caps(job, url):
    """Final weights of an undisturbed run of one worker, which takes each lower cap from the step where it was taken.

    The steps are those of the run's lineage.
    """
    segments, of = audit(run_of(job)).phases, Caps(max_micro=job.batch.max_micro)
    headers = {header["generation"]: header for header in records(run_of(job), "generation")}
    with LocalWorkers(1) as workers:
        for phase in segments:
            lowered = tuple(LoweredCapRecord(**each).value for each in headers[phase.generation].get("lowered", []))
            caps = LoweredCaps(of=of, lowered=lowered)
            assert workers.run(one_stage, 1, job, url, phase.end_step, caps) == [phase.end_step]
    return weights(url)


def weights(url):
    """The weights of a run's newest commit."""
    run = RunFolder(Storage(url))
    return dict(checkpoint.read(run.storage, run.manifest(run.commits()[-1]), "model/"))


def ends_at_the_weights_of_an_undisturbed_run(job, tmp_path):
    found, wanted = weights(job.run_path), weights_with_those_caps(job, str(tmp_path / "undisturbed"))
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.usefixtures("cluster")
def test_two_in_one_run_cost_no_sample(tmp_path):
    """A peer waits in a collective, and weights are half updated. The next launch begins with the cap that was lowered.

    Each group imports torch in new processes, which is most of this test's time. Without Ray, every place is tried in
    tests/fsdp/test_memory_facts.py.
    """
    job = job_of(tmp_path, steps=6, workers=2)
    faults = [(1, "backward", 1), (4, "optimizer", 0)]
    trains_with(job, tmp_path, faults)
    tells_each(job, faults)
    assert [(each.reason.max_micro, each.max_micro) for each in lowerings(job)] == [(32, 16), (16, 8)]
    is_sound(job)
    ends_at_the_weights_of_an_undisturbed_run(job, tmp_path)
    longer = job.model_copy(update={"train": job.train.model_copy(update={"steps": 7})})
    fit(longer)
    assert [header["max_micro"] for header in records(run_of(longer), "generation")][-1] == 8
    is_sound(longer)


@pytest.mark.slow
@pytest.mark.usefixtures("four")
def test_one_at_each_place_costs_no_sample(tmp_path):
    """In one of four workers."""
    job = job_of(tmp_path, steps=9)
    faults = [(step, place, random.Random(step).randrange(_WORKERS)) for step, place in enumerate(PLACES, 2)]
    trains_with(job, tmp_path, faults)
    tells_each(job, faults)
    assert [(each.reason.max_micro, each.max_micro) for each in lowerings(job)] == [
        (32, 16),
        (16, 8),
        (8, 4),
        (4, 2),
        (2, 1),
    ]
    is_sound(job)
    ends_at_the_weights_of_an_undisturbed_run(job, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("four")
@pytest.mark.parametrize("seed", range(4))
def test_twenty_at_random_places_cost_no_sample(tmp_path, seed):
    """Five in each of four runs, by the dice. In the optimizer's step, a second one in a run would lower nothing."""
    dice, faults, step = random.Random(seed), [], 0
    for place in dice.sample([*PLACES, *(place for place in PLACES if place != "optimizer")], 5):
        step += dice.randint(1, 2)
        step += step % 2 if place == "evaluation" else 0
        faults.append((step, place, dice.randrange(_WORKERS)))
    job = job_of(tmp_path, steps=step + 3)
    trains_with(job, tmp_path, faults)
    assert len(lowerings(job)) == 5
    is_sound(job)
    ends_at_the_weights_of_an_undisturbed_run(job, tmp_path)


@pytest.mark.usefixtures("cluster")
def test_a_bitwise_run_ends_and_says_what_to_write(tmp_path):
    """Its micro-batches decide the bits. Nothing is remembered."""
    job = job_of(tmp_path, steps=6, workers=2, equality="bitwise")
    plant(tmp_path, [(1, "backward", 1)])
    with pytest.raises(
        TrainingFailed, match=r"Write batch\.max_micro: 16, and resume with planner run JOB --accept recipe"
    ):
        fit(job, hooks=partial(planted_hooks, str(tmp_path)))
    assert read_caps(run_of(job).storage) is None


@pytest.mark.slow  # the decision is tested without Ray, too
@pytest.mark.usefixtures("cluster")
def test_a_second_one_in_the_optimizer_ends_the_run(tmp_path):
    """The first lowers the cap, and the step is done again. A lower cap did not help then."""
    job = job_of(tmp_path, steps=6, workers=2)
    plant(tmp_path, [(0, "optimizer", 0), (0, "optimizer", 0)])
    with pytest.raises(TrainingFailed, match=r"without a new step in between, with batch\.max_micro: 16"):
        fit(job, hooks=partial(planted_hooks, str(tmp_path)))
    assert raised(tmp_path) == [0, 1]


@pytest.mark.slow  # what such a loop tells is tested without Ray, too
@pytest.mark.usefixtures("cluster")
def test_a_loop_of_the_users_own_goes_on(tmp_path):
    """It needs nothing for it."""
    file = tmp_path / "oom_loop.py"
    file.write_text(OWN_LOOP)
    batch, ends = {"global": 24, "max_micro": 8}, {"path": str(tmp_path / "run"), "every": 3}
    job = own_job(
        file, batch=batch, checkpoint=ends, train={"steps": 8}, eval={"samples": 5, "every": 2}, workers={"min": 3}
    )
    job = job.model_copy(update={"workers": job.workers.model_copy(update={"max": 3})})
    trains_with(job, tmp_path, [(2, "forward", 1), (4, "backward", 0), (6, "evaluation", 2)])
    assert [each.max_micro for each in lowerings(job)] == [4, 2, 1]
    found = audit(run_of(job), code=str(file))
    assert found.clean, found.findings
    assert (found.lost, found.repeated, found.steps) == (0, 0, 8)

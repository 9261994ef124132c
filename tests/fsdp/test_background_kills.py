"""Bitwise through resizes and kills during background writes: the hash of the undisturbed run, and nothing lost."""

import random

import mortal_workers
import pytest
from test_bitwise import CONFIGURATIONS, bitwise_job, result
from worker_functions import run_job
from write_gates import FOREVER, Gate, run_gated, use_second_scheme

from planner.provenance.audit import audit
from planner.store.run_folder import RunFolder, commit_of
from planner.store.storage import Storage
from planner.train.checkpoints.checkpoint import read_digests

pytestmark = pytest.mark.fsdp

EVERY = 3


def kills(world_size):
    """Five ways to die with a commit in flight, by where the process is that is killed."""
    return [
        Gate(rank=0, steps=1),
        Gate(rank=world_size - 1, steps=2),
        # All workers wait at the next commit for this one.
        Gate(rank=world_size - 1, steps=FOREVER),
        Gate(rank=0, place="manifest"),
        Gate(rank=0, place="record"),
    ]


def unfinished(run):
    """The commits that have files and no manifest."""
    return sorted(set(run.storage.names("checkpoints")) - set(run.commits()))


def killed_once(run, job, url, world_size, gate, step):
    """One generation that is killed while its first commit after `step` is in flight. Returns the durable step."""
    died_at = (step // EVERY + 1) * EVERY
    gate = Gate(rank=gate.rank, place=gate.place, steps=gate.steps, kill_from=died_at)
    before = run.commits()
    with pytest.raises(mortal_workers.WorkersKilled):
        mortal_workers.run(run_gated, world_size, job, url, gate)
    new = [name for name in run.commits() if name not in before]
    if gate.place == "record":
        assert [commit_of(name)[0] for name in new] == [died_at]
        return died_at
    assert new == []
    # The write that was killed has left its files behind.
    assert died_at in [commit_of(name)[0] for name in unfinished(run)]
    return step


def through_a_history(workers, job, url, dice, *, resizes, num_kills):
    """Planned stops and kills in random order. Every write waits until training has done another step."""
    run = RunFolder(Storage(url))
    acts = dice.sample(["resize"] * resizes + ["kill"] * num_kills, resizes + num_kills)
    step = died = 0
    for act in acts:
        world_size = dice.randint(1, 4)
        if act == "kill":
            gate = kills(world_size)[died % 5]
            died += 1
            step = killed_once(run, job, url, world_size, gate, step)
            continue
        steps = dice.randint(1, 4)
        outcomes = workers.run(run_gated, world_size, job, url, Gate(), steps)
        step += steps
        assert {outcome.step for outcome, _ in outcomes} == {step}
    waited = sum(waited for _, waited in workers.run(run_gated, 4, job, url, Gate()))
    assert waited > 0


FIRST = "dropout, tied embeddings, clipping"


@pytest.mark.parametrize(
    ("scheme", "name", "resizes", "num_kills", "steps"),
    [
        pytest.param("", FIRST, 1, 5, 24, id="files"),
        pytest.param("second://", "sgd, no clipping", 10, 5, 70, id="a URL", marks=pytest.mark.slow),
        *(pytest.param("", name, 10, 5, 70, id=name, marks=pytest.mark.slow) for name in CONFIGURATIONS),
    ],
)
def test_resizes_and_kills_change_nothing(workers, texts, tmp_path, scheme, name, resizes, num_kills, steps):
    """Hash, losses and norms are those of one worker that was never disturbed, and the certificate is right."""
    use_second_scheme()
    job = bitwise_job(texts, steps=steps, **CONFIGURATIONS[name])
    job = job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"every": EVERY})})
    workers.run(run_job, 1, job, str(tmp_path / "alone"))
    url = f"{scheme}{tmp_path / 'history'}"
    through_a_history(workers, job, url, random.Random(name), resizes=resizes, num_kills=num_kills)
    assert result(tmp_path / "history") == result(tmp_path / "alone")
    run = RunFolder(Storage(url))
    found = audit(run, tensor_digests=read_digests)
    assert found.clean, found.findings
    assert (found.steps, found.lost, found.repeated) == (steps, 0, 0)
    assert found.weights == run.manifest(run.commits()[-1]).weights_digest

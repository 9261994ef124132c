"""Bitwise through planned changes and deaths from memory, in random order, also when two nodes die at once."""

import random

import mortal_workers
import pytest
from kept_runs import cluster, run_kept, run_kept_texts
from own_loops import HEAD, own_job
from test_bitwise import CONFIGURATIONS, bitwise_job, result
from test_hf_training import hf, hf_job
from worker_functions import records

from planner.data import ahead_sets
from planner.data.tokenizer import ByteTokenizer
from planner.provenance.audit import audit
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.checkpoints.checkpoint import read_digests

pytestmark = pytest.mark.fsdp

NODES, MOST = 7, 6
LOOP = """
def train(run):
    model, optimizer = made(run)
    for step in run.steps(model, optimizer):
        for batch in step.micro_batches():
            step.backward(errors(model, batch).sum())
"""


def set_of(job, **checkpoint):
    return job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update=checkpoint)})


@pytest.fixture
def schemes(texts, tiny_model, tmp_path, monkeypatch):
    """Name -> (job of so many steps, what runs it in a worker)."""
    monkeypatch.setattr(ahead_sets, "tokenizer_of", lambda _model: ByteTokenizer())  # for the audit, here

    def make(name, steps):
        train = {"steps": steps}
        if name == "adapters":
            model = hf(tiny_model("llama"), lora={"rank": 2, "dropout": 0.1})
            batch, train = {"equality": "bitwise"}, {**train, "clip_norm": 0.1}
            return set_of(hf_job(texts, model, train=train, batch=batch), memory=1), run_kept_texts
        if name == "own loop":
            file = tmp_path / "loop_of_histories.py"
            file.write_text(HEAD + LOOP)
            checkpoint = {"memory": 1, "every": 1000}
            return own_job(file, train=train, batch={"equality": "bitwise"}, checkpoint=checkpoint), run_kept
        return set_of(bitwise_job(texts, steps=steps, **CONFIGURATIONS[name]), memory=1), run_kept

    return make


class History:
    """A run through changes, each from memory. A node that died is replaced by a new one."""

    def __init__(self, workers, function, job, url, nodes, dice):
        self._workers, self._function, self._job, self._url = workers, function, job, url
        self._nodes, self._dice, self._count = nodes, dice, 0
        self._step = 0
        """no step after it is done, so a later one can be the next end"""
        self._add(NODES)

    def _add(self, count):
        names = [f"node{number}" for number in range(self._count, self._count + count)]
        self._count += count
        self._nodes.add(*names)

    def _placed(self, least=1):
        """Nodes of a group, by rank."""
        names = sorted(self._nodes.keepers)
        return self._dice.sample(names, self._dice.randint(least, MOST))

    def resize(self):
        """A stop in memory."""
        placed = self._placed()
        self._step += self._dice.randint(1, 2)
        arguments = (self._job, self._url, placed, self._nodes.addresses, self._step)
        ends = self._workers.run(self._function, len(placed), *arguments)
        assert {(end.step, end.is_held) for end in ends} == {(self._step, True)}

    def kill(self, num_nodes):
        """Kill a worker, and so many nodes with their memory. Two of them are no neighbours in the ring."""
        placed = self._placed(least=max(1, 2 * num_nodes))
        self._step += 3
        arguments = (self._job, self._url, placed, self._nodes.addresses, None, True, self._step)
        with pytest.raises(mortal_workers.WorkersKilled):
            mortal_workers.run(self._function, len(placed), *arguments)
        lost = [placed[-1]][:num_nodes]
        if num_nodes == 2:
            lost.append(self._dice.choice(placed[1:-2]))
        self._nodes.kill(*lost)
        self._add(len(lost))

    def finish(self):
        """Train to the end."""
        placed = self._placed()
        ends = self._workers.run(self._function, len(placed), self._job, self._url, placed, self._nodes.addresses)
        assert all(end.finished for end in ends)


@pytest.mark.parametrize(
    ("name", "resizes", "kills"),
    [
        pytest.param("dropout, tied embeddings, clipping", 2, (1, 2), id="short"),
        *(
            pytest.param(name, 20, (0, 0, 0, 1, 1, 1, 1, 2, 2, 2), id=name, marks=[pytest.mark.slow])
            for name in ("dropout, tied embeddings, clipping", "narrower than the workers", "adapters", "own loop")
        ),
    ],
)
def test_changes_from_memory_change_nothing(workers, schemes, tmp_path, name, resizes, kills):
    """Hash, losses and norms are those of one worker that was never disturbed. Each change went on from memory."""
    job, function = schemes(name, steps=2 * resizes + 3 * len(kills) + 2)
    with cluster("alone") as nodes:
        workers.run(function, 1, set_of(job, memory="off"), str(tmp_path / "alone"), ["alone"], nodes.addresses)
    dice, url = random.Random(name), str(tmp_path / "history")
    with cluster() as nodes:
        history = History(workers, function, job, url, nodes, dice)
        for act in dice.sample([*kills, *["resize"] * resizes], len(kills) + resizes):
            if act == "resize":
                history.resize()
            else:
                history.kill(act)
        history.finish()
    assert result(url) == result(tmp_path / "alone")
    run = RunFolder(Storage(url))
    found = audit(run, tensor_digests=read_digests, **({"code": job.data.path} if job.is_own else {}))
    assert found.clean, found.findings
    assert (found.lost, found.repeated) == (0, 0)
    assert found.recomputed <= 2 * len(kills)
    resumed = [event for event in records(url, "event") if event["message"].startswith("loaded from memory")]
    assert len(resumed) == resizes + len(kills)

"""Workers that run out of memory: the run lowers the cap on micro-batches and does the step again."""

import random
from functools import partial

import pytest
import torch
from live_runs import fit, make_job, messages, records, run_of
from planted_memory import PLACES, plant, planted_hooks, raised

from planner.events.failures import CapLowered
from planner.provenance.audit import audit

_WORKERS = 4


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


def job_of(tmp_path, *, max_micro=32, steps=12, **sections):
    job = make_job(tmp_path, steps=steps, most=_WORKERS, every_steps=3)
    batch = job.batch.model_copy(update={"global_batch": 4 * max_micro, "max_micro": max_micro})
    evaluation = job.eval.model_copy(update={"every": 2, "samples": 64})
    workers = job.workers.model_copy(update={"min": _WORKERS})
    return job.model_copy(update={"batch": batch, "eval": evaluation, "workers": workers, **sections})


def test_one_at_each_place_costs_no_sample(four, tmp_path):  # noqa: ARG001
    job = job_of(tmp_path)
    faults = [(step, place, random.Random(step).randrange(_WORKERS)) for step, place in enumerate(PLACES, 2)]
    plant(tmp_path, faults)
    fit(job, hooks=partial(planted_hooks, str(tmp_path)))
    assert raised(tmp_path) == list(range(len(faults)))
    run = run_of(job)
    print(messages(run))
    result = audit(run)
    assert result.clean, result.findings

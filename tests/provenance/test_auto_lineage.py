"""Generations of `batch.max_micro: auto` in both audits. Their devices decide the number, up to the global batch."""

import pytest
from made_up_runs import MadeUpRun, make_job
from test_lowered_lineage import corpus, lowered, records, verdicts

from planner.job import batch_sizes
from planner.plan import BatchSizes, make_plan


def begun(folder, most, *, parent_most=8, **header):
    """A run whose second generation says that its micro-batches had at most `most` samples."""
    job = make_job({"kind": "text", "path": corpus(folder)}, batch={"global": 8, "max_micro": "auto"})
    run = MadeUpRun(folder, job=job)
    run.begin(2, max_micro=parent_most, plan_digest=plan_of(parent_most).digest).steps(2).commit()
    return run.begin(2, run.name, max_micro=most, plan_digest=plan_of(most).digest, **header).steps(2).commit()


def plan_of(most):
    return make_plan(BatchSizes(global_batch=8, max_micro=most), 2)


@pytest.mark.parametrize(("before", "most"), [(8, 8), (1, 8), (3, 1)])
def test_any_number_up_to_the_global_batch_is_clean(tmp_path, before, most):
    """Another one after a resize, too."""
    assert verdicts(begun(tmp_path, most, parent_most=before)) == ((), [])


@pytest.mark.parametrize("most", [9, 4096])
def test_a_number_beyond_it_is_found(tmp_path, most):
    """No memory makes a micro-batch larger than all samples."""
    found, wrong = verdicts(begun(tmp_path, most))
    assert any("its job and lowered caps say 8 samples" in each for each in found)
    assert any(f"batch.max_micro is {most} on record, and its job says 8" in each for each in wrong)


def test_a_lowered_cap_binds_what_fits(tmp_path):
    """Out of memory at 6 samples: later groups have 3 at most."""
    caps = records(lowered(6, 3))
    assert verdicts(begun(tmp_path, 2, parent_most=6, lowered=caps)) == ((), [])


def test_a_number_beyond_a_lowered_cap_is_found(tmp_path):
    """By both."""
    found, wrong = verdicts(begun(tmp_path, 4, parent_most=6, lowered=records(lowered(6, 3))))
    assert found
    assert wrong


def test_a_lowering_from_more_than_the_global_batch_is_found(tmp_path):
    """By both."""
    found, wrong = verdicts(begun(tmp_path, 3, parent_most=6, lowered=records(lowered(16, 3))))
    assert any("which was not in force" in each for each in found)
    assert any("which was not in force" in each for each in wrong)


def test_what_may_help_is_the_global_batch():
    """Plans without devices assume that a share fits whole."""
    job = make_job({"kind": "text", "path": "corpus"}, batch={"global": 8, "max_micro": "auto"})
    assert batch_sizes(job).max_micro == 8

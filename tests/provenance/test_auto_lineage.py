"""Generations of `auto` caps in both audits. Their devices decide the number, up to what all samples could have."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_runs import MadeUpRun, make_job
from sample_sets import write_rows
from test_lowered_lineage import corpus, lowered, records, verdicts

from planner.job import batch_sizes
from planner.job.data_registry import DATA_KINDS
from planner.plan import BatchSizes, make_plan
from planner.plan.lowered_caps import lowered_sizes


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


KINDS = {"chat": {"kind": "sft"}, "pairs": {"kind": "ipo", "beta": 0.1}}


def by_length(folder, most, kind="chat", *, max_micro="auto", lowered=()):
    """A run whose two generations say that micro-batches had at most `most` tokens. Samples have up to 24 each."""
    data = {"kind": kind, "path": write_rows(folder / "rows.jsonl", kind)}
    batch = {"global": 8, "max_micro": max_micro, "max_tokens": "auto"}
    job = make_job(data, model={"context": 24}, objective=KINDS[kind], batch=batch)
    run, sizes = MadeUpRun(folder, job=job), lowered_sizes(batch_sizes(job), lowered)
    for tokens in (sizes.max_tokens, most):
        caps = replace(sizes, max_tokens=tokens)
        run.begin_capped(2, run.name if run.step else "", caps, lowered).steps(2).commit()
    return run


@pytest.mark.parametrize(
    ("kind", "max_micro", "most"),
    [("chat", "auto", 8 * 24), ("chat", "auto", 40), ("chat", 3, 3 * 24), ("pairs", "auto", 16 * 24), ("pairs", 4, 50)],
)
def test_any_cap_on_tokens_up_to_all_samples_is_clean(tmp_path, kind, max_micro, most):
    """From the first generation to the second, it may change."""
    assert verdicts(by_length(tmp_path, most, kind, max_micro=max_micro)) == ((), [])


@pytest.mark.parametrize(
    ("kind", "max_micro", "most"), [("chat", "auto", 8 * 24 + 1), ("chat", 3, 3 * 24 + 1), ("pairs", 4, 8 * 24 + 1)]
)
def test_a_cap_on_tokens_beyond_all_samples_is_found(tmp_path, kind, max_micro, most):
    """By both, though the split is that of the cap on record."""
    found, wrong = verdicts(by_length(tmp_path, most, kind, max_micro=max_micro))
    assert any(f"and {most:,} tokens, and its job and lowered caps say" in each for each in found)
    assert any(f"batch.max_tokens is {most} on record, and its job says {most - 1}" in each for each in wrong)


def test_a_cap_on_tokens_below_a_sample_is_found(tmp_path):
    """The longest sample of a step fits into no micro-batch, so that nobody can have computed it."""
    run = by_length(tmp_path, 24)
    run.begin_capped(2, run.name, replace(batch_sizes(run.job), max_tokens=20), (), planned=24).steps(6).commit()
    found, wrong = verdicts(run)
    assert any("its samples were split over the workers in another way" in each for each in found)
    assert any("and its plan takes 1 to 20" in each for each in wrong)


def test_a_lowered_cap_on_tokens_binds_what_fits(tmp_path):
    """Both caps are halved. A later group may have fewer tokens, and no more."""
    caps = [lowered(8, 4, tokens=(150, 75))]
    for name, most, is_clean in (("less", 60, True), ("as many", 75, True), ("more", 76, False)):
        (folder := tmp_path / name).mkdir()
        found, wrong = verdicts(by_length(folder, most, lowered=caps))
        assert (not found, not wrong) == (is_clean, is_clean), name


def test_no_cap_on_tokens_is_found(tmp_path):
    """By both. Its plan would have padded micro-batches."""
    run = by_length(tmp_path, 60)
    run.begin_capped(2, run.name, replace(batch_sizes(run.job), max_tokens=None)).steps(2).commit()
    found, wrong = verdicts(run)
    assert any("at most 8 samples, and its job and lowered caps say 8 samples and 192 tokens" in each for each in found)
    assert any("batch.max_tokens is None on record, and its job says 192" in each for each in wrong)


def test_a_script_counts_the_sequences_of_each_kind_as_planner_does():
    """Of which the largest cap on tokens is made."""
    known = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "verify_run.py"))["SEQUENCES"]
    specs = [spec for spec in DATA_KINDS.usable_specs() if spec.kind in DATA_KINDS.ours and spec.kind != "own"]
    assert known == {spec.kind: 2 if spec.samples == "pairs" else 1 for spec in specs}

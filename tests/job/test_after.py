"""The section `after` of a job: its forms, and what it does not go with."""

import pytest

from planner.errors import JobError
from planner.files import parse_job
from planner.job import After

JOB = """
name: dpo
model: {kind: gpt, layers: 1, width: 16, heads: 2, context: 16}
data: {kind: pairs, path: rows.jsonl}
objective: dpo
batch: {global: 6, max_micro: 4}
train: {steps: 4, optimizer: {kind: adamw, lr: 1e-3}}
"""
OWN = """
name: own
model: {kind: own}
data: {kind: own, path: loop.py}
objective: own
batch: {global: 6, max_micro: 4}
train: {steps: 4, optimizer: {kind: own}}
"""


@pytest.mark.parametrize("text", ["after: runs/sft", "after: {run: runs/sft}", "after: {run: runs/sft, step: null}"])
def test_a_run_alone_stands_for_its_last_commit(text):
    """As a text, or as a section."""
    assert parse_job(JOB + text).after == After(run="runs/sft")


def test_a_job_goes_on_from_no_run_by_default():
    """So the identity of older jobs stays."""
    assert parse_job(JOB).after is None


@pytest.mark.parametrize(
    "text", ["after: ''", "after: {step: 4}", "after: {run: a, step: 0}", "after: {run: a, manifest: x}"]
)
def test_what_names_no_commit_is_refused(text):
    """Before any run is opened."""
    with pytest.raises(JobError, match="after"):
        parse_job(JOB + text)


def test_a_loop_of_ones_own_makes_its_own_weights():
    """planner could not set them."""
    with pytest.raises(JobError, match="your loop makes its model itself"):
        parse_job(OWN + "after: runs/sft")

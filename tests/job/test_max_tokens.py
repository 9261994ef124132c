"""Micro-batches by tokens: which jobs may have them, and what becomes of the setting."""

import copy

import numpy as np
import pytest
from pydantic import ValidationError

from planner.data.base import RowLengths
from planner.errors import PlanError
from planner.job import Job, batch_sizes
from planner.job.compute import packing_setting
from planner.job.step_settings import step_settings
from planner.plan import BatchSizes
from planner.provenance.identity import identity_of

CHAT = {
    "name": "a",
    "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 64},
    "data": {"kind": "chat", "path": "rows"},
    "objective": {"kind": "sft"},
    "batch": {"global": 8, "max_micro": 2},
    "train": {"steps": 1, "optimizer": {"kind": "adamw", "lr": 1e-4}},
}
OWN = {
    "name": "own",
    "model": {"kind": "own"},
    "data": {"kind": "own", "path": "loop.py"},
    "objective": "own",
    "batch": {"global": 8, "max_micro": 2},
    "train": {"steps": 1, "optimizer": {"kind": "own"}},
}


def job_with(batch, base=CHAT, **data):
    job = copy.deepcopy(base)
    job["batch"] |= batch
    job["data"] |= data
    return Job.model_validate(job)


def test_samples_alone_are_counted_by_default():
    """Both settings reach the batch sizes that a plan is made from."""
    assert batch_sizes(job_with({})) == BatchSizes(global_batch=8, max_micro=2)
    found = batch_sizes(job_with({"max_tokens": 4096, "attention_at": 96}))
    assert found == BatchSizes(global_batch=8, max_micro=2, max_tokens=4096, attention_at=96)


@pytest.mark.parametrize(
    ("batch", "base", "data", "says"),
    [
        ({"max_tokens": 0}, CHAT, {}, "batch.max_tokens"),
        ({"max_tokens": 2**24 + 1}, CHAT, {}, "batch.max_tokens"),
        ({"max_tokens": 9, "attention_at": 0}, CHAT, {}, "batch.attention_at"),
        ({"attention_at": 96}, CHAT, {}, "without max_tokens samples are only counted. Write max_tokens, or remove"),
        ({"max_tokens": 9}, OWN, {}, "your own loop's samples may have no tokens. Remove it"),
        ({"max_tokens": "auto"}, OWN, {}, "your own loop's samples may have no tokens. Remove it"),
        ({"max_tokens": "auto", "equality": "bitwise"}, CHAT, {}, "the bits follow from max_tokens. Write a number"),
        ({"max_tokens": "most"}, CHAT, {}, "batch.max_tokens"),
    ],
)
def test_jobs_that_cannot_have_it_are_refused(batch, base, data, says):
    """When the job is read, with the way out."""
    with pytest.raises(ValidationError) as refused:
        job_with(batch, base, **data)
    assert says in str(refused.value).replace("batch\n", "batch.").replace("batch.max_tokens\n", "batch.max_tokens ")


@pytest.mark.parametrize("max_tokens", [None, 9])
def test_rows_on_demand_may_have_it(max_tokens):
    """Their lengths are found at the start."""
    assert job_with({"max_tokens": max_tokens}, tokenize="on_demand").batch.max_tokens == max_tokens


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"max_tokens": 0}, "batch.max_tokens is 0. Write a whole number from 1 to 16777216"),
        ({"max_tokens": 2**24 + 1}, "batch.max_tokens is 16777217"),
        ({"max_tokens": 1, "attention_at": 2**25}, "batch.attention_at is 33554432"),
        ({"attention_at": 4}, "batch.attention_at is set, and batch.max_tokens is not"),
    ],
)
def test_batch_sizes_are_checked_without_a_job(sizes, says):
    """As those of a recorded generation are."""
    with pytest.raises(PlanError, match=says):
        BatchSizes(global_batch=8, max_micro=2, **sizes)


class Data:
    """An identity needs no more of a data set and an order."""

    fingerprint, num_rows, num_withheld = "f", 9, 0


@pytest.mark.parametrize(("equality", "num_recipes"), [("balanced", 1), ("bitwise", 4)])
def test_it_changes_the_recipe_of_bitwise_runs_alone(equality, num_recipes):
    """There the rows of a forward pass decide the last bit. In balanced runs a step computes the same."""
    settings = [{}, {"max_tokens": 64}, {"max_tokens": 128}, {"max_tokens": 128, "attention_at": 96}]
    jobs = [job_with({"equality": equality, **each}) for each in settings]
    found = [identity_of(job, Data, Data) for job in jobs]
    assert len({each.recipe for each in found}) == num_recipes
    assert len({each.model_copy(update={"recipe": "0" * 64}) for each in found}) == 1


@pytest.mark.parametrize(("global_batch", "max_micro", "most"), [(8, 2, 128), (8, 4096, 512)])
def test_rows_with_partners_have_a_text_for_each_sample(global_batch, max_micro, most):
    """A micro-batch of feedback has no more samples than a step, and each of its partners' texts up to the context."""
    from planner.train.generation import _most_row_tokens

    feedback = {**CHAT, "data": {"kind": "feedback", "path": "rows"}, "objective": {"kind": "kto"}}
    batch = {"global": global_batch, "max_micro": max_micro, "max_tokens": 90}
    assert _most_row_tokens(job_with(batch, feedback)) == most
    assert _most_row_tokens(job_with(batch)) == 90


PAIRS = {**CHAT, "data": {"kind": "pairs", "path": "rows"}, "objective": {"kind": "dpo", "beta": 0.1}}


@pytest.mark.parametrize(
    ("batch", "base", "samples", "tokens"),
    [
        ({"max_micro": 2}, CHAT, 2, 2 * 64),
        ({"max_micro": 4096}, CHAT, 4096, 2**18),
        ({"max_micro": "auto"}, CHAT, 8, 8 * 64),
        ({"max_micro": "auto"}, PAIRS, 8, 8 * 2 * 64),
        ({"max_micro": "auto", "global": 2**20}, CHAT, 4096, 4096 * 64),
        ({"max_micro": "auto", "global": 2**20}, {**CHAT, "model": {**CHAT["model"], "context": 2**13}}, 4096, 2**24),
    ],
)
def test_auto_is_at_most_what_the_most_samples_could_have(batch, base, samples, tokens):
    """Plans without devices have that. A pair has two sequences as long as the context."""
    found = batch_sizes(job_with({**batch, "max_tokens": "auto"}, base))
    assert found == BatchSizes(global_batch=batch.get("global", 8), max_micro=samples, max_tokens=tokens)


def test_auto_is_a_number_for_what_identifies_a_run():
    """Lengths identify rows on demand with either, so neither is another data set than the other."""
    job, auto = (job_with({"max_tokens": each}, tokenize="on_demand") for each in (64, "auto"))
    assert identity_of(job, Data, Data) == identity_of(auto, Data, Data)
    assert step_settings(job) == step_settings(auto)
    assert packing_setting(auto) == "batch.max_tokens"
    assert job_with({"max_tokens": "auto", "attention_at": 96}).batch.attention_at == 96


@pytest.mark.parametrize(("max_tokens", "limit"), [(90, 90), ("auto", 4 * 60), (None, None)])
def test_a_cached_reference_has_chunks_that_no_device_decides(max_tokens, limit):
    """They decide its bits. With `auto`, a chunk has the tokens of four samples."""
    from planner.train.generation import _token_limit

    class Pairs:
        num_rows = 3

        def lengths(self, rows):
            return RowLengths(tokens=np.array([60, 7, 50])[rows], squares=np.zeros(3, np.int64)[rows])

    found = _token_limit(job_with({"max_tokens": max_tokens}, PAIRS), Pairs())
    assert (found and found.max_tokens) == limit

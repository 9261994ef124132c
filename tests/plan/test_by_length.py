"""Plans by length: what is fixed for a generation, and what the lengths of a step's samples decide."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlanError
from planner.plan import BatchSizes, make_plan
from planner.plan.by_length import ByLength, placement
from planner.plan.revise import worth_asking

LENGTHS = (40, 7, 7, 90, 13, 55, 21, 3, 64, 8)


def plan_for(world_size, equality="balanced", **changes) -> ByLength:
    fields = {"global_batch": len(LENGTHS), "max_micro": 4, "max_tokens": 100, "equality": equality, **changes}
    plan = make_plan(BatchSizes(**fields), world_size)
    assert isinstance(plan, ByLength)
    return plan


def assigned(plan, lengths=LENGTHS):
    return plan.assignment(lengths, [length**2 for length in lengths])


@given(world_size=st.integers(1, 12), equality=st.sampled_from(["balanced", "bitwise"]), data=st.data())
def test_each_step_is_computed_once_within_both_caps(world_size, equality, data):
    """Whatever the lengths are."""
    lengths = data.draw(st.lists(st.integers(1, 100), min_size=len(LENGTHS), max_size=len(LENGTHS)))
    plan = plan_for(world_size, equality)
    found = assigned(plan, lengths)
    slots = [slot for rank in range(world_size) for slot in found.micro_batches(rank)]
    assert sorted(offset for slot in slots for offset in slot) == list(range(len(LENGTHS)))
    assert max(map(len, slots)) <= plan.max_micro
    assert max(sum(lengths[offset] for offset in slot) for slot in slots) <= plan.max_tokens
    assert found.accumulation_steps >= plan.accumulation_steps
    assert sum(map(bool, slots)) <= plan.most_micro_batches


def test_a_plan_without_a_cap_on_tokens_is_as_before():
    """Its digest is in the ledgers of older runs."""
    plan = make_plan(BatchSizes(global_batch=10, max_micro=4), 3)
    assert not isinstance(plan, ByLength)
    assert (plan.layout_version, plan.digest) == (1, "11db09bd038ae411")


@pytest.mark.parametrize(
    "change",
    [{"max_tokens": 101}, {"max_micro": 5}, {"attention_at": 64}, {"equality": "bitwise"}],
    ids=lambda change: str(*change),
)
def test_the_digest_has_all_that_is_fixed(change):
    """Both caps, what a sample costs, and the mode."""
    assert plan_for(3, **change).digest != plan_for(3).digest


def test_the_digest_is_the_same_everywhere():
    """It is in ledgers."""
    assert (plan_for(3).layout_version, plan_for(3).digest) == (2, "5093799d7e4706ae")


@given(world_size=st.integers(1, 12), attention_at=st.sampled_from([None, 16, 1000]), step_cost=st.floats(1, 1e9))
def test_the_largest_round_is_at_most_a_whole_step_on_one_worker(world_size, attention_at, step_cost):
    """And what the cap on tokens allows. Without a step that was measured, it is that of equal lengths."""
    plan = plan_for(world_size, attention_at=attention_at)
    (most,) = plan.costs([100], [100**2])
    assert most == (100 if attention_at is None else 100 * attention_at + 100**2)
    assert 0 < plan.largest_round(step_cost) <= plan.workers_used
    assert plan.largest_round(step_cost) <= most * plan.workers_used / step_cost
    assert plan.largest_round(0) == plan.max_micro_batch / plan.step_cost


def test_in_bitwise_the_micro_batches_do_not_depend_on_the_workers():
    """Workers take them in turn."""
    found = {assigned(plan_for(world_size, "bitwise")).micro_batches_in_order for world_size in range(1, 8)}
    assert len(found) == 1


def test_squares_count_where_attention_does():
    """One sample of 90 tokens costs more than two of 45."""
    lengths = (90, 45, 45, 1)
    fields = {"global_batch": 4, "max_micro": 3, "max_tokens": 200}
    by_tokens = assigned(plan_for(2, **fields), lengths).micro_batches_in_order
    by_squares = assigned(plan_for(2, **fields, attention_at=1), lengths).micro_batches_in_order
    assert {tuple(sorted(lengths[i] for i in each)) for each in by_squares} == {(90,), (1, 45, 45)}
    assert by_tokens != ()


@pytest.mark.parametrize("equality", ["balanced", "bitwise"])
def test_a_sample_beyond_the_cap_is_refused(equality):
    """With its length and what to write."""
    with pytest.raises(PlanError, match="max_tokens"):
        assigned(plan_for(2, equality, max_tokens=89))


def test_slots_need_lengths():
    """A caller that does not ask for the assignment is wrong."""
    with pytest.raises(TypeError, match="assignment"):
        plan_for(2).micro_batch(0, 0)


def test_all_workers_with_samples_are_useful():
    """With 7 of 10 samples' worth of workers, an eighth still has less to compute."""
    plan = plan_for(7)
    assert plan.fewest_workers_as_fast == 7
    assert plan.at(8).work < plan.work


def test_a_high_max_micro_leaves_no_worker_idle_in_bitwise():
    """The cap on tokens decides, so more than `ceil(G / m)` micro-batches follow. One worker would be far slower."""
    plan = plan_for(4, "bitwise", max_micro=64)
    assert len(assigned(plan).micro_batches_in_order) == 4
    assert worth_asking(plan, 4) == 4
    assert plan.at(4).work < plan.at(3).work
    assert plan.notes(10_000) == ()


def test_the_placement_tells_workers_and_rounds_apart():
    """Rows, worker and round are in it. Ghosts are not."""
    found = {
        placement(0, [[1, 2], [3]]),
        placement(1, [[1, 2], [3]]),
        placement(0, [[3], [1, 2]]),
        placement(0, [[1], [2, 3]]),
    }
    assert len(found) == 4
    assert placement(0, [[1, 2], []]) == placement(0, [[1, 2]])
    assert placement(5, [[], []]) == 0


def test_an_unknown_layout_is_refused():
    """The layouts of both kinds of plan are apart."""
    with pytest.raises(PlanError, match="layout version 1, and this version of planner knows 2"):
        make_plan(BatchSizes(global_batch=10, max_micro=4, max_tokens=100), 2, layout_version=1)


@given(
    tokens=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    world_size=st.integers(1, 12),
    max_micro=st.integers(1, 40),
    attention_at=st.sampled_from([None, 5, 50]),
)
def test_a_cap_of_a_share_of_the_longest_samples_costs_no_round(tokens, world_size, max_micro, attention_at):
    """So `batch.max_tokens: auto` is never above it."""
    size, longest = len(tokens), max(tokens)
    caps = [min(-(-size // world_size), max_micro) * longest, size * longest]
    sizes = BatchSizes(global_batch=size, max_micro=max_micro, max_tokens=1, attention_at=attention_at)
    plans = [make_plan(replace(sizes, max_tokens=cap), world_size) for cap in caps]
    squares = [each**2 for each in tokens]
    rounds = [plan.assignment(tokens, squares).accumulation_steps for plan in plans]
    assert rounds[0] == rounds[1]

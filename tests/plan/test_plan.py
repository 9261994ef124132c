"""The plan's promises, as properties over every kind of batch and world size."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planner.errors import PlanError
from planner.plan import BatchSizes, Plan, make_plan


def plan_for(global_batch, world_size, max_micro, equality="balanced") -> Plan:
    sizes = BatchSizes(global_batch=global_batch, max_micro=max_micro, equality=equality)
    return make_plan(sizes, world_size)


sizes = {
    "global_batch": st.integers(1, 600),
    "world_size": st.integers(1, 80),
    "max_micro": st.integers(1, 40),
}


def share_of(plan, rank):
    return sum(len(slot) for slot in plan.micro_batches(rank))


either = {**sizes, "equality": st.sampled_from(["balanced", "bitwise"])}
huge = {
    "global_batch": st.integers(1, 2**20),
    "world_size": st.integers(1, 65_536),
    "max_micro": st.integers(1, 4_096),
}


@given(**either)
@example(global_batch=32, world_size=15, max_micro=2, equality="balanced")
@example(global_batch=1, world_size=80, max_micro=1, equality="bitwise")
def test_every_sample_is_computed_exactly_once(global_batch, world_size, max_micro, equality):
    """The ranges of all ranks and rounds are disjoint and cover [0, G)."""
    plan = plan_for(global_batch, world_size, max_micro, equality)
    computed = [i for rank in range(world_size) for slot in plan.micro_batches(rank) for i in slot]
    assert sorted(computed) == list(range(global_batch))


@given(**either)
def test_every_worker_has_the_same_number_of_rounds(global_batch, world_size, max_micro, equality):
    """FSDP's collectives need it, so idle workers have rounds too."""
    plan = plan_for(global_batch, world_size, max_micro, equality)
    assert {len(plan.micro_batches(rank)) for rank in range(world_size)} == {plan.accumulation_steps}


@given(**sizes)
def test_rounds_are_the_fewest_that_keep_within_max_micro(global_batch, world_size, max_micro):
    """One round less could not hold the largest share."""
    plan = plan_for(global_batch, world_size, max_micro)
    slots = [len(slot) for rank in range(world_size) for slot in plan.micro_batches(rank)]
    assert max(slots) == plan.max_micro_batch <= max_micro
    largest_share = -(-global_batch // world_size)
    assert (plan.accumulation_steps - 1) * max_micro < largest_share


@given(**sizes)
@example(global_batch=32, world_size=15, max_micro=2)
def test_the_cost_is_the_sum_of_each_rounds_largest_slot(global_batch, world_size, max_micro):
    """And it is ceil(G / W), which no split at sample granularity can beat."""
    plan = plan_for(global_batch, world_size, max_micro)
    rounds = zip(*(plan.micro_batches(rank) for rank in range(world_size)), strict=True)
    cost = sum(max(len(slot) for slot in slots) for slots in rounds)
    assert cost == plan.step_cost == -(-global_batch // world_size)
    assert Fraction(plan.efficiency).limit_denominator(10**9) == Fraction(global_batch, world_size * cost)


@given(**sizes)
def test_shares_differ_by_at_most_one_and_slots_fall(global_batch, world_size, max_micro):
    """Each used worker has floor(G/W) or one more, larger slots first."""
    plan = plan_for(global_batch, world_size, max_micro)
    used = [share_of(plan, rank) for rank in range(plan.workers_used)]
    assert max(used) - min(used) <= 1
    assert used == sorted(used, reverse=True)
    for rank in range(world_size):
        slots = [len(slot) for slot in plan.micro_batches(rank)]
        assert slots == sorted(slots, reverse=True)
        assert max(slots) - min(slots) <= 1


@given(**either)
def test_the_printed_shares_are_the_ranks_shares(global_batch, world_size, max_micro, equality):
    """`shares` groups what `share(rank)` says, in rank order."""
    plan = plan_for(global_batch, world_size, max_micro, equality)
    expanded = [samples for count, samples in plan.shares for _ in range(count)]
    assert expanded == [share_of(plan, rank) for rank in range(world_size)]


@given(**huge, equality=st.sampled_from(["balanced", "bitwise"]), data=st.data())
def test_huge_plans_answer_for_any_rank(global_batch, world_size, max_micro, equality, data):
    """At the largest sizes, neighbouring micro-batches still meet, stay within the cap, and end where G ends."""
    plan = plan_for(global_batch, world_size, max_micro, equality)
    rank = data.draw(st.integers(0, world_size - 1))
    last_round = plan.accumulation_steps - 1
    slots = [plan.micro_batch(rank, 0), plan.micro_batch(rank, last_round)]
    assert all(len(slot) <= max_micro for slot in slots)
    assert plan.micro_batch(0, 0).start == 0
    if rank:
        before = (rank - 1, 0) if equality == "bitwise" else (rank - 1, last_round)
        assert plan.micro_batch(*before).stop == slots[0].start or not slots[0]
    assert sum(count * samples for count, samples in plan.shares) == global_batch
    assert sum(count for count, _ in plan.shares) == world_size


@given(global_batch=st.integers(1, 300), max_micro=st.integers(1, 40), sizes_=st.lists(st.integers(1, 60), min_size=2))
def test_bitwise_micro_batches_do_not_depend_on_the_world_size(global_batch, max_micro, sizes_):
    """What enters a forward pass is the same at every W: that is all that equal bits need of a plan."""
    cuts = set()
    for world_size in sizes_:
        plan = plan_for(global_batch, world_size, max_micro, "bitwise")
        slots = [slot for rank in range(world_size) for slot in plan.micro_batches(rank) if slot]
        assert len(slots) == plan.num_micro_batches
        cuts.add(tuple(sorted((slot.start, slot.stop) for slot in slots)))
    assert len(cuts) == 1


@given(**sizes)
def test_bits_cost_what_the_plan_says(global_batch, world_size, max_micro):
    """The cost is the sum of each round's largest micro-batch, and never below the balanced one."""
    plan = plan_for(global_batch, world_size, max_micro, "bitwise")
    rounds = zip(*(plan.micro_batches(rank) for rank in range(world_size)), strict=True)
    assert plan.step_cost == sum(max(len(slot) for slot in slots) for slots in rounds) >= plan.balanced_cost
    assert plan.balanced_cost == plan_for(global_batch, world_size, max_micro).step_cost


@given(**either)
def test_fewest_workers_as_fast_is_the_least_count_of_equal_cost(global_batch, world_size, max_micro, equality):
    """One worker fewer than that costs more."""
    plan = plan_for(global_batch, world_size, max_micro, equality)
    fewest = plan.fewest_workers_as_fast
    assert plan_for(global_batch, fewest, max_micro, equality).step_cost == plan.step_cost
    assert fewest == 1 or plan_for(global_batch, fewest - 1, max_micro, equality).step_cost > plan.step_cost


def test_the_digest_names_every_number_that_matters():
    """Equal inputs give equal digests, and each input changes it."""
    digests = {plan_for(*numbers).digest for numbers in [(64, 4, 8), (65, 4, 8), (64, 5, 8), (64, 4, 9)]}
    assert len(digests) == 4
    assert plan_for(64, 4, 8).digest == plan_for(64, 4, 8).digest == "67d8c1aca83bd738"


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((32, 4, 8), ()),
        ((32, 15, 8), ("11 workers are just as fast",)),
        ((32, 16, 1), ("micro-batch 1 is communication-bound under FSDP: raise max_micro",)),
        ((8, 8, 4), ("micro-batch 1 is communication-bound under FSDP: use fewer workers",)),
        ((2, 3, 4), ("1 of 3 workers idle", "micro-batch 1", "2 workers are just as fast")),
        ((8, 1, 1), ()),
    ],
)
def test_warnings_say_what_a_user_should_know(numbers, expected):
    """Only communication-bound micro-batches, idle workers and wasted workers are named."""
    warnings = plan_for(*numbers).warnings
    assert len(warnings) == len(expected)
    for warning, start in zip(warnings, expected, strict=True):
        assert start in warning


@pytest.mark.parametrize(("tokens", "is_bound"), [(None, True), (1024, True), (7_999, True), (8_000, False)])
def test_a_long_sample_is_work_enough_for_what_is_gathered(tokens, is_bound):
    """400 TFLOP/s on 50 GB/s: 8,000 FLOP per byte, which are 8,000 tokens in bf16. The others are not touched."""
    notes = plan_for(32, 3, 1).notes(tokens)
    assert any("communication-bound" in note for note in notes) == is_bound
    assert plan_for(2, 3, 4).notes(65_536) == (
        "1 of 3 workers idle: a global batch of 2 feeds at most 2",
        "2 workers are just as fast",
    )


@pytest.mark.parametrize(
    ("numbers", "fit", "fewest", "advice"),
    [
        ((8, 8, 4), "unknown", 1, "use fewer workers"),
        ((8, 8, 4), "unknown", 5, "use fewer workers (5 or more fit)"),
        ((8, 8, 4), "full", 8, "fewer workers do not fit"),
        ((32, 16, 1), "full", 16, "no larger one fits, so save memory (bf16, activation checkpointing)"),
        (
            (32, 16, 1),
            "unknown",
            4,
            "raise max_micro (bf16 and activation checkpointing save memory), or use fewer workers (4 or more fit)",
        ),
    ],
)
def test_fewer_workers_are_no_advice_where_they_do_not_fit(numbers, fit, fewest, advice):
    """Each holds more of the state then."""
    (note,) = plan_for(*numbers).notes(None, fit, fewest)
    assert note == f"micro-batch 1 is communication-bound under FSDP: {advice}"


@pytest.mark.parametrize(("fewest", "notes"), [(11, "11 workers"), (12, "12 workers"), (15, "")])
def test_as_fast_are_only_counts_that_fit(fewest, notes):
    """15 workers and 11 take as long at 32 samples."""
    assert plan_for(32, 15, 8).notes(None, "full", fewest) == ((f"{notes} are just as fast",) if notes else ())


def test_eleven_to_fifteen_workers_cost_the_same_at_32():
    """The example of the design: G=32 costs 3 at 11..15 workers."""
    assert [plan_for(32, w, 8).step_cost for w in range(10, 17)] == [4, 3, 3, 3, 3, 3, 2]


@pytest.mark.parametrize("world_size", [0, -1, 65_537])
def test_impossible_world_sizes_are_refused_with_the_bounds(world_size):
    """The error names the number and the bounds."""
    with pytest.raises(PlanError, match=rf"the world size is {world_size}\. .* from 1 to 65536"):
        plan_for(8, world_size, 8)


@pytest.mark.parametrize(("global_batch", "max_micro"), [(0, 1), (2**20 + 1, 1), (1, 0), (1, 4097)])
def test_impossible_batches_are_refused(global_batch, max_micro):
    """Sizes outside of what the plan room promises are refused at birth."""
    with pytest.raises(PlanError, match="Write a whole number from 1 to"):
        BatchSizes(global_batch=global_batch, max_micro=max_micro)


def test_an_unknown_equality_is_refused_with_the_known_ones():
    with pytest.raises(PlanError, match=r"'exact'\. Write one of balanced, bitwise"):
        BatchSizes(global_batch=8, max_micro=2, equality="exact")


def test_ranks_and_rounds_outside_of_the_plan_are_refused():
    """Asking for a rank or a round that is not there is a mistake of ours, and raises."""
    plan = plan_for(8, 2, 2)
    with pytest.raises(IndexError, match=r"rank 2 is not in \[0, 2\)"):
        plan.micro_batch(2, 0)
    with pytest.raises(IndexError, match=r"step 2 is not in \[0, 2\)"):
        plan.micro_batch(0, 2)

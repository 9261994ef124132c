"""The promises of assignments, as properties over every kind of lengths, caps and world sizes."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from statistics import fmean

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planner.errors import PlanError
from planner.plan import Assignment, SampleLengths, assign_balanced, assign_bitwise, lower_bound

WAYS = [assign_balanced, assign_bitwise]


def lengths_of(tokens, costs=None) -> SampleLengths:
    return SampleLengths(tokens=tuple(tokens), costs=tuple(tokens if costs is None else costs))


def squares(tokens):
    return [each * (each + 20) for each in tokens]


@st.composite
def cases(draw, most_samples=40, most_workers=20):
    """Lengths, workers and caps. Costs are the tokens, quadratic in them, or have nothing to do with them."""
    tokens = draw(st.lists(st.integers(1, draw(st.sampled_from([3, 50, 5_000]))), min_size=1, max_size=most_samples))
    count = len(tokens)
    kinds = (st.just(tokens), st.just(squares(tokens)), st.lists(st.integers(0, 9), min_size=count, max_size=count))
    caps = {
        "max_micro": draw(st.integers(1, 12)),
        "max_tokens": max(tokens) + draw(st.sampled_from([0, 1, 7, 100, 10**6])),
    }
    return lengths_of(tokens, draw(st.one_of(*kinds))), draw(st.integers(1, most_workers)), caps


ways = st.sampled_from(WAYS)


def rounds_of(assignment) -> list[tuple[tuple[int, ...], ...]]:
    """The micro-batches of all workers, round by round, as the workers see them."""
    return list(zip(*(assignment.micro_batches(rank) for rank in range(assignment.world_size)), strict=True))


def cost_of(costs, samples) -> int:
    return sum(costs[offset] for offset in samples)


@given(cases(), ways)
@example((lengths_of([5]), 20, {"max_micro": 1, "max_tokens": 5}), assign_balanced)
@example((lengths_of([1, 1, 1], [0, 0, 0]), 2, {"max_micro": 1, "max_tokens": 1}), assign_bitwise)
def test_every_sample_is_computed_exactly_once_within_the_caps(case, way):
    """No micro-batch has too many samples or tokens. Offsets rise in each."""
    lengths, world_size, caps = case
    batches = way(lengths, world_size, **caps).micro_batches_in_order
    assert sorted(offset for each in batches for offset in each) == list(range(len(lengths.tokens)))
    for each in batches:
        assert 1 <= len(each) <= caps["max_micro"]
        assert cost_of(lengths.tokens, each) <= caps["max_tokens"]
        assert list(each) == sorted(each)


@given(cases(), ways)
def test_every_worker_has_the_same_rounds_and_ghosts_are_at_the_end(case, way):
    """Worker r computes micro-batch `a * W + r` in round a. There is no round of ghosts alone."""
    lengths, world_size, caps = case
    assignment = way(lengths, world_size, **caps)
    rounds = rounds_of(assignment)
    assert len(rounds) == assignment.accumulation_steps
    in_turn = [each for batches in rounds for each in batches]
    ghosts = len(in_turn) - len(assignment.micro_batches_in_order)
    assert in_turn == [*assignment.micro_batches_in_order, *[()] * ghosts]
    assert 0 <= ghosts < world_size


@given(cases(), ways)
def test_the_cost_is_the_sum_of_each_rounds_most_expensive_micro_batch(case, way):
    """The micro-batches are in the order in which that sum is least: by falling cost."""
    lengths, world_size, caps = case
    assignment = way(lengths, world_size, **caps)
    costs = [[cost_of(lengths.costs, each) for each in batches] for batches in rounds_of(assignment)]
    assert assignment.step_cost(lengths.costs) == sum(map(max, costs)) == sum(each[0] for each in costs)
    in_turn = [each for batches in costs for each in batches]
    assert in_turn == sorted(in_turn, reverse=True)


@given(cases(), ways)
def test_no_assignment_costs_less_than_the_lower_bound(case, way):
    """Nor has fewer rounds than the caps allow."""
    lengths, world_size, caps = case
    assignment = way(lengths, world_size, **caps)
    assert assignment.step_cost(lengths.costs) >= lower_bound(lengths, world_size, **caps)
    held = assignment.accumulation_steps * world_size
    assert held * caps["max_micro"] >= len(lengths.tokens)
    assert held * caps["max_tokens"] >= sum(lengths.tokens)


def all_splits(count) -> Iterator[list[list[int]]]:
    """Every way to split `count` samples into micro-batches."""
    if not count:
        yield []
        return
    for split in all_splits(count - 1):
        yield [*split, [count - 1]]
        for index in range(len(split)):
            yield [*split[:index], [*split[index], count - 1], *split[index + 1 :]]


def least_cost(lengths, world_size, max_micro, max_tokens) -> int:
    """The least step cost there is, by trying all splits."""
    return min(
        sum(sorted((cost_of(lengths.costs, each) for each in split), reverse=True)[::world_size])
        for split in all_splits(len(lengths.tokens))
        if all(len(each) <= max_micro and cost_of(lengths.tokens, each) <= max_tokens for each in split)
    )


@given(cases(most_samples=6, most_workers=4))
def test_the_lower_bound_is_true(case):
    """Tried against all splits of up to six samples, at any number of rounds."""
    lengths, world_size, caps = case
    least = least_cost(lengths, world_size, **caps)
    assert lower_bound(lengths, world_size, **caps) <= least
    assert least <= assign_balanced(lengths, world_size, **caps).step_cost(lengths.costs)


@pytest.mark.parametrize(
    ("tokens", "world_size", "max_micro", "max_tokens", "expected"),
    [
        ([5, 5, 5, 4], 2, 9, 99, 10),  # total / W is 9.5
        ([9, 1, 1], 3, 9, 99, 9),  # the most expensive sample
        ([6, 5, 4], 2, 9, 99, 9),  # of three samples, two are on one worker
        ([9, 2, 2, 2], 2, 1, 99, 11),  # two rounds, by samples
        ([60, 60, 60, 1], 2, 9, 100, 120),  # two rounds, as no two long samples share a micro-batch
        ([9, 4, 4, 3], 2, 9, 9, 12),  # two rounds, by tokens, and one of the four is in the second
        ([100, 8, 8, 8, 8, 8], 2, 2, 100, 108),  # two samples are left for a second round
    ],
)
def test_parts_of_the_lower_bound(tokens, world_size, max_micro, max_tokens, expected):
    """In a case where that part alone gives it."""
    assert lower_bound(lengths_of(tokens), world_size, max_micro=max_micro, max_tokens=max_tokens) == expected


def test_the_lower_bound_by_what_a_round_can_hold():
    """Four of 5 tokens fit into a round. The others cost at least 12, so 6 on one of the two workers."""
    lengths = lengths_of([5] * 7, [60, 9, 9, 9, 4, 4, 4])
    assert lower_bound(lengths, 2, max_micro=7, max_tokens=10) == 60 + 6


@given(cases(), st.lists(st.integers(1, 60), min_size=2, max_size=5))
def test_bitwise_micro_batches_do_not_depend_on_the_world_size(case, world_sizes):
    """What enters a forward pass is the same at every W: that is all that equal bits need."""
    lengths, _, caps = case
    assert len({assign_bitwise(lengths, each, **caps).micro_batches_in_order for each in world_sizes}) == 1


def longest_first(lengths, count, max_micro, max_tokens) -> list[list[int]] | None:
    """LPT as in textbooks, with both caps. None if a sample finds no room."""
    bins: list[list[int]] = [[] for _ in range(count)]
    for offset in sorted(range(len(lengths.costs)), key=lambda each: (-lengths.costs[each], each)):
        need = max_tokens - lengths.tokens[offset]
        fits = [each for each in bins if len(each) < max_micro and cost_of(lengths.tokens, each) <= need]
        if not fits:
            return None
        min(fits, key=lambda each: cost_of(lengths.costs, each)).append(offset)
    return bins


@given(cases())
def test_balanced_never_costs_more_than_the_longest_first_in_as_many_rounds(case):
    """Where that fits. If it fits into the fewest rounds that the caps allow, there are no more."""
    lengths, world_size, caps = case
    assignment = assign_balanced(lengths, world_size, **caps)
    rounds = assignment.accumulation_steps
    split = longest_first(lengths, world_size * rounds, **caps)
    if split:
        loads = sorted((cost_of(lengths.costs, each) for each in split), reverse=True)
        assert assignment.step_cost(lengths.costs) <= sum(loads[::world_size])
    of_samples, of_tokens = world_size * caps["max_micro"], world_size * caps["max_tokens"]
    fewest = max(-(-len(lengths.tokens) // of_samples), -(-sum(lengths.tokens) // of_tokens))
    assert rounds == fewest or longest_first(lengths, world_size * fewest, **caps) is None


@given(st.lists(st.integers(1, 99), min_size=1, max_size=20), st.integers(0, 20), ways)
def test_with_as_many_workers_as_samples_each_is_alone(tokens, more, way):
    """Where micro-batches are single samples. The cost is that of the largest one, which no assignment can beat."""
    lengths = lengths_of(tokens)
    assignment = way(lengths, len(tokens) + more, max_micro=1, max_tokens=max(tokens))
    assert assignment.accumulation_steps == 1
    assert assignment.step_cost(lengths.costs) == max(tokens)


@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 9))
def test_samples_of_one_length_cost_what_the_plan_without_lengths_costs(count, world_size, max_micro):
    """`ceil(G / W)` samples, in `ceil(G / W / m)` rounds."""
    assignment = assign_balanced(lengths_of([7] * count), world_size, max_micro=max_micro, max_tokens=7 * max_micro)
    share = -(-count // world_size)
    assert assignment.step_cost([1] * count) == share
    assert assignment.accumulation_steps == -(-share // max_micro)


def test_the_round_of_a_long_sample_takes_as_much_as_it_can_for_free():
    """A sample of 20 makes its round cost 20, so another worker computes four of 5. LPT alone would pay 20 + 15."""
    lengths, caps = lengths_of([20, *[5] * 8]), {"max_micro": 4, "max_tokens": 100}
    assignment = assign_balanced(lengths, 2, **caps)
    assert [len(each) for each in assignment.micro_batches_in_order] == [1, 4, 2, 2]
    assert assignment.step_cost(lengths.costs) == 30 == lower_bound(lengths, 2, **caps)
    assert [len(each) for each in longest_first(lengths, 4, **caps)] == [1, 3, 3, 2]


def test_best_fit_saves_a_round_that_the_longest_first_needs():
    """LPT fills two micro-batches to 7 of 8 tokens, and the sample of 2 has no room. Best fit fills both."""
    lengths, caps = lengths_of([4, 4, 3, 3, 2]), {"max_micro": 5, "max_tokens": 8}
    assert longest_first(lengths, 2, **caps) is None
    for way in WAYS:
        assert way(lengths, 2, **caps).micro_batches_in_order == ((0, 1), (2, 3, 4))


def test_samples_that_exchange_workers_make_a_round_cheaper():
    """LPT gives 3 + 2 + 2 and 3 + 2. An exchange of 3 and 2 gives 6 and 6."""
    lengths = lengths_of([3, 3, 2, 2, 2])
    assignment = assign_balanced(lengths, 2, max_micro=5, max_tokens=99)
    assert assignment.step_cost(lengths.costs) == 6


@pytest.mark.parametrize("global_batch", [64, 512])
def test_the_cost_is_close_to_the_lower_bound(global_batch):
    """Within 3 % on average, for long-tailed lengths: bench/balance.py has more of them."""
    generator = random.Random(global_batch)
    ratios = []
    for world_size in range(1, 65, 3):
        tokens = [max(1, round(generator.lognormvariate(5.5, 0.8))) for _ in range(global_batch)]
        lengths, caps = lengths_of(tokens), {"max_micro": 8, "max_tokens": max(10 * fmean(tokens), *tokens).__ceil__()}
        assignment = assign_balanced(lengths, world_size, **caps)
        ratios.append(assignment.step_cost(tokens) / lower_bound(lengths, world_size, **caps))
    assert fmean(ratios) < 1.015
    assert max(ratios) < 1.08


FIXED = """
from planner.plan import SampleLengths, assign_balanced, assign_bitwise
tokens = tuple(1 + 7919 * offset % 997 for offset in range(200))
lengths = SampleLengths(tokens=tokens, costs=tuple(each * (each + 4096) for each in tokens))
digests = [way(lengths, 7, max_micro=12, max_tokens=6_000).digest for way in (assign_balanced, assign_bitwise)]
"""


def test_a_fixed_case_has_the_digest_that_was_stored():
    """A change of the heuristic changes what a run computes. It needs another layout version."""
    names: dict[str, list[str]] = {}
    exec(FIXED, names)  # the subprocess below runs the same lines
    assert names["digests"] == ["afb8c780853e8d6a", "1bd4c99246246de8"]


@pytest.mark.process
@pytest.mark.parametrize("seed", ["0", "1", "4294967295"])
def test_the_digest_does_not_depend_on_the_seed_of_hashes(seed):
    """Another process makes the same assignment."""
    names: dict[str, list[str]] = {}
    exec(FIXED, names)
    done = subprocess.run(
        [sys.executable, "-c", FIXED + "print(*digests)"],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == names["digests"]


def test_the_digest_names_every_micro_batch_and_the_world_size():
    """Also the order of micro-batches, which says who computes which."""
    orders = [((0, 1), (2,)), ((0,), (1, 2)), ((2,), (0, 1)), ((0, 1, 2),)]
    found = [Assignment(world_size=2, micro_batches_in_order=each).digest for each in orders]
    found.append(Assignment(world_size=3, micro_batches_in_order=orders[0]).digest)
    assert len(set(found)) == 5
    assert {len(each) for each in found} == {16}


@pytest.mark.parametrize("call", [*WAYS, lower_bound])
def test_a_sample_above_the_cap_is_refused_with_its_length(call):
    """The error says how many there are and what to write."""
    with pytest.raises(
        PlanError, match=r"2 of 3 samples .* max_tokens \(8\).* longest \(offset 1\) has 11\. Write max_tokens: 11"
    ):
        call(lengths_of([9, 11, 3]), 2, max_micro=1, max_tokens=8)


@pytest.mark.parametrize("call", [*WAYS, lower_bound])
@pytest.mark.parametrize(("world_size", "max_micro"), [(0, 1), (1, 0), (-1, 1)])
def test_sizes_below_1_are_a_mistake_of_ours(call, world_size, max_micro):
    """Plans check what users write."""
    with pytest.raises(ValueError, match="at least 1"):
        call(lengths_of([3]), world_size, max_micro=max_micro, max_tokens=8)


@pytest.mark.parametrize(("tokens", "costs"), [([], []), ([1], [1, 2]), ([0], [1]), ([1], [-1])])
def test_lengths_that_cannot_be_are_refused(tokens, costs):
    """At birth."""
    with pytest.raises(ValueError, match=r"samples? ha"):
        lengths_of(tokens, costs)


def test_a_rank_outside_of_the_world_is_refused():
    """It is a mistake of ours, and raises."""
    assignment = assign_balanced(lengths_of([1, 2]), 2, max_micro=1, max_tokens=2)
    with pytest.raises(IndexError, match=r"rank 2 is not in \[0, 2\)"):
        assignment.micro_batches(2)
    with pytest.raises(IndexError, match="rank -1"):
        assignment.micro_batches(-1)

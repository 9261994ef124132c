"""The bytes of a commit by hand and by properties. Real shards are compared in tests/fsdp/test_commit_bytes.py."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.plan.commit_size import CommitSize, ModelShapes, OptimizerTensors

ADAMW = OptimizerTensors(like_parameter=2, scalars=1)
SGD = OptimizerTensors(like_parameter=0, scalars=0)


def size_of(shapes, optimizer=ADAMW, **settings):
    return CommitSize(shapes=ModelShapes(trained=shapes, num_blocks=3), optimizer=optimizer, **settings)


sizes = st.builds(
    size_of,
    st.dictionaries(st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple), st.integers(1, 9), max_size=6),
    st.sampled_from([ADAMW, SGD, OptimizerTensors(like_parameter=1, scalars=1)]),
    is_bitwise=st.booleans(),
)
world_sizes = st.integers(1, 70)


def test_adamw_keeps_twelve_bytes_per_parameter():
    """8 billion parameters are 96 GB: weights and two averages in float32."""
    assert size_of({(8_000_000, 1000): 1}, SGD).state_bytes == 32 * 10**9
    assert size_of({(8_000_000, 1000): 1}).state_bytes == 96 * 10**9 + 4


def test_rows_are_not_split():
    """7 rows on 3 workers: 3, 3 and 1. One row on 3 workers: the first has it. Each has both step counters of AdamW."""
    size = size_of({(7, 10): 1, (1,): 1})
    assert [size.worker_bytes(3, rank) for rank in range(3)] == [12 * 31 + 8, 12 * 30 + 8, 12 * 10 + 8]
    assert size.node_bytes(3, 2) == 12 * 61 + 16


def test_workers_beyond_the_rows_have_none():
    """4 rows on 3 workers: 2, 2 and none."""
    assert [size_of({(4,): 5}, SGD).worker_bytes(3, rank) for rank in range(3)] == [40, 40, 0]


def test_exact_sums_add_an_exponent_for_every_unit():
    """Three blocks, the rest of the model, and whether they are known: five int64, on every worker."""
    plain, exact = (size_of({(4, 2): 1}, SGD, is_bitwise=is_bitwise) for is_bitwise in (False, True))
    assert exact.state_bytes - plain.state_bytes == 5 * 8
    assert exact.worker_bytes(4) - plain.worker_bytes(4) == 5 * 8


def test_a_commit_takes_the_states_bytes_over_the_rate():
    """In gigabytes of 10^9 bytes per second: 96 GB at 0.5 GB/s."""
    assert size_of({(8_000_000, 1000): 1}).commit_s(0.5) == pytest.approx(192)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_a_rate_must_be_above_zero(rate):
    """The time would be endless, or nonsense."""
    with pytest.raises(ValueError, match="above 0 GB/s"):
        size_of({(4,): 1}).commit_s(rate)


@given(sizes, world_sizes)
def test_shards_are_the_state(size, world_size):
    """Together they are the state, and each worker's copies of the small tensors."""
    shards = [size.worker_bytes(world_size, rank) for rank in range(world_size)]
    small = size.shapes.num_tensors * size.optimizer.scalars * 4 + (40 if size.is_bitwise else 0)
    assert sum(shards) == size.state_bytes + (world_size - 1) * small
    assert size.node_bytes(world_size, world_size) == sum(shards)
    assert min(shards) >= small


@given(sizes, world_sizes)
def test_the_first_worker_has_the_most(size, world_size):
    """More than an even share, if rows are left over. Never more than the state."""
    shards = [size.worker_bytes(world_size, rank) for rank in range(world_size)]
    assert max(shards) == shards[0] == size.worker_bytes(world_size)
    assert size.state_bytes <= world_size * shards[0]
    assert shards[0] <= size.state_bytes


@given(sizes, world_sizes, st.data())
def test_any_workers_of_a_node_have_at_most_what_is_said(size, world_size, data):
    """Whichever ranks Ray puts there."""
    ranks = data.draw(st.sets(st.integers(0, world_size - 1), min_size=1))
    assert sum(size.worker_bytes(world_size, rank) for rank in ranks) <= size.node_bytes(world_size, len(ranks))

"""Where gradients wait between rounds: on every worker whole, if that saves time and fits into a quarter of memory."""

import pytest

from planner.job.gradient import FLOAT_BYTES, INTEGER_BYTES, accumulator_placement
from planner.plan import BatchSizes, make_plan

N = 1_000_000


def plan_of(world_size, max_micro=2):
    return make_plan(BatchSizes(global_batch=16, max_micro=max_micro), world_size)


@pytest.mark.parametrize(("element_bytes", "free"), [(FLOAT_BYTES, 16 * N), (INTEGER_BYTES, 32 * N)])
def test_whole_sums_take_a_quarter_of_the_free_memory_at_most(element_bytes, free):
    """One byte less, and they are exchanged after every round."""
    assert accumulator_placement(plan_of(2), N, free, element_bytes) == "local"
    assert accumulator_placement(plan_of(2), N, free - 1, element_bytes) == "sharded"


@pytest.mark.parametrize("plan", [plan_of(1), plan_of(2, max_micro=8)], ids=["one worker", "one round"])
def test_where_nothing_is_saved_nothing_is_kept_whole(plan):
    """One worker exchanges nothing, and one round exchanges once anyway."""
    assert accumulator_placement(plan, N, 10**15, FLOAT_BYTES) == "sharded"

"""More workers than a batch has samples for."""

from hypothesis import given
from hypothesis import strategies as st

from planner.plan import BatchSizes, make_plan
from planner.plan.surplus import advice


def plan_at(world_size, global_batch=64, **sizes):
    return make_plan(BatchSizes(global_batch=global_batch, max_micro=8, **sizes), world_size)


def test_what_is_best_done_with_a_hundred_workers_for_64_samples():
    """With the numbers of this job. A larger batch is named as what it is."""
    assert advice(plan_at(100)) == (
        "100 GPUs are 36 more than a step of 64 samples can feed. Give back 36: a step on 64 takes as long. Or run a "
        "second job beside this one on 36 of them. A batch.global of 100 would give each a sample, and is another "
        "recipe."
    )


def test_seconds_are_named_where_they_are_known():
    """The surplus may even cost time."""
    assert "Give back 36: a step on 64 takes 0.5 s instead of 0.52 s." in advice(plan_at(100), 0.52, 0.5)
    assert "Give back 36: a step on 64 takes as long, 0.5 s. Or" in advice(plan_at(100), 0.50001, 0.5)


def test_bitwise_micro_batches_feed_fewer():
    """8 micro-batches of 8 samples: smaller ones feed more, and are other bits."""
    text = advice(plan_at(20, equality="bitwise"))
    assert text.startswith("20 GPUs are 12 more than a step of 64 samples can feed. Give back 12: ")
    assert text.endswith("With batch.max_micro 3 all 20 have samples, and the weights have other bits.")
    smaller = make_plan(BatchSizes(global_batch=64, max_micro=3, equality="bitwise"), 20)
    assert not smaller.workers_idle


@given(world_size=st.integers(1, 200), global_batch=st.integers(1, 100), mode=st.sampled_from(["balanced", "bitwise"]))
def test_it_speaks_only_of_plans_with_idle_workers(world_size, global_batch, mode):
    """Whoever follows it has no idle worker, and a step of the same cost."""
    plan = plan_at(world_size, global_batch, equality=mode)
    assert bool(advice(plan)) == bool(plan.workers_idle)
    kept = plan.at(plan.fewest_workers_as_fast)
    assert (kept.step_cost, kept.workers_idle) == (plan.step_cost, 0)

"""What is best done with more workers than a recipe has samples for."""

from planner.plan.plan import Plan


def advice(plan: Plan, step_s: float | None = None, step_s_without: float | None = None) -> str:
    """One sentence on the workers of a plan that have no sample. Empty if all have some.

    Args:
        plan: of more workers than samples, or in `bitwise` than micro-batches.
        step_s: seconds of its step. None if not known.
        step_s_without: those at the smallest count that is as fast. None if not known.
    """
    idle = plan.workers_idle
    if not idle:
        return ""
    fewer = plan.fewest_workers_as_fast
    spare = plan.world_size - fewer
    kept = f"a step on {fewer} takes as long"
    if step_s is not None and step_s_without is not None:
        less, more = f"{step_s_without:.3g} s", f"{step_s:.3g} s"
        kept = f"{kept}, {less}" if less == more else f"a step on {fewer} takes {less} instead of {more}"
    return (
        f"{plan.world_size} GPUs are {idle} more than a step of {plan.global_batch} samples can feed. "
        f"Give back {spare}: {kept}. Or run a second job beside this one on {spare} of them. "
        f"{_other_recipe(plan)}"
    )


def _other_recipe(plan: Plan) -> str:
    """How the job itself could use all of them, and what that means."""
    if plan.mode == "bitwise" and plan.world_size <= plan.global_batch:
        most = max(plan.global_batch // plan.world_size, 1)
        return f"With batch.max_micro {most} all {plan.world_size} have samples, and the weights have other bits."
    return f"A batch.global of {plan.world_size} would give each a sample, and is another recipe."

"""Where a run's time and memory went, and where the time of its steps went, in the words of the page."""

from planner.story.curves import Curve
from planner.story.values import Measured, RunHistory

_TIMES = {
    "trained_s": "training",
    "lost_s": "lost: steps that a failure undid",
    "committing_s": "committing",
    "evaluating_s": "evaluating",
    "paused_s": "paused: starts, resizes and restarts",
    "waiting_s": "waiting for nodes",
    "stopped_s": "stopped: no driver ran",
}
_STEP = {
    "data": "waiting for data",
    "forward": "forward passes",
    "backward": "backward passes",
    "update": "clipping and optimizer",
}


def time_parts(story: RunHistory) -> dict[str, float]:
    """Words -> seconds. The sum is the run's whole time."""
    return {words: getattr(story.end.times, name) for name, words in _TIMES.items()}


def step_parts(story: RunHistory) -> dict[str, float]:
    """Words -> seconds of the measured steps, empty if nobody measured.

    Communication overlaps with the others, so it is not among them.
    """
    measured = story.measured
    if not measured.step_parts:
        return {}
    known = {words: measured.step_parts.get(name, 0.0) for name, words in _STEP.items()}
    return {**known, "everything else": max(measured.seconds - sum(known.values()), 0.0)}


def memory_curve(measured: Measured) -> tuple[str, Curve]:
    """Peak memory in a unit that fits its largest value, and that unit: `GiB` or `MiB`."""
    curve = measured.memory_bytes
    unit, size = ("GiB", 2**30) if max(curve.high, default=0.0) >= 2**30 else ("MiB", 2**20)
    y, low, high = (tuple(value / size for value in values) for values in (curve.y, curve.low, curve.high))
    return unit, Curve(x=curve.x, y=y, low=low, high=high)

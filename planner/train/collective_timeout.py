"""Sets the timeout of collectives from measured times. torch's default of half an hour fits no particular model."""

from collections import deque
from collections.abc import Callable
from statistics import median

from planner.plan import longest_collective_s

_REMEMBERED_STEPS = 20
# Medians vary. The timeout is set again only if it is off by more than this share.
_TOLERANCE = 0.25


class CollectiveTimeout:
    """Sets the timeout once a step, a commit and an evaluation were measured, and again when their times change."""

    def __init__(self, set_timeout: Callable[[float], None], *, has_eval: bool) -> None:
        self._set_timeout, self._has_eval = set_timeout, has_eval
        self._step_times: deque[float] = deque(maxlen=_REMEMBERED_STEPS)
        self._limit_s = 0.0

    def did_step(self, step_s: float, commit_s: float, eval_s: float) -> None:
        """Record the time of a step, and of the last commit and evaluation (0 before the first)."""
        self._step_times.append(step_s)
        if not commit_s or (self._has_eval and not eval_s):
            return
        limit_s = longest_collective_s(step_s=median(self._step_times), commit_s=commit_s, eval_s=eval_s)
        if abs(limit_s - self._limit_s) > _TOLERANCE * self._limit_s:
            self._limit_s = limit_s
            self._set_timeout(limit_s)

"""Sets the timeout of collectives from measured times. torch's default of half an hour fits no particular model."""

from collections import deque
from collections.abc import Callable
from statistics import median

from planner.plan import FIRST_COLLECTIVES_S, longest_collective_s

_REMEMBERED_STEPS = 20
# Medians vary. The timeout is set again only if it is off by more than this share.
_TOLERANCE = 0.25


class CollectiveTimeout:
    """Sets the timeout from measured times, and again when they change.

    Until a second step, a commit and an evaluation were measured, the timeout only becomes longer. A generation's first
    step is not typical, and counts until there is another one, as in `planner.elastic.history`.
    """

    def __init__(
        self, set_timeout: Callable[[float], None], *, has_eval: bool, first_s: float = FIRST_COLLECTIVES_S
    ) -> None:
        """Begin a generation, whose collectives have the timeout `first_s`."""
        self._set_timeout, self._has_eval, self._first_s = set_timeout, has_eval, first_s
        self._step_times: deque[float] = deque(maxlen=_REMEMBERED_STEPS)
        self._limit_s, self._num_steps = first_s, 0

    def did_step(self, step_s: float, commit_s: float, eval_s: float) -> None:
        """Record the time of a step, and of the last commit and evaluation (0 before the first)."""
        if self._num_steps == 1:
            self._step_times.clear()
        self._num_steps += 1
        self._step_times.append(step_s)
        is_measured = self._num_steps > 1 and commit_s > 0 and (eval_s > 0 or not self._has_eval)
        limit_s = longest_collective_s(step_s=median(self._step_times), commit_s=commit_s, eval_s=eval_s)
        limit_s = limit_s if is_measured else max(limit_s, self._first_s)
        if abs(limit_s - self._limit_s) > _TOLERANCE * self._limit_s:
            self._limit_s = limit_s
            self._set_timeout(limit_s)

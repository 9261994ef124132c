"""How many workers to ask an autoscaler for, when it takes the whole of a request or none of it.

Ray's newer autoscaler (v2: KubeRay, and wherever RAY_enable_autoscaler_v2 is set) starts nothing at all for a request
that is more than the cluster may ever have. That bound is in the cluster's own file, which a job cannot read. So
planner binary-searches for the largest count that the autoscaler accepts, among the counts that help.
"""

import math
from collections.abc import Callable, Sequence

# A refused count is tried again after so long: others' requests end, and bounds are raised.
_AGAIN_S = 600.0


class NodeRequests:
    """One per launch. It knows no Ray: the caller says what became of each request."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._taken = 0
        self._refused: float = math.inf
        self._refused_s = 0.0

    def count(self, counts: Sequence[int]) -> int:
        """What to ask for, of rising `counts`: the last, or the most that is not refused.

        Raises:
            ValueError: there are none.
        """
        if not counts:
            raise ValueError("no counts to choose from")
        if self._clock() - self._refused_s > _AGAIN_S:
            return next((count for count in counts if count >= self._refused), counts[-1])
        allowed = [count for count in counts if count < self._refused]
        if len(allowed) == len(counts):
            return counts[-1]
        unknown = [count for count in allowed if count > self._taken]
        return unknown[len(unknown) // 2] if unknown else max(allowed, default=counts[0])

    def mark_accepted(self, asked: int) -> None:
        """The autoscaler does what it can for `asked`."""
        self._taken = max(self._taken, asked)
        if self._refused <= asked:
            self._refused = math.inf

    def mark_rejected(self, asked: int) -> None:
        """It can never have so many."""
        self._refused, self._refused_s = min(self._refused, asked), self._clock()
        if self._taken >= asked:
            self._taken = 0

"""How many workers to ask an autoscaler for, when it accepts a request as a whole or not at all.

Ray's newer autoscaler (v2: KubeRay, or with RAY_enable_autoscaler_v2 set) starts no node for a request that exceeds the
cluster's maximum. That maximum is in the cluster's own file, which a job cannot read. So planner binary-searches for
the largest count that the autoscaler accepts, among the counts that make steps faster.
"""

import math
from collections.abc import Callable, Sequence

# A refused count is tried again after this time: other requests end, and maxima are raised.
_AGAIN_S = 600.0


class NodeRequests:
    """Chooses the requests of one launch. It does not know Ray: the caller reports the outcome of each request."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._taken = 0
        self._refused: float = math.inf
        self._refused_s = 0.0

    def count(self, counts: Sequence[int]) -> int:
        """The count to ask for: the last of the ascending `counts`, or the next one of the binary search below it.

        Raises:
            ValueError: `counts` is empty.
        """
        if not counts:
            raise ValueError("no counts to choose from")
        if self._clock() - self._refused_s > _AGAIN_S:
            return next((count for count in counts if count >= self._refused), counts[-1])
        allowed = [count for count in counts if count < self._refused]
        if len(allowed) == len(counts):
            return counts[-1]
        unknown = [count for count in allowed if count > self._taken]
        # If all are refused, the smallest is asked for again: no group starts with fewer.
        return unknown[len(unknown) // 2] if unknown else max(allowed, default=counts[0])

    def mark_accepted(self, asked: int) -> None:
        """Record that the autoscaler accepted a request for `asked` workers."""
        self._taken = max(self._taken, asked)
        if self._refused <= asked:
            self._refused = math.inf

    def mark_rejected(self, asked: int) -> None:
        """Record that the autoscaler refused a request for `asked` workers."""
        self._refused, self._refused_s = min(self._refused, asked), self._clock()
        # A count that was accepted before is refused now: the bounds are lower, and nothing below is known.
        if self._taken >= asked:
            self._taken = 0

"""How often a loss or a notice forces a restart, and so for how long a growth may bring a gain.

The next forced restart takes all free nodes without a pause of its own. So a growth gains until then, not until the end
of the run.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

# Older restarts say little: a calm morning may be followed by an evening of losses.
_REMEMBERED = 8
# Before anything is measured, a restart is expected in an hour.
_PRIOR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class ForcedRestarts:
    """The last restarts of a launch that a loss or a notice forced, on any clock that never goes back."""

    since_s: float
    """when the launch began"""
    times: tuple[float, ...] = ()
    """of at most eight restarts, oldest first"""

    def after(self, now_s: float) -> Self:
        """A copy after one more."""
        return replace(self, times=(*self.times, now_s)[-_REMEMBERED:])

    def expected_s(self, now_s: float) -> float:
        """Seconds until the next one, as expected: the mean time between the last ones, or half the present calm."""
        return max((self._observed_s(now_s) + _PRIOR_S) / (len(self.times) + 1), self._calm_s(now_s) / 2)

    def expected_from_s(self, needed_s: float, now_s: float) -> float:
        """The time from which `expected_s` is at least `needed_s`, if no restart is forced before. At least `now_s`."""
        by_mean_s = needed_s * (len(self.times) + 1) - _PRIOR_S - self._observed_s(now_s)
        return now_s + max(0.0, min(by_mean_s, 2 * needed_s - self._calm_s(now_s)))

    def _observed_s(self, now_s: float) -> float:
        return now_s - (self.times[0] if self.times else self.since_s)

    def _calm_s(self, now_s: float) -> float:
        return now_s - (self.times[-1] if self.times else self.since_s)


NONE_FORCED = ForcedRestarts(since_s=-math.inf)
"""a launch since ever without a forced restart"""

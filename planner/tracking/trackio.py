"""trackio."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from planner.job.tracking import TrackioTracking
from planner.tracking.row import Row
from planner.tracking.tracker import TrackedRun

# It writes to its database twice a second, in a thread of its own.
_WRITE_LIMIT_S, _LOOK_S = 30.0, 0.05


class TrackioRun:
    """One run of trackio. Its name has a part of planner's own, because trackio continues runs by their name."""

    def __init__(self, section: TrackioTracking, run: TrackedRun) -> None:
        import trackio

        self._project = section.project or run.name
        self.tracker_id = run.tracker_id or f"{section.name or run.name}-{run.run_id[:6]}"
        self._is_local = not section.space
        self._run: Any = trackio.init(
            project=self._project,
            name=self.tracker_id,
            space_id=section.space or None,
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        # Of a Space, trackio itself knows what it has sent, and keeps what it has not.
        self._last_step = self._stored() if self._is_local else run.last_step

    def _stored(self) -> int:
        from trackio.sqlite_storage import SQLiteStorage

        step = SQLiteStorage.get_max_step_for_run(self._project, self.tracker_id)
        return -1 if step is None else int(step)

    def last_step(self) -> int:
        """The highest step in the local database, or the last step that was handed over for a Space."""
        return self._last_step

    def log(self, rows: Sequence[Row]) -> None:
        """Hand over the rows. With a local database, wait until it has them.

        Raises:
            TimeoutError: the database does not have them.
        """
        for row in rows:
            self._run.log(dict(row.values), step=row.step)
        deadline_s = time.monotonic() + _WRITE_LIMIT_S
        while self._is_local and self._stored() < rows[-1].step:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"its database does not have step {rows[-1].step} after {_WRITE_LIMIT_S:.0f} s")
            time.sleep(_LOOK_S)

    def live(self, values: Mapping[str, float]) -> None:
        """Ignored: trackio has no place for values that change."""

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


def open_tracker(section: TrackioTracking, run: TrackedRun) -> TrackioRun:
    """Open or continue the run of trackio.

    Raises:
        Exception: whatever trackio raises.
    """
    return TrackioRun(section, run)

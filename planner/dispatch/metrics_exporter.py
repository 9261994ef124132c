"""Exports a run's metrics through Ray while its driver runs. It follows the ledger, in a thread of its own."""

import threading
from collections.abc import Callable
from typing import Self

from planner.base.text import last_line
from planner.dispatch.launch import state_of
from planner.dispatch.ray_internal.ray_metrics import RayMetrics
from planner.dispatch.run_metrics import RunMetrics
from planner.errors import StoreError
from planner.store.follow import WholeLedger
from planner.store.records import StepRecord
from planner.store.run_folder import RunFolder
from planner.train.setup import Launch

# Ray exports every 10 s by default, and forgets a gauge that was not set for two exports.
_LOOK_S = 1.0
# A look takes milliseconds. A disk that hangs must not delay the end of a run for longer.
_LAST_LOOK_S = 5.0


class MetricsExporter:
    """A context manager around training, while the driver is connected to a cluster.

    A failure never reaches training. `say` shows it, and the run goes on without metrics.
    """

    def __init__(self, run: RunFolder, launch: Launch, say: Callable[[str], None]) -> None:
        self._launch, self._say = launch, say
        self._ledger = WholeLedger(run)
        self._metrics = RunMetrics(launch.launch_id)
        self._stop, self._is_left = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="planner-metrics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join(_LAST_LOOK_S)
        self._is_left.set()

    def _run(self) -> None:
        try:
            self._export()
        except Exception as error:  # noqa: BLE001  # metrics are only shown: training must not end with them
            reason = last_line(str(error), type(error).__name__)
            self._say(f"metrics: not exported any more ({reason}). The run goes on without them")

    def _export(self) -> None:
        exported, is_last = RayMetrics(self._launch.job.name), False
        while True:
            has_stepped = self._look()
            # The status of a group that starts is there until its first step was reported.
            is_training = not is_last and (has_stepped or not state_of(self._launch))
            values = self._metrics.values(is_training=is_training)
            if self._is_left.is_set():  # the driver has disconnected
                return
            exported.set(values)
            if is_last:
                return
            is_last = self._stop.wait(_LOOK_S)

    def _look(self) -> bool:
        """Add all new records. Returns whether a step is among them."""
        has_stepped = False
        try:
            for _, record in self._ledger.new_records():
                self._metrics.add(record)
                has_stepped |= isinstance(record, StepRecord)
                if self._is_left.is_set():
                    break
        except StoreError:
            pass  # a store that is away for a moment only makes the values old
        return has_stepped

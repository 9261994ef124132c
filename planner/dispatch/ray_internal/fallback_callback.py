"""Graceful resizes under Ray's own scaling policy: Ray decides, and the workers commit before it acts.

planner uses this if Ray's policy cannot be replaced. It cannot refuse a resize: every change of capacity causes one.
"""

import logging
import time

from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback

from planner.dispatch import mailbox
from planner.dispatch.ray_internal import shapes
from planner.dispatch.ray_internal.worker_progress import WorkerProgress

_log = logging.getLogger(__name__)
# Limit without progress of any worker. The duration of a step is not known here.
_SILENCE_S = 600.0
_POLL_S = 0.05


class CommitBeforeResize(WorkerGroupCallback, ControllerCallback):  # type: ignore[misc]
    """Holds the controller before a resize until every worker has committed and parked."""

    def __init__(self) -> None:
        self._group: shapes.WorkerGroup | None = None

    def after_worker_group_start(self, worker_group: shapes.WorkerGroup) -> None:
        """Keep a reference to the group, to stop it before a resize."""
        self._group = worker_group

    def before_worker_group_shutdown(self, worker_group: shapes.WorkerGroup) -> None:  # noqa: ARG002
        """Drop the reference: the group has no workers any more."""
        self._group = None

    def before_controller_execute_resize_decision(self, resize_decision: object) -> None:  # noqa: ARG002
        """Stop all workers at one step. Poll until all have parked, one has failed, or none makes progress."""
        group = self._group
        if group is None or not group.has_started():
            return
        group.execute_async(mailbox.request_stop)
        parked: set[int] = set()
        heartbeats, progress, seen_s = WorkerProgress(), 0, time.monotonic()
        while len(parked) < len(group.get_workers()):
            status = group.poll_status(timeout=0.5)
            before, progress = progress, heartbeats.total(group.get_workers())
            seen_s = time.monotonic() if progress != before else seen_s
            if status.errors or time.monotonic() - seen_s > _SILENCE_S:
                _log.warning("resizing before every worker had committed")
                return
            for rank, worker in status.worker_statuses.items():
                if worker.training_report is not None and worker.training_report.metrics.get(mailbox.PARKED):
                    parked.add(rank)
            time.sleep(_POLL_S)

"""Asks the workers of a group how much work they have done (`planner.base.progress_counter`)."""

import contextlib
import time
from collections.abc import Callable, Sequence

import ray
from ray.exceptions import RayError

from planner.base.progress_counter import work_done
from planner.dispatch.ray_internal import group_names as names
from planner.dispatch.ray_internal.compatibility import ObjectRef

# A query takes a few ms of a worker's main thread, while another thread trains.
_ASK_S = 5.0


class WorkerProgress:
    """The work counts of one group. No call waits for an answer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_s = float("-inf")
        self._pending: dict[int, ObjectRef] = {}
        self._counts: dict[int, int] = {}

    def total(self, workers: Sequence[names.Worker]) -> int:
        """Units of work of all workers, by their last answers. Queries a worker again after it has answered."""
        self._hear()
        if self._clock() - self._asked_s >= _ASK_S:
            self._asked_s = self._clock()
            for rank, worker in enumerate(workers):
                if rank not in self._pending:
                    self._pending[rank] = worker.actor.execute.remote(work_done)
        return sum(self._counts.values())

    def _hear(self) -> None:
        if not self._pending:
            return
        ready, _ = ray.wait(list(self._pending.values()), num_returns=len(self._pending), timeout=0)
        for rank in [rank for rank, reference in self._pending.items() if reference in ready]:
            # A worker that died counts no work: Ray's own poll reports it. The network may also have failed briefly.
            with contextlib.suppress(RayError):
                self._counts[rank] = ray.get(self._pending.pop(rank))

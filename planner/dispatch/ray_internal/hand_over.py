"""The hand-over between worker groups: worker processes, and the placement groups that hold their resources."""

import dataclasses
import logging
import time
from collections.abc import Sequence
from contextlib import suppress

import ray
from ray.exceptions import RayError
from ray.train.v2._internal.execution.worker_group.placement_group_handle import PlacementGroupHandle
from ray.util.placement_group import get_placement_group, placement_group_table, remove_placement_group

from planner.dispatch.ray_internal import group_names as names
from planner.dispatch.ray_internal.compatibility import ObjectRef
from planner.dispatch.ray_internal.kept_worker import KeptWorkerActor

_log = logging.getLogger(__name__)

# Ray does not accept 0.
_NO_WAIT_S = 0.05


# Compared by identity: `in` must not compare Ray's references with each other.
@dataclasses.dataclass(eq=False)
class WorkerSlot:
    """A worker process, and the placement group that holds its resources."""

    actor: KeptWorkerActor
    group: names.PlacementGroup
    metadata: ObjectRef
    """of the worker's `ActorMetadata`"""
    warmed: ObjectRef | None = None
    """ready when a newcomer has warmed up. None for a worker that was started with its group"""


@dataclasses.dataclass
class HandOver:
    """What a worker group passes to the next one of the same controller, which has one group at a time."""

    kept: list[WorkerSlot] = dataclasses.field(default_factory=list)
    """workers of the last group, whose processes the next group takes over"""
    newcomers: list[WorkerSlot] = dataclasses.field(default_factory=list)
    """processes that were started while the last group trained"""
    sync_actor: names.SyncActor | None = None
    """the idle synchronisation actor. None: the next group starts one"""
    is_broken: bool = False
    """the hand-over failed: the next start raises once, so that Ray starts new processes"""

    def take_kept(self) -> list[WorkerSlot]:
        """Take the kept workers out. The caller must end them."""
        taken, self.kept = self.kept, []
        return taken

    def take_newcomers(self) -> list[WorkerSlot]:
        """Take the newcomers out. The caller must end them."""
        taken, self.newcomers = self.newcomers, []
        return taken

    def take_sync_actor(self) -> names.SyncActor | None:
        """Take the synchronisation actor out. It serves one group at a time."""
        taken, self.sync_actor = self.sync_actor, None
        return taken

    def take_is_broken(self) -> bool:
        """Whether the last hand-over failed. The next call returns False."""
        taken, self.is_broken = self.is_broken, False
        return taken


class PlacementGroups(PlacementGroupHandle):  # type: ignore[misc]
    """One placement group per worker, so that one worker's place can be removed, which ends it, without the others."""

    def __init__(self, groups: list[names.PlacementGroup]) -> None:
        self._groups = groups
        self.num_placed = 0

    @property
    def placement_group(self) -> names.PlacementGroup:
        """The first one. Ray asks for one, but each worker knows its own."""
        return self._groups[0]

    def ready(self) -> ObjectRef:
        """A reference that is ready when the first one is. `wait` checks all."""
        return self._groups[0].ready()

    def wait(self, timeout_seconds: float = 30) -> bool:
        """Whether all workers got a place within the timeout. Sets `num_placed`."""
        deadline_s = time.monotonic() + timeout_seconds
        placed = [group.wait(max(_NO_WAIT_S, deadline_s - time.monotonic())) for group in self._groups]
        self.num_placed = sum(placed)
        return all(placed)

    def shutdown(self) -> None:
        """Remove all placement groups."""
        for group in self._groups:
            _remove(group)


def end(places: Sequence[WorkerSlot]) -> None:
    """End these processes and release their resources."""
    for place in places:
        ray.kill(place.actor)
        _remove(place.group)


def _remove(group: names.PlacementGroup) -> None:
    try:
        remove_placement_group(group)
    except RayError:
        _log.warning("a placement group could not be removed", exc_info=True)


def remove_placement_groups(name: str) -> None:
    """Remove all placement groups whose names begin with `name`. They outlive the controller that made them."""
    for found in placement_group_table().values():
        if found["name"].startswith(name) and found["state"] != "REMOVED":
            with suppress(ValueError):  # Ray has just removed it
                _remove(get_placement_group(found["name"]))

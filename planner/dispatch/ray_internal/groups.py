"""Worker groups for Ray Train's controller: Ray's own, which reports to our policy, and one that keeps processes.

    Ray:   resize = end all processes, start new ones (6 to 9 s: imports, process group, load)
    here:  after a clean park, workers that stay keep their processes; newcomers were started while the others trained

Anything that goes wrong falls back to new processes, with nothing lost: all is committed before this begins.
"""

import dataclasses
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Literal, Protocol, Self

import ray
from ray.exceptions import RayActorError, RayError
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError, WorkerGroupStartupTimeoutError
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from ray.train.v2._internal.execution.worker_group.placement_group_handle import (
    DefaultPlacementGroupHandle,
    PlacementGroupHandle,
)
from ray.train.v2._internal.execution.worker_group.state import _shutdown_sync_actor
from ray.train.v2._internal.execution.worker_group.worker import Worker
from ray.train.v2._internal.util import bundle_to_remote_args, invoke_context_managers
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from planner.base.text import duration
from planner.dispatch.ray_internal import shapes
from planner.dispatch.ray_internal.hand_over import HandOver, Place, PlacementGroups, end
from planner.dispatch.ray_internal.kept_worker import KeepingRayTrainWorker

_log = logging.getLogger(__name__)

# A parked thread unwinds within its poll of 0.2 s; a `finally` that hangs is not waited for.
_UNWIND_S = 10.0
_RESET_S = 30.0
# None of Ray's waits for a worker that starts has an end. Its own limit for a worker's environment is 10 min, and the
# rest is imports and a handshake.
_START_MOST_S = 900.0


class GroupOwner(Protocol):
    """What a worker group needs of its policy."""

    hand_over: HandOver
    warm_up: Callable[[], None]

    @property
    def places_name(self) -> str:
        """How the names of the placement groups begin."""

    def label_selector(self, num_workers: int) -> dict[str, str] | None:
        """What the nodes of so many workers must be like."""

    def group_started(self, group: "NewProcessesGroup") -> None:
        """It trains."""

    def group_failed(self, group: "NewProcessesGroup", errors: dict[int, Exception]) -> None:
        """Workers of it have failed."""

    def start_failed(self, error: Exception) -> None:
        """Workers died before they trained."""

    def unplaced(self, placed: int, asked: int) -> None:
        """Places that were counted cannot be had."""


@dataclasses.dataclass(frozen=True)
class GroupFactory:
    """Makes the worker groups of one policy. Ray's controller takes it for its worker group class.

    Ray calls `create` on that class and hands it nothing of ours. An object can hold the policy, where a class would
    share it with every other policy of the process.
    """

    owner: GroupOwner
    keeps_processes: bool

    def create(self, *arguments: object, **options: object) -> "NewProcessesGroup":
        """Start a group; called by Ray's controller in the place of `WorkerGroup.create`."""
        group = (KeepingGroup if self.keeps_processes else NewProcessesGroup)(self.owner, *arguments, **options)
        group.start()
        self.owner.group_started(group)
        return group


class NewProcessesGroup(WorkerGroup):  # type: ignore[misc]
    """Ray's worker group; it tells its policy when it was started and when it fails."""

    # What Ray sets.
    _callbacks: Sequence[shapes.WorkerGroupCallback]
    _train_run_context: shapes.TrainRunContext
    _worker_group_context: shapes.WorkerGroupContext
    _worker_group_state: shapes.WorkerGroupState | None
    _world_rank_to_ongoing_poll: Mapping[int, object]

    def __init__(self, owner: GroupOwner, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self._owner = owner

    def start(self) -> None:
        """Start all workers, or raise what the controller takes for a failed start."""
        with _start_failures_told(self._owner, self._num_placed):
            self._start()

    def _num_placed(self, asked: int) -> int:
        """Ray takes all places or none, and does not say how many there were."""
        return asked - 1

    def _start_impl(self, worker_group_state_builder: shapes.WorkerGroupStateBuilder) -> None:
        """Ray's, with an end."""
        with _given_up_after(_START_MOST_S, worker_group_state_builder):
            super()._start_impl(worker_group_state_builder)

    def _create_placement_group(
        self,
        scaling_config: object,  # noqa: ARG002
        worker_group_context: shapes.WorkerGroupContext,
    ) -> PlacementGroupHandle:
        """Ray's for CPUs and GPUs, under a name by which the next controller finds it."""
        context = worker_group_context
        return DefaultPlacementGroupHandle(
            placement_group(
                [context.resources_per_worker] * context.num_workers,
                strategy=context.placement_strategy,
                name=self._new_name(),
                bundle_label_selector=context.label_selector,
            )
        )

    def _new_name(self) -> str:
        return f"{self._owner.places_name}{uuid.uuid4().hex}"

    def poll_status(self, timeout: float | None = None) -> shapes.PollStatus:
        """Ray's poll; failures are told to the policy, which may end the run."""
        status: shapes.PollStatus = super().poll_status(timeout)
        if status.errors:
            self._owner.group_failed(self, status.errors)
        return status

    def silent_ranks(self) -> list[int]:
        """Ranks that have not answered the last poll."""
        return list(self._world_rank_to_ongoing_poll)

    # What a group that keeps processes does more.

    def newcomers(self) -> Literal["none", "warming", "ready", "failed"]:
        """There is nothing to wait for: new processes are started with the group."""
        return "ready"

    def warm(self, count: int) -> None:
        """Nothing to do."""

    def abandon_newcomers(self) -> None:
        """Nothing to do."""

    def plan_change(self, world_size: int, leaving: set[str]) -> None:
        """Nothing to plan: all processes end."""


@contextmanager
def _start_failures_told(owner: GroupOwner, num_placed: Callable[[int], int]) -> Iterator[None]:
    """A place that is not there in time is no failure; workers that die before they train are one."""
    try:
        yield
    except WorkerGroupStartupFailedError as error:
        owner.start_failed(error)
        raise
    except WorkerGroupStartupTimeoutError as error:
        owner.unplaced(num_placed(error.num_workers), error.num_workers)
        raise


@contextmanager
def _given_up_after(most_s: float, builder: shapes.WorkerGroupStateBuilder) -> Iterator[None]:
    """Limit the time of a group's start. A start that takes longer loses its places, and with them its processes.

    Raises:
        WorkerGroupStartupFailedError: it took longer. Ray tries again.
    """
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        if builder.placement_group_handle is not None:
            builder.placement_group_handle.shutdown()

    timer = threading.Timer(most_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if is_late.is_set():
            raise WorkerGroupStartupFailedError(
                f"a worker was not up after {duration(most_s)}; look at its node and at Ray's logs there"
            ) from error
        raise
    finally:
        timer.cancel()


class KeepingGroup(NewProcessesGroup):
    """Survivors of a planned change keep their processes: they pass to the next group by its policy's hand-over."""

    _worker_cls = KeepingRayTrainWorker

    def __init__(self, owner: GroupOwner, *arguments: object, **options: object) -> None:
        super().__init__(owner, *arguments, **options)
        self._hand_over = owner.hand_over
        self._places: list[Place] = []
        self._placements = PlacementGroups([])
        self._change: tuple[int, set[str]] | None = None

    def start(self) -> None:
        """Start the group out of those who were kept, those who were warmed, and new ones.

        Raises:
            WorkerGroupStartupFailedError: a change in place went wrong; Ray tries again with new processes.
        """
        self._places = self._hand_over.take_kept()
        if self._hand_over.take_is_broken():
            # Raised here: an exception out of `shutdown` would leave the controller without a group, spinning.
            raise WorkerGroupStartupFailedError("a survivor failed in a change in place; starting new processes")
        try:
            super().start()
        except BaseException as error:
            # Ray leaves the placement groups behind if a callback fails late.
            end([*self._places, *self._hand_over.take_newcomers()])
            if self._worker_group_state is not None:
                self._worker_group_state.shutdown()
            if isinstance(error, RayError) and not isinstance(error, WorkerGroupStartupFailedError):
                raise WorkerGroupStartupFailedError(f"a group could not be started: {error}") from error
            raise

    def _num_placed(self, asked: int) -> int:  # noqa: ARG002
        return self._placements.num_placed

    # -- newcomers

    def newcomers(self) -> Literal["none", "warming", "ready", "failed"]:
        """How far they are."""
        if not self._hand_over.newcomers:
            return "none"
        pending = [place.warmed for place in self._hand_over.newcomers]
        done, rest = ray.wait(pending, num_returns=len(pending), timeout=0)
        try:
            ray.get(done)
        except RayError:
            return "failed"
        return "warming" if rest else "ready"

    def warm(self, count: int) -> None:
        """Start processes that import and rehearse while the group trains on."""
        # Which nodes are good may have changed since this group was started.
        places = self._take_places(count, self._owner.label_selector(len(self._places) + count))
        for place in places:
            place.warmed = place.actor.execute.remote(self._owner.warm_up)
        self._hand_over.newcomers += places

    def abandon_newcomers(self) -> None:
        """End them."""
        end(self._hand_over.take_newcomers())

    def plan_change(self, world_size: int, leaving: set[str]) -> None:
        """The next shutdown is a planned change to `world_size`; 0: it is not, and nobody is kept."""
        self._change = (world_size, leaving) if world_size else None
        useful: list[Place] = []
        rest: list[Place] = []
        for place in self._hand_over.newcomers:
            # One that is not ready would keep the others waiting, and one on a node that goes would go with it.
            is_ready = bool(ray.wait([place.warmed], timeout=0)[0])
            is_useful = is_ready and ray.get(place.metadata, timeout=_RESET_S).node_id not in leaving
            (useful if is_useful else rest).append(place)
        self._hand_over.newcomers = useful
        end(rest)

    # -- what Ray's start calls

    def _start_impl(self, worker_group_state_builder: shapes.WorkerGroupStateBuilder) -> None:
        """Ray's, with the idle synchronisation actor of the last group: a new one is a process of its own."""
        start = WorkerGroup._start_impl
        if (actor := self._hand_over.take_sync_actor()) is not None:
            start = _with_globals(start, {"SynchronizationActor": _Started(actor)})
        with _given_up_after(_START_MOST_S, worker_group_state_builder):
            start(self, worker_group_state_builder)

    def _create_placement_group(
        self,
        scaling_config: object,  # noqa: ARG002
        worker_group_context: shapes.WorkerGroupContext,
    ) -> PlacementGroups:
        missing = worker_group_context.num_workers - len(self._places)
        newcomers = self._hand_over.take_newcomers()
        warmed, surplus = newcomers[:missing], newcomers[missing:]
        end(surplus)
        self._places += warmed
        selector = worker_group_context.label_selector
        self._places += self._take_places(missing - len(warmed), selector[0] if selector else None)
        self._placements = PlacementGroups([place.group for place in self._places])
        return self._placements

    def _create_workers(self, num_workers: int, *arguments: object, **options: object) -> list[Worker]:  # noqa: ARG002
        """The workers of our places, ranked anew.

        Raises:
            WorkerGroupStartupFailedError: one has died.
        """
        try:
            found = ray.get([place.metadata for place in self._places])
        except RayActorError as error:
            raise WorkerGroupStartupFailedError("a new worker died before it trained") from error
        resources = self._worker_group_context.resources_per_worker
        workers = [
            Worker(place.actor, metadata, resources, placement_group_bundle_index=0)
            for place, metadata in zip(self._places, found, strict=True)
        ]
        ranked: list[Worker] = WorkerGroup._assign_worker_ranks(workers)
        return ranked

    def _take_places(self, count: int, selector: dict[str, str] | None) -> list[Place]:
        """So many actors, each in a placement group of its own; nothing here waits."""
        context = self._worker_group_context
        resources = context.resources_per_worker
        environment = self._get_worker_runtime_env(
            custom_runtime_env=self._train_run_context.run_config.worker_runtime_env
        )
        actor_class = ray.remote(runtime_env=environment, **bundle_to_remote_args(resources))(self._worker_cls)
        places = []
        for _ in range(count):
            group = placement_group(
                [resources],
                name=self._new_name(),
                bundle_label_selector=[selector] if selector else None,
            )
            where = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=0)
            actor = actor_class.options(scheduling_strategy=where).remote()
            places.append(Place(actor=actor, group=group, metadata=actor.get_metadata.remote()))
        return places

    # -- the end of a group

    def shutdown(self) -> None:
        """A planned change keeps who stays; everything else ends all processes."""
        change, self._change = self._change, None
        if change is None or not self._may_keep():
            self.abandon_newcomers()
            super().shutdown()
            return
        self._assert_active()
        with invoke_context_managers([callback.on_worker_group_shutdown for callback in self._callbacks]):
            self._hand_over.is_broken = not self._keep(*change)
        if self._hand_over.is_broken:
            self.abandon_newcomers()

    def _keep(self, world_size: int, leaving: set[str]) -> bool:
        """Keep at most `world_size` workers, end the rest; false if none could be kept."""
        by_actor: dict[shapes.WorkerActor, Place] = {place.actor: place for place in self._places}
        workers: Sequence[shapes.Worker] = self.get_workers()
        kept = [by_actor[worker.actor] for worker in workers if worker.metadata.node_id not in leaving][:world_size]
        is_clean = _all_done([place.actor.quiesce.remote(_UNWIND_S) for place in kept], _UNWIND_S + 5)
        for callback in self._callbacks:  # the backend's ends the process group, of leavers, too
            callback.before_worker_group_shutdown(self)
        end([place for place in self._places if place not in kept])
        is_clean = is_clean and _all_done([place.actor.forget.remote() for place in kept], _RESET_S)
        self._keep_sync_actor(is_clean=is_clean)
        if not is_clean:
            end(kept)
        self._clear_state()
        self._hand_over.kept = kept if is_clean else []
        for callback in self._callbacks:
            callback.after_worker_group_shutdown(self._worker_group_context)
        return is_clean

    def _keep_sync_actor(self, *, is_clean: bool) -> None:
        """It serves the next group, if nobody waits in its barrier."""
        assert self._worker_group_state is not None, "asserted to be active"
        actor = self._worker_group_state.sync_actor
        try:
            if is_clean and ray.get(actor.get_counter.remote(), timeout=2) == 0:
                ray.get(actor.set_required_ranks.remote(None), timeout=2)
                self._hand_over.sync_actor = actor
                return
        except RayError:
            _log.warning("the synchronisation actor does not answer; a new one is started", exc_info=True)
        _shutdown_sync_actor(actor)

    def _may_keep(self) -> bool:
        """A live CUDA process ignores another CUDA_VISIBLE_DEVICES, which Ray writes where a node's workers change."""
        nodes = [worker.metadata.node_id for worker in self.get_workers()]
        return not self._worker_group_context.resources_per_worker.get("GPU") or len(set(nodes)) == len(nodes)


def _all_done(pending: list[shapes.ObjectRef], timeout_s: float) -> bool:
    try:
        ray.get(pending, timeout=timeout_s)
    except RayError:
        _log.warning("a worker could not be kept; starting new processes", exc_info=True)
        return False
    return True


class _Started:
    """Stands where Ray expects the class of an actor, and "starts" the one that is there already."""

    def __init__(self, actor: shapes.SyncActor) -> None:
        self._actor = actor

    def options(self, **_: object) -> Self:
        """Of an actor that runs, nothing can be chosen."""
        return self

    def remote(self, **_: object) -> shapes.SyncActor:
        """The actor."""
        return self._actor


def _with_globals(function: FunctionType, others: dict[str, object]) -> FunctionType:
    """A copy of a function that finds these in the place of its module's globals of the same names.

    Ray's start makes its synchronisation actor by a global name, and takes none from outside. The copy leaves the
    module alone, for other groups and other threads too, and leaves nothing to undo.
    """
    return FunctionType(
        function.__code__,
        {**function.__globals__, **others},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )

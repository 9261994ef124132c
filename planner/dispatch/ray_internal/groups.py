"""Worker groups for Ray Train's controller: Ray's own that reports to a `Listener`, and one that keeps processes.

    Ray:   a resize ends all processes and starts new ones (6 to 9 s: imports, process group, load)
    here:  workers that stay keep their processes, and newcomers were started while the group trained

If anything fails, new processes start. Nothing is lost, because all workers committed before.
"""

import dataclasses
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from planner.dispatch.ray_internal import group_names as names
from planner.dispatch.ray_internal.compatibility import ObjectRef
from planner.dispatch.ray_internal.hand_over import HandOver, PlacementGroups, WorkerSlot, end
from planner.dispatch.ray_internal.kept_worker import KeepingRayTrainWorker

_log = logging.getLogger(__name__)

# A parked thread unwinds at once. The limit is for a `finally` that hangs.
_UNWIND_S = 10.0
_RESET_S = 30.0
# Ray waits for a starting worker without a limit. It gives a worker's environment 10 min. The rest is imports and a
# handshake.
_START_MOST_S = 900.0


class Listener(Protocol):
    """Who hears how the groups fare, and knows the cluster."""

    def label_selectors(self, kept: Sequence[str], count: int) -> list[dict[str, str]] | None:
        """The labels that the nodes of `count` more workers must have now, beside those on `kept`. None: any nodes."""

    def kept_workers(self, nodes: Sequence[str], size: int) -> list[int]:
        """The workers that go on in a group of `size`, by their places in `nodes`, which has the node of each."""

    def started(self, group: "NewProcessesGroup") -> None:
        """The group trains."""

    def failed(self, group: "NewProcessesGroup", errors: dict[int, Exception]) -> None:
        """Workers of the group failed. `errors` has an exception by rank. It may end the run."""

    def start_failed(self, error: Exception) -> None:
        """Workers died before they trained. It may end the run."""

    def unplaced(self, placed: int, asked: int) -> None:
        """Only `placed` of `asked` workers got a place in time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupFactory:
    """Creates the worker groups of one controller. It takes the place of the controller's worker group class.

    Ray calls `create` on that class with its own arguments only. An object can hold more, and a class cannot.
    """

    listener: Listener
    places_name: str
    """the prefix of the placement groups' names"""
    warm_up: Callable[[], None]
    """called in newcomers while the group still trains"""
    keeps_processes: bool
    hand_over: HandOver = dataclasses.field(default_factory=HandOver)
    """what one group leaves to the next"""

    def create(self, *arguments: object, **options: object) -> "NewProcessesGroup":
        """Start a group. Ray's controller calls this instead of `WorkerGroup.create`."""
        group = (KeepingGroup if self.keeps_processes else NewProcessesGroup)(self, *arguments, **options)
        group.start()
        self.listener.started(group)
        return group


class NewProcessesGroup(WorkerGroup):  # type: ignore[misc]
    """Ray's worker group, which also tells a `Listener` when it starts and fails."""

    # Set by Ray.
    _callbacks: Sequence[names.WorkerGroupCallback]
    _train_run_context: names.TrainRunContext
    _worker_group_context: names.WorkerGroupContext
    _worker_group_state: names.WorkerGroupState | None
    _world_rank_to_ongoing_poll: Mapping[int, object]

    def __init__(self, made_by: GroupFactory, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self._listener, self._places_name = made_by.listener, made_by.places_name

    def start(self) -> None:
        """Start all workers.

        Raises:
            WorkerGroupStartupFailedError: a worker died, or the start took too long. Ray tries again.
            WorkerGroupStartupTimeoutError: not all workers got a place in time. Ray tries again.
        """
        try:
            self._start()
        except WorkerGroupStartupFailedError as error:
            self._listener.start_failed(error)
            raise
        except WorkerGroupStartupTimeoutError as error:
            self._listener.unplaced(self._num_placed(error.num_workers), error.num_workers)
            raise

    def _num_placed(self, asked: int) -> int:
        """How many workers got a place. Ray places all or none and does not count, so this is an upper bound."""
        return asked - 1

    def _start_impl(self, worker_group_state_builder: names.WorkerGroupStateBuilder) -> None:
        """Start the group as Ray does, but with a time limit."""
        with _limit_start_time(_START_MOST_S, worker_group_state_builder):
            super()._start_impl(worker_group_state_builder)

    def _create_placement_group(
        self,
        scaling_config: object,  # noqa: ARG002
        worker_group_context: names.WorkerGroupContext,
    ) -> PlacementGroupHandle:
        """Create Ray's placement group for CPUs and GPUs, with a name by which the next controller finds it."""
        context = worker_group_context
        return DefaultPlacementGroupHandle(
            placement_group(
                [context.resources_per_worker] * context.num_workers,
                strategy=context.placement_strategy,
                name=self._new_name(),
                bundle_label_selector=self._listener.label_selectors((), context.num_workers),
            )
        )

    def _new_name(self) -> str:
        return f"{self._places_name}{uuid.uuid4().hex}"

    def poll_status(self, timeout: float | None = None) -> names.PollStatus:
        """Poll the workers as Ray does. Reports failures, which may end the run."""
        status: names.PollStatus = super().poll_status(timeout)
        if status.errors:
            self._listener.failed(self, status.errors)
        return status

    def give_up(self, nodes: set[str]) -> None:
        """End the workers on these nodes, which do not answer. Otherwise the group's end waits until Ray knows it."""
        workers: Sequence[names.Worker] = self.get_workers()
        for worker in workers:
            if worker.metadata.node_id in nodes:
                ray.kill(worker.actor)

    def silent_ranks(self) -> list[int]:
        """Ranks that have not answered the last poll."""
        return list(self._world_rank_to_ongoing_poll)

    # `KeepingGroup` overrides the methods below.

    def newcomers(self) -> Literal["none", "warming", "ready", "failed"]:
        """Always ready: new processes start with the next group."""
        return "ready"

    def newcomer_nodes(self) -> list[str]:
        """The node of each newcomer: none before the next group starts."""
        return []

    def warm(self, count: int, leaving: set[str]) -> None:
        """Nothing to do."""

    def abandon_newcomers(self) -> None:
        """Nothing to do."""

    def plan_change(self, world_size: int, leaving: set[str]) -> None:
        """Nothing to do: all processes end."""


@contextmanager
def _limit_start_time(most_s: float, builder: names.WorkerGroupStateBuilder) -> Iterator[None]:
    """Limit the time of a group's start. After `most_s`, its places are removed, which ends its processes.

    Raises:
        WorkerGroupStartupFailedError: the start took longer than `most_s`. Ray tries again.
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
                f"a worker did not start within {duration(most_s)}. Check its node and Ray's logs there"
            ) from error
        raise
    finally:
        timer.cancel()


class KeepingGroup(NewProcessesGroup):
    """A group whose workers can pass their processes to the next group, through the hand-over."""

    _worker_cls = KeepingRayTrainWorker

    def __init__(self, made_by: GroupFactory, *arguments: object, **options: object) -> None:
        super().__init__(made_by, *arguments, **options)
        self._hand_over, self._warm_up = made_by.hand_over, made_by.warm_up
        self._places: list[WorkerSlot] = []
        self._placements = PlacementGroups([])
        self._change: tuple[int, set[str]] | None = None

    def start(self) -> None:
        """Start the group from kept workers, warmed newcomers and new processes.

        Raises:
            WorkerGroupStartupFailedError: the hand-over failed. Ray tries again with new processes.
        """
        self._places = self._hand_over.take_kept()
        if self._hand_over.take_is_broken():
            # `shutdown` must not raise: that would leave the controller spinning without a group.
            raise WorkerGroupStartupFailedError("a kept worker failed in the hand-over: starting new processes")
        try:
            super().start()
        except BaseException as error:
            # Ray does not remove the placement groups if a callback fails late.
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
        """State of the newcomers that this group has started."""
        if not self._hand_over.newcomers:
            return "none"
        pending = [place.warmed for place in self._hand_over.newcomers]
        done, rest = ray.wait(pending, num_returns=len(pending), timeout=0)
        try:
            ray.get(done)
        except RayError:
            return "failed"
        return "warming" if rest else "ready"

    def newcomer_nodes(self) -> list[str]:
        """The node of each newcomer, empty if it has no place yet. Does not wait."""
        places = self._hand_over.newcomers
        placed = ray.wait([place.metadata for place in places], num_returns=len(places), timeout=0)[0] if places else []
        with suppress(RayError):  # one has died, which `newcomers` reports
            return [ray.get(place.metadata).node_id if place.metadata in placed else "" for place in places]
        return [""] * len(places)

    def warm(self, count: int, leaving: set[str]) -> None:
        """Start `count` processes that warm up while the group trains. Does not wait for them.

        They come beside the group's workers that are not on `leaving` nodes.
        """
        # The bad nodes may have changed since this group was started.
        nodes = [worker.metadata.node_id for worker in self.get_workers()]
        places = self._take_places(count, [node for node in nodes if node not in leaving])
        for place in places:
            place.warmed = place.actor.execute.remote(self._warm_up)
        self._hand_over.newcomers += places

    def abandon_newcomers(self) -> None:
        """End the newcomers."""
        end(self._hand_over.take_newcomers())

    def plan_change(self, world_size: int, leaving: set[str]) -> None:
        """Prepare the next shutdown: a hand-over to `world_size` workers, or 0 to keep no process.

        Workers on `leaving` nodes are not kept.
        """
        self._change = (world_size, leaving) if world_size else None
        useful: list[WorkerSlot] = []
        rest: list[WorkerSlot] = []
        for place in self._hand_over.newcomers:
            # A newcomer that is not ready would keep the others waiting. One on a leaving node would be lost.
            is_ready = bool(ray.wait([place.warmed], timeout=0)[0])
            is_useful = is_ready and ray.get(place.metadata, timeout=_RESET_S).node_id not in leaving
            (useful if is_useful else rest).append(place)
        self._hand_over.newcomers = useful
        end(rest)

    # -- called by Ray's start

    def _start_impl(self, worker_group_state_builder: names.WorkerGroupStateBuilder) -> None:
        """Start the group with the last group's idle synchronisation actor: a new one would be another process."""
        start = WorkerGroup._start_impl
        if (actor := self._hand_over.take_sync_actor()) is not None:
            start = _with_globals(start, {"SynchronizationActor": _RunningActorClass(actor)})
        with _limit_start_time(_START_MOST_S, worker_group_state_builder):
            start(self, worker_group_state_builder)

    def _create_placement_group(
        self,
        scaling_config: object,  # noqa: ARG002
        worker_group_context: names.WorkerGroupContext,
    ) -> PlacementGroups:
        """The places of kept workers, warmed newcomers and new processes, as many as the group has workers."""
        missing = worker_group_context.num_workers - len(self._places)
        newcomers = self._hand_over.take_newcomers()
        warmed, surplus = newcomers[:missing], newcomers[missing:]
        end(surplus)
        self._places += warmed
        if missing > len(warmed):
            kept = [metadata.node_id for metadata in ray.get([place.metadata for place in self._places])]
            self._places += self._take_places(missing - len(warmed), kept)
        self._placements = PlacementGroups([place.group for place in self._places])
        return self._placements

    def _create_workers(self, num_workers: int, *arguments: object, **options: object) -> list[Worker]:  # noqa: ARG002
        """The workers in the group's places, with new ranks.

        Raises:
            WorkerGroupStartupFailedError: a worker has died.
        """
        try:
            found = ray.get([place.metadata for place in self._places])
        except RayActorError as error:
            raise WorkerGroupStartupFailedError("a new worker died before it trained") from error
        resources = self._worker_group_context.resources_per_worker
        workers = [
            # Each worker is alone in its placement group, so its bundle is the first one.
            Worker(place.actor, metadata, resources, placement_group_bundle_index=0)
            for place, metadata in zip(self._places, found, strict=True)
        ]
        ranked: list[Worker] = WorkerGroup._assign_worker_ranks(workers)
        return ranked

    def _take_places(self, count: int, kept: Sequence[str]) -> list[WorkerSlot]:
        """Start `count` actors beside those on the nodes `kept`, each in its own placement group. Does not wait."""
        selectors = self._listener.label_selectors(kept, count)
        context = self._worker_group_context
        resources = context.resources_per_worker
        environment = self._get_worker_runtime_env(
            custom_runtime_env=self._train_run_context.run_config.worker_runtime_env
        )
        actor_class = ray.remote(runtime_env=environment, **bundle_to_remote_args(resources))(self._worker_cls)
        places = []
        for number in range(count):
            group = placement_group(
                [resources],
                name=self._new_name(),
                bundle_label_selector=[selectors[number]] if selectors else None,
            )
            where = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=0)
            actor = actor_class.options(scheduling_strategy=where).remote()
            places.append(WorkerSlot(actor=actor, group=group, metadata=actor.get_metadata.remote()))
        return places

    # -- the end of a group

    def shutdown(self) -> None:
        """End the group. In a planned change, workers that stay keep their processes."""
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
        """Keep at most `world_size` workers and end the rest. False if no worker could be kept."""
        by_actor: dict[names.WorkerActor, WorkerSlot] = {place.actor: place for place in self._places}
        workers: Sequence[names.Worker] = self.get_workers()
        staying = [worker for worker in workers if worker.metadata.node_id not in leaving]
        chosen = self._listener.kept_workers([worker.metadata.node_id for worker in staying], world_size)
        kept = [by_actor[staying[number].actor] for number in chosen]
        # Longer than the worker itself waits, so that its own error comes first.
        is_clean = _all_done([place.actor.quiesce.remote(_UNWIND_S) for place in kept], _UNWIND_S + 5)
        for callback in self._callbacks:  # the torch backend's callback ends the process group in all workers
            callback.before_worker_group_shutdown(self)
        # After the callbacks, in which all workers take part.
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
        """Keep the synchronisation actor for the next group if no worker waits in its barrier."""
        assert self._worker_group_state is not None, "asserted to be active"
        actor = self._worker_group_state.sync_actor
        try:
            if is_clean and ray.get(actor.get_counter.remote(), timeout=2) == 0:
                ray.get(actor.set_required_ranks.remote(None), timeout=2)
                self._hand_over.sync_actor = actor
                return
        except RayError:
            _log.warning("the synchronisation actor does not answer: starting a new one", exc_info=True)
        _shutdown_sync_actor(actor)

    def _may_keep(self) -> bool:
        """Whether workers may keep their processes: without GPUs, or with one worker per node, newcomers included.

        Ray changes CUDA_VISIBLE_DEVICES when a node's workers change, but a running CUDA process ignores that. NCCL may
        not reach a GPU of the same node directly that its process does not see (NVIDIA/nccl#129).
        """
        if not self._worker_group_context.resources_per_worker.get("GPU"):
            return True
        nodes = [*(worker.metadata.node_id for worker in self.get_workers()), *self.newcomer_nodes()]
        return len(set(nodes)) == len(nodes)


def _all_done(pending: list[ObjectRef], timeout_s: float) -> bool:
    """Whether all calls succeed in time."""
    try:
        ray.get(pending, timeout=timeout_s)
    except RayError:
        _log.warning("a worker could not be kept: starting new processes", exc_info=True)
        return False
    return True


class _RunningActorClass:
    """Takes the place of an actor class, and "starts" an actor that already runs."""

    def __init__(self, actor: names.SyncActor) -> None:
        self._actor = actor

    def options(self, **_: object) -> Self:
        """Ignore the options: the actor already runs."""
        return self

    def remote(self, **_: object) -> names.SyncActor:
        """The running actor."""
        return self._actor


def _with_globals(function: FunctionType, others: dict[str, object]) -> FunctionType:
    """A copy of a function with some of its globals replaced.

    Ray's start creates its synchronisation actor by a global name and accepts none from outside
    (ray/train/v2/_internal/execution/worker_group/worker_group.py:315, Ray 2.60), in the midst of 120 lines, so a
    subclass cannot pass another one. The copy does not change the module, so other groups and threads are not affected
    and nothing has to be undone.
    """
    return FunctionType(
        function.__code__,
        {**function.__globals__, **others},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )

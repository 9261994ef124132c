"""Private names of Ray Train's workers and groups: each class has its owner, its use, and what breaks without it.

A run checks them at its start (`compatibility.require`), and does not start without them. A class without an owner is
documented by Ray and here for its type alone.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Condition, Thread
from typing import Any, Protocol, TypeVar

from planner.dispatch.ray_internal.compatibility import ObjectRef, of, remote

Answer = TypeVar("Answer")

Metrics = Mapping[str, Any]
"""what a worker reports. The type of a value depends on its key (`planner.elastic` reads them)"""

_INTERNAL = "ray.train.v2._internal"
_EXECUTION = f"{_INTERNAL}.execution"
_GROUP = f"{_EXECUTION}.worker_group"

# -- workers


@of(f"{_INTERNAL}.util:ObjectRefWrapper")
class TrainFunctionRef(Protocol):
    """The training function in the object store. Without it, a parked function cannot be ended."""

    def get(self) -> Callable[[], object]:
        """Load it. Wrapped, so that the function returns when it is released from its park."""


@of(f"{_GROUP}.worker:RayTrainWorker")
class WorkerActor(Protocol):
    """The actor of a worker. `kept_worker` extends it. Without it, no process serves two generations."""

    @remote
    def execute(self, fn: Callable[..., object], /, *arguments: object, **options: object) -> object:
        """Call a function in the worker's main thread: stop, note, whereabouts, progress, warm-up."""

    @remote
    def get_metadata(self) -> "ActorMetadata":
        """Where the actor runs."""

    def init_train_context(self, *arguments: object, **options: object) -> None:
        """Begin a generation. Overridden: Ray shares two objects of its context within a process."""

    def run_train_fn(self, train_fn_ref: TrainFunctionRef) -> None:
        """Start the training thread. Overridden, to wrap the function."""

    def shutdown(self) -> None:
        """End a generation."""


@of(f"{_GROUP}.worker:ActorMetadata")
class ActorMetadata(Protocol):
    """The metadata of a worker's actor. Without it, no failure has a node."""

    node_id: str
    """of the worker's node"""


@of(f"{_GROUP}.worker:Worker")
class Worker(Protocol):
    """A worker in its group. Without it, no group is built from kept workers."""

    actor: WorkerActor
    """its process"""
    metadata: ActorMetadata
    """where it runs"""

    def __init__(
        self,
        actor: WorkerActor,
        metadata: ActorMetadata,
        resources: Mapping[str, float],
        placement_group_bundle_index: int,
    ) -> None:
        """Make a worker of a process that runs."""


@of(f"{_GROUP}.thread_runner:ThreadRunner")
class ThreadRunner(Protocol):
    """Runs the training function. Without it, the end of a parked generation cannot be awaited."""

    _thread: Thread
    """the training thread"""


@of(f"{_EXECUTION}.context:ExecutionContext")
class ExecutionContext(Protocol):
    """The objects that run training in a worker. Without it, the training thread is not found."""

    training_thread_runner: ThreadRunner
    """has the training thread"""


@of(f"{_EXECUTION}.context:TrainContext")
class TrainContext(Protocol):
    """The context of a worker for one generation. Without it, no process serves two generations."""

    checkpoint_upload_threadpool: ThreadPoolExecutor
    """replaced: Ray has shut down that of the last generation"""
    execution_context: ExecutionContext
    """has the training thread"""
    report_order_condition: Condition
    """replaced: Ray shares it within a process"""


@of(f"{_EXECUTION}.context")
class ContextModule(Protocol):
    """Ray Train in a worker's process. Without it, the training thread is not found."""

    def get_train_context(self) -> TrainContext:
        """The context of this worker."""


# -- what a poll finds


@of(f"{_EXECUTION}.training_report:_TrainingReport")
class TrainingReport(Protocol):
    """What a worker has reported since the last poll. Without it, planner sees no step and no park."""

    metrics: Metrics
    """steps, times, and whether the worker has parked"""


@of(f"{_GROUP}.poll:WorkerStatus")
class WorkerStatus(Protocol):
    """The status of one worker. Without it, planner sees no step and no park."""

    training_report: TrainingReport | None
    """None: nothing new"""


@of(f"{_GROUP}.poll:WorkerGroupPollStatus")
class PollStatus(Protocol):
    """The status of all workers of a group, by rank. Without it, planner sees no step and no failure."""

    worker_statuses: Mapping[int, WorkerStatus]
    """of all workers"""
    errors: dict[int, Exception]
    """of the workers that failed"""


@of(f"{_INTERNAL}.exceptions:WorkerGroupStartupTimeoutError")
class StartTimeout(Protocol):
    """Not all workers got a place in time. Without it, planner asks again for places that are taken."""

    num_workers: int
    """that Ray asked for"""

    def __init__(self, num_workers: int) -> None:
        """Ray's error of a start."""


@of(f"{_INTERNAL}.exceptions")
class Exceptions(Protocol):
    """Ray Train's errors. Without them, a worker that died looks like one that raised."""

    WorkerGroupStartupFailedError: type[Exception]
    """raised by us, so that Ray starts the group again"""
    WorkerHealthCheckFailedError: type[Exception]
    """a worker's process is gone. Compared by name, since it comes from another process"""
    WorkerHealthCheckTimeoutError: type[Exception]
    """a worker does not answer. Compared by name"""


# -- worker groups


@of("ray.train:ScalingConfig")
class ScalingConfig(Protocol):
    """The resources of a worker. Without it, planner does not know how many workers fit on a node."""

    _resources_per_worker_not_none: dict[str, float]
    """by name, with Ray's defaults"""


class PlacementGroup(Protocol):
    """Resources reserved for workers (documented by Ray)."""

    def ready(self) -> ObjectRef:
        """A reference that is ready when the resources are."""

    def wait(self, timeout_seconds: float) -> bool:
        """Whether the resources are reserved within the timeout."""


@of(f"{_GROUP}.placement_group_handle:PlacementGroupHandle")
class PlacementGroupHandle(Protocol):
    """Holds a group's resources. We subclass it. Without it, a worker's place cannot go without the others."""

    placement_group: PlacementGroup
    """Ray asks for one, even if each worker has its own"""

    def ready(self) -> ObjectRef:
        """A reference that is ready when the resources are."""

    def wait(self, timeout_seconds: float) -> bool:
        """Whether the resources are reserved within the timeout."""

    def shutdown(self) -> None:
        """Release the resources."""


@of(f"{_GROUP}.placement_group_handle:DefaultPlacementGroupHandle")
class DefaultPlacementGroupHandle(Protocol):
    """Ray's holder of a placement group. Without it, a place without our name stays behind a dead controller."""

    def __init__(self, pg: PlacementGroup) -> None:
        """Hold a placement group that has our name."""


@of(f"{_GROUP}.state:WorkerGroupStateBuilder")
class WorkerGroupStateBuilder(Protocol):
    """The state of a group that is starting. Without it, a start has no time limit."""

    placement_group_handle: PlacementGroupHandle | None
    """removed when the start takes too long, which ends the processes"""


@of("ray.train:RunConfig")
class RunConfig(Protocol):
    """The configuration of a run. Without it, newcomers have another environment than the first workers."""

    worker_runtime_env: dict[str, object]
    """what a worker's process gets"""


@of(f"{_EXECUTION}.context:TrainRunContext")
class TrainRunContext(Protocol):
    """The controller's context of a run. Without it, newcomers have another environment than the first workers."""

    run_config: RunConfig
    """has the environment of workers"""


@of(f"{_GROUP}.state:WorkerGroupContext")
class WorkerGroupContext(Protocol):
    """The size, resources and placement of a group. Without it, no group can be built by us."""

    num_workers: int
    """that the group must have"""
    resources_per_worker: dict[str, float]
    """by name"""
    placement_strategy: str
    """of the placement group"""


@of(f"{_EXECUTION}.checkpoint.sync_actor:SynchronizationActor")
class SyncActor(Protocol):
    """The barrier of a group's workers, in its own process. Without it, each resize starts that process again."""

    @remote
    def get_counter(self) -> int:
        """How many workers wait in the barrier."""

    @remote
    def set_required_ranks(self, ranks: object) -> None:
        """Forget the last group's ranks."""


@of(f"{_GROUP}.worker_group")
class GroupModule(Protocol):
    """Globals of Ray's start of a group. Without them, each resize starts another synchronisation actor."""

    SynchronizationActor: Any
    """`WorkerGroup._start_impl` reads this global. Our copy of that function reads our own"""


@of(f"{_GROUP}.state")
class GroupState(Protocol):
    """Ray's end of a group. Without it, a synchronisation actor stays behind."""

    def _shutdown_sync_actor(self, sync_actor: SyncActor) -> None:
        """End a synchronisation actor that cannot be kept."""


@of(f"{_GROUP}.state:WorkerGroupState")
class WorkerGroupState(Protocol):
    """The state of a running group. Without it, planner does not know its workers."""

    workers: Sequence[Worker]
    """by rank"""
    num_workers: int
    """all of them"""
    sync_actor: SyncActor
    """kept for the next group"""

    def shutdown(self) -> None:
        """End the workers and release their resources."""


@of(f"{_EXECUTION}.callback:WorkerGroupCallback")
class WorkerGroupCallback(Protocol):
    """Called when a group starts and ends. Without it, torch's process group stays in kept processes."""

    def on_worker_group_shutdown(self) -> AbstractContextManager[None]:
        """A context manager around a shutdown."""

    def before_worker_group_shutdown(self, worker_group: object) -> None:
        """Called while all workers still run. Ray's torch backend ends the process group here."""

    def after_worker_group_shutdown(self, worker_group_context: WorkerGroupContext) -> None:
        """Called when all workers have ended."""


@of(f"{_GROUP}:WorkerGroup")
class WorkerGroup(Protocol):
    """A group of workers that trains. We subclass it. Without it, no process is kept and no failure is told."""

    _callbacks: Sequence[WorkerGroupCallback]
    """called at a planned end, as Ray does"""
    _train_run_context: TrainRunContext
    """has the environment of workers"""
    _worker_group_context: WorkerGroupContext
    """has the size and the resources"""
    _worker_group_state: WorkerGroupState | None
    """None: it does not run"""
    _world_rank_to_ongoing_poll: Mapping[int, object]
    """the ranks that have not answered the last poll"""
    _worker_cls: type
    """the class of the actors. Overridden by ours, which can be kept"""

    def _start(self) -> None:
        """Start the group, and clean up if that fails."""

    def _start_impl(self, worker_group_state_builder: WorkerGroupStateBuilder) -> None:
        """Start the group. Overridden, for a time limit."""

    def _create_placement_group(
        self, scaling_config: object, worker_group_context: WorkerGroupContext
    ) -> PlacementGroupHandle:
        """Reserve places. Overridden, to name them and to take kept ones."""

    def _create_workers(self, num_workers: int, *arguments: object, **options: object) -> list[Worker]:
        """Start the workers. Overridden, to take kept ones."""

    def _assign_worker_ranks(self, workers: list[Worker]) -> list[Worker]:
        """The workers with ranks (a static method of Ray's)."""

    def _get_worker_runtime_env(self, custom_runtime_env: dict[str, object]) -> dict[str, object]:
        """The environment of a worker's process."""

    def _assert_active(self) -> None:
        """Check that the group runs."""

    def _clear_state(self) -> None:
        """Forget the workers."""

    def shutdown(self) -> None:
        """End the group. Overridden, to keep processes."""

    def get_workers(self) -> Sequence[Worker]:
        """The workers, by rank."""

    def poll_status(self, timeout: float | None = None) -> PollStatus:
        """Ask all workers for their status. Overridden, to tell a listener of failures."""

    def execute(self, fn: Callable[..., object], **options: object) -> Sequence[object]:
        """Call a function in every worker, and wait for the answers."""

    def execute_single(self, rank: int, fn: Callable[[], Answer]) -> Answer:
        """Call a function in one worker, and wait for the answer."""

    def execute_single_async(self, rank: int, fn: Callable[..., object], **options: object) -> ObjectRef:
        """Call a function in one worker. Does not wait."""

    def __len__(self) -> int:
        """The number of workers."""


@of(f"{_INTERNAL}.util")
class Util(Protocol):
    """Ray Train's helpers. Without them, our groups start and end otherwise than Ray's."""

    def bundle_to_remote_args(self, bundle: Mapping[str, float]) -> dict[str, object]:
        """Resources as arguments of `ray.remote`."""

    def invoke_context_managers(
        self, context_managers: Sequence[Callable[[], AbstractContextManager[None]]]
    ) -> AbstractContextManager[None]:
        """All of these, as one context manager."""

"""Private names of Ray Train: each class has its owner, what planner uses it for, and what breaks without it.

A run checks them at its start (`compatibility.require`), and does not start without them. A class without an owner is
documented by Ray and here for its type alone.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Condition, Thread
from types import FrameType
from typing import Any, Protocol, TypeVar

from planner.dispatch.ray_internal.compatibility import ObjectRef, of, remote

Answer = TypeVar("Answer")

SignalHandler = Callable[[int, FrameType | None], object] | int | None
"""what `signal.getsignal` returns: Ray installs its own handler for Ctrl-C"""

Metrics = Mapping[str, Any]
"""what a worker reports. The type of a value depends on its key (`planner.elastic` reads them)"""

_INTERNAL = "ray.train.v2._internal"
_EXECUTION = f"{_INTERNAL}.execution"
_GROUP = f"{_EXECUTION}.worker_group"
_COORDINATOR = "ray.data._internal.cluster_autoscaler"

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
    label_selector: list[dict[str, str]] | None
    """which nodes to take, per worker"""


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
        """Ask all workers for their status. Overridden, to tell the policy of failures."""

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


# -- torch's process group


@of("ray.train.torch:TorchConfig")
class TorchConfig(Protocol):
    """The configuration of torch's process group. Without it, torch's store listens on all interfaces."""

    backend: str
    """such as gloo"""
    timeout_s: float
    """of collectives"""
    backend_cls: type
    """who starts the process group. Overridden by ours"""


@of("ray.train.torch.config:_TorchBackend")
class TorchBackend(Protocol):
    """Starts torch's process group. We subclass it. Without it, torch's store listens on all interfaces."""

    def on_start(self, worker_group: WorkerGroup, backend_config: TorchConfig) -> None:
        """Start the process group. Overridden, for a store on loopback."""


@of("ray.train.torch.config")
class TorchConfigModule(Protocol):
    """Ray's own start of the process group. Without it, torch programs do not find their rank's variables."""

    def _set_torch_distributed_env_vars(self) -> None:
        """Set RANK, WORLD_SIZE and the like, in a worker."""


# -- the controller and the policy


@of("ray.train:ScalingConfig")
class ScalingConfig(Protocol):
    """The resources of a worker. Without it, planner does not know how many workers fit on a node."""

    _resources_per_worker_not_none: dict[str, float]
    """by name, with Ray's defaults"""


@of(f"{_COORDINATOR}.default_autoscaling_coordinator:_AutoscalingCoordinatorActor")
class Coordinator(Protocol):
    """Passes all jobs' requests to the autoscaler, and assigns places. Without it, planner sees no room."""

    @remote
    def request_resources(
        self,
        requester_id: str,
        resources: object,
        label_selectors: object,
        expire_after_s: float,
        priority: object,
        request_remaining: Sequence[str],
    ) -> None:
        """Ask for workers. Ray's own policy asks for `max_workers`, whatever is useful."""

    @remote
    def cancel_request(self, requester_id: str) -> None:
        """Cancel the request of a killed driver, which would reserve places for three minutes."""

    @remote
    def get_reserved_resources(self, requester_id: str, recompute: bool) -> Mapping[str, Mapping[str, float]]:
        """Our places by node, now: by itself, the coordinator looks every 20 s."""


@of(f"{_COORDINATOR}.default_autoscaling_coordinator")
class CoordinatorModule(Protocol):
    """Where the coordinator lives. Without it, the request of a killed driver blocks the next run."""

    def get_or_create_autoscaling_coordinator(self) -> Coordinator:
        """The cluster's coordinator."""


@of(f"{_COORDINATOR}.base_autoscaling_coordinator:ResourceRequestPriority")
class ResourceRequestPriority(Protocol):
    """Priorities of requests. Without it, other jobs' requests come before ours."""

    HIGH: object
    """that of Ray Train's own requests"""


@of("ray.train._internal.autoscaling_coordinator_client")
class CoordinatorClient(Protocol):
    """Ray Train's requests. Without it, planner asks the autoscaler for nothing."""

    def build_train_resource_request(self, scaling_config: ScalingConfig, num_workers: int) -> tuple[object, object]:
        """Resources and label selectors of so many workers."""


@of(f"{_EXECUTION}.scaling_policy")
class Decisions(Protocol):
    """What a policy returns. Without it, planner's policy decides nothing."""

    NoopDecision: type
    """keep what is"""
    ResizeDecision: type
    """start another group"""


@of(f"{_EXECUTION}.scaling_policy:ElasticScalingPolicy")
class ScalingPolicy(Protocol):
    """Decides for Ray's controller, which calls these by name. We subclass it. Without it, Ray alone decides."""

    scaling_config: ScalingConfig
    """the resources of a worker"""
    _requester_id: str | None
    """our name with the coordinator"""
    _autoscaling_coordinator: Coordinator
    """the cluster's"""

    def after_controller_start(self, train_run_context: TrainRunContext) -> None:
        """Called once."""

    def make_decision_for_non_running_worker_group(self) -> object:
        """Called while no group runs."""

    def make_decision_for_running_worker_group(
        self, worker_group_state: WorkerGroupState, worker_group_status: PollStatus
    ) -> object:
        """Called after each poll."""

    def on_controller_start_worker_group(self, *, scaling_config: object, num_workers: int) -> dict[str, str] | None:
        """Called before a group starts. Returns the labels of its nodes."""

    def _get_resize_decision(self, num_workers: int) -> object:
        """A decision to start a group of this size."""

    def _get_num_workers_for_resource_request(self) -> int:
        """How many workers Ray asks for. Overridden."""

    def _maybe_send_resource_request(self) -> None:
        """Called by Ray's own decisions. Overridden."""

    def _send_resource_request(self) -> None:
        """Called at the start. Overridden."""


@of(f"{_EXECUTION}.controller:TrainController")
class Controller(Protocol):
    """Runs groups as its policy decides. We subclass it. Without it, Ray starts its own worker groups."""

    worker_group_cls: Any
    """what it creates groups with. Overridden by the policy's factory"""
    _scaling_policy: Any
    """our policy"""

    def run(self) -> None:
        """Train to the end."""

    def get_result(self) -> object:
        """How training ended, after `run`."""


@of("ray.train.v2.api.data_parallel_trainer:DataParallelTrainer")
class Trainer(Protocol):
    """Starts the controller. We subclass it. Without it, Ray's policy decides, and Ctrl-C loses steps."""

    scaling_config: ScalingConfig
    """handed to our policy"""

    def _initialize_and_run_controller(self, **controller_init_kwargs: object) -> object:
        """Start the controller and wait for it. Overridden, for our controller and our policy."""

    def _register_sigint_handler(self, controller: object) -> None:
        """Install Ray's handler of Ctrl-C. Overridden, to commit first."""


@of(f"{_INTERNAL}.constants")
class TrainConstants(Protocol):
    """Ray Train's settings. Without them, the controller does not get those of the driver's environment."""

    def get_env_vars_to_propagate(self) -> dict[str, str]:
        """The variables of the driver that the controller needs."""

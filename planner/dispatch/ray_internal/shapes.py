"""Types for the parts of Ray's objects that planner uses.

For mypy, all of Ray is `Any`, so a misspelt attribute would pass. Each class here names the members that planner reads
or calls. `private_api.py` lists the same members, and `tests/dispatch/test_private_api.py` compares the two.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Condition, Thread
from types import FrameType
from typing import Any, NewType, Protocol, TypedDict, TypeVar

Answer = TypeVar("Answer")

ObjectRef = NewType("ObjectRef", object)
"""what a remote call returns at once: an argument for `ray.get` and `ray.wait`"""

SignalHandler = Callable[[int, FrameType | None], object] | int | None
"""what `signal.getsignal` returns: Ray installs its own handler for Ctrl-C"""

Metrics = Mapping[str, Any]
"""what a worker reports. The type of a value depends on its key (`planner.elastic` reads them)"""


class RemoteMethod(Protocol):
    """A method of an actor."""

    def remote(self, *arguments: object, **options: object) -> ObjectRef:
        """Call it in the actor's process. Does not wait."""


# -- workers


class WorkerActor(Protocol):
    """The actor of a worker."""

    execute: RemoteMethod
    get_metadata: RemoteMethod


class ActorMetadata(Protocol):
    """The metadata of a worker's actor."""

    node_id: str


class Worker(Protocol):
    """A worker in its group."""

    actor: WorkerActor
    metadata: ActorMetadata


class TrainFunctionRef(Protocol):
    """The training function in the object store."""

    def get(self) -> Callable[[], object]:
        """Load it."""


class ThreadRunner(Protocol):
    """Runs the training function."""

    _thread: Thread


class ExecutionContext(Protocol):
    """The objects that run training in a worker."""

    training_thread_runner: ThreadRunner


class TrainContext(Protocol):
    """The context of a worker for one generation."""

    checkpoint_upload_threadpool: ThreadPoolExecutor
    execution_context: ExecutionContext
    report_order_condition: Condition


# -- what a poll finds


class TrainingReport(Protocol):
    """What a worker has reported since the last poll."""

    metrics: Metrics


class WorkerStatus(Protocol):
    """The status of one worker."""

    training_report: TrainingReport | None


class PollStatus(Protocol):
    """The status of all workers of a group, and their errors, by rank."""

    worker_statuses: Mapping[int, WorkerStatus]
    errors: dict[int, Exception]


# -- worker groups


class RunConfig(Protocol):
    """The configuration of a run (documented by Ray)."""

    worker_runtime_env: dict[str, object]
    callbacks: list[object] | None


class TrainRunContext(Protocol):
    """The controller's context of a run."""

    run_config: RunConfig


class WorkerGroup(Protocol):
    """A group of workers that trains."""

    def has_started(self) -> bool:
        """Whether the group has started and is not shut down."""

    def get_workers(self) -> Sequence[Worker]:
        """The workers, by rank."""

    def poll_status(self, timeout: float | None = None) -> PollStatus:
        """Ask all workers for their status."""

    def execute_async(self, fn: Callable[..., object]) -> Sequence[ObjectRef]:
        """Call a function in every worker. Does not wait."""

    def execute(self, fn: Callable[..., object], **options: object) -> Sequence[object]:
        """Call a function in every worker, and wait for the answers."""

    def execute_single(self, rank: int, fn: Callable[[], Answer]) -> Answer:
        """Call a function in one worker, and wait for the answer."""

    def execute_single_async(self, rank: int, fn: Callable[..., object], **options: object) -> ObjectRef:
        """Call a function in one worker. Does not wait."""

    def __len__(self) -> int:
        """The number of workers."""


class SyncActor(Protocol):
    """The barrier of a group's workers, in its own process."""

    get_counter: RemoteMethod
    set_required_ranks: RemoteMethod


class WorkerGroupState(Protocol):
    """The state of a running group."""

    workers: Sequence[Worker]
    num_workers: int
    sync_actor: SyncActor

    def shutdown(self) -> None:
        """End the workers and release their resources."""


class WorkerGroupContext(Protocol):
    """The size, resources and placement of a group."""

    num_workers: int
    resources_per_worker: dict[str, float]
    placement_strategy: str
    label_selector: list[dict[str, str]] | None


class PlacementGroup(Protocol):
    """Resources reserved for workers (documented by Ray)."""

    def ready(self) -> ObjectRef:
        """A reference that is ready when the resources are."""

    def wait(self, timeout_seconds: float) -> bool:
        """Whether the resources are reserved within the timeout."""


class PlacementGroupHandle(Protocol):
    """Holds a group's resources."""

    def shutdown(self) -> None:
        """Release the resources."""


class WorkerGroupStateBuilder(Protocol):
    """The state of a group that is starting."""

    placement_group_handle: PlacementGroupHandle | None


class WorkerGroupCallback(Protocol):
    """Called when a group starts and ends. Ray's torch backend is one."""

    def on_worker_group_shutdown(self) -> AbstractContextManager[None]:
        """A context manager around a shutdown."""

    def before_worker_group_shutdown(self, worker_group: object) -> None:
        """Called while all workers still run."""

    def after_worker_group_shutdown(self, worker_group_context: WorkerGroupContext) -> None:
        """Called when all workers have ended."""


class TorchConfig(Protocol):
    """The configuration of torch's process group."""

    backend: str
    timeout_s: float


# -- the driver, the controller and the cluster


class Trainer(Protocol):
    """Runs the controller and waits for it (documented by Ray)."""

    def fit(self) -> object:
        """Train to the end."""


class NodeRow(TypedDict):
    """A node in `ray.nodes()`, which Ray documents."""

    NodeID: str
    Alive: bool
    NodeManagerAddress: str
    NodeManagerHostname: str
    NodeManagerPort: int
    Resources: dict[str, float]


class NodeId(Protocol):
    """The id of a node (documented by Ray)."""

    def hex(self) -> str:
        """The id as hexadecimal text."""


class ScalingConfig(Protocol):
    """The resources of a worker."""

    _resources_per_worker_not_none: dict[str, float]


class Coordinator(Protocol):
    """The actor that passes all jobs' requests to the autoscaler, and assigns places to jobs."""

    request_resources: RemoteMethod
    cancel_request: RemoteMethod
    get_reserved_resources: RemoteMethod


class FailedInstanceRequest(Protocol):
    """A node that the cloud did not provide."""

    failed_ts: float
    ray_node_type_name: str
    reason: str


class AutoscalingState(Protocol):
    """The autoscaler's (v2) verdict on all requests."""

    failed_instance_requests: Sequence[FailedInstanceRequest]
    infeasible_cluster_resource_constraints: Sequence[object]
    last_seen_cluster_resource_state_version: int


class ClusterResourceState(Protocol):
    """The version of the cluster's state."""

    cluster_resource_state_version: int


class ClusterStatus(Protocol):
    """The cluster's state and the autoscaler's verdict."""

    autoscaling_state: AutoscalingState
    cluster_resource_state: ClusterResourceState


class GcsNodeInfo(Protocol):
    """The head's record of a node."""

    state: int
    is_head_node: bool
    resources_total: Mapping[str, float]


class GcsClient(Protocol):
    """A connection to the head."""

    def drain_node(
        self, node_id: str, reason: int, reason_message: str, deadline_timestamp_ms: int
    ) -> tuple[bool, str]:
        """Whether the notice was accepted, and the reason if not."""

    def check_alive(self, node_ids: Sequence[NodeId], timeout: float) -> Sequence[bool]:
        """Whether each of these nodes is alive."""

    def get_all_node_info(self, timeout: float) -> Mapping[NodeId, GcsNodeInfo]:
        """All nodes, including dead ones."""

    def get_cluster_status(self, timeout_s: float) -> bytes:
        """A `GetClusterStatusReply`, serialised."""

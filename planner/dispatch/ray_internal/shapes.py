"""The parts of Ray's objects that planner uses, as types.

mypy takes all of Ray for `Any`, so a misspelt attribute would pass. Each class here names the members that we read or
call; `contract.py` lists the same members, and `tests/dispatch/test_contract.py` compares the two.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Condition, Thread
from types import FrameType
from typing import Any, NewType, Protocol, TypedDict, TypeVar

Answer = TypeVar("Answer")

ObjectRef = NewType("ObjectRef", object)
"""what a remote call returns at once: only `ray.get` and `ray.wait` can do something with it"""

SignalHandler = Callable[[int, FrameType | None], object] | int | None
"""what `signal.getsignal` returns: Ray has one of its own for Ctrl-C"""

Metrics = Mapping[str, Any]
"""what a worker reports. Any: the values are ours, of a type for each key (`planner.elastic` reads them)"""


class RemoteMethod(Protocol):
    """A method of an actor."""

    def remote(self, *arguments: object, **options: object) -> ObjectRef:
        """Call it in the actor's process."""


# -- workers


class WorkerActor(Protocol):
    """A worker's process."""

    execute: RemoteMethod
    get_metadata: RemoteMethod


class ActorMetadata(Protocol):
    """Where a worker is."""

    node_id: str


class Worker(Protocol):
    """A worker as its group knows it."""

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
    """What runs in a worker."""

    training_thread_runner: ThreadRunner


class TrainContext(Protocol):
    """What a worker knows of its generation."""

    checkpoint_upload_threadpool: ThreadPoolExecutor
    execution_context: ExecutionContext
    report_order_condition: Condition


# -- what a poll finds


class TrainingReport(Protocol):
    """What a worker has reported since the last poll."""

    metrics: Metrics


class WorkerStatus(Protocol):
    """How a worker does."""

    training_report: TrainingReport | None


class PollStatus(Protocol):
    """How all workers of a group do, by rank."""

    worker_statuses: Mapping[int, WorkerStatus]
    errors: dict[int, Exception]


# -- worker groups


class RunConfig(Protocol):
    """How a run is to be (documented by Ray)."""

    worker_runtime_env: dict[str, object]
    callbacks: list[object] | None


class TrainRunContext(Protocol):
    """A run, as the controller knows it."""

    run_config: RunConfig


class WorkerGroup(Protocol):
    """A group of workers that trains."""

    def has_started(self) -> bool:
        """Whether it is not shut down."""

    def get_workers(self) -> Sequence[Worker]:
        """Its workers, by rank."""

    def poll_status(self, timeout: float | None = None) -> PollStatus:
        """Ask all workers how they do."""

    def execute_async(self, fn: Callable[..., object]) -> Sequence[ObjectRef]:
        """Call a function in every worker."""

    def execute(self, fn: Callable[..., object], **options: object) -> Sequence[object]:
        """Call a function in every worker, and wait for the answers."""

    def execute_single(self, rank: int, fn: Callable[[], Answer]) -> Answer:
        """Call a function in one worker, and wait for the answer."""

    def execute_single_async(self, rank: int, fn: Callable[..., object], **options: object) -> ObjectRef:
        """Call a function in one worker."""

    def __len__(self) -> int:
        """How many workers there are."""


class SyncActor(Protocol):
    """The barrier of a group's workers, in a process of its own."""

    get_counter: RemoteMethod
    set_required_ranks: RemoteMethod


class WorkerGroupState(Protocol):
    """What a group holds while it runs."""

    workers: Sequence[Worker]
    num_workers: int
    sync_actor: SyncActor

    def shutdown(self) -> None:
        """End all of it."""


class WorkerGroupContext(Protocol):
    """What a group is to be."""

    num_workers: int
    resources_per_worker: dict[str, float]
    placement_strategy: str
    label_selector: list[dict[str, str]] | None


class PlacementGroup(Protocol):
    """Resources that are held for workers (documented by Ray)."""

    def ready(self) -> ObjectRef:
        """A reference that is there when the resources are."""

    def wait(self, timeout_seconds: float) -> bool:
        """Whether they are there in time."""


class PlacementGroupHandle(Protocol):
    """Whatever holds a group's resources."""

    def shutdown(self) -> None:
        """Give them back."""


class WorkerGroupStateBuilder(Protocol):
    """A group's state, as far as its start has come."""

    placement_group_handle: PlacementGroupHandle | None


class WorkerGroupCallback(Protocol):
    """Told when a group starts and ends; Ray's torch backend is one."""

    def on_worker_group_shutdown(self) -> AbstractContextManager[None]:
        """Around a shutdown."""

    def before_worker_group_shutdown(self, worker_group: object) -> None:
        """All workers are there."""

    def after_worker_group_shutdown(self, worker_group_context: WorkerGroupContext) -> None:
        """All workers are gone."""


class TorchConfig(Protocol):
    """How torch's process group is to be."""

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
    NodeManagerPort: int
    Resources: dict[str, float]


class NodeId(Protocol):
    """The id of a node (documented by Ray)."""

    def hex(self) -> str:
        """As text."""


class ScalingConfig(Protocol):
    """The resources of a worker."""

    _resources_per_worker_not_none: dict[str, float]


class Coordinator(Protocol):
    """The actor that hands all jobs' requests to the autoscaler, and says which places are whose."""

    request_resources: RemoteMethod
    cancel_request: RemoteMethod
    get_reserved_resources: RemoteMethod


class FailedInstanceRequest(Protocol):
    """A node that the cloud did not give."""

    failed_ts: float
    ray_node_type_name: str
    reason: str


class AutoscalingState(Protocol):
    """What the autoscaler (v2) has made of all requests."""

    failed_instance_requests: Sequence[FailedInstanceRequest]
    infeasible_cluster_resource_constraints: Sequence[object]
    last_seen_cluster_resource_state_version: int


class ClusterResourceState(Protocol):
    """The cluster's state, by number."""

    cluster_resource_state_version: int


class ClusterStatus(Protocol):
    """The cluster's state, and what the autoscaler has made of it."""

    autoscaling_state: AutoscalingState
    cluster_resource_state: ClusterResourceState


class GcsNodeInfo(Protocol):
    """A node as the head knows it."""

    state: int
    is_head_node: bool
    resources_total: Mapping[str, float]


class GcsClient(Protocol):
    """A connection to the head."""

    def drain_node(
        self, node_id: str, reason: int, reason_message: str, deadline_timestamp_ms: int
    ) -> tuple[bool, str]:
        """Whether the notice was accepted, and if not, why not."""

    def check_alive(self, node_ids: Sequence[NodeId], timeout: float) -> Sequence[bool]:
        """Whether each of these nodes is counted."""

    def get_all_node_info(self, timeout: float) -> Mapping[NodeId, GcsNodeInfo]:
        """All nodes, dead ones too."""

    def get_cluster_status(self, timeout_s: float) -> bytes:
        """A `GetClusterStatusReply`, serialised."""

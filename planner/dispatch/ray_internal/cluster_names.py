"""Private names of Ray's cluster: each class has its owner, what planner uses it for, and what breaks without it.

`connection.connected` checks them, and so do the start of a run, `planner notice-agent` and `planner submit`
(`compatibility.require`). A class without an owner is documented by Ray and here for its type alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypedDict

from planner.dispatch.ray_internal.compatibility import of

_PROTOBUF = "ray.core.generated.autoscaler_pb2"

# -- messages between processes


@of("ray.experimental.internal_kv")
class KeyValueStore(Protocol):
    """The key-value store of the head (the GCS). Without it, driver, controller and workers exchange no messages."""

    def _internal_kv_get(self, key: bytes, *, namespace: bytes) -> bytes | None:
        """Read a message."""

    def _internal_kv_put(self, key: bytes, value: bytes, *, overwrite: bool, namespace: bytes) -> bool:
        """Leave a message."""


# -- the driver


@of("ray._private.worker")
class DriverModule(Protocol):
    """Ray's part of the driver. Without it, the cluster's messages appear between planner's lines."""

    print_to_stdstream: Callable[..., None]
    """prints the cluster's messages. Replaced while planner is connected"""
    global_worker: "GlobalWorker"
    """this process's connection"""


@of("ray._private.worker:connect")
class GlobalWorker(Protocol):
    """The process's connection, filled by `connect`. Without it, the autoscaler's verdict is not known."""

    gcs_client: "GcsClient"
    """asks the head"""


@of("ray._private.ray_constants")
class Constants(Protocol):
    """What Ray reads at its import. Without it, a ray imported too early makes a local run wait for minutes."""

    ENABLE_RAY_CLUSTER: bool
    """whether Ray replaces 127.0.0.1 by the machine's outer address"""


# -- nodes


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


@of("ray._private.state")
class StateModule(Protocol):
    """Where Ray keeps `state`. Without it, notices do not reach the policy."""

    state: "State"
    """asks the head"""


@of("ray._private.state:state")
class State(Protocol):
    """The cluster's state. Without it, notices do not reach the policy."""

    def get_draining_nodes(self) -> Mapping[str, int]:
        """The nodes with a notice, and until when: milliseconds since 1970, 0 for an unknown time."""


@of("ray.core.generated.gcs_pb2:GcsNodeInfo")
class GcsNodeInfo(Protocol):
    """The head's record of a node. Without it, a notice could end a head or go to a dead node."""

    state: int
    """0 is alive"""
    is_head_node: bool
    """a drained head ends its cluster"""
    resources_total: Mapping[str, float]
    """whether it has room for workers"""


@of("ray._raylet:InnerGcsClient")
class GcsClient(Protocol):
    """A connection to the head. Without it, no node gets a notice, and the autoscaler's verdict is not known."""

    def drain_node(
        self, node_id: str, reason: int, reason_message: str, deadline_timestamp_ms: int
    ) -> tuple[bool, str]:
        """Give a node notice. Whether it was accepted, and the reason if not."""

    def check_alive(self, node_ids: Sequence[NodeId], timeout: float) -> Sequence[bool]:
        """Whether each of these nodes is alive."""

    def get_all_node_info(self, timeout: float) -> Mapping[NodeId, GcsNodeInfo]:
        """All nodes, including dead ones."""

    def get_cluster_status(self, timeout_s: float) -> bytes:
        """A `ClusterStatus`, serialised."""


@of("ray._raylet")
class Raylet(Protocol):
    """Ray's compiled part. Without it, no node gets a notice."""

    GcsClient: Callable[..., GcsClient]
    """connects to the head without a driver, which would keep the node busy"""


@of("ray._private.services")
class Services(Protocol):
    """What runs on this machine. Without it, `planner notice-agent` must be told address and node."""

    def canonicalize_bootstrap_address(self, addr: str) -> str | None:
        """The address of the cluster that this machine belongs to."""

    def find_node_ids(self) -> Sequence[str]:
        """The nodes on this machine."""


@of("ray._private.authentication.authentication_token_setup")
class TokenSetup(Protocol):
    """The cluster's token. Without it, a cluster with a token refuses `planner notice-agent`."""

    def ensure_token_if_auth_enabled(self, *, create_token_if_missing: bool) -> None:
        """Load the token, for a process that does not call `ray.init`."""


@of(f"{_PROTOBUF}:DrainNodeReason")
class DrainNodeReason(Protocol):
    """Why a node goes. Without it, no node gets a notice."""

    Value: Callable[[str], int]
    """the number of a reason's name"""


# -- the autoscaler


@of(f"{_PROTOBUF}:FailedInstanceRequest")
class FailedInstanceRequest(Protocol):
    """A node that the cloud did not provide. Without it, the user is not told which nodes the cloud lacks."""

    failed_ts: float
    """seconds since 1970"""
    ray_node_type_name: str
    """the kind of node, of the user's cluster file"""
    reason: str
    """may be empty: the cloud's own error is only in the autoscaler's log"""


@of(f"{_PROTOBUF}:AutoscalingState")
class AutoscalingState(Protocol):
    """The autoscaler's (v2) verdict on all requests. Without it, planner does not ask for fewer after a refusal."""

    failed_instance_requests: Sequence[FailedInstanceRequest]
    """of the last minutes"""
    infeasible_cluster_resource_constraints: Sequence[object]
    """the requests that it refuses"""
    last_seen_cluster_resource_state_version: int
    """which requests it has seen"""


@of(f"{_PROTOBUF}:ClusterResourceState")
class ClusterResourceState(Protocol):
    """The version of the cluster's state. Without it, an old verdict would be taken for that of a new request."""

    cluster_resource_state_version: int
    """grows with each report"""


@of(f"{_PROTOBUF}:GetClusterStatusReply")
class ClusterStatus(Protocol):
    """The cluster's state and the autoscaler's verdict. Without it, planner does not ask for fewer after a refusal."""

    autoscaling_state: AutoscalingState
    """what the autoscaler says"""
    cluster_resource_state: ClusterResourceState
    """what it was told"""


@of(f"{_PROTOBUF}:GetClusterStatusReply")
class ClusterStatusClass(Protocol):
    """The class of `ClusterStatus`. Without it, planner does not ask for fewer after a refusal."""

    FromString: Callable[[bytes], ClusterStatus]
    """reads what the head sends"""


@of(_PROTOBUF)
class AutoscalerMessages(Protocol):
    """Ray's messages with its autoscaler. Without them, no node gets a notice, and the verdict is not known."""

    DrainNodeReason: DrainNodeReason
    """a member of a notice"""
    GetClusterStatusReply: ClusterStatusClass
    """the answer to `get_cluster_status`"""


# -- metrics, the local cluster, and jobs


@of("ray.util.metrics:Metric")
class Metric(Protocol):
    """A metric that Ray exports. Without it, a counter's series begins with its first event."""

    def _record(self, value: float) -> None:
        """Export a value. The documented `inc` refuses 0."""


@of("ray._private.services:ProcessInfo")
class ProcessInfo(Protocol):
    """A process of a node. Without it, a rehearsal cannot kill a node."""

    process: Any
    """the `subprocess.Popen`"""


@of("ray._private.node:Node")
class Node(Protocol):
    """A node on this machine. Without it, a local cluster does not know which of its nodes live."""

    all_processes: Mapping[str, Sequence[ProcessInfo]]
    """by kind, such as `raylet`"""
    node_id: str
    """as in `ray.nodes()`"""


@of("ray.cluster_utils:Cluster")
class Cluster(Protocol):
    """Several nodes on this machine, for `local_cluster`. Without it, there are no local clusters."""

    address: str
    """of the head"""

    def add_node(self, **node_args: object) -> Node:
        """Start a node."""

    def remove_node(self, node: Node, *, allow_graceful: bool) -> None:
        """End a node."""


@of("ray.job_submission:JobSubmissionClient")
class JobClient(Protocol):
    """The client of a dashboard, for `submit`. Without it, `planner submit` may wait for ever, or for another Ray."""

    _server_ray_version: str | None
    """the cluster's Ray, compared before anything is sent"""

    def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
        """All requests. Overridden to give them a timeout."""

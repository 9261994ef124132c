"""Private names of Ray Train's controller and torch backend: each class has owner, use, and what breaks without it.

A run checks them at its start (`compatibility.require`), and does not start without them.
"""

from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol

from planner.dispatch.ray_internal.compatibility import of, remote
from planner.dispatch.ray_internal.group_names import (
    PollStatus,
    ScalingConfig,
    TrainRunContext,
    WorkerGroup,
    WorkerGroupState,
)

SignalHandler = Callable[[int, FrameType | None], object] | int | None
"""what `signal.getsignal` returns: Ray installs its own handler for Ctrl-C"""

_INTERNAL = "ray.train.v2._internal"
_EXECUTION = f"{_INTERNAL}.execution"
_COORDINATOR = "ray.data._internal.cluster_autoscaler"

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

    def _initialize_and_run_controller(self, **controller_init_kwargs: object) -> object:
        """Start the controller and wait for it. Overridden, for our controller and our policy."""

    def _register_sigint_handler(self, controller: object) -> None:
        """Install Ray's handler of Ctrl-C. Overridden, to commit first."""


@of(f"{_INTERNAL}.constants")
class TrainConstants(Protocol):
    """Ray Train's settings. Without them, the controller does not get those of the driver's environment."""

    def get_env_vars_to_propagate(self) -> dict[str, str]:
        """The variables of the driver that the controller needs."""

"""Which trainer this Ray allows: ours, Ray's with a callback that makes its resizes graceful, or Ray's alone."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any, Literal

from planner.dispatch.steward import Steward

# Processes are kept only on the very Ray that this was tested against.
KEEPS_PROCESSES_ON = "2.60.0"

Tier = Literal["ours", "callbacks", "stock"]


def make_trainer(
    steward: Steward,
    *arguments: Any,
    run: str,
    launch_id: str,
    warm_up: Callable[[], None],
    keep_processes: bool,
    soften: Callable[[Any], Any],
    listen_to: Callable[[Callable[[], None]], None],
    **options: Any,
) -> Any:
    """The best trainer that Ray's internals allow, with a warning where that is not ours.

    `run` and `launch_id` name what is run. `warm_up` is called in newcomers while the others still train. `soften`
    stands between Ctrl-C and Ray, which ends the workers at once. `listen_to` is told how to end the controller, which
    beats from then on (`planner.dispatch.pulse`).
    """
    tier, why = find_tier()
    if tier == "ours":
        from planner.dispatch.private.policy import ElasticTrainer

        return ElasticTrainer(
            *arguments,
            steward=steward,
            run=run,
            launch_id=launch_id,
            warm_up=warm_up,
            keep_processes=keep_processes and can_keep_processes(),
            soften=soften,
            listen_to=listen_to,
            **options,
        )
    from ray.train.torch import TorchTrainer

    if tier == "callbacks":
        from planner.dispatch.private.callback import GracefulResize

        options["run_config"].callbacks = [*(options["run_config"].callbacks or []), GracefulResize()]
        warnings.warn(f"every change of capacity resizes the run, worth it or not: {why}", RuntimeWarning, stacklevel=2)
    else:
        warnings.warn(f"resizes lose the steps since the last commit: {why}", RuntimeWarning, stacklevel=2)
    return TorchTrainer(*arguments, **options)


def find_tier() -> tuple[Tier, str]:
    """How much of Ray is as it was when this was written, and what is not."""
    try:
        _require_policy_contract()
    except (ImportError, AttributeError, TypeError) as error:
        why = f"Ray's internals are not those of {KEEPS_PROCESSES_ON} ({error})"
    else:
        return "ours", ""
    try:
        import planner.dispatch.private.callback  # noqa: F401
    except (ImportError, AttributeError, TypeError) as error:
        return "stock", f"Ray's internals are not those of {KEEPS_PROCESSES_ON} ({error})"
    return "callbacks", why


def can_keep_processes() -> bool:
    """Whether survivors of a resize may keep their processes."""
    import ray

    return bool(ray.__version__ == KEEPS_PROCESSES_ON)


def _require_policy_contract() -> None:
    """Every name and parameter that `policy` and `groups` rely on.

    Raises:
        ImportError, AttributeError, TypeError: something is not there, or other than expected.
    """
    from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import _AutoscalingCoordinatorActor
    from ray.train.v2._internal.execution.controller import TrainController
    from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy
    from ray.train.v2._internal.execution.worker_group import WorkerGroup
    from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    import planner.dispatch.private.policy  # noqa: F401  # all its imports are there, and those of `groups`

    _ = (TrainController.worker_group_cls, DataParallelTrainer._initialize_and_run_controller)
    _require_parameters(DataParallelTrainer._register_sigint_handler, "controller")
    for name in (
        "_maybe_send_resource_request",
        "_send_resource_request",
        "_count_possible_workers",
        "_get_resize_decision",
        "_autoscaling_coordinator",
        "_get_num_workers_for_resource_request",
    ):
        getattr(ElasticScalingPolicy, name)
    _require_parameters(
        ElasticScalingPolicy.make_decision_for_running_worker_group, "worker_group_state", "worker_group_status"
    )
    _require_parameters(_AutoscalingCoordinatorActor.request_resources, "requester_id", "request_remaining")
    _require_parameters(WorkerGroup.create, "train_run_context", "worker_group_context", "callbacks")
    _require_parameters(WorkerGroup._create_placement_group, "scaling_config", "worker_group_context")
    _require_parameters(RayTrainWorker.run_train_fn, "train_fn_ref")
    _require_parameters(RayTrainWorker.execute, "fn")
    for name in ("_start_impl", "_create_workers", "_assign_worker_ranks", "_clear_state", "_get_worker_runtime_env"):
        getattr(WorkerGroup, name)


def _require_parameters(function: Any, *names: str) -> None:
    missing = [name for name in names if name not in inspect.signature(function).parameters]
    if missing:
        raise TypeError(f"{function.__qualname__} has no parameter {missing[0]}")

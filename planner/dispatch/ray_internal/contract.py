"""Every private name of Ray's that planner uses, by file; and which of them the installed Ray lacks.

`tests/dispatch/test_contract.py` holds the table against the source. A name that is used and not listed fails there,
and so does a name that is listed and not used. The strings mean:

    module:Class      who has the names; a module, a class, or a value
    name              a function, a class, a method, or a value
    name(one, two)    the same, which takes parameters of these names
    .name             an attribute that Ray sets on an instance, or a field of a message

Importing this module does not import Ray.
"""

import dis
import importlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

Section = Mapping[str, tuple[str, ...]]

_EXECUTION = "ray.train.v2._internal.execution"
_GROUP = f"{_EXECUTION}.worker_group"
_COORDINATOR = "ray.data._internal.cluster_autoscaler"

CONTRACT: Mapping[str, Section] = {
    "dispatch/ray_internal/__init__.py": {
        "ray.experimental.internal_kv": (
            "_internal_kv_get(key, namespace)",
            "_internal_kv_put(key, value, overwrite, namespace)",
        ),
        "ray._private": ("worker",),
        "ray._private.worker": ("print_to_stdstream",),
        "ray.train.torch.config": ("_TorchBackend", "_set_torch_distributed_env_vars"),
        "ray.train.torch.config:_TorchBackend": ("on_start(worker_group, backend_config)",),
        "ray.train.torch:TorchConfig": ("backend_cls", ".backend", ".timeout_s"),
        f"{_GROUP}:WorkerGroup": ("execute(fn)", "execute_single(rank, fn)", "execute_single_async(rank, fn)"),
        "ray._raylet": ("GcsClient",),
        "ray._raylet:InnerGcsClient": ("drain_node(node_id, reason, reason_message, deadline_timestamp_ms)",),
        "ray.core.generated": ("autoscaler_pb2",),
        "ray.core.generated.autoscaler_pb2": ("DrainNodeReason",),
        "ray.core.generated.autoscaler_pb2:DrainNodeReason": ("Value",),
        "ray.job_submission:JobSubmissionClient": ("_do_request(kwargs)", "._server_ray_version"),
    },
    "dispatch/ray_internal/autoscaler.py": {
        "ray.core.generated": ("autoscaler_pb2",),
        "ray.core.generated.autoscaler_pb2": ("GetClusterStatusReply",),
        "ray.core.generated.autoscaler_pb2:GetClusterStatusReply": (
            "FromString",
            ".autoscaling_state",
            ".cluster_resource_state",
        ),
        "ray.core.generated.autoscaler_pb2:AutoscalingState": (
            ".failed_instance_requests",
            ".infeasible_cluster_resource_constraints",
            ".last_seen_cluster_resource_state_version",
        ),
        "ray.core.generated.autoscaler_pb2:ClusterResourceState": (".cluster_resource_state_version",),
        "ray.core.generated.autoscaler_pb2:FailedInstanceRequest": (".failed_ts", ".ray_node_type_name", ".reason"),
        f"{_COORDINATOR}.base_autoscaling_coordinator": ("ResourceRequestPriority",),
        f"{_COORDINATOR}.base_autoscaling_coordinator:ResourceRequestPriority": ("HIGH",),
        f"{_COORDINATOR}.default_autoscaling_coordinator:_AutoscalingCoordinatorActor": (
            "request_resources(requester_id, resources, label_selectors, expire_after_s, priority, request_remaining)",
        ),
        "ray.train._internal.autoscaling_coordinator_client": (
            "build_train_resource_request(scaling_config, num_workers)",
        ),
        "ray.train:ScalingConfig": ("_resources_per_worker_not_none",),
        "ray._private.worker": ("global_worker",),
        "ray._private.worker:connect": (".gcs_client",),
        "ray._raylet:InnerGcsClient": ("get_cluster_status(timeout_s)",),
    },
    "dispatch/ray_internal/blame.py": {
        f"{_GROUP}.worker:Worker": (".actor", ".metadata"),
        f"{_GROUP}.worker:ActorMetadata": (".node_id",),
        f"{_GROUP}.worker:RayTrainWorker": ("execute(fn)",),
        "ray.train.v2._internal.exceptions": ("WorkerHealthCheckFailedError", "WorkerHealthCheckTimeoutError"),
    },
    "dispatch/ray_internal/callback.py": {
        f"{_EXECUTION}.callback": ("ControllerCallback", "WorkerGroupCallback"),
        f"{_EXECUTION}.callback:ControllerCallback": ("before_controller_execute_resize_decision(resize_decision)",),
        f"{_EXECUTION}.callback:WorkerGroupCallback": (
            "after_worker_group_start(worker_group)",
            "before_worker_group_shutdown(worker_group)",
        ),
        f"{_GROUP}:WorkerGroup": ("execute_async(fn)", "get_workers", "has_started", "poll_status(timeout)"),
        f"{_GROUP}.poll:WorkerGroupPollStatus": (".worker_statuses", "errors"),
        f"{_GROUP}.poll:WorkerStatus": (".training_report",),
        f"{_EXECUTION}.training_report:_TrainingReport": (".metrics",),
    },
    "dispatch/ray_internal/groups.py": {
        "ray.train.v2._internal.exceptions": (
            "WorkerGroupStartupFailedError",
            "WorkerGroupStartupTimeoutError(num_workers)",
        ),
        "ray.train.v2._internal.exceptions:WorkerGroupStartupTimeoutError": (".num_workers",),
        f"{_EXECUTION}.callback:WorkerGroupCallback": (
            "after_worker_group_shutdown(worker_group_context)",
            "before_worker_group_shutdown(worker_group)",
            "on_worker_group_shutdown",
        ),
        f"{_EXECUTION}.checkpoint.sync_actor:SynchronizationActor": ("get_counter", "set_required_ranks"),
        f"{_EXECUTION}.context": ("get_train_context",),
        f"{_EXECUTION}.context:TrainRunContext": (".run_config",),
        f"{_EXECUTION}.context:TrainContext": (
            ".checkpoint_upload_threadpool",
            ".execution_context",
            ".report_order_condition",
        ),
        f"{_EXECUTION}.context:ExecutionContext": (".training_thread_runner",),
        f"{_GROUP}.thread_runner:ThreadRunner": ("._thread",),
        "ray.train:RunConfig": (".worker_runtime_env",),
        f"{_GROUP}": ("WorkerGroup",),
        f"{_GROUP}.worker_group": ("SynchronizationActor",),
        f"{_GROUP}:WorkerGroup": (
            "create(train_run_context, worker_group_context, callbacks)",
            "get_workers",
            "poll_status(timeout)",
            "shutdown",
            "_assert_active",
            "_assign_worker_ranks(workers)",
            "_clear_state",
            "_create_placement_group(scaling_config, worker_group_context)",
            "_create_workers(num_workers)",
            "_get_worker_runtime_env(custom_runtime_env)",
            "_start",
            "_start_impl(worker_group_state_builder)",
            "_worker_cls",
            "._callbacks",
            "._train_run_context",
            "._worker_group_context",
            "._worker_group_state",
            "._world_rank_to_ongoing_poll",
        ),
        f"{_GROUP}.placement_group_handle": ("DefaultPlacementGroupHandle", "PlacementGroupHandle"),
        f"{_GROUP}.placement_group_handle:PlacementGroupHandle": (
            "placement_group",
            "ready",
            "shutdown",
            "wait(timeout_seconds)",
        ),
        f"{_GROUP}.poll:WorkerGroupPollStatus": ("errors",),
        f"{_GROUP}.state": ("_shutdown_sync_actor(sync_actor)",),
        f"{_GROUP}.state:WorkerGroupContext": (
            ".label_selector",
            ".num_workers",
            ".placement_strategy",
            ".resources_per_worker",
        ),
        f"{_GROUP}.state:WorkerGroupState": (".sync_actor", "shutdown"),
        f"{_GROUP}.state:WorkerGroupStateBuilder": (".placement_group_handle",),
        f"{_GROUP}.worker": (
            "RayTrainWorker",
            "Worker(actor, metadata, resources, placement_group_bundle_index)",
        ),
        f"{_GROUP}.worker:Worker": (".actor", ".metadata"),
        f"{_GROUP}.worker:ActorMetadata": (".node_id",),
        f"{_GROUP}.worker:RayTrainWorker": (
            "execute(fn)",
            "get_metadata",
            "init_train_context",
            "run_train_fn(train_fn_ref)",
            "shutdown",
        ),
        "ray.train.v2._internal.util": ("bundle_to_remote_args(bundle)", "invoke_context_managers(context_managers)"),
    },
    "dispatch/ray_internal/heartbeats.py": {
        f"{_GROUP}.worker:Worker": (".actor",),
        f"{_GROUP}.worker:RayTrainWorker": ("execute(fn)",),
    },
    "dispatch/ray_internal/own_node.py": {
        "ray._private.services": ("canonicalize_bootstrap_address(addr)", "find_node_ids"),
        "ray._private.authentication.authentication_token_setup": (
            "ensure_token_if_auth_enabled(create_token_if_missing)",
        ),
        "ray._raylet": ("GcsClient",),
        "ray._raylet:InnerGcsClient": ("check_alive(node_ids, timeout)", "get_all_node_info(timeout)"),
        "ray.core.generated.gcs_pb2:GcsNodeInfo": (".is_head_node", ".resources_total", ".state"),
    },
    "dispatch/ray_internal/policy.py": {
        f"{_COORDINATOR}.default_autoscaling_coordinator": ("get_or_create_autoscaling_coordinator",),
        f"{_COORDINATOR}.default_autoscaling_coordinator:_AutoscalingCoordinatorActor": (
            "cancel_request(requester_id)",
            "get_reserved_resources(requester_id, recompute)",
        ),
        f"{_EXECUTION}.controller": ("TrainController",),
        f"{_EXECUTION}.controller:TrainController": ("worker_group_cls", "._scaling_policy"),
        f"{_EXECUTION}.scaling_policy": ("ElasticScalingPolicy", "NoopDecision", "ResizeDecision"),
        f"{_EXECUTION}.scaling_policy:ElasticScalingPolicy": (
            "after_controller_start(train_run_context)",
            "make_decision_for_non_running_worker_group",
            "make_decision_for_running_worker_group(worker_group_state, worker_group_status)",
            "on_controller_start_worker_group(scaling_config, num_workers)",
            "_autoscaling_coordinator",
            "_get_num_workers_for_resource_request",
            "_get_resize_decision(num_workers)",
            "_maybe_send_resource_request",
            "_send_resource_request",
            "._requester_id",
            ".scaling_config",
        ),
        "ray.train.v2.api.data_parallel_trainer:DataParallelTrainer": (
            "_initialize_and_run_controller(controller_init_kwargs)",
            "_register_sigint_handler(controller)",
            ".scaling_config",
        ),
        "ray.train:ScalingConfig": ("_resources_per_worker_not_none",),
        "ray._private.state": ("state",),
        "ray._private.state:state": ("get_draining_nodes",),
        f"{_GROUP}:WorkerGroup": ("get_workers",),
        f"{_GROUP}.poll:WorkerGroupPollStatus": (".worker_statuses",),
        f"{_GROUP}.poll:WorkerStatus": (".training_report",),
        f"{_EXECUTION}.training_report:_TrainingReport": (".metrics",),
        f"{_GROUP}.state:WorkerGroupState": (".workers", "num_workers"),
        f"{_GROUP}.worker:Worker": (".actor", ".metadata"),
        f"{_GROUP}.worker:ActorMetadata": (".node_id",),
        f"{_GROUP}.worker:RayTrainWorker": ("execute(fn)",),
    },
    "local_cluster/supervisor.py": {
        "ray.cluster_utils": ("Cluster",),
        "ray.cluster_utils:Cluster": ("add_node", "address", "remove_node(node, allow_graceful)"),
        "ray._private.node:Node": (".all_processes", "node_id"),
        "ray._private.services:ProcessInfo": ("process",),
    },
}


def missing(*files: str) -> Iterator[str]:
    """What the Ray at hand lacks of what these files use, each in words. Imports Ray."""
    for file in files:
        for owner, names in CONTRACT[file].items():
            yield from _lacks(owner, names)


def _lacks(owner: str, names: tuple[str, ...]) -> Iterator[str]:
    module, _, path = owner.partition(":")
    try:
        found = importlib.import_module(module)
        if path:
            found = getattr(found, path)
    except (ImportError, AttributeError) as error:
        yield f"{owner}: {error}"
        return
    for name in names:
        yield from (f"{owner} has no {part}" for part in _lacking_parts(found, name))


def _lacking_parts(owner: Any, name: str) -> Iterator[str]:
    if name.startswith("."):
        if name[1:] not in _instance_names(owner):
            yield name
        return
    plain, _, parameters = name.rstrip(")").partition("(")
    if not hasattr(owner, plain):
        yield plain
    elif parameters:
        known = _parameters(getattr(owner, plain))
        yield from (f"{plain}({parameter})" for parameter in parameters.split(", ") if parameter not in known)


def _parameters(found: Any) -> Collection[str]:
    """The names of its parameters; none if it is no function, or one whose parameters Python cannot tell."""
    try:
        return inspect.signature(found).parameters
    except (TypeError, ValueError):
        return ()


def _instance_names(owner: Any) -> set[str]:
    """What instances have beside what their class has: fields of a message or a data class, and what code sets."""
    if hasattr(owner, "DESCRIPTOR"):
        return set(owner.DESCRIPTOR.fields_by_name)
    if inspect.isfunction(owner):
        return _stored(inspect.unwrap(owner))
    names: set[str] = set()
    for base in inspect.getmro(owner) if inspect.isclass(owner) else ():
        names |= {*getattr(base, "__annotations__", {}), *vars(base)}
        for function in filter(inspect.isfunction, vars(base).values()):
            names |= _stored(function)
    return names


def _stored(function: Callable[..., Any]) -> set[str]:
    """The attributes that a function sets."""
    return {step.argval for step in dis.get_instructions(function) if step.opname == "STORE_ATTR"}

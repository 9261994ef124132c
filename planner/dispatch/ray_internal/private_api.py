"""Every private name of Ray that planner uses: its owner, its purpose, and what happens if the installed Ray lacks it.

`CONTRACT` has the rows by the file that uses them. `compatibility.py` finds names that the installed Ray lacks.
`tests/dispatch/test_private_api.py` compares the rows with the source, with the installed Ray, and with what
`trainer.py` does if a name is missing. The strings mean:

    module:Class      the owner of the names: a module, a class, or a value
    name              a function, a class, a method, or a value
    name(one, two)    a function or method with parameters of these names
    name[other]       a function that reads the global name `other`
    .name             an attribute that Ray sets on an instance, or a field of a message
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Literal

Tier = Literal["ours", "callbacks", "stock"]
"""which policy decides: planner's, Ray's with callbacks that make its resizes graceful, or Ray's alone"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class IfMissing:
    """What happens if Ray lacks a name."""

    policy: Tier = "ours"
    """the policy that `trainer.py` chooses, with a warning if it is not planner's"""
    refused: str = ""
    """which commands end with a `UserError` that names what is missing"""
    lost: str = ""
    """what a run does without"""


@dataclasses.dataclass(frozen=True)
class PrivateName:
    """Private names of one owner that serve one purpose."""

    owner: str
    names: tuple[str, ...]
    used_for: str
    without: IfMissing


CALLBACKS, STOCK = IfMissing(policy="callbacks"), IfMissing(policy="stock")
_NO_FALLBACK = IfMissing(lost="the fallback: if our policy does not fit either, Ray's policy trains without callbacks")
_NO_RUN = IfMissing(refused="a run")
_NOTICES = "notices: `planner notice-agent`, the demo and the rehearsal end with an error that names it"
_NO_NOTICE = IfMissing(refused=_NOTICES)
_STORE_IS_OPEN = IfMissing(lost="torch's store listens on all interfaces, with a warning")
_NO_LOCAL_CLUSTER = IfMissing(refused="a cluster on this machine: its supervisor reports Ray's error")

_EXECUTION = "ray.train.v2._internal.execution"
_GROUP = f"{_EXECUTION}.worker_group"
_COORDINATOR = "ray.data._internal.cluster_autoscaler"


def _rows(used_for: str, without: IfMissing, names: Mapping[str, tuple[str, ...]]) -> Iterator[PrivateName]:
    """One row per owner, all with the same purpose."""
    return (PrivateName(owner, those, used_for, without) for owner, those in names.items())


# Rows that `presence.require` or `presence.lacking` check by themselves.
KEY_VALUE_STORE = (
    *_rows(
        "exchange messages between the driver, the controller and the workers",
        _NO_RUN,
        {
            "ray.experimental.internal_kv": (
                "_internal_kv_get(key, namespace)",
                "_internal_kv_put(key, value, overwrite, namespace)",
            )
        },
    ),
)
DRAIN = (
    *_rows(
        "give a node notice",
        _NO_NOTICE,
        {
            "ray._raylet": ("GcsClient",),
            "ray._raylet:InnerGcsClient": ("drain_node(node_id, reason, reason_message, deadline_timestamp_ms)",),
            "ray.core.generated.autoscaler_pb2": ("DrainNodeReason",),
            "ray.core.generated.autoscaler_pb2:DrainNodeReason": ("Value",),
        },
    ),
    *_rows(
        "give a node notice, and read the autoscaler's state",
        IfMissing(policy="callbacks", refused=_NOTICES),
        {"ray.core.generated": ("autoscaler_pb2",)},
    ),
)
TORCH_STORE = (
    *_rows(
        "make torch's process group with a store that listens on 127.0.0.1 alone",
        _STORE_IS_OPEN,
        {
            "ray.train.torch.config": ("_TorchBackend", "_set_torch_distributed_env_vars"),
            "ray.train.torch.config:_TorchBackend": ("on_start(worker_group, backend_config)",),
            "ray.train.torch:TorchConfig": ("backend_cls", ".backend", ".timeout_s"),
            f"{_GROUP}:WorkerGroup": ("execute(fn)", "execute_single(rank, fn)", "execute_single_async(rank, fn)"),
        },
    ),
)
JOB_CLIENT = (
    *_rows(
        "limit the time of each request of `planner submit`",
        IfMissing(lost="a hung dashboard keeps `planner submit` waiting"),
        {"ray.job_submission:JobSubmissionClient": ("_do_request(kwargs)",)},
    ),
    *_rows(
        "compare the cluster's Ray with ours before a job is sent",
        IfMissing(lost="a mismatch of Ray versions shows only when the job starts"),
        {"ray.job_submission:JobSubmissionClient": ("._server_ray_version",)},
    ),
)

METRICS = (
    *_rows(
        "export counters of 0",
        IfMissing(lost="a counter's series begins with its first event"),
        {"ray.util.metrics:Metric": ("_record(value)",)},
    ),
)

CONTRACT: Mapping[str, tuple[PrivateName, ...]] = {
    "dispatch/ray_internal/__init__.py": (
        *KEY_VALUE_STORE,
        *DRAIN,
        *_rows(
            "hide the cluster's messages in the driver",
            IfMissing(lost="the cluster's messages appear between planner's lines"),
            {"ray._private": ("worker",), "ray._private.worker": ("print_to_stdstream",)},
        ),
        *_rows(
            "detect that ray was imported too early for a local cluster",
            IfMissing(lost="a process that imported ray first waits for minutes, then reports that no cluster answers"),
            {"ray._private.ray_constants": ("ENABLE_RAY_CLUSTER",)},
        ),
    ),
    "dispatch/ray_internal/autoscaler.py": (
        *_rows(
            "read the autoscaler's state, and give a node notice",
            IfMissing(policy="callbacks", refused=_NOTICES),
            {"ray.core.generated": ("autoscaler_pb2",)},
        ),
        *_rows(
            "read the autoscaler's state",
            CALLBACKS,
            {
                "ray.core.generated.autoscaler_pb2": ("GetClusterStatusReply",),
                "ray.core.generated.autoscaler_pb2:GetClusterStatusReply": (
                    "FromString",
                    ".autoscaling_state",
                    ".cluster_resource_state",
                ),
                "ray._private.worker": ("global_worker",),
                "ray._private.worker:connect": (".gcs_client",),
                "ray._raylet:InnerGcsClient": ("get_cluster_status(timeout_s)",),
            },
        ),
        *_rows(
            "know whether the autoscaler has seen our request, and whether it refuses it",
            CALLBACKS,
            {
                "ray.core.generated.autoscaler_pb2:AutoscalingState": (
                    ".failed_instance_requests",
                    ".infeasible_cluster_resource_constraints",
                    ".last_seen_cluster_resource_state_version",
                ),
                "ray.core.generated.autoscaler_pb2:ClusterResourceState": (".cluster_resource_state_version",),
            },
        ),
        *_rows(
            "tell the user which nodes the cloud does not provide",
            CALLBACKS,
            {
                "ray.core.generated.autoscaler_pb2:FailedInstanceRequest": (
                    ".failed_ts",
                    ".ray_node_type_name",
                    ".reason",
                )
            },
        ),
        *_rows(
            "ask with the priority of Ray Train's own requests",
            CALLBACKS,
            {
                f"{_COORDINATOR}.base_autoscaling_coordinator": ("ResourceRequestPriority",),
                f"{_COORDINATOR}.base_autoscaling_coordinator:ResourceRequestPriority": ("HIGH",),
            },
        ),
        *_rows(
            "request a useful number of workers and not `max_workers`",
            CALLBACKS,
            {
                f"{_COORDINATOR}.default_autoscaling_coordinator:_AutoscalingCoordinatorActor": (
                    "request_resources(requester_id, resources, label_selectors, expire_after_s)",
                    "request_resources(priority, request_remaining)",
                ),
                "ray.train._internal.autoscaling_coordinator_client": (
                    "build_train_resource_request(scaling_config, num_workers)",
                ),
            },
        ),
        *_rows(
            "know the resources of a worker",
            CALLBACKS,
            {"ray.train:ScalingConfig": ("_resources_per_worker_not_none",)},
        ),
    ),
    "dispatch/ray_internal/diagnosis.py": (
        *_rows(
            "ask a worker where in the code it is",
            STOCK,
            {f"{_GROUP}.worker:Worker": (".actor",), f"{_GROUP}.worker:RayTrainWorker": ("execute(fn)",)},
        ),
        *_rows(
            "name the node of a worker that failed",
            CALLBACKS,
            {f"{_GROUP}.worker:Worker": (".metadata",), f"{_GROUP}.worker:ActorMetadata": (".node_id",)},
        ),
        *_rows(
            "distinguish a worker that died from one that raised, by the names of these classes",
            CALLBACKS,
            {"ray.train.v2._internal.exceptions": ("WorkerHealthCheckFailedError", "WorkerHealthCheckTimeoutError")},
        ),
    ),
    "dispatch/ray_internal/fallback_callback.py": (
        *_rows(
            "hold the controller before a resize until all workers have committed",
            _NO_FALLBACK,
            {
                f"{_EXECUTION}.callback": ("ControllerCallback", "WorkerGroupCallback"),
                f"{_EXECUTION}.callback:ControllerCallback": (
                    "before_controller_execute_resize_decision(resize_decision)",
                ),
            },
        ),
        *_rows(
            "know which group to stop",
            _NO_FALLBACK,
            {
                f"{_EXECUTION}.callback:WorkerGroupCallback": ("after_worker_group_start(worker_group)",),
                f"{_GROUP}:WorkerGroup": ("has_started",),
            },
        ),
        *_rows(
            "know when a group has ended",
            STOCK,
            {f"{_EXECUTION}.callback:WorkerGroupCallback": ("before_worker_group_shutdown(worker_group)",)},
        ),
        *_rows("ask all workers to stop", _NO_FALLBACK, {f"{_GROUP}:WorkerGroup": ("execute_async(fn)",)}),
        *_rows(
            "see which workers have committed and which have failed",
            STOCK,
            {
                f"{_GROUP}:WorkerGroup": ("get_workers", "poll_status(timeout)"),
                f"{_GROUP}.poll:WorkerGroupPollStatus": (".worker_statuses", "errors"),
                f"{_GROUP}.poll:WorkerStatus": (".training_report",),
                f"{_EXECUTION}.training_report:_TrainingReport": (".metrics",),
            },
        ),
    ),
    "dispatch/ray_internal/groups.py": (
        *_rows(
            "start our worker group instead of Ray's, with a time limit",
            CALLBACKS,
            {
                _GROUP: ("WorkerGroup",),
                f"{_GROUP}:WorkerGroup": (
                    "create(train_run_context, worker_group_context, callbacks)",
                    "_start",
                    "_start_impl(worker_group_state_builder)",
                ),
                f"{_GROUP}.state:WorkerGroupStateBuilder": (".placement_group_handle",),
                f"{_GROUP}.placement_group_handle:PlacementGroupHandle": ("shutdown",),
            },
        ),
        *_rows(
            "know the size and resources of the group to start",
            CALLBACKS,
            {
                f"{_GROUP}:WorkerGroup": ("._train_run_context", "._worker_group_context"),
                f"{_GROUP}.state:WorkerGroupContext": (
                    ".label_selector",
                    ".num_workers",
                    ".placement_strategy",
                    ".resources_per_worker",
                ),
                f"{_EXECUTION}.context:TrainRunContext": (".run_config",),
                "ray.train:RunConfig": (".worker_runtime_env",),
            },
        ),
        *_rows(
            "name the places of a group, so that the next controller can remove them",
            CALLBACKS,
            {
                f"{_GROUP}:WorkerGroup": ("_create_placement_group(scaling_config, worker_group_context)",),
                f"{_GROUP}.placement_group_handle": ("DefaultPlacementGroupHandle", "PlacementGroupHandle"),
            },
        ),
        *_rows(
            "build a group from kept workers, newcomers and new processes",
            CALLBACKS,
            {
                f"{_GROUP}:WorkerGroup": (
                    "_assign_worker_ranks(workers)",
                    "_create_workers(num_workers)",
                    "_get_worker_runtime_env(custom_runtime_env)",
                    "_worker_cls",
                ),
                f"{_GROUP}.worker": ("Worker(actor, metadata, resources, placement_group_bundle_index)",),
                f"{_GROUP}.worker:RayTrainWorker": ("get_metadata",),
                "ray.train.v2._internal.util": ("bundle_to_remote_args(bundle)",),
            },
        ),
        *_rows("warm newcomers up", STOCK, {f"{_GROUP}.worker:RayTrainWorker": ("execute(fn)",)}),
        *_rows(
            "pass the synchronization actor of the last group to the next one",
            CALLBACKS,
            {
                f"{_GROUP}:WorkerGroup": ("_start_impl[SynchronizationActor]",),
                f"{_GROUP}.worker_group": ("SynchronizationActor",),
                f"{_GROUP}.state": ("_shutdown_sync_actor(sync_actor)",),
                f"{_GROUP}.state:WorkerGroupState": (".sync_actor",),
                f"{_EXECUTION}.checkpoint.sync_actor:SynchronizationActor": ("get_counter", "set_required_ranks"),
            },
        ),
        *_rows(
            "report a failed start to the policy, and make Ray try again",
            CALLBACKS,
            {
                "ray.train.v2._internal.exceptions": (
                    "WorkerGroupStartupFailedError",
                    "WorkerGroupStartupTimeoutError(num_workers)",
                ),
                "ray.train.v2._internal.exceptions:WorkerGroupStartupTimeoutError": (".num_workers",),
                f"{_GROUP}.state:WorkerGroupState": ("shutdown",),
            },
        ),
        *_rows(
            "know the workers, and report their failures to the policy",
            STOCK,
            {
                f"{_GROUP}:WorkerGroup": ("get_workers", "poll_status(timeout)"),
                f"{_GROUP}.poll:WorkerGroupPollStatus": ("errors",),
                f"{_GROUP}.worker:Worker": (".actor",),
            },
        ),
        *_rows(
            "know which workers do not answer, and which are on a leaving node",
            CALLBACKS,
            {
                f"{_GROUP}:WorkerGroup": ("._world_rank_to_ongoing_poll",),
                f"{_GROUP}.worker:Worker": (".metadata",),
                f"{_GROUP}.worker:ActorMetadata": (".node_id",),
            },
        ),
        *_rows(
            "end a group as Ray does, but keep the processes of workers that stay",
            CALLBACKS,
            {
                f"{_GROUP}:WorkerGroup": (
                    "shutdown",
                    "_assert_active",
                    "_clear_state",
                    "._callbacks",
                    "._worker_group_state",
                ),
                f"{_EXECUTION}.callback:WorkerGroupCallback": (
                    "after_worker_group_shutdown(worker_group_context)",
                    "on_worker_group_shutdown",
                ),
                "ray.train.v2._internal.util": ("invoke_context_managers(context_managers)",),
            },
        ),
        *_rows(
            "end torch's process group in kept processes",
            STOCK,
            {f"{_EXECUTION}.callback:WorkerGroupCallback": ("before_worker_group_shutdown(worker_group)",)},
        ),
    ),
    "dispatch/ray_internal/hand_over.py": (
        *_rows(
            "hold the places of a group, one per worker: Ray calls these by name",
            CALLBACKS,
            {
                f"{_GROUP}.placement_group_handle": ("PlacementGroupHandle",),
                f"{_GROUP}.placement_group_handle:PlacementGroupHandle": (
                    "placement_group",
                    "ready",
                    "shutdown",
                    "wait(timeout_seconds)",
                ),
            },
        ),
    ),
    "dispatch/ray_internal/worker_progress.py": (
        *_rows(
            "ask a worker how much work it has done",
            STOCK,
            {f"{_GROUP}.worker:Worker": (".actor",), f"{_GROUP}.worker:RayTrainWorker": ("execute(fn)",)},
        ),
    ),
    "dispatch/ray_internal/kept_worker.py": (
        *_rows(
            "let a process end one generation and begin the next",
            CALLBACKS,
            {
                f"{_GROUP}.worker": ("RayTrainWorker",),
                f"{_GROUP}.worker:RayTrainWorker": ("init_train_context", "run_train_fn(train_fn_ref)", "shutdown"),
                "ray.train.v2._internal.util:ObjectRefWrapper": ("get",),
            },
        ),
        *_rows(
            "find the training thread and wait for its end",
            CALLBACKS,
            {
                f"{_EXECUTION}.context": ("get_train_context",),
                f"{_EXECUTION}.context:TrainContext": (".execution_context",),
                f"{_EXECUTION}.context:ExecutionContext": (".training_thread_runner",),
                f"{_GROUP}.thread_runner:ThreadRunner": ("._thread",),
            },
        ),
        *_rows(
            "give each generation its own objects: Ray shares them within a process, and shuts one down",
            CALLBACKS,
            {f"{_EXECUTION}.context:TrainContext": (".checkpoint_upload_threadpool", ".report_order_condition")},
        ),
    ),
    "dispatch/ray_internal/loopback.py": TORCH_STORE,
    "dispatch/ray_internal/ray_metrics.py": METRICS,
    "dispatch/ray_internal/node_drainer.py": (
        *_rows(
            "find this machine's cluster and node",
            _NO_NOTICE,
            {"ray._private.services": ("canonicalize_bootstrap_address(addr)", "find_node_ids")},
        ),
        *_rows(
            "know the cluster's nodes, and whether this one is still alive",
            _NO_NOTICE,
            {
                "ray._private.authentication.authentication_token_setup": (
                    "ensure_token_if_auth_enabled(create_token_if_missing)",
                ),
                "ray._raylet": ("GcsClient",),
                "ray._raylet:InnerGcsClient": ("check_alive(node_ids, timeout)", "get_all_node_info(timeout)"),
            },
        ),
        *_rows(
            "avoid draining a dead node, or a head without room for workers",
            _NO_NOTICE,
            {"ray.core.generated.gcs_pb2:GcsNodeInfo": (".is_head_node", ".resources_total", ".state")},
        ),
    ),
    "dispatch/ray_internal/policy.py": (
        *_rows(
            "cancel the request that a killed driver left",
            CALLBACKS,
            {
                f"{_COORDINATOR}.default_autoscaling_coordinator": ("get_or_create_autoscaling_coordinator",),
                f"{_COORDINATOR}.default_autoscaling_coordinator:_AutoscalingCoordinatorActor": (
                    "cancel_request(requester_id)",
                ),
            },
        ),
        *_rows(
            "know at once which places are ours, by node",
            CALLBACKS,
            {
                f"{_COORDINATOR}.default_autoscaling_coordinator:_AutoscalingCoordinatorActor": (
                    "get_reserved_resources(requester_id, recompute)",
                )
            },
        ),
        *_rows(
            "make the controller use our worker groups",
            CALLBACKS,
            {
                f"{_EXECUTION}.controller": ("TrainController",),
                f"{_EXECUTION}.controller:TrainController": ("worker_group_cls", "._scaling_policy"),
            },
        ),
        *_rows(
            "be the scaling policy, and return decisions",
            CALLBACKS,
            {f"{_EXECUTION}.scaling_policy": ("ElasticScalingPolicy", "NoopDecision", "ResizeDecision")},
        ),
        *_rows(
            "be the scaling policy: the controller calls these by name",
            CALLBACKS,
            {
                f"{_EXECUTION}.scaling_policy:ElasticScalingPolicy": (
                    "after_controller_start(train_run_context)",
                    "make_decision_for_non_running_worker_group",
                    "make_decision_for_running_worker_group(worker_group_state, worker_group_status)",
                    "on_controller_start_worker_group(scaling_config, num_workers)",
                    "_get_resize_decision(num_workers)",
                    ".scaling_config",
                )
            },
        ),
        *_rows(
            "request a useful number of workers",
            CALLBACKS,
            {
                f"{_EXECUTION}.scaling_policy:ElasticScalingPolicy": (
                    "_autoscaling_coordinator",
                    "_get_num_workers_for_resource_request",
                    "_maybe_send_resource_request",
                    "_send_resource_request",
                    "._requester_id",
                )
            },
        ),
        *_rows(
            "know the resources of a worker",
            CALLBACKS,
            {"ray.train:ScalingConfig": ("_resources_per_worker_not_none",)},
        ),
        *_rows(
            "know which nodes drain, and until when",
            CALLBACKS,
            {"ray._private.state": ("state",), "ray._private.state:state": ("get_draining_nodes",)},
        ),
        *_rows("know the workers of a group", STOCK, {f"{_GROUP}:WorkerGroup": ("get_workers",)}),
        *_rows(
            "read reported steps, and which workers have parked",
            STOCK,
            {
                f"{_GROUP}.poll:WorkerGroupPollStatus": (".worker_statuses",),
                f"{_GROUP}.poll:WorkerStatus": (".training_report",),
                f"{_EXECUTION}.training_report:_TrainingReport": (".metrics",),
            },
        ),
        *_rows(
            "know the workers of a group", CALLBACKS, {f"{_GROUP}.state:WorkerGroupState": (".workers", "num_workers")}
        ),
        *_rows(
            "ask all workers to stop",
            STOCK,
            {f"{_GROUP}.worker:Worker": (".actor",), f"{_GROUP}.worker:RayTrainWorker": ("execute(fn)",)},
        ),
        *_rows(
            "know the nodes of a group",
            CALLBACKS,
            {f"{_GROUP}.worker:Worker": (".metadata",), f"{_GROUP}.worker:ActorMetadata": (".node_id",)},
        ),
    ),
    "dispatch/ray_internal/elastic_trainer.py": (
        *_rows(
            "pass our policy to the controller",
            CALLBACKS,
            {
                "ray.train.v2.api.data_parallel_trainer:DataParallelTrainer": (
                    "_initialize_and_run_controller(controller_init_kwargs)",
                    ".scaling_config",
                )
            },
        ),
        *_rows(
            "commit at the first Ctrl-C, and end a hung controller",
            CALLBACKS,
            {"ray.train.v2.api.data_parallel_trainer:DataParallelTrainer": ("_register_sigint_handler(controller)",)},
        ),
    ),
    "submit/private_names.py": JOB_CLIENT,
    "local_cluster/supervisor.py": (
        *_rows(
            "start and end nodes on this machine",
            _NO_LOCAL_CLUSTER,
            {
                "ray.cluster_utils": ("Cluster",),
                "ray.cluster_utils:Cluster": ("add_node", "address", "remove_node(node, allow_graceful)"),
                "ray._private.node:Node": (".all_processes", "node_id"),
                "ray._private.services:ProcessInfo": ("process",),
            },
        ),
    ),
}

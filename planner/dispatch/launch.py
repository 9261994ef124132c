"""From a job to a running Ray Train v2 trainer, and back with what came of it."""

import itertools
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from planner.base.disk import expanded, local_folder
from planner.base.text import last_line
from planner.data.paths import absolute as absolute_path
from planner.dispatch.connection import CONNECT_S
from planner.dispatch.heartbeat import Listener
from planner.dispatch.interrupt import Interrupts
from planner.dispatch.mailbox import heartbeat_key, state_key
from planner.dispatch.ray_internal import kv_get, kv_put
from planner.dispatch.ray_internal.loopback import loopback_torch_config
from planner.dispatch.ray_internal.trainer import can_keep_processes, make_trainer
from planner.dispatch.resources import taken_by_a_worker
from planner.dispatch.warmup import warm_up
from planner.dispatch.worker import MakeHooks, WorkerConfig, train_worker, worker_hooks, worker_refusal_key
from planner.elastic.controller import ElasticController
from planner.elastic.states import Rules
from planner.errors import ClusterLost, RunError, TrainingFailed
from planner.job import HfModel, Job, batch_sizes, workers_of
from planner.local_cluster.environment import PATIENCE, driver_environment, token_environment
from planner.plan import FIRST_COLLECTIVES_S, KEPT_PROCESSES, NEW_PROCESSES
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.setup import Launch


@dataclass(frozen=True, kw_only=True)
class Timings:
    """How quickly Ray Train looks at its workers and at the cluster, in seconds."""

    poll_s: float
    """between two polls of the workers; a report waits for one"""
    start_timeout_s: float
    """for a worker group's placement; after a node's death the stock policy may wait this long for it"""
    resize_monitor_s: float
    """between two looks for more nodes. Every change of capacity restarts the group from the last commit"""


# With these, Ray's own policy trains on about 30 s after a node was killed; with its defaults, 74 s (bench/resize.py).
EMBEDDED = Timings(poll_s=0.1, start_timeout_s=10.0, resize_monitor_s=3.0)
CLUSTER = Timings(poll_s=0.25, start_timeout_s=30.0, resize_monitor_s=60.0)


# Controllers that die one after another, without a commit in between.
_MOST_DEAD_CONTROLLERS = 5


def new_launch(job: Job, url: str, accept: frozenset[str]) -> Launch:
    """A launch with a name of its own, which every generation of it carries."""
    return Launch(job=job, url=url, launch_id=uuid.uuid4().hex[:12], accept=accept)


def set_environment(timings: Timings, *, embedded: bool) -> None:
    """What Ray reads from the environment, set before it is imported.

    A user's own settings win, except for the token: theirs is for another cluster.
    """
    settings = {
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": str(timings.poll_s),
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(timings.start_timeout_s),
        "RAY_TRAIN_METRICS_ENABLED": "0",
        # Notices are the controller's: Ray's own watcher would wait until the node is gone.
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        # A worker's process answers at once, also while its model loads. Ray's ten minutes would be waited out in full.
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "180",
    }
    if embedded:
        os.environ.update(token_environment())
        settings |= {**driver_environment(), **PATIENCE}
    else:
        # Ray tries again every second: a token that is wrong now is wrong 20 s later.
        settings["RAY_gcs_server_port_wait_time_s"] = f"{CONNECT_S:.0f}"
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def fit(
    launch: Launch,
    timings: Timings,
    *,
    on_cpu: bool,
    embedded: bool,
    hooks: MakeHooks = worker_hooks,
    eager: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> None:
    """Train until the job is done, refused or interrupted. Call it in the main thread, connected.

    The first interrupt makes all workers commit, and `say` says so; the second ends them at once. On an `embedded`
    cluster the workers' process group stays on loopback, as the cluster does. An `eager` run takes every node that
    comes, worth it or not. `hooks` are made in each worker: a rehearsal has its own.

    Raises:
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP; the workers have been ended.
        ClusterLost: the cluster has ended.
        TrainingFailed: the workers refuse to go on, or Ray does.
    """
    from ray.exceptions import RayError
    from ray.train import TrainingFailedError

    worker = WorkerConfig(launch=launch, on_cpu=on_cpu, hooks=hooks)
    interrupts = Interrupts(launch.launch_id, say)
    run = RunFolder(Storage(launch.url))
    run.storage.make_folder("ray")  # by Ray, it would be made for one member of a team alone
    commits, num_dead, why = run.commits(), 0, ""
    with interrupts:
        for number in itertools.count(1):
            for key in (heartbeat_key, state_key):  # what the last one left
                kv_put(key(launch.launch_id), "")
            with Listener(lambda: kv_get(heartbeat_key(launch.launch_id)), say) as listener:
                trainer = _trainer(
                    worker, timings, interrupts, listener, embedded=embedded, eager=eager, number=number, why=why
                )
                try:
                    trainer.fit()
                    break
                except TrainingFailedError as error:
                    raise TrainingFailed(f"Ray gave up: {last_line(str(error))}") from error
                except RayError as error:
                    _require_that_only_the_controller_died(error)
                    before, commits = commits, run.commits()
                    num_dead = num_dead + 1 if commits == before else 1
                    if num_dead == _MOST_DEAD_CONTROLLERS:
                        raise TrainingFailed(
                            f"the process that controls the workers died {num_dead} times in a row, and nothing was "
                            "committed in between; look at the memory of the node that runs the driver, then run again"
                        ) from error
            why = listener.verdict or "the process that controls the workers has died (killed, or out of memory)"
            why = f"{why}; another one is started"
            say(why)

    if refusal := kv_get(worker_refusal_key(launch.launch_id)):
        raise RunError(refusal)


def state_of(launch: Launch) -> str:
    """What the controller is about while no step is done, in words; empty where that is not known."""
    try:
        return kv_get(state_key(launch.launch_id))
    except Exception:  # noqa: BLE001  # Ray may be ending; it is only shown
        return ""


def _require_that_only_the_controller_died(error: Exception) -> None:
    """Check that another controller may do better.

    Raises:
        ClusterLost: the cluster does not answer.
        TrainingFailed: the controller could not even begin (its disk is full, say).
    """
    from ray.exceptions import ActorDiedError

    words = last_line(str(error))
    if "creation task" in str(error):
        raise TrainingFailed(f"the process that controls the workers cannot begin: {words}") from error
    try:
        kv_get("")
    except Exception:  # noqa: BLE001  # whatever it says, nobody is there
        raise ClusterLost(f"the Ray cluster is gone: {words}") from error
    if not isinstance(error, ActorDiedError):
        raise TrainingFailed(f"Ray gave up: {words}") from error


def _trainer(
    worker: WorkerConfig,
    timings: Timings,
    interrupts: Interrupts,
    listener: Listener,
    *,
    embedded: bool,
    eager: bool,
    number: int,
    why: str,
) -> Any:
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    launch, job, workers = worker.launch, worker.launch.job, worker.launch.job.workers
    keep_processes = workers.keep_processes == "auto" and can_keep_processes()
    wanted = workers_of(job)
    rules = Rules(
        sizes=batch_sizes(job),
        workers=wanted,
        has_eval=job.eval.samples > 0,
        eager=eager,
        on_one_machine=embedded and worker.on_cpu,
    )
    cost = KEPT_PROCESSES if keep_processes else NEW_PROCESSES
    controller = ElasticController(rules, cost=cost, clock=time.monotonic)
    if why:
        controller.note(why)
    return make_trainer(
        controller,
        train_worker,
        run=launch.url,
        launch_id=launch.launch_id,
        soften=interrupts.soften,
        listen_to=listener.listen_to,
        warm_up=partial(warm_up, job),
        keep_processes=keep_processes,
        train_loop_config={"worker": worker},
        # The job asks for GPUs by logical resource even where a CPU stands in for them.
        scaling_config=ScalingConfig(
            num_workers=(wanted.least, wanted.most),
            use_gpu=workers.gpus > 0,
            resources_per_worker=taken_by_a_worker(workers, node_each=embedded and worker.on_cpu),
            elastic_resize_monitor_interval_s=timings.resize_monitor_s,  # of Ray's own policy
        ),
        run_config=RunConfig(
            # A name of its own for every controller: Ray would reload its own list of checkpoints for an old one.
            name=f"{job.name}-{launch.launch_id}-{number}",
            storage_path=f"{launch.url}/ray",
            # Losses are what spot nodes do. Crash loops are stopped by the controller, and by `train.resume`.
            failure_config=FailureConfig(max_failures=-1),
        ),
        torch_config=_torch_config(on_gpu=workers.gpus > 0 and not worker.on_cpu, embedded=embedded),
    )


def _torch_config(*, on_gpu: bool, embedded: bool) -> Any:
    from ray.train.torch import TorchConfig

    # gloo beside nccl: the control messages and checkpoint coordination travel on the CPU.
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    return (
        loopback_torch_config(backend, FIRST_COLLECTIVES_S)
        if embedded
        else TorchConfig(backend=backend, timeout_s=FIRST_COLLECTIVES_S)
    )


def absolute(job: Job, url: str) -> Job:
    """The job as processes with other working directories can read it."""
    data = job.data.model_copy(update={"path": absolute_path(job.data.path)})
    checkpoint = job.checkpoint.model_copy(update={"path": url})
    job = job.model_copy(update={"data": data, "checkpoint": checkpoint})
    return _with_absolute_models(job)


def _with_absolute_models(job: Job) -> Job:
    """The same for the model that is trained, and for the one that it is held to."""
    objective, model = job.objective, job.model
    if (reference := job.reference.model) is not None:
        objective = objective.model_copy(update={"reference_model": str(local_folder(reference) or reference)})
    if isinstance(model, HfModel):
        template = model.chat_template and str(expanded(model.chat_template).absolute())
        model = model.model_copy(
            update={"path": str(local_folder(model.path) or model.path), "chat_template": template}
        )
    return job.model_copy(update={"model": model, "objective": objective})

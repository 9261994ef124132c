"""Runs a job with a Ray Train v2 trainer, and raises an error if the run does not finish."""

import itertools
import os
import secrets
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from planner.base.disk import absolute_url, expanded, local_folder
from planner.base.text import last_line
from planner.data.source_stamps import placed, placed_rows
from planner.dispatch.connection import CONNECT_S
from planner.dispatch.controller_heartbeat import HeartbeatMonitor
from planner.dispatch.interrupt import Interrupts
from planner.dispatch.keeper_census import census_of
from planner.dispatch.keepers import ending_keepers
from planner.dispatch.live_status import live_status, published
from planner.dispatch.mailbox import heartbeat_key, refusal_key, state_key, status_key, verdict_key
from planner.dispatch.ray_files import FOLDER, ray_storage
from planner.dispatch.ray_internal import kv_get, kv_put
from planner.dispatch.ray_internal.loopback import loopback_torch_config
from planner.dispatch.resources import alive_nodes, gpus_for_several, taken_by_a_worker
from planner.dispatch.warmup import warm_up
from planner.dispatch.worker import MakeHooks, WorkerConfig, train_worker, worker_hooks
from planner.elastic.controller import ElasticController
from planner.elastic.history import NO_COMMIT, LastCommit
from planner.elastic.states import Rules
from planner.errors import ClusterLost, PlanError, RunError, StoreError, TrainingFailed
from planner.events.failures import ControllerDied, ControllerReplaced
from planner.job import HfModel, Job, batch_sizes, workers_of
from planner.local_cluster.environment import START_TIMEOUT, driver_environment, token_environment
from planner.plan import FIRST_COLLECTIVES_S
from planner.plan.growth import KEPT_PROCESSES, NEW_PROCESSES, ResizeCost
from planner.plan.lowered_caps import LoweredCaps
from planner.provenance.identity import recorded_plan
from planner.store.commit_names import commit_of
from planner.store.lowered_caps import read_caps
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.story.earlier import last_commit_cost, last_steps
from planner.train.setup import Launch
from planner.wording.event_text import text_of


@dataclass(frozen=True, kw_only=True)
class PollSettings:
    """How often Ray Train polls its workers and the cluster."""

    poll_s: float
    """between two polls of the workers. A report waits for the next poll"""
    start_timeout_s: float
    """for a worker group's placement"""


EMBEDDED = PollSettings(poll_s=0.1, start_timeout_s=10.0)
CLUSTER = PollSettings(poll_s=0.25, start_timeout_s=30.0)


# This many controllers may die in a row, without a commit in between.
_MOST_DEAD_CONTROLLERS = 5


def new_launch(job: Job, url: str, accept: frozenset[str]) -> Launch:
    """A launch with a new id, which all of its generations share, and a new secret for its keepers."""
    return Launch(
        job=job,
        url=url,
        launch_id=uuid.uuid4().hex[:12],
        launched_s=time.time(),
        accept=accept,
        keeper_secret=secrets.token_hex(32),
    )


def set_environment(timings: PollSettings, *, embedded: bool) -> None:
    """Set the environment variables that Ray reads. Call it before ray is imported.

    Variables that the user has set stay, except for the token of an embedded cluster.
    """
    settings = {
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": str(timings.poll_s),
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(timings.start_timeout_s),
        "RAY_TRAIN_METRICS_ENABLED": "0",
        # The controller handles notices. Ray's own watcher would wait until the node is gone.
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        # A worker's process answers at once, also while its model loads. Ray's default would wait ten minutes.
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "180",
    }
    if embedded:
        os.environ.update(token_environment())
        settings |= {**driver_environment(), **START_TIMEOUT}
    else:
        # Ray tries again every second for 20 s, but a wrong token stays wrong.
        settings["RAY_gcs_server_port_wait_time_s"] = f"{CONNECT_S:.0f}"
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def train_on_ray(
    launch: Launch,
    *,
    on_cpu: bool,
    embedded: bool,
    hooks: MakeHooks = worker_hooks,
    eager: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> None:
    """Train until the job is done, refused or interrupted. Call it in the main thread, connected to a cluster.

    The first interrupt makes all workers commit, and `say` shows that. The second ends them at once. With `embedded`,
    this process started the cluster, and torch's process group also stays on loopback. `eager` uses every new node,
    even if the resize does not pay. `hooks` is called in each worker. A rehearsal has its own.

    Raises:
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP. The workers have ended.
        ClusterLost: the cluster has ended.
        RunError: the workers refuse to continue.
        TrainingFailed: Ray gave up, or the controller died too often.
    """
    from ray.exceptions import RayError
    from ray.train import TrainingFailedError

    worker = WorkerConfig(launch=launch, on_cpu=on_cpu, hooks=hooks)
    interrupts = Interrupts(launch.launch_id, say)
    run = RunFolder(Storage(launch.url))
    run.storage.make_folder(FOLDER)  # Ray would make it accessible to one user only
    durable_step, num_dead = _durable_step(run), 0
    reason: ControllerReplaced | None = None
    with ending_keepers(launch), interrupts:
        for number in itertools.count(1):
            for key in (heartbeat_key, state_key, status_key):  # clear what the last controller left
                kv_put(key(launch.launch_id), "")
            with HeartbeatMonitor(lambda: kv_get(heartbeat_key(launch.launch_id)), say) as listener:
                trainer = _trainer(
                    worker, interrupts, listener, embedded=embedded, eager=eager, number=number, reason=reason
                )
                try:
                    trainer.fit()
                    break
                except TrainingFailedError as error:
                    text = published(launch.launch_id, verdict_key) or f"Ray gave up: {last_line(str(error))}"
                    raise TrainingFailed(text) from error
                except RayError as error:
                    _require_that_only_the_controller_died(error)
                    before, durable_step = durable_step, _durable_step(run)
                    num_dead = num_dead + 1 if durable_step == before else 1
                    if num_dead == _MOST_DEAD_CONTROLLERS:
                        raise TrainingFailed(
                            f"the controller of the workers died {num_dead} times in a row without a commit in "
                            "between. Check the memory of the node that runs the driver, then run again"
                        ) from error
            reason = ControllerReplaced(reason=listener.verdict or ControllerDied())
            say(text_of(reason))

    if refusal := kv_get(refusal_key(launch.launch_id)):
        raise RunError(refusal)


def _durable_step(run: RunFolder) -> int:
    """The greatest step that a commit has. A generation that resumed from memory may commit a step once more."""
    return max((commit_of(name)[0] for name in run.commits()), default=0)


def state_of(launch: Launch) -> str:
    """The controller's status while no group trains, as a text. Empty if it is not known."""
    return published(launch.launch_id, state_key)


def why_of(launch: Launch) -> str:
    """What `state_of` says, with the time that is left now, by the controller's live status. Empty if not known."""
    status = live_status(launch.launch_id)
    return status.why if status else ""


def held_step_of(launch: Launch) -> int:
    """The newest step that is in memory or durable, by the controller's live status. 0 if it is not known."""
    status = live_status(launch.launch_id)
    return status.held_step if status else 0


def status_of(launch: Launch) -> str:
    """The controller's live status as JSON (`planner.store.run_status`). Empty if there is none.

    Raises:
        Exception: the cluster does not answer.
    """
    return kv_get(status_key(launch.launch_id))


def _require_that_only_the_controller_died(error: Exception) -> None:
    """Check that only the controller died, so that another one can continue.

    Raises:
        ClusterLost: the cluster does not answer.
        TrainingFailed: the controller could not start (a full disk, for example), or Ray failed in another way.
    """
    from ray.exceptions import ActorDiedError

    reason = last_line(str(error))
    # Ray has no type of its own for this: it is an ActorDiedError, as for an actor that dies later.
    if "creation task" in str(error):
        raise TrainingFailed(f"the controller of the workers cannot start: {reason}") from error
    try:
        # Any question will do: it only shows whether the head answers.
        kv_get("")
    except Exception:  # noqa: BLE001  # any error means that the head does not answer
        raise ClusterLost(f"the Ray cluster is gone: {reason}") from error
    if not isinstance(error, ActorDiedError):
        raise TrainingFailed(f"Ray gave up: {reason}") from error


def _trainer(
    worker: WorkerConfig,
    interrupts: Interrupts,
    listener: HeartbeatMonitor,
    *,
    embedded: bool,
    eager: bool,
    number: int,
    reason: ControllerReplaced | None,
) -> Any:
    """The trainer with a new controller. `reason` is why the last controller ended, None for the first."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    from planner.dispatch.ray_internal.policy import Policy
    from planner.dispatch.ray_internal.trainer import ElasticTrainer

    launch, job, workers = worker.launch, worker.launch.job, worker.launch.job.workers
    taken = taken_by_a_worker(workers, node_each=embedded and worker.on_cpu)
    keep_processes = workers.keep_processes == "auto" and not gpus_for_several(taken, alive_nodes())
    wanted = workers_of(job)
    rules = Rules(
        sizes=batch_sizes(job),
        workers=wanted,
        has_eval=job.eval.is_on,
        floor=workers.floor,
        eager=eager,
        on_one_machine=embedded and worker.on_cpu,
    )
    cost = KEPT_PROCESSES if keep_processes else NEW_PROCESSES
    # The job asks for logical GPUs, even if a CPU stands in for them.
    scaling = ScalingConfig(
        num_workers=(wanted.least, wanted.most), use_gpu=workers.gpus > 0, resources_per_worker=taken
    )
    policy = Policy(
        scaling,
        _controller(launch, rules, cost, reason),
        run=launch.url,
        launch_id=launch.launch_id,
        warm_up=partial(warm_up, job),
        keep_processes=keep_processes,
        make_census=partial(census_of, launch),
    )
    return ElasticTrainer(
        train_worker,
        policy=policy,
        soften=interrupts.soften,
        listen_to=listener.listen_to,
        train_loop_config={"worker": worker},
        scaling_config=scaling,
        run_config=RunConfig(
            # Each controller needs a new name: for an old one Ray would reload its own list of checkpoints.
            name=f"{job.name}-{launch.launch_id}-{number}",
            **ray_storage(Storage(launch.url)),
            # Spot nodes are lost often. The controller and `train.resume` stop crash loops.
            failure_config=FailureConfig(max_failures=-1),
        ),
        torch_config=_torch_config(on_gpu=workers.gpus > 0 and not worker.on_cpu, embedded=embedded),
    )


def _controller(launch: Launch, rules: Rules, cost: ResizeCost, reason: ControllerReplaced | None) -> ElasticController:
    """A new controller, which knows what earlier launches have measured. `reason` is why the last controller ended."""
    run = RunFolder(Storage(launch.url))
    controller = ElasticController(
        rules,
        cost=cost,
        clock=time.monotonic,
        commit=_last_commit(run),
        earlier_sample_s=earlier_sample_s(run),
        caps=_lowered_caps(run),
        has_begun=reason is not None,
    )
    if reason is not None:
        controller.note(reason)
    return controller


def _last_commit(run: RunFolder) -> LastCommit:
    """The last commit on record, of any launch. Of 0 seconds if there is none or the store does not answer."""
    with suppress(StoreError):  # workers find out, and say more
        if known := last_commit_cost(run):
            return LastCommit(seconds=known.seconds, world_size=known.world_size, is_measured=False)
    return NO_COMMIT


def _lowered_caps(run: RunFolder) -> LoweredCaps | None:
    """The caps that earlier launches have lowered. None also if they cannot be read: then they are lowered again."""
    with suppress(StoreError):
        return read_caps(run.storage)
    return None


def earlier_sample_s(run: RunFolder) -> float:
    """Seconds per sample of a step's cost, by the last steps on record, of any launch. 0 if there are none."""
    with suppress(StoreError, PlanError):  # workers find out, and say more
        if known := last_steps(run):
            header, step_s = known
            return max(step_s, 0.0) / recorded_plan(header).step_cost
    return 0.0


def _torch_config(*, on_gpu: bool, embedded: bool) -> Any:
    """Ray's `TorchConfig`. On an embedded cluster, torch's store listens on loopback only."""
    from ray.train.torch import TorchConfig

    # gloo beside nccl: control messages and checkpoint coordination use the CPU.
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    return (
        loopback_torch_config(backend, FIRST_COLLECTIVES_S)
        if embedded
        else TorchConfig(backend=backend, timeout_s=FIRST_COLLECTIVES_S)
    )


def absolute(job: Job, url: str) -> Job:
    """A copy of the job with absolute paths, for processes with another working directory."""
    checkpoint = job.checkpoint.model_copy(update={"path": url})
    rows = job.eval.data and placed_rows(job.eval.data)
    evaluation = job.eval.model_copy(update={"data": rows})
    after = job.after and job.after.model_copy(update={"run": absolute_url(job.after.run)})
    sections = {"data": placed(job.data), "eval": evaluation, "checkpoint": checkpoint, "after": after}
    job = job.model_copy(update=sections)
    return _with_absolute_models(job)


def _with_absolute_models(job: Job) -> Job:
    """A copy with absolute paths of the model, its chat template and the reference model."""
    objective, model = job.objective, job.model
    if (reference := job.reference.model) is not None:
        objective = objective.model_copy(update={"reference_model": str(local_folder(reference) or reference)})
    if isinstance(model, HfModel):
        template = model.chat_template and str(expanded(model.chat_template).absolute())
        model = model.model_copy(
            update={"path": str(local_folder(model.path) or model.path), "chat_template": template}
        )
    return job.model_copy(update={"model": model, "objective": objective})

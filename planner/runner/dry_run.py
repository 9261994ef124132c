"""`planner run --dry-run`: checks everything that can be checked before a start, and describes the start."""

from dataclasses import dataclass, replace

from planner.base.host_memory import available_bytes
from planner.base.text import counted
from planner.data.user_dataset import function_of
from planner.dispatch import connection, launch
from planner.dispatch.resources import alive_nodes
from planner.errors import AnotherDriver, StoreError
from planner.job import Job, batch_sizes, workers_of
from planner.job.step_schedule import conversions
from planner.plan import Plan, make_plan, useful_workers, workers_on_node
from planner.plan.accumulator_placement import FLOAT_BYTES, INTEGER_BYTES, placement_text
from planner.plan.commit_size import COPIES, CommitSize, NotKnown, most_copies
from planner.runner.commit_size import commit_size
from planner.runner.display import Say
from planner.runner.execute import resource_warning
from planner.runner.local import local_cluster
from planner.runner.prepare import Prepared, disk_watch
from planner.runner.signals import ended_like_ctrl_c
from planner.store.lease import newest_lease
from planner.store.run_place import require_run_place
from planner.store.storage import Storage
from planner.store.survey import driver_state, is_run, survey
from planner.wording.event_text import text_of


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """A checked start that was not made."""

    run: str
    """the run's folder or URL"""
    begins: str
    """`a new run`, or the step that it would resume from, as text"""
    step: int
    """the first step"""
    passed_over: tuple[str, ...]
    """newer commits that are lost or damaged, and what the run does instead"""
    total_steps: int
    """0 if the number of steps depends on data that cannot be read from here"""
    changes: tuple[str, ...]
    """what differs from the job that the run was made with, and the consequences"""
    conversions: tuple[str, ...]
    """the job's lengths that are not in steps, converted to steps"""
    gradient: tuple[str, ...]
    """what planner does to a step's gradient (see `gradient_text`)"""
    cluster: str
    """where it would run, as text"""
    waits: str
    """what it would wait for, or empty if it would begin at once"""
    warning: str
    """what the local cluster lacks and what the run would do without it, or empty"""
    plan: Plan
    """of the first world size"""
    commits: CommitSize | NotKnown
    """the size of a commit"""
    node_workers: int
    """workers on the node that has the most of them, at the first world size"""
    available_bytes: int | None
    """memory that is available on this machine, if the job would run here"""
    copies_fit: int
    """how many copies of each worker's state fit into `available_bytes`, at most those of the job (`most_copies`). All
    of them if that is not known"""
    storage_gbps: float | None
    """what the user says that the storage takes, in 10^9 bytes per second"""
    notes: tuple[str, ...]
    """what was found on the way, could not be checked, or would take a while"""


def gradient_text(job: Job, num_parameters: int | None) -> tuple[str, ...]:
    """Everything that planner does to a step's gradient, in order, from the backward passes to the optimizer step.

    `planner.train.optimizer_step`, `planner.train.exact.gradient_sums` and `planner.train.step_update` do it.

    Args:
        job: the job.
        num_parameters: that are trained. None if that is not known.
    """
    losses, clip = "Each loss sum of your loop" if job.is_own else "The loss sum", job.train.clip_norm
    is_bitwise = job.batch.equality == "bitwise"
    sums = "are summed in int64 fixed point" if is_bitwise else "are summed by FSDP"
    end = "the step is skipped" if job.train.non_finite == "skip" else "the run stops before the optimizer's step"
    return (
        f"{losses} is divided by its count over the whole global batch.",
        f"Gradients {sums} over rounds and workers, never averaged.",
        placement_text(INTEGER_BYTES if is_bitwise else FLOAT_BYTES, num_parameters),
        f"If a gradient is not finite, {end} (train.non_finite: {job.train.non_finite}).",
        "The gradient is not clipped (train.clip_norm: null)."
        if clip is None
        else f"A global norm above {clip:g} is scaled down to {clip:g} (train.clip_norm: {clip:g}).",
    )


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a job would run."""

    text: str
    waits: str
    """what it would wait for, or empty"""
    warning: str
    rooms: tuple[int, ...]
    """workers that fit on each node. All nodes of a local cluster are this machine"""
    available_bytes: int | None = None
    """memory that is available here. None on another cluster"""
    has_gpus: bool = True
    """whether the state itself is in GPU memory"""

    @property
    def room(self) -> int:
        """Workers that fit on all nodes."""
        return sum(self.rooms)


def check_start(
    prepared: Prepared, warn: Say, *, address: str, nodes: int, storage_gbps: float | None = None
) -> DryRun:
    """Check the store, the lease and the cluster. With an address, ask that cluster for its nodes.

    The run's storage is tried with small files, which are removed again (see `require_run_place`).

    Args:
        prepared: the checked job.
        warn: called with a line if the storage does not answer.
        address: of the cluster, or empty for a local one.
        nodes: logical nodes of the local cluster, or 0 for as many as the run uses, at most one per core or GPU.
        storage_gbps: what the storage takes, in 10^9 bytes per second. None if not known.

    Raises:
        PlannerError: the start would be refused.
    """
    job = prepared.job
    _require_sound(prepared)
    notes = [
        *(f"data: {note}" for note in prepared.notes),
        *([f"model: {prepared.adapters}"] if prepared.adapters else []),
        *_check_driver(prepared.run.storage),
    ]
    with disk_watch(prepared.url, warn), ended_like_ctrl_c():
        require_run_place(prepared.run.storage)
    if not prepared.num_samples:
        notes.append("the data cannot be read from here, so only the workers would check it")
    place = _at(job, address) if address else _here(job, nodes)
    sizes, workers = batch_sizes(job), workers_of(job)
    plan = make_plan(sizes, useful_workers(sizes, workers, workers.nearest(place.room)))
    commits = commit_size(job, may_build=True)
    node_workers = min(max(1, *place.rooms), plan.world_size)
    return DryRun(
        run=prepared.url,
        begins=prepared.resume_text,
        step=prepared.step,
        passed_over=prepared.passed_over,
        total_steps=prepared.total_steps,
        changes=prepared.changes,
        conversions=tuple(map(text_of, conversions(job, prepared.num_samples))),
        gradient=gradient_text(job, None if isinstance(commits, NotKnown) else commits.shapes.num_parameters),
        cluster=place.text,
        waits=place.waits,
        warning=place.warning,
        plan=plan,
        commits=commits,
        node_workers=node_workers,
        available_bytes=place.available_bytes,
        copies_fit=_copies_that_fit(job, commits, node_workers, plan.world_size, place),
        storage_gbps=storage_gbps,
        notes=tuple(notes),
    )


def _copies_that_fit(
    job: Job, commits: CommitSize | NotKnown, node_workers: int, world_size: int, place: _Place
) -> int:
    """How many copies fit into the memory here. On the CPU, the state itself takes as much as one more."""
    most = most_copies(in_memory=job.checkpoint.memory != "off")
    if isinstance(commits, NotKnown) or place.available_bytes is None:
        return most
    here = place.available_bytes // max(commits.node_bytes(world_size, node_workers), 1) - (not place.has_gpus)
    return next((copies for copies in COPIES if copies <= min(here, most)), 0)


def _require_sound(prepared: Prepared) -> None:
    """Check what a run's folder holds besides commits, and the function of the user's own training loop.

    Raises:
        StoreError: the run is damaged.
        DataError: the user's own training loop has no train function.
    """
    if is_run(prepared.run.storage):
        found = survey(prepared.url)
        if found.problem:
            raise StoreError(f"{prepared.url}: {found.problem}")
    if prepared.job.is_own:
        function_of(prepared.job.data.path, "train")


def _here(job: Job, nodes: int) -> _Place:
    """The local cluster."""
    local = local_cluster(job, nodes)
    on = counted(local.gpus, "GPU") if local.gpus else "CPU"
    room = f"local Ray cluster, {counted(local.num_workers, 'worker')} ({on})"
    return _Place(
        text=", ".join(filter(None, (room, local.unused))),
        waits="",
        warning=local.warning,
        rooms=(local.num_workers,),
        available_bytes=available_bytes(),
        has_gpus=bool(local.gpus),
    )


def _at(job: Job, address: str) -> _Place:
    """The cluster at the address."""
    launch.set_environment(launch.CLUSTER, embedded=False)
    with connection.connected(address, verbose=False):
        found = alive_nodes()
    place = _Place(
        text=address,
        waits=resource_warning(job, found),
        warning="",
        rooms=tuple(workers_on_node(node, job.workers.taken) for node in found),
    )
    return replace(
        place, text=f"{address}: {counted(len(found), 'node')} with room for {counted(place.room, 'worker')}"
    )


def _check_driver(storage: Storage) -> list[str]:
    lease = newest_lease(storage)
    state = driver_state(lease)
    if lease is None or state in {"none", "ended"}:
        return []
    if state == "alive":
        raise AnotherDriver(
            f"{storage.url}: {lease.description} is running this run. Stop it first, or wait for its end"
        )
    return [f"{lease.description} held this run, so the start would watch its lease first"]

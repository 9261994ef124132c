"""`planner run JOB`: train, on a Ray cluster or on an embedded one; the same command resumes."""

import contextlib
import math
import os
import shlex
import signal
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from planner.base.disk import full_url
from planner.cli.options import (
    AcceptOption,
    DryRunOption,
    JobArgument,
    JsonOption,
    SetOption,
    accepted,
    console,
    progress_bar,
    repeated,
    warn_of_open_token,
)
from planner.errors import (
    ClusterLost,
    DataError,
    DiskFull,
    RunError,
    StoreError,
    TrainingFailed,
    UserError,
)
from planner.job import HfModel, Job, Workers

if TYPE_CHECKING:
    from rich.console import Console

    from planner.runner.last_words import LastWords, Subject
    from planner.cli.watch import Watch
    from planner.local_cluster.embedded import EmbeddedCluster, NodeShape
    from planner.plan import Resources
    from planner.report.view import RunView
    from planner.store.records import Manifest
    from planner.store.run import Run

RESUME_VARIABLE = "PLANNER_RESUME"
"""holds the command that resumes the run, where that is not this one: `planner submit` sets it for the cluster"""

# A head and eight nodes are there by then, where nothing else runs.
_SLOW_START_S = 30.0
# A file of no bytes finds room on a full disk.
_PROBE_BYTES = 4096


def run(
    job: JobArgument,
    address: Annotated[
        str,
        typer.Option(envvar="RAY_ADDRESS", help="a Ray cluster's address; without one, a local cluster is started"),
    ] = "",
    nodes: Annotated[
        int,
        typer.Option(min=0, max=64, help="logical nodes of the local cluster; by default one per core or GPU"),
    ] = 0,
    set_: SetOption = None,
    accept: AcceptOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="show Ray's own messages")] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train the job, or resume it where its run directory ends.

    With --json, stdout is what `planner show RUN --json` says at the end, and all else is on stderr.
    """
    from planner.files import read_job

    fields = accepted(accept)
    spec = read_job(job, set_ or [])
    out = console(stderr=as_json)
    prepared = prepare(spec, fields, check_data=not address)
    if prepared.finished:
        out.print(f"{prepared.url}: {prepared.finished_text}; nothing to do", soft_wrap=True)
        _print_json(prepared, wanted=as_json)
        return
    if dry_run:
        _print_dry_run(prepared, address, nodes, as_json=as_json)
        return
    again = [
        *("planner", "run", job),
        *(["--address", address] if address else []),
        *(["--nodes", str(nodes)] if nodes else []),
        *repeated("--set", set_),
        *repeated("--accept", accept),
    ]
    try:
        execute(
            prepared,
            out,
            opening=f"{spec.name}: {prepared.resume_text} in {prepared.url}",
            address=address,
            nodes=nodes,
            verbose=verbose,
            resume_command=os.environ.get(RESUME_VARIABLE) or shlex.join(again),
        )
    except typer.Exit:  # interrupted: how it stands is what a script asked for
        _print_json(prepared, wanted=as_json)
        raise
    _print_json(prepared, wanted=as_json)


def _print_json(prepared: "Prepared", *, wanted: bool) -> None:
    if wanted:
        from planner.report.runs import detail_json, run_detail
        from planner.store.survey import MOST_GENERATIONS, survey

        typer.echo(detail_json(run_detail(survey(prepared.url, MOST_GENERATIONS))))


def _print_dry_run(prepared: "Prepared", address: str, nodes: int, *, as_json: bool) -> None:
    from planner.runner.dry_run import rehearse_start
    from planner.report.dry_run import dry_run_json, dry_run_text

    dry = rehearse_start(prepared, address=address, nodes=nodes)
    typer.echo(dry_run_json(dry) if as_json else "\n".join(dry_run_text(prepared.job, dry)))


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A job that has been checked as far as the driver can, and its run's folder."""

    job: Job
    url: str
    accept: frozenset[str]
    run: "Run"
    num_samples: int
    """of one epoch; 0 if the data cannot be read from here"""
    total_steps: int
    """0 if the data cannot be read from here, and it takes the data to know"""
    committed: "Manifest | None"
    notes: tuple[str, ...] = ()
    """what became of the rows of the data, where not all are used as they are"""
    changes: tuple[str, ...] = ()
    """what differs from the job that the run was made with, and what that does, in words"""
    adapters: str = ""
    """which of the model's layers have adapters, in words, where the job wants some and the model is here"""

    @property
    def finished(self) -> bool:
        """Whether the newest commit is the job's last step."""
        return self.committed is not None and 0 < self.total_steps <= self.committed.step

    @property
    def view(self) -> "RunView":
        """What there is to see before the first worker wakes up."""
        from planner.report.view import RunView

        step = self.committed.step if self.committed else 0
        return RunView(step=step, committed_step=step, total_steps=self.total_steps)

    @property
    def finished_text(self) -> str:
        """How far it is, in words."""
        done = self.committed.step if self.committed else 0
        past = "" if done == self.total_steps else f", past the job's {self.total_steps}"
        return f"finished at step {done}{past}"

    @property
    def resume_text(self) -> str:
        """Where it begins, in words."""
        if self.committed is None:
            return "a new run"
        return f"resuming at step {self.committed.step} of {self.total_steps or '?'}"


def prepare(job: Job, accept: frozenset[str], *, check_data: bool) -> Prepared:
    """Check all that can be checked before anything is started.

    Raises:
        PlannerError: the store, the model or the data cannot be used, or the run is not this job's.
    """
    from planner.runner.standing import newest_readable
    from planner.data import model_files
    from planner.data.dataset import notes_of
    from planner.dispatch.launch import absolute
    from planner.job.lengths import another_end, repeats, total_steps
    from planner.provenance.identity import identity_of, job_changes, open_data, require_same, require_same_draw
    from planner.store.run import Run
    from planner.store.storage import Storage

    url = full_url(job.run_path)
    job = absolute(job, url)
    run = Run(Storage(url))
    with _answering(url):
        committed = newest_readable(run)
    num_samples = 0
    notes: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    adapters = ""
    if check_data:
        model_files.check_here(job)
        adapters = _built(job)
    try:
        with progress_bar("data checked") as progress:
            dataset, order = open_data(job, progress)
    except DataError:
        # On a cluster the data may lie on the nodes alone; the workers check it again, and agree on it.
        if check_data:
            raise
    else:
        num_samples = order.num_samples
        notes = (*notes_of(dataset), *filter(None, [repeats(job, num_samples)]))
        if committed is not None:
            before = run.job_if_known(committed.job_digest)
            changes = job_changes(before, job) if before else {}
            identity = identity_of(job, dataset, order)
            require_same_draw(committed.identity, identity, job, url)
            differing = require_same(committed.identity, identity, changes, accept, url)
            rate = another_end(before, job, num_samples, committed.step, committed.total_steps) if before else ""
            changed = (*differing, rate) if rate else tuple(differing)
    if run.storage.exists("run.json"):
        run.identity()
    return Prepared(
        job=job,
        url=url,
        accept=accept,
        run=run,
        num_samples=num_samples,
        total_steps=total_steps(job, num_samples),
        committed=committed,
        notes=notes,
        changes=changed,
        adapters=adapters,
    )


def _built(job: Job) -> str:
    """Build the model without its weights, as the workers would; what its adapters stand beside, if the job wants some.

    Empty, and nothing is built, where the model is not here.

    Raises:
        UserError: transformers makes no model of it, or something that adapters are wanted at is none of its layers.
    """
    from planner.data.model_files import folder_here

    model = job.model
    if not isinstance(model, HfModel) or folder_here(model.path, model.revision) is None:
        return ""
    from planner.train.models.hf import adapters_words, build_on_meta

    built, _ = build_on_meta(model)
    return adapters_words(built) if model.lora is not None else ""


def _require_writable(run: "Run") -> None:
    """Check that the folder can be written to; the workers would find out a minute later.

    Raises:
        StoreError: it cannot.
    """
    probe = f"probe-{uuid.uuid4().hex}"
    try:
        run.storage.write(probe, bytes(_PROBE_BYTES))
        run.storage.delete(probe)
    except DiskFull:
        raise
    except StoreError as error:
        reason = str(error).rpartition(f"{probe}: ")[2]
        raise StoreError(f"{run.storage.url}: cannot write there ({reason}); choose another checkpoint.path") from error


def execute(
    prepared: Prepared,
    out: "Console",
    *,
    opening: str,
    address: str,
    nodes: int,
    verbose: bool,
    resume_command: str,
    react: "Callable[[EmbeddedCluster, Watch, RunView], None] | None" = None,
) -> None:
    """Print the opening words, run to the end, show it, and say where it stands.

    Raises:
        PlannerError: the run cannot go on.
        typer.Exit: 130 after Ctrl-C.
    """
    from planner.runner.last_words import LastWords, last_words
    from planner.runner.standing import standing
    from planner.cli.verify import ended_like_ctrl_c
    from planner.cli.watch import Watch
    from planner.dispatch import launch as dispatch
    from planner.dispatch.room import alive_nodes
    from planner.store.lease import Lease

    local = None if address else local_cluster(prepared.job, nodes)
    if address:
        warn_of_open_token()
    with _answering(prepared.url):
        _require_writable(prepared.run)
    timings = dispatch.CLUSTER if address else dispatch.EMBEDDED
    dispatch.set_environment(timings, embedded=not address)
    launch = dispatch.new_launch(prepared.job, prepared.url, prepared.accept)
    subject, interrupted = _subject(prepared, resume_command), False
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(ended_like_ctrl_c())
            stop = partial(os.kill, os.getpid(), signal.SIGTERM)  # `nohup` and `&` have SIGINT ignored
            say = partial(out.print, soft_wrap=True)
            stack.enter_context(Lease(prepared.run.storage, launch.launch_id, say, on_lost=stop))
            words = stack.enter_context(LastWords(subject))
            out.print("\n".join((opening, *(f"data: {note}" for note in prepared.notes))), soft_wrap=True)
            cluster = stack.enter_context(_embedded(local, out)) if local else None
            place = cluster.address if cluster else address
            stack.enter_context(_connected(place, words, verbose=verbose, embedded=not address))
            if warning := room_warning(prepared.job, alive_nodes()):
                out.print(warning, soft_wrap=True)
            watch = stack.enter_context(Watch(prepared.run, out, prepared.view))
            if react is not None and cluster is not None:
                watch.react = lambda view: react(cluster, watch, view)
            watch.state = partial(dispatch.state_of, launch)
            on_cpu = local is not None and not local.gpus
            dispatch.fit(launch, timings, on_cpu=on_cpu, embedded=not address, say=watch.say)
    except KeyboardInterrupt:
        interrupted = True
    except ClusterLost as error:
        raise ClusterLost(last_words(subject, str(error))) from error
    except TrainingFailed as error:
        raise TrainingFailed(f"{error}; {standing(prepared.url, prepared.total_steps)}") from error
    with _answering(prepared.url):
        _conclude(prepared, out, resume_command, interrupted=interrupted)


def _subject(prepared: Prepared, resume_command: str) -> "Subject":
    """What a message about the end of this driver contains."""
    from planner.runner.last_words import Subject

    return Subject(
        url=prepared.url, total_steps=prepared.total_steps, resume_command=resume_command, driver=os.getpid()
    )


@contextlib.contextmanager
def _connected(address: str, words: "LastWords", *, verbose: bool, embedded: bool) -> "Iterator[None]":
    """A connection to the cluster. Meanwhile `words` watches the processes of Ray that this driver depends on."""
    from planner.runner.last_words import Head
    from planner.dispatch import launch as dispatch

    with dispatch.connected(address, verbose=verbose, embedded=embedded):
        gcs, raylet = dispatch.lifelines()
        with words.watching(Head(gcs=gcs, raylet=raylet, is_embedded=embedded)):
            yield


def _answering(url: str) -> contextlib.AbstractContextManager[None]:
    """What is done in the run's folder; a disk that hangs is named, since no call into it comes back to do it."""
    from planner.base.reminders import reminded

    say = partial(typer.echo, err=True)
    return reminded(say, f"waiting for {url}, which does not answer: look at that disk or mount, or end this (kill)")


def room_warning(job: Job, nodes: "Sequence[Resources]") -> str:
    """Said before a wait that would otherwise be silent; empty if there is none."""
    from planner.base.text import counted
    from planner.dispatch.room import room_for, shortage

    least, wanted = job.workers.min, job.workers.taken
    room = room_for(wanted, nodes)
    if room >= least:
        return ""
    why = f" ({lack})" if (lack := shortage(wanted, nodes)) else ""
    until = "such nodes come, or ask for less" if why else "nodes come"
    has = f"the cluster has room for {counted(room, 'worker')}, and workers.min is {least}"
    return f"waiting: {has}{why}; it begins when {until}"


def _conclude(prepared: Prepared, out: "Console", resume_command: str, *, interrupted: bool) -> None:
    from planner.runner.standing import newest_readable, standing

    newest = newest_readable(prepared.run)
    # What this launch was asked for; the commit may be from one that was asked for less.
    total = prepared.total_steps or (newest.total_steps if newest else 0)
    step = newest.step if newest else 0
    if newest is not None and step >= total > 0:
        code = ["--code", prepared.job.data.path] if prepared.job.is_own else []
        again = shlex.join(["planner", "audit", prepared.url, *code])
        export = ["planner", "export", prepared.url, "-o", f"models/{prepared.job.name}"]
        more = f"; for plain transformers: {shlex.join(export)}" if isinstance(prepared.job.model, HfModel) else ""
        out.print(f"finished: {total} steps committed in {prepared.url}; check it: {again}{more}", soft_wrap=True)
        return
    where = standing(prepared.url, prepared.total_steps)
    if interrupted:
        out.print(f"interrupted: {where}; resume with: {resume_command}", soft_wrap=True)
        raise typer.Exit(130)
    raise RunError(f"the workers ended early: {where}; try again with --verbose: {resume_command}")


@dataclass(frozen=True, kw_only=True)
class LocalShape:
    """The local cluster that a job gets: one node per worker; with real GPUs, one node that holds them all."""

    num_workers: int
    gpus: int
    """of this machine, for this job"""
    workers: Workers

    @property
    def shape(self) -> "NodeShape":
        """What each node offers."""
        from planner.local_cluster.embedded import NodeShape

        scale, workers = self.workers_per_node, self.workers
        return NodeShape(
            # Whole amounts: a node that offers half a CPU is none.
            cpus=math.ceil(max(workers.cpus, 1) * scale),
            gpus=workers.gpus * scale,
            resources={name: math.ceil(amount * scale) for name, amount in workers.resources.items()},
        )

    @property
    def workers_per_node(self) -> int:
        """How many workers fit on each."""
        return self.num_workers if self.gpus else 1


def local_cluster(job: Job, nodes: int) -> LocalShape:
    """What this machine starts for the job, with `nodes` nodes, or as many as it has cores or GPUs.

    Raises:
        UserError: it would be too small.
    """
    workers, gpus = job.workers, _num_gpus() if job.workers.gpus else 0
    count = nodes or min(workers.max, gpus or os.cpu_count() or 1)
    if count < workers.min:
        raise UserError(f"workers.min is {workers.min}, and the local cluster has {count}; write --nodes {workers.min}")
    return LocalShape(num_workers=count, gpus=gpus, workers=workers)


@contextlib.contextmanager
def _embedded(local: LocalShape, out: "Console") -> "Iterator[EmbeddedCluster]":
    from planner.base.reminders import reminded
    from planner.base.text import counted
    from planner.local_cluster.embedded import EmbeddedCluster

    if local.workers.gpus and not local.gpus:
        out.print("no GPU on this machine: training on the CPU", soft_wrap=True)
    out.print(f"starting a local Ray cluster with room for {counted(local.num_workers, 'worker')}", soft_wrap=True)
    say = partial(out.print, soft_wrap=True)
    cluster = EmbeddedCluster(num_nodes=local.num_workers // local.workers_per_node, shape=local.shape, say=say)
    with reminded(say, "the local Ray cluster is still starting", _SLOW_START_S):
        cluster.start()
    with contextlib.closing(cluster):
        yield cluster


def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0

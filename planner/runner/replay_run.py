"""Plays policies through the nodes that a run had: its ledger is the trace, and its own times are the costs."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.base.text import counted, duration, enumerated
from planner.errors import StoreError
from planner.job import Job, workers_of
from planner.provenance.run_times import RunClock
from planner.runner.simulate_job import Simulated, require_playable, require_possible, without_floor
from planner.simulation.replay import COLD, Replay, replay_of
from planner.store.follow import WholeLedger
from planner.store.run_folder import RunFolder, no_run_error
from planner.store.storage import Storage
from planner.store.survey import is_run
from planner.story.capacity import CapacityFold, RunCapacity


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A run's own row, and what other policies would have made of its nodes."""

    job: str
    """the job's name"""
    simulated: Simulated
    """the run's own outcome is the first one"""


def replay_run(
    url: str,
    policies: Sequence[str],
    given: Mapping[str, float],
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Replayed:
    """Read a run's ledger, and play policies through the nodes that it had.

    Args:
        url: the run's folder or URL.
        policies: some of `planner.simulation.outcome.POLICIES`.
        given: fields of `Costs` that count in place of the measured ones.
        progress: called with `(done, of)` after each generation.

    Raises:
        NewerFormat: another version of planner wrote it.
        PlanError: its trace is too long to play, or a generation on record has no plan.
        StoreError: there is no run, its job is gone, it has no typical step yet, or its times are impossible.
    """
    if not is_run(Storage(url)):
        raise no_run_error(url)
    run = RunFolder(Storage(url))
    capacity, digest = _read(run, progress)
    job = run.job_if_known(digest) if digest else None
    if digest and job is None:
        raise StoreError(f"{url}: the job that it was made with is gone (jobs/{digest}.json)")
    replay = None if job is None else replay_of(capacity, workers_of(job), given)
    if job is None or replay is None:
        raise StoreError(
            f"{url}: no typical step is on record (the first step of each generation does not count). "
            "Let it train for some steps first"
        )
    return Replayed(job=job.name, simulated=_played(url, job, replay, policies, given))


def _read(run: RunFolder, progress: Callable[[int, int], None]) -> tuple[RunCapacity, str]:
    """What the ledger says, and the digest of the newest generation's job. Empty if there is none."""
    fold, clock, numbers, reading, digest = CapacityFold(), RunClock(), run.segments(), 0, ""
    for number, record in WholeLedger(run).new_records():
        if number != reading:
            progress(bisect_left(numbers, number), len(numbers))
            reading = number
        clock.add(record)
        fold.add(record, clock)
        if record.kind == "generation":
            digest = record.job_digest
    return fold.capacity(clock), digest


def _played(url: str, job: Job, replay: Replay, policies: Sequence[str], given: Mapping[str, float]) -> Simulated:
    require_playable(replay.trace, replay.speed.node_workers)
    if replay.trace.end_s <= 0 or not replay.own.ideal_steps:
        raise StoreError(
            f"{url}: by the ledger, the run took no time on nodes for {job.workers.min} workers. See what is wrong in "
            f"it: planner audit {url}"
        )
    require_possible(replay.speed)
    return Simulated(
        lives=replay.lives,
        speed=replay.speed,
        outcomes=(replay.own, *map(replay.play, policies)),
        assumed=(_nodes_said(replay), _steps_said(replay), _costs_said(replay, policies, given), *without_floor(job)),
    )


def _nodes_said(replay: Replay) -> str:
    if not replay.is_exact:
        return (
            "the ledger does not have the nodes. Each worker is taken for a node, and how many there were follows from "
            "groups, unused places, notices and losses. Nodes that no group used may be missing"
        )
    each = counted(replay.speed.node_workers, "worker")
    uneven = "" if replay.is_even else " (the mean, since they differ)"
    return f"nodes come, go and get notice as the ledger has them. A node holds {each}{uneven}"


def _steps_said(replay: Replay) -> str:
    """Where seconds of steps come from, at the largest group that the run had."""
    most = replay.sizes[-1]
    sizes = enumerated([str(size) for size in replay.sizes])
    return (
        f"a step takes {duration(replay.speed.seconds(most))} with {counted(most, 'worker')}. The run has measured "
        f"steps with {sizes}, and other sizes follow from them"
    )


def _costs_said(replay: Replay, policies: Sequence[str], given: Mapping[str, float]) -> str:
    costs, known = replay.costs, vars(replay.measured)
    cold = enumerated([policy for policy in policies if policy in COLD])
    guessed = [words for name, words in _WORDS.items() if name not in given and known[name] is None]
    texts = (
        f"a start pauses training for {duration(costs.restart_s)}, a commit for {duration(costs.save_s)}",
        f"Newcomers take {duration(costs.lead_s)} beside the group",
        f"Without newcomers beside the group ({cold}), a start takes {duration(replay.cold_s)}" if cold else "",
        f"A loss is noticed after {duration(costs.detect_s)}",
        f"The run has not measured the seconds of {enumerated(guessed, 'or')}, so these are assumed" if guessed else "",
    )
    return ". ".join(filter(None, texts))


_WORDS = {"restart_s": "a start", "save_s": "a commit", "lead_s": "newcomers", "detect_s": "a loss"}

"""The texts and JSON of `planner runs` and `planner show`: a run's state, history and next command."""

import dataclasses
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from planner.base.text import counted
from planner.errors import PlanError, printable
from planner.events.training import GenerationStopped
from planner.job import Model, Objective
from planner.provenance.identity import recorded_plan
from planner.provenance.stage import stage_of
from planner.report.plan_table import plan_split
from planner.report.run_view import metric_texts, news_text
from planner.report.speed import Speed
from planner.report.spot_text import Spot, spot_of_survey, spot_text
from planner.report.text_columns import ago, aligned, hanging
from planner.store.records import EvalRecord, EventRecord, GenerationRecord
from planner.store.run_folder import commit_of
from planner.store.run_status import FRESH_S
from planner.store.survey import SegmentEnds, Survey
from planner.story.run_story import News, RunStory, StoryFold, story_of
from planner.wording.event_text import text_of
from planner.wording.saves import interval_text

State = Literal["running", "elsewhere", "finished", "stopped", "broken"]

_NUM_EVENTS = 10
_NUM_HELD_OUT = 5
# The year 5138. A damaged file may hold any number.
_LATEST_S = 1e11
_UNKNOWN_DRIVER = "planner cannot tell from here whether that driver is still running"
_ELSEWHERE = f"elsewhere: a driver on another machine has the lease. {_UNKNOWN_DRIVER}"


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event of a run's history."""

    time_s: float | None
    """since the epoch, or None if not known. The time of an evaluation is computed from the durations on record"""
    text: str
    event: str = ""
    """its kind (`planner.events`). Empty for a record that is no event, and in ledgers of formats 1 and 2"""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """of the event, as they are stored"""


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """One run in a list."""

    run: str
    """its folder or URL"""
    state: State
    reason: str
    """why it is broken, empty in any other state"""
    step: int
    """optimizer steps done"""
    total_steps: int
    """0 if not known yet"""
    world_size: int
    """of the newest generation, or 0 before the first generation"""
    committed_step: int
    committed_time_s: float | None
    held_step: int
    """the newest step that is in memory or durable, by what the run's controller says now"""
    last_event: Event | None
    active_time_s: float
    """the latest time on record, in seconds since the epoch, or 0 if there is none"""


@dataclass(frozen=True, kw_only=True)
class GenerationLine:
    """One generation in a list."""

    generation: int
    world_size: int
    split: str
    first_step: int
    end_step: int
    """half open: the first step that it did not do"""
    parent: str
    """the commit or the held step that it resumed from, or empty"""
    parent_is_held: bool
    """it resumed from copies in memory, not from a commit"""
    ended: str
    """how it ended, as text"""
    recomputed_before: int
    """steps of earlier generations that were lost before it and computed again, as in an audit"""


@dataclass(frozen=True, kw_only=True)
class RunDetail:
    """Everything that `planner show` shows of a run."""

    summary: RunLine
    job: str
    model: str
    objective: str
    after: str
    """the commit of an earlier run that gave the first weights, or empty"""
    global_batch: int
    equality: str
    seed: int
    data: str
    """the fingerprint, 64 hex digits"""
    error: str
    """the last error of the user's own code. Empty if there is none, or a generation or a launch has begun since"""
    traceback: str
    """the whole traceback of that error, or empty"""
    passed_over: tuple[str, ...]
    """newer commits than the newest good one that are lost or damaged, and what a start does instead"""
    driver: str
    samples_per_s: float
    """over the last steps"""
    speed: Speed | None
    """over the last measurements of the newest generation, or None if it has none yet"""
    commit_s: float
    """seconds for which the last commit that was read paused training, or 0 if none was"""
    commit_write_s: float
    """seconds from the begin of that commit until it was durable, or 0 if not known"""
    loss: float | None
    metrics: Mapping[str, float]
    """what the objective measures besides the loss, at the last step"""
    interval: str
    """how often the run commits, as text"""
    kept_steps: tuple[int, ...]
    """steps whose commits have their files, ascending"""
    num_commits: int
    num_generations: int
    generations: tuple[GenerationLine, ...]
    """the newest generations, oldest first"""
    events: tuple[Event, ...]
    """the last events, oldest first"""
    next: str
    """what the run's controller decides next, or why it leaves places unused. Empty if no driver is alive here"""
    next_time_s: float | None
    """when the controller published that, in seconds since the epoch, or None"""
    node_use: Spot | None
    """what the run kept of its nodes' work, by the generations below. None if its nodes did not change"""
    held_out: tuple[tuple[int, float], ...]
    """the last `(step, held-out loss)`, ascending"""
    resume: str
    """the command that resumes the run, or empty if it is not known or there is nothing to do"""


def run_line(survey: Survey) -> RunLine:
    """The run's line in a list. A damaged run has the state "broken" and a reason."""
    try:
        return _line(survey, *_told(survey.segments))
    except PlanError as error:
        return _line(dataclasses.replace(survey, problem=f"the ledger: {error}"), RunStory(), ())


def _line(survey: Survey, story: RunStory, events: Sequence[Event]) -> RunLine:
    newest, lease = survey.newest, survey.lease
    committed_step = newest.step if newest else 0
    total_steps = story.total_steps or (newest.total_steps if newest else 0)
    seen_times = [event.time_s or 0.0 for event in events]
    if newest:
        seen_times.append(newest.time_s)
    if lease:
        # A lower bound by the driver's own clock, because renewals are late by the time that writes take.
        seen_times.append(lease.since_s + lease.beat * lease.beat_s)
    return RunLine(
        run=survey.url,
        state=_state(survey, committed_step, total_steps),
        reason=survey.problem,
        step=max(story.step, committed_step),
        total_steps=total_steps,
        world_size=story.world_size or (newest.world_size if newest else 0),
        committed_step=committed_step,
        committed_time_s=newest.time_s if newest else None,
        held_step=max(committed_step, survey.live.held_step if survey.live else 0),
        last_event=events[-1] if events else None,
        active_time_s=max(seen_times, default=0.0),
    )


def _state(survey: Survey, committed_step: int, total_steps: int) -> State:
    if survey.problem:
        return "broken"
    if survey.driver == "alive":
        return "running"
    if 0 < total_steps <= committed_step:
        return "finished"
    return "elsewhere" if survey.driver == "unknown" else "stopped"


def _told(segments: Sequence[SegmentEnds]) -> tuple[RunStory, tuple[Event, ...]]:
    """How the run stands after all records that were read, and its events, oldest first.

    Raises:
        PlanError: no plan serves the sizes in a header.
    """
    fold = StoryFold()
    told = [fold.add(record) for segment in segments for record in segment.records]
    return fold.story, tuple(event_of(news) for news in told if news and news.is_listed)


def event_of(news: News) -> Event:
    """The event with its text.

    Raises:
        PlanError: no plan serves the sizes in a header.
    """
    record = news.record
    name, facts = (record.event, record.facts) if isinstance(record, EventRecord) else ("", {})
    return Event(time_s=news.time_s, text=news_text(news), event=name, facts=facts)


def run_detail(survey: Survey) -> RunDetail:
    """Everything that `planner show` shows of a run.

    Raises:
        PlanError: no plan serves the sizes in a header.
    """
    story, events = _told(survey.segments)
    summary = _line(survey, story, events)
    newest, job, commit = survey.newest, survey.job, story.last_commit
    header = survey.segments[-1].header if survey.segments else None
    identity = header.identity if header else newest.identity if newest else None
    about = header.facts if header else newest.facts if newest else {}
    began = stage_of(about)
    # A dict, because a generation repeats the evaluation of its first step.
    held_out = {r.step: r.loss for segment in survey.segments for r in segment.records if isinstance(r, EvalRecord)}
    return RunDetail(
        summary=summary,
        job=job.name if job else "",
        model=_settings(job.model) if job else "",
        objective=_settings(job.objective) if job else "",
        after=began.whole_text if began else "",
        global_batch=identity.global_batch if identity else 0,
        equality=identity.equality if identity else "",
        seed=identity.seed if identity else 0,
        data=identity.data if identity else "",
        error=survey.failure.text if survey.failure else "",
        traceback=survey.failure.traceback if survey.failure else "",
        passed_over=tuple(map(text_of, survey.not_used)),
        driver=_driver_text(survey),
        samples_per_s=story.samples_per_s,
        speed=Speed.of(story.measured) if story.measured else None,
        commit_s=commit.seconds if commit else 0.0,
        commit_write_s=commit.write_s if commit else 0.0,
        loss=story.loss,
        metrics=story.metrics,
        interval=_interval(survey, story),
        kept_steps=tuple(sorted(step for step, _ in map(commit_of, survey.kept))),
        num_commits=survey.num_commits,
        num_generations=survey.num_generations,
        generations=_generations(survey.segments, summary),
        events=events[-_NUM_EVENTS:],
        next=survey.live.next if survey.live else "",
        next_time_s=survey.live.time_s if survey.live else None,
        node_use=spot_of_survey(survey),
        held_out=tuple(sorted(held_out.items())[-_NUM_HELD_OUT:]),
        resume=resume_command(survey, summary),
    )


def _settings(section: Model | Objective) -> str:
    """`gpt, layers 3, width 96`: the kind and the settings that differ from their defaults."""
    values = {"kind": section.kind, **section.model_dump(exclude_defaults=True)}
    return ", ".join(str(value) if key == "kind" else f"{key} {value}" for key, value in values.items())


def _driver_text(survey: Survey) -> str:
    lease = survey.lease
    if survey.driver == "none":
        return "none yet"
    if lease is None:
        return "its lease cannot be read"
    process = f"pid {lease.pid} on {lease.host}, since {_clock(lease.since_s)}"
    if survey.driver == "unknown":
        return f"{process}, on another machine. {_UNKNOWN_DRIVER}"
    return process if survey.driver == "alive" else f"none now, the last was {process}"


def _interval(survey: Survey, story: RunStory) -> str:
    every = survey.job.checkpoint.every if survey.job else ""
    if every != "auto":
        return f"every {every}" if every else ""
    return f"auto: {interval_text(story.interval)}" if story.interval else "auto"


def resume_command(survey: Survey, summary: RunLine) -> str:
    """The command that resumes a run, or empty. It has the job's copy in the run's folder, with absolute paths."""
    if survey.job is None or "://" in survey.url or summary.state not in {"stopped", "elsewhere"}:
        return ""
    return shlex.join(["planner", "run", f"{survey.url}/jobs/{survey.job_digest}.json"])


def _generations(segments: Sequence[SegmentEnds], summary: RunLine) -> tuple[GenerationLine, ...]:
    lines, lost, known_end = list[GenerationLine](), 0, 0
    for segment in segments:
        is_newest, header = segment is segments[-1], segment.header
        if header is None:
            known_end = 0
            continue
        lost += max(known_end - header.step, 0)
        # Like an audit: if nobody went on from a generation, it is in no lineage, and a later one has recomputed all.
        counts = is_newest or max(segment.committed_step, segment.held_step) >= 0
        known_end = max(story_of(segment.records).step, segment.committed_step, segment.held_step)
        line = GenerationLine(
            generation=segment.generation,
            world_size=header.world_size,
            split=plan_split(recorded_plan(header)),
            first_step=header.step,
            end_step=known_end,
            parent=header.parent,
            parent_is_held=header.parent_is_held,
            ended=_ended(segment, header, known_end, is_running=is_newest and summary.state == "running"),
            recomputed_before=lost if counts else 0,
        )
        lines.append(line)
        lost = 0 if counts else lost
    return tuple(lines)


def _ended(segment: SegmentEnds, header: GenerationRecord, end_step: int, *, is_running: bool) -> str:
    if is_running:
        return "running"
    last = segment.records[-1]
    if isinstance(last, EventRecord) and last.event == GenerationStopped.name:
        return last.message
    if segment.committed_step == header.total_steps:
        return "finished"
    if segment.committed_step == end_step > header.step:
        return "with a commit"
    if segment.held_step == end_step:
        return "in memory"
    return "without notice" if end_step > header.step else "before its first step"


# -- text and JSON


def run_table(lines: Sequence[RunLine], names: Sequence[str], now_s: float, width: int | None = None) -> list[str]:
    """Return a header, then a row per run, then an explanation if a run is elsewhere.

    Args:
        lines: the runs.
        names: the name of each run in the table.
        now_s: seconds since the epoch.
        width: columns of the terminal. Last events are wrapped to it. None leaves each row on one line.
    """
    columns = ("run", "state", "step", "workers", "durable")
    table = aligned([columns, *map(_cells, names, lines, [now_s] * len(lines))], left={0, 1, 4})
    events = ["last event", *(_last_event(line, now_s) for line in lines)]
    rows = [row for line, event in zip(table, events, strict=True) for row in hanging(f"{line}  ", event, width)]
    return [*rows, "", _ELSEWHERE] if any(line.state == "elsewhere" for line in lines) else rows


def _cells(name: str, line: RunLine, now_s: float) -> tuple[str, ...]:
    durable = f"{line.committed_step}, {ago(line.committed_time_s, now_s)}" if line.committed_time_s else "-"
    step = f"{line.step}/{line.total_steps or '?'}"
    return (printable(name), line.state, step, str(line.world_size or "-"), durable)


def _last_event(line: RunLine, now_s: float) -> str:
    event = f"{ago(line.last_event.time_s, now_s)}: {line.last_event.text}" if line.last_event else "-"
    return printable(line.reason or event)


def runs_json(lines: Sequence[RunLine]) -> str:
    """A JSON list with one object per run. Its keys are the fields of `RunLine`."""
    return json.dumps([dataclasses.asdict(line) for line in lines], indent=1)


def detail_json(detail: RunDetail) -> str:
    """One JSON object. Its keys are the fields of `RunLine` and of `RunDetail`."""
    fields = dataclasses.asdict(detail)
    return json.dumps({**fields.pop("summary"), **fields}, indent=1)


def detail_text(detail: RunDetail, now_s: float, width: int | None = None) -> list[str]:
    """Return everything about a run as lines, wrapped to `width` columns. Commands stay whole, to be copied."""
    line = detail.summary
    durable = f"step {line.committed_step}, {ago(line.committed_time_s, now_s)}" if line.committed_time_s else "none"
    facts = [
        ("run", line.run),
        ("state", f"{line.state}{': ' if line.reason else ''}{line.reason}"),
        ("error", detail.error),
        ("traceback", shlex.join(["planner", "show", line.run, "--traceback"]) if detail.traceback else ""),
        *(("warning", text) for text in detail.passed_over),
        ("job", detail.job),
        ("model", detail.model),
        ("objective", detail.objective),
        ("after", detail.after),
        ("batch", f"global {detail.global_batch}, equality {detail.equality}" if detail.global_batch else ""),
        ("data", f"fingerprint {detail.data[:16]}, seed {detail.seed}" if detail.data else ""),
        ("driver", detail.driver),
        ("step", f"{line.step} of {line.total_steps or '?'}"),
        ("workers", str(line.world_size) if line.state == "running" and line.world_size else ""),
        ("next", _next_text(detail, now_s)),
        ("loss", "" if detail.loss is None else ", ".join([f"{detail.loss:.4f}", *metric_texts(detail.metrics)])),
        ("speed", _speed_text(detail)),
        ("memory", detail.speed.memory_text if detail.speed else ""),
        ("step time", detail.speed.division_text(detail.commit_s, detail.commit_write_s) if detail.speed else ""),
        ("durable", durable),
        ("held", f"step {line.held_step}, in memory" if line.held_step > line.committed_step else ""),
        ("kept", _kept_text(detail)),
        ("commits", detail.interval),
        ("spot", _spot_text(detail)),
        ("held out", ", ".join(f"{loss:.4f} at step {step}" for step, loss in detail.held_out)),
        (
            "resume",
            f"{detail.resume}   # on a cluster: planner submit, or --address" if detail.resume else "",
        ),
    ]
    shown = [(name, printable(value)) for name, value in facts if value]
    text = [
        line
        for name, value in shown
        for line in hanging(f"{name:<11}", value, None if name in {"resume", "traceback"} else width)
    ]
    if detail.generations:
        text += ["", *_generation_table(detail)]
    if detail.events:
        text.append("")
    for event in detail.events:
        text += hanging(f"{_clock(event.time_s)}  ", printable(event.text), width)
    return text


def _next_text(detail: RunDetail, now_s: float) -> str:
    """What the controller decides next, with its age if that is not live."""
    is_old = detail.next_time_s is not None and now_s - detail.next_time_s > FRESH_S
    return f"{detail.next} (published {ago(detail.next_time_s, now_s)})" if is_old else detail.next


def _spot_text(detail: RunDetail) -> str:
    if detail.node_use is None:
        return ""
    shown = len(detail.generations)
    within = f" in its newest {shown} generations" if shown < detail.num_generations else ""
    return spot_text(detail.node_use, shlex.quote(detail.summary.run), within)


def _kept_text(detail: RunDetail) -> str:
    """`8 commits on record, files of steps 1324, 1405`."""
    if not detail.num_commits:
        return ""
    steps = ", ".join(map(str, detail.kept_steps)) or "none"
    step = "step" if len(detail.kept_steps) == 1 else "steps"
    return f"{counted(detail.num_commits, 'commit')} on record, files of {step} {steps}"


def _speed_text(detail: RunDetail) -> str:
    samples = f"{detail.samples_per_s:.1f} samples/s over the last steps" if detail.samples_per_s else ""
    return ", ".join(text for text in (samples, detail.speed.rate_text if detail.speed else "") if text)


def _generation_table(detail: RunDetail) -> list[str]:
    columns = ("generation", "workers", "split", "steps", "from", "ended", "recomputed")
    rows = [
        (
            str(each.generation),
            str(each.world_size),
            each.split,
            f"[{each.first_step}, {each.end_step})",
            ("memory" if each.parent_is_held else "commit") if each.parent else "start",
            printable(each.ended),
            str(each.recomputed_before),
        )
        for each in detail.generations
    ]
    earlier = detail.num_generations - len(rows)
    table = aligned([columns, *rows], left={2, 3, 4, 5})
    return [*table, f"and {counted(earlier, 'generation')} before these"] if earlier else table


def _clock(time_s: float | None) -> str:
    """Return `2026-11-21 13:30:00 UTC`, or blanks for None. A time out of range becomes the nearest valid one."""
    if time_s is None:
        return " " * len("2026-11-21 13:30:00 UTC")
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(min(max(time_s, 0.0), _LATEST_S)))

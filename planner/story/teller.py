"""Folds a run's ledger into its story. Memory: some dozen bytes per step, whatever the length of its messages."""

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from planner.events.capacity import Capacity
from planner.events.kinds import KINDS
from planner.store.records import (
    CommitRecord,
    EvalRecord,
    EventRecord,
    GenerationRecord,
    MeasurementRecord,
    Record,
    StepRecord,
)
from planner.store.run_folder import commit_of
from planner.story.capacity import CapacityFold
from planner.story.changes import change_between
from planner.story.curves import Column, Curve, StepTable, curve, rate_curve
from planner.story.measuring import Measurer
from planner.story.phase_builder import PhaseBuilder
from planner.story.run_story import StoryFold
from planner.story.values import Commits, Event, Phase, RunHistory, Told

MOST_EVENTS = 300
"""events that a story keeps: the newest ones"""
MOST_CHARS = 300
"""of an event's message"""


class StoryTeller:
    """Collects a run's records. Give it all records of all generations, oldest first."""

    def __init__(self) -> None:
        self._fold = StoryFold()
        self._measurer, self._capacity = Measurer(), CapacityFold()
        self._building: PhaseBuilder | None = None
        self._phases: list[tuple[GenerationRecord, Phase]] = []
        self._events: list[Event] = []
        self._global_batches: list[int] = []
        self._began_s = 0.0
        self._steps_done = self._samples_done = 0  # those that were undone included
        self._at_risk_s = 0.0
        self._recorded: set[str] = set()
        self._begun: list[tuple[int, int]] = []  # generation, first step
        self._table = StepTable(*_OF_EVERY_STEP)
        self._others: dict[str, Column] = {}
        self._commit_s, self._commit_write_s, self._commit_risk_s = Column(), Column(), Column()

    def add(self, record: Record) -> None:
        """Add one more record."""
        self._fold.add(record)
        self._capacity.add(record, self._fold.clock)
        if isinstance(record, StepRecord):
            self._add_step(record)
        elif isinstance(record, EventRecord):
            if record.event != Capacity.name:
                self._add_event(record)
        elif isinstance(record, MeasurementRecord):
            self._measurer.add(record)
            if self._building:
                self._building.add_measurement(record)
        elif isinstance(record, GenerationRecord):
            self._begin(record)
        else:
            if self._building:
                self._building.end_s = self._fold.clock.now_s
            if isinstance(record, EvalRecord):
                self._add_evaluation(record)
            else:
                self._add_commit(record)

    def _begin(self, header: GenerationRecord) -> None:
        self._began_s = self._began_s or self._fold.clock.now_s - self._fold.clock.times.total_s
        self._finish_phase()
        self._cut(header.step)
        if self._global_batches[-1:] != [header.identity.global_batch]:
            self._global_batches.append(header.identity.global_batch)
        self._begun.append((header.generation, header.step))
        # Steps of earlier generations that are only held are still at risk. The newest commit counts that is on record
        # and not undone: a header that resumes from memory below a commit says nothing of older ones.
        durable = self._commit_s.steps[-1] if self._commit_s.steps else 0
        self._at_risk_s = self._seconds_after(durable) if header.parent_is_held else 0.0
        self._building = PhaseBuilder(header, self._fold.plan)

    def _cut(self, step: int) -> None:
        """Forget what comes after the first `step` steps: this generation does it again."""
        self._table.cut(step + 1)
        self._measurer.cut(step)
        for column in (*self._others.values(), self._commit_s, self._commit_write_s, self._commit_risk_s):
            column.cut(step + 1)

    def _add_step(self, record: StepRecord) -> None:
        now_s = self._fold.clock.now_s
        step = record.step + 1  # steps done, as on trackers and in the terminal
        self._table.add(
            step, record.loss, record.grad_norm, record.lr, record.samples, record.cursor, record.seconds,
            now_s,
        )  # fmt: skip
        self._steps_done += 1
        self._samples_done += record.samples
        for name, value in record.metrics.items():
            self._other(f"train/{name}").add(step, value)
        self._at_risk_s += record.seconds
        if self._building:
            self._building.add(record, now_s)

    def _add_commit(self, record: CommitRecord) -> None:
        """A step became durable. The steps after it, which ran while it was written, are still at risk."""
        self._recorded.add(record.name)
        self._commit_s.add(record.step, record.seconds)
        if record.write_s:
            self._commit_write_s.add(record.step, record.write_s)
        self._commit_risk_s.add(record.step, self._at_risk_s)
        self._at_risk_s = self._seconds_after(record.step)

    def _seconds_after(self, step: int) -> float:
        """Of the steps after a durable one, all generations together."""
        return sum(self._table["seconds"][bisect_right(self._table.steps, step) :])

    def _add_evaluation(self, record: EvalRecord) -> None:
        for name, value in {"loss": record.loss, **record.metrics}.items():
            column = self._other(f"eval/{name}")
            column.cut(record.step)  # a generation repeats the evaluation of its first step
            column.add(record.step, value)

    def _add_event(self, record: EventRecord) -> None:
        text = record.message if len(record.message) <= MOST_CHARS else f"{record.message[:MOST_CHARS]} ..."
        if self._building:
            # Whoever wrote the folder chose the name, and it may be as long as a line.
            kind = record.event if record.event in KINDS else ""
            self._building.add_event(Told(event=kind, text=text))
        generation = self._fold.header.generation if self._fold.header else 0
        self._events.append(Event(time_s=record.time_s, generation=generation, step=self._fold.step, text=text))
        if len(self._events) > 2 * MOST_EVENTS:
            del self._events[:-MOST_EVENTS]

    def _other(self, name: str) -> Column:
        return self._others.setdefault(name, Column())

    def _finish_phase(self) -> None:
        if self._building and (phase := self._building.phase()):
            self._phases.append((self._building.header, phase))
        self._building = None

    # -- the story

    def story(
        self,
        run: str,
        name: str,
        *,
        hosts: Sequence[str] = (),
        versions: Mapping[str, str] | None = None,
        durable: Sequence[str] = (),
    ) -> RunHistory:
        """The story of all records so far. No record may follow.

        Args:
            run: the run's folder or URL.
            name: its name.
            hosts: names of machines on record.
            versions: of software.
            durable: names of all commits that have a manifest.
        """
        self._finish_phase()
        table = self._table
        phases = _kept([(each, _shifted(phase, self._began_s)) for each, phase in self._phases])
        steps, samples = table.steps, int(sum(table["samples"]))
        # Indices of columns that have a value for every step.
        breaks = [phase.first_step - (steps[0] if steps else 0) for _, phase in phases]
        since_began = array("d", (time_s - self._began_s for time_s in table["time"]))
        others = {name: table.curve(name) for name in _SHOWN if steps} | self._other_curves()
        held_out = self._others.get("eval/loss", Column())
        return RunHistory(
            run=run,
            name=name,
            began_s=self._began_s,
            end=self._fold.story,
            samples=samples,
            undone_steps=self._steps_done - len(steps),
            undone_samples=self._samples_done - samples,
            global_batches=tuple(self._global_batches),
            hosts=tuple(hosts),
            phases=tuple(phase for _, phase in phases),
            changes=tuple(change_between(*pair) for pair in pairwise(phases)),
            events=tuple(_since(event, self._began_s) for event in self._events[-MOST_EVENTS:]),
            loss=table.curve("train/loss"),
            loss_by_samples=curve(table["cursor"], table["train/loss"]),
            loss_by_time=curve(since_began, table["train/loss"]),
            held_out=held_out.curve(),
            curves=others,
            speed=rate_curve(steps, table["samples"], table["seconds"], breaks=breaks),
            commits=self._commits(durable),
            measured=self._measurer.measured(),
            versions=dict(versions or {}),
            capacity=self._capacity.capacity(self._fold.clock),
        )

    def _other_curves(self) -> dict[str, Curve]:
        known = sorted(self._others.items())
        return {name: each.curve() for name, each in known if name != "eval/loss" and each.steps}

    def _commits(self, durable: Sequence[str]) -> Commits:
        lost = (commit_of(name) for name in durable if name not in self._recorded)
        return Commits(
            number=len(self._commit_s.steps),
            unrecorded=tuple(sorted(step for step, by in lost if self._counts(step, by))),
            seconds=self._fold.clock.times.committing_s,
            most_at_risk_s=max(self._commit_risk_s.values, default=0.0),
            cost=self._commit_s.curve(),
            durable_after=self._commit_write_s.curve(),
            at_risk=self._commit_risk_s.curve(),
        )

    def _counts(self, step: int, generation: int) -> bool:
        """Whether no later generation has undone a commit."""
        return all(first >= step for later, first in self._begun if later > generation)


_SHOWN = ("train/grad_norm", "train/lr")
_OF_EVERY_STEP = ("train/loss", *_SHOWN, "samples", "cursor", "seconds", "time")
_Headed = tuple[GenerationRecord, Phase]


def _kept(phases: Sequence[_Headed]) -> list[_Headed]:
    """The phases, each with the end of its steps that no later phase did again."""
    kept: list[_Headed] = []
    again = None
    for header, phase in reversed(phases):
        end = phase.end_step if again is None else max(min(phase.end_step, again), phase.first_step)
        kept.append((header, replace(phase, kept_step=end)))
        again = phase.first_step if again is None else min(again, phase.first_step)
    return kept[::-1]


def _shifted(phase: Phase, began_s: float) -> Phase:
    batch = replace(phase.batch, x=tuple(x - began_s for x in phase.batch.x))
    return replace(phase, start_s=phase.start_s - began_s, end_s=phase.end_s - began_s, batch=batch)


def _since(event: Event, began_s: float) -> Event:
    return replace(event, time_s=event.time_s - began_s)

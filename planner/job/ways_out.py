"""What a job that does not fit into its GPUs may change, and what a worker then needs. Pure: a caller measures models.

Settings are tried one by one in a fixed order, each alone, until one fits. If none does, they are joined in that order
until they fit together. Measuring takes seconds, so a caller's function is called only where that rule needs it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from pydantic import ValidationError

from planner.base.text import counted
from planner.job.job import Job, workers_of
from planner.job.memory import JobMemory, gpu_need, largest_micro, largest_tokens, least_need
from planner.job.model import HfModel
from planner.job.section import STORED_JOB
from planner.plan import BatchSizes, make_plan
from planner.plan.commit_size import NotKnown
from planner.plan.factory import MAX_WORKERS

MOST_GPUS = 8
"""times the GPUs of a plan: the most that are looked at"""
_LORA: Mapping[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Change:
    """Settings that need less memory, and the job with them."""

    text: str
    """such as `train.precision: bf16`"""
    job: Job


@dataclass(frozen=True, kw_only=True)
class WayOut:
    """A change, and what a worker needs with it."""

    change: str
    """settings, or `16 GPUs`"""
    world_size: int
    """at which it was tried"""
    needed_bytes: int | None
    """None if that is not known"""
    fits: bool


@dataclass(frozen=True, kw_only=True)
class WaysOut:
    """What was tried for a plan that does not fit."""

    world_size: int
    """of the plan"""
    tried: tuple[WayOut, ...]
    """in the order of the module's rule: settings, then smaller micro-batches, then more GPUs"""


Measure = Callable[[Change], JobMemory | NotKnown]
"""what workers need with a change"""


def changes(job: Job) -> list[Change]:
    """Each setting that may need less memory, alone, in the order to try them."""
    made = [(dict([setting]), _with(job, dict([setting]))) for setting in _settings(job)]
    return [Change(text=_text(settings), job=changed) for settings, changed in made if changed is not None]


def combinations(job: Job) -> Iterator[Change]:
    """The same settings, joined one after the other. A later one replaces an earlier one of its name."""
    joined: dict[str, Any] = {}
    for name, value in _settings(job):
        changed = _with(job, {**joined, name: value})
        if changed is None:
            continue
        joined[name] = value
        if len(joined) > 1:
            yield Change(text=_text(joined), job=changed)


def _settings(job: Job) -> list[tuple[str, Any]]:
    """Names of settings with their values, in the order to try them: those that change the training least first."""
    model, train = job.model, job.train
    ways: list[tuple[str, Any, bool]] = [
        ("train.precision", "bf16", train.precision == "fp32"),
        ("train.activation_checkpointing", "selective", not train.activation_checkpointing),
        ("train.activation_checkpointing", True, train.activation_checkpointing is not True),
        ("model.lora", _LORA, isinstance(model, HfModel) and model.lora is None),
        ("model.frozen", "nf4", isinstance(model, HfModel) and model.frozen == "fp32"),
    ]
    return [(name, value) for name, value, helps in ways if helps]


def _with(job: Job, settings: Mapping[str, Any]) -> Job | None:
    """The job with other settings. None if there is no such job."""
    values = job.model_dump(mode="json", by_alias=True)
    for name, value in settings.items():
        section, _, key = name.partition(".")
        values[section][key] = value
    try:
        return Job.model_validate(values, context=STORED_JOB)
    except ValidationError:
        return None


def _joined(*texts: str) -> str:
    return " + ".join(filter(None, texts))


def _text(settings: Mapping[str, Any]) -> str:
    return _joined(*(_setting(name, value) for name, value in settings.items()))


def _setting(name: str, value: Any) -> str:
    """As a job file has it. Adapters have settings of their own, so the section is named alone."""
    return name if value is _LORA else f"{name}: {'true' if value is True else value}"


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A plan of a job that does not fit into its GPUs."""

    job: Job
    sizes: BatchSizes
    """of the plan"""
    world_size: int
    num_bytes: int
    """of one GPU, or one worker's part of it"""

    def way(self, change: str, memory: JobMemory | NotKnown, world_size: int | None = None) -> WayOut:
        """What a change leads to."""
        count = world_size or self.world_size
        needed = None if isinstance(memory, NotKnown) else self._needed(memory, count)
        fits = needed is not None and needed <= self.num_bytes
        return WayOut(change=change, world_size=count, needed_bytes=needed, fits=fits)

    def _needed(self, memory: JobMemory, world_size: int) -> int:
        if self.job.batch.max_micro == "auto":
            return least_need(memory, self.sizes, world_size, self.num_bytes).total
        return gpu_need(memory, make_plan(self.sizes, world_size), self.num_bytes).total

    def smaller(self, memory: JobMemory, before: str = "") -> list[WayOut]:
        """The largest micro-batch that fits, else the smallest one. Nothing if the plan has no smaller one.

        `before` are settings that this is added to.
        """
        sizes = self.sizes
        if sizes.max_tokens is not None:
            if sizes.max_tokens <= memory.longest:
                return []
            most = largest_tokens(memory, sizes, self.world_size, self.num_bytes) or memory.longest
            sizes, text = replace(sizes, max_tokens=most), f"batch.max_tokens: {most}"
        elif self.job.batch.max_micro == "auto" or make_plan(sizes, self.world_size).max_micro_batch == 1:
            return []
        else:
            most = largest_micro(memory, sizes, self.world_size, self.num_bytes) or 1
            sizes, text = replace(sizes, max_micro=most), f"batch.max_micro: {most}"
        return [replace(self, sizes=sizes).way(_joined(before, text), memory)]

    def more_gpus(self, memory: JobMemory, before: str = "") -> list[WayOut]:
        """The fewest GPUs with which it fits, else the most that are looked at. More than samples help nothing."""
        most = min(MOST_GPUS * self.world_size, self.sizes.global_batch, MAX_WORKERS)
        tried = (self.way("", memory, count) for count in range(self.world_size + 1, most + 1))
        found = next((way for way in tried if way.fits), self.way("", memory, most))
        if found.world_size <= self.world_size:
            return []
        text, count = counted(found.world_size, "GPU"), found.world_size
        if found.fits and count > workers_of(self.job).most:
            text += f" (workers.max: {count})"
        return [replace(found, change=f"{before} on {text}" if before else text)]


def ways_out(misfit: Misfit, memory: JobMemory, measure: Measure) -> WaysOut:
    """Try what a job may change so that a plan fits.

    Args:
        misfit: the plan.
        memory: of the job as it is.
        measure: is called for jobs with other settings, unless a smaller micro-batch is enough.
    """
    smaller = misfit.smaller(memory)
    measured = [] if any(way.fits for way in smaller) else _measured(misfit, measure)
    return WaysOut(world_size=misfit.world_size, tried=(*measured, *smaller, *misfit.more_gpus(memory)))


def _measured(misfit: Misfit, measure: Measure) -> list[WayOut]:
    """Each setting alone until one fits. Else also the first of them that fit together, or all and what to add."""
    alone, tried = changes(misfit.job), list[WayOut]()
    last: tuple[str, JobMemory] | None = None
    for change in chain(alone, combinations(misfit.job)):
        found = measure(change)
        if not isinstance(found, NotKnown):
            last = change.text, found
        tried.append(misfit.way(change.text, found))
        if tried[-1].fits:
            break
    shown = [*tried[: len(alone)], *tried[len(alone) :][-1:]]
    if last is None or (shown and shown[-1].fits):
        return shown
    text, found = last
    smaller = misfit.smaller(found, text)
    return [*shown, *smaller, *([] if any(way.fits for way in smaller) else misfit.more_gpus(found, text))]

"""Hooks of a bench in the workers: every step, and on wish every phase of a resize, with the moment, in one file.

The ledger would do for steps, but on slow storage its lines arrive seconds later. `time.monotonic` is the same in all
processes of this machine, so the moments of all workers and of the driver can be compared.
"""

import functools
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from planner.dispatch.worker import worker_hooks
from planner.train.hooks import Hooks
from planner.train.setup import Launch

FILE = "PLANNER_BENCH_STEPS"
"""environment: the file to which every worker appends lines"""
SPANS = "PLANNER_BENCH_SPANS"
"""environment: 1 if phases are wanted"""

# What a worker does between its last step and the first one of its next generation.
_PHASES = {
    "planner.train.world.World": ("join",),
    "planner.train.lifecycle": (
        "newest_held",
        "require_shared_storage",
        "set_up",
        "claim",
        "load_held",
        "_loaded",
        "_make_memory",
        "_make_commits",
    ),
    "planner.train.checkpoints.checkpoint": ("load", "check_files"),
    "planner.train.generation": ("begin", "make_state"),
    "planner.train.loop": ("_ready", "prepared", "accumulate"),
    "planner.train.memory_copies.MemoryCopies": ("keep",),
    "planner.train.commits.Commits": ("begin", "finish", "give_up", "close"),
    "planner.train.journal.Journal": ("__init__", "close"),
}
# Tells whether a generation began from memory, as it should.
_ALWAYS = {"planner.train.lifecycle": ("load_held",)}


def hooks(launch: Launch) -> Hooks:
    """Planner's own hooks of a Ray worker, and a line for every step."""
    _time_phases(_PHASES if os.environ.get(SPANS) == "1" else _ALWAYS)
    note("phase", name="hooks")
    return replace(worker_hooks(launch), observe=lambda step, _state, _work: note("step", step=step))


def note(kind: str, **values: Any) -> None:
    """Append a line. It is short, so lines of several processes do not mix."""
    if os.environ.get(FILE):
        import torch.distributed as dist

        at_s = time.monotonic()
        line = {"at_s": at_s, "kind": kind, "rank": dist.get_rank(), "world_size": dist.get_world_size(), **values}
        descriptor = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)


_timed: set[str] = set()


def _time_phases(phases: dict[str, tuple[str, ...]]) -> None:
    """Put clocks around these functions. A kept process has them already."""
    for place, names in phases.items():
        owner = _owner(place)
        for name in names:
            text = f"{place.rsplit('.', 1)[-1]}.{name}"
            if text not in _timed and hasattr(owner, name):
                _timed.add(text)
                setattr(owner, name, _clocked(text, owner.__dict__[name]))


def _owner(place: str) -> Any:
    """A module or a class."""
    import importlib

    try:
        return importlib.import_module(place)
    except ModuleNotFoundError:
        module, _, name = place.rpartition(".")
        return getattr(importlib.import_module(module), name)


def _clocked(text: str, function: Any) -> Any:
    if isinstance(function, classmethod):
        return classmethod(_clocked(text, function.__func__))

    @functools.wraps(function)
    def clocked(*arguments: Any, **options: Any) -> Any:
        began_s = time.monotonic()
        try:
            return function(*arguments, **options)
        finally:
            note("span", name=text, began_s=began_s)

    inner: Callable[..., Any] = clocked
    return inner

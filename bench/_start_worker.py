"""One worker of `bench/start.py`: it joins a group and trains, and notes when it was how far."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest import mock

from _lines import write

from planner.job import Job

LOOPBACK = "127.0.0.1"
MARKS = (
    "process",
    "default group",
    "second group",
    "mesh",
    "agreement",
    "model",
    "records",
    "first step",
    "second step",
)
"""what a worker has behind it, in this order"""
LAZY = "TORCH_GLOO_LAZY_INIT"
"""environment, of torch: gloo connects two workers when they first exchange something"""


def started(rank: int, world_size: int, port: int, job: Job, url: str, log: str, groups: str) -> None:
    """Train until the caller ends this process.

    Args:
        rank: of this worker.
        world_size: of the group.
        port: of torch's store on loopback.
        job: what to train.
        url: the run's folder.
        log: the file of the marks.
        groups: `two`, `lazy` (two whose connections are made when they are used) or `one`.
    """

    def mark(name: str) -> None:
        write(log, name, rank=rank, at_s=time.monotonic())

    mark("process")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if groups == "lazy":
        os.environ[LAZY] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    timeout = timedelta(seconds=600)
    store = dist.TCPStore(LOOPBACK, port, world_size, is_master=False, timeout=timeout, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    mark("default group")
    _train(job, url, mark, is_one=groups == "one")


def _train(job: Job, url: str, mark: Callable[[str], None], *, is_one: bool) -> None:
    from planner.train.generation import train
    from planner.train.hooks import Hooks
    from planner.train.setup import Launch
    from planner.train.world import cpu_device

    def observe(step: int, *_: object) -> None:
        if step < 2:
            mark(("first step", "second step")[step])

    with _marked(mark, is_one=is_one):
        train(Launch(job=job, url=url), cpu_device, Hooks(observe=observe))


@contextlib.contextmanager
def _marked(mark: Callable[[str], None], *, is_one: bool) -> Iterator[None]:
    """Marks at the ends of the functions that make up a start."""
    import torch.distributed as dist

    from planner.train import generation, lifecycle
    from planner.train.world import World

    def after(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def marked(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            mark(name)
            return result

        return marked

    new_group: Callable[..., Any] = (lambda **_: dist.group.WORLD) if is_one else dist.new_group
    with (
        mock.patch.object(dist, "new_group", after(new_group, "second group")),
        mock.patch.object(World, "join", after(World.join, "mesh")),
        mock.patch.object(generation, "begin", after(generation.begin, "agreement")),
        mock.patch.object(generation, "make_state", after(generation.make_state, "model")),
        mock.patch.object(lifecycle, "_make_commits", after(lifecycle._make_commits, "records")),  # noqa: SLF001
    ):
        yield

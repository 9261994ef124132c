"""Generations that abandon a step at a round of the test's choice: what runs in worker processes."""

from contextlib import contextmanager

from kept_runs import SECRET, join_background

from planner.events.training import DataNote
from planner.keeper.addresses import Keepers
from planner.train.generation import train
from planner.train.hooks import Hooks
from planner.train.setup import Launch
from planner.train.world import cpu_device


@contextmanager
def asking(gap):
    """Patch this process so that workers ask each other every `gap` rounds, however short they are. 0: as they do."""
    from planner.train import cuts

    short_s, gap_of = cuts._SHORT_STEP_S, cuts._gap
    if gap:
        cuts._SHORT_STEP_S, cuts._gap = 0.0, lambda _round_s: gap
    try:
        yield
    finally:
        cuts._SHORT_STEP_S, cuts._gap = short_s, gap_of


@contextmanager
def accumulating(where):
    """Patch this process so that gradients are kept as `sharded` or `local` between rounds. Empty: as planner does."""
    from planner.train import lifecycle

    choose = lifecycle.accumulator_placement
    if where:
        lifecycle.accumulator_placement = lambda *_: where
    try:
        yield
    finally:
        lifecycle.accumulator_placement = choose


class Asked:
    """What a worker is asked. The last rank wants to leave the step `cut_at` when it is asked `after` times in it."""

    def __init__(self, rank, *, cut_at, stop_at, after, before_step):
        self._rank, self._cut_at, self._stop_at, self._after = rank, cut_at, stop_at, after
        self._before_step, self._step = before_step, 0
        self.steps = []
        """the step in flight, for each question whether to leave it"""
        self._events = []

    @property
    def _is_last_rank(self):
        import torch

        return self._rank == torch.distributed.get_world_size() - 1

    def should_stop(self, step):
        self._before_step(step)
        self._step = step
        return self._is_last_rank and self._stop_at is not None and step >= self._stop_at

    def should_cut(self):
        self.steps.append(self._step)
        wants = self._step == self._cut_at and self.steps.count(self._step) >= self._after
        if wants:
            self._events.append(DataNote(text="why the step is cut"))
        return self._is_last_rank and wants

    def events(self):
        found, self._events = self._events, []
        return found


def run_cut(
    rank,
    job,
    url,
    cut_at=None,
    *,
    stop_at=None,
    after=1,
    gap=1,
    where="",
    nodes="",
    addresses=(),
    may_hold=True,
    before_step=join_background,
):
    """One generation that abandons step `cut_at` when its last rank is asked for the `after`th time in it.

    Gives its end, and the step in flight for each question.
    """
    asked = Asked(rank, cut_at=cut_at, stop_at=stop_at, after=after, before_step=before_step)
    keepers = Keepers(node=nodes[rank], addresses=tuple(addresses), secret=SECRET) if nodes else None
    hooks = Hooks(
        should_stop=asked.should_stop,
        should_cut=asked.should_cut,
        may_hold=lambda: may_hold,
        keepers=lambda: keepers,
        events=asked.events,
    )
    launch = Launch(job=job, url=url, launch_id="cut", keeper_secret=SECRET if nodes else "")
    with asking(gap), accumulating(where):
        return train(launch, cpu_device, hooks), asked.steps


def at_once(_step):
    """For `before_step`: wait for nothing."""

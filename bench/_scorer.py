"""Loads a scorer of spot policies, and drives today's controller in it.

The scorer (`scorer.py`, a path given on the command line) was written against version 0.1.0. It imports names that are
gone, so stand-ins are put in their place, and its class `Ours` is replaced.
"""

import importlib.util
import math
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from planner.elastic.controller import ElasticController
from planner.elastic.states import Rules
from planner.elastic.view import View
from planner.events.failures import WorkerDied
from planner.plan import BatchSizes, WorkerRange, make_plan
from planner.plan.growth import ResizeCost
from planner.plan.interval import checkpoint_interval
from planner.plan.plan import Plan


def load(path: Path) -> Any:
    """The scorer as a module."""
    _stand_ins()
    spec = importlib.util.spec_from_file_location("scorer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scorer"] = module
    spec.loader.exec_module(module)
    return module


def _stand_ins() -> None:
    """Names of version 0.1.0."""
    import planner.plan

    steward: Any = ModuleType("planner.dispatch.steward")
    steward.Steward, steward.View = ElasticController, View
    sys.modules["planner.dispatch.steward"] = steward
    names: Any = planner.plan
    names.Facts = lambda: None
    names.ResizeCost, names.checkpoint_interval = ResizeCost, checkpoint_interval
    names.choose = lru_cache(100_000)(lambda sizes, world_size, _facts=None: make_plan(sizes, world_size))
    plan: Any = Plan
    plan.at = lru_cache(200_000)(lambda self, workers: make_plan(_SIZES[self.global_batch, self.max_micro], workers))


_SIZES: dict[tuple[int, int], BatchSizes] = {}
_LOOK_S = 1.0


class Controlled:
    """Today's controller as a policy of the scorer: one worker per node, commits that stop training, no keepers."""

    name = "ours"

    def __init__(self, rooms: list[int] | None = None, name: str = "ours") -> None:
        """`rooms`: the worker counts that it may see. None: all."""
        self._rooms, self.name = rooms, name

    def begin(self, sim: Any) -> None:
        """A launch."""
        speed, setting = sim.speed, sim.s
        sizes = speed.sizes
        _SIZES[sizes.global_batch, sizes.max_micro] = sizes
        workers = WorkerRange(least=setting.least, most=min(speed.most, setting.G))
        self.controller = ElasticController(
            Rules(sizes=sizes, workers=workers, has_eval=False),
            cost=setting.default,
            clock=lambda: sim.t,
        )
        self._active_until, self._warm_at, self._newcomers = 0.0, math.inf, "none"
        self._warm_nodes: tuple[str, ...] = ()
        self._counted = self._done = 0
        self._has_parked = False

    def _room(self, sim: Any) -> dict[str, int]:
        names = sim.ready
        if self._rooms:
            count = max((size for size in self._rooms if size <= len(names)), default=0)
            names = sorted(names, key=lambda node: node not in sim.group)[:count]
        return dict.fromkeys(names, 1)

    def stepped(self, sim: Any) -> None:
        """Rank 0 reports each step."""
        seconds = sim.speed.step(len(sim.group))
        again = max(self._done - int(sim.done) + 1, 0)
        self._done = max(self._done, int(sim.done))
        self.controller.reported(
            {
                "step": int(sim.done) - 1,
                "total_steps": 10**9,
                "world_size": len(sim.group),
                "seconds": seconds,
                "step_cost": sim.speed.sizes.global_batch,
                "num_again": again,
                "held_step": int(sim.committed),
                "copied_step": 0,
                "durable_step": int(sim.committed),
                "is_last": False,
                "commit_s": sim.last_commit_s,
                "eval_s": 0.0,
            }
        )

    def failed(self, sim: Any) -> None:
        """A node of the group died."""
        self._newcomers, self._warm_at = "none", math.inf
        self.controller.failed(frozenset(sim.dead), frozenset(), WorkerDied(rank=0, node=None))

    def poll(self, sim: Any, happened: bool) -> float:
        """Look and act. Returns the seconds until the next look."""
        if happened:
            self._active_until = sim.t + 15
        if sim.phase == "detect":
            return _LOOK_S
        room = self._room(sim)
        self._do(sim, self.controller.step(self._view(sim, room)), room)
        if sim.phase in ("parked", "idle"):
            return 2.0
        is_busy = sim.stop or self._newcomers != "none" or sim.t < self._active_until
        return _LOOK_S if is_busy or any(name in sim.draining for name in sim.group) else 6.0

    def _view(self, sim: Any, room: dict[str, int]) -> View:
        if not sim.group:
            return View(room=room, draining={})
        if self._newcomers == "warming":
            if any(node not in sim.alive for node in self._warm_nodes):
                self._newcomers = "failed"
            elif sim.t >= self._warm_at + sim.s.lead:
                self._newcomers = "ready"
        is_parked = sim.phase == "parked"
        if is_parked and not self._has_parked:
            self.controller.committed(sim.s.save, sim.s.save)
        self._has_parked = is_parked
        return View(
            room=room,
            draining={name: max(0.0, node.leaves - sim.t) for name, node in sim.draining.items()},
            nodes=sim.group,
            parked=frozenset(range(len(sim.group))) if is_parked else frozenset(),
            newcomers=self._newcomers,  # type: ignore[arg-type]
            progress=int(sim.t),  # it never hangs
        )

    def _do(self, sim: Any, act: Any, room: dict[str, int]) -> None:
        sim.words += [(sim.t, event) for event in act.events]
        if act.kind == "nothing":
            return
        self._active_until = sim.t + 15
        if act.kind == "warm":
            self._newcomers, self._warm_at = "warming", sim.t
            self._warm_nodes = tuple(node for node in room if node not in sim.group)[: act.world_size]
        elif act.kind == "abandon_newcomers":
            self._newcomers = "none"
        elif act.kind == "stop":
            sim.stop = True
            if act.cut:
                sim.cut()
        elif act.kind == "resize":
            self._newcomers = "none"
            group = sorted(room, key=lambda node: (node not in sim.group, node not in self._warm_nodes))
            sim.start(group[: act.world_size], sim.s.restart, act.planned or not sim.group)
            self._has_parked = False
            self.controller.started(tuple(group[: act.world_size]))

"""The product's controller as a policy: it sees nodes and notices as on a cluster, and all of its acts are done."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from planner.elastic.controller import ElasticController
from planner.elastic.states import Rules
from planner.elastic.view import Act, View
from planner.events.failures import WorkerDied
from planner.plan.growth import KEPT_PROCESSES
from planner.simulation.engine import Run
from planner.simulation.world import Speed, ideal_steps

# The run is this much longer than the trace, so what is left of it never decides.
_TIMES_THE_TRACE = 100
# While places are unused, the answer depends on the time that is left and on measured times, which change slowly.
_LOOK_S = 60.0

_WHAT = {"warm": "warms", "abandon_newcomers": "calls off", "stop": "stops", "resize": "starts"}


class Controlled:
    """Drives an `ElasticController`. Stops are commits: nothing is kept in memory."""

    def __init__(self, speed: Speed, counts: Sequence[int] = (), name: str = "ours") -> None:
        """Begin a launch.

        Args:
            speed: of the job.
            counts: the worker counts that the controller may have. Empty: all of the job's.
            name: of the policy.
        """
        self.name = name
        self._counts, self._per_node = tuple(sorted(counts)), speed.node_workers
        self._now_s = 0.0
        self._total_steps = 0
        self.controller = ElasticController(
            Rules(sizes=speed.sizes, workers=speed.workers, has_eval=False),
            cost=KEPT_PROCESSES,
            clock=lambda: self._now_s,
        )
        self._newcomers: Literal["none", "warming", "ready", "failed"] = "none"
        self._ready_s = 0.0
        self._warm_nodes: frozenset[str] = frozenset()
        self._reported = 0
        self._most_reported = 0
        self._has_parked = False

    def look(self, run: Run) -> float:
        """Report what is new, let the controller decide, and do it."""
        if run.phase == "detect":
            return math.inf
        self._total_steps = self._total_steps or math.ceil(_TIMES_THE_TRACE * ideal_steps(run.lives, run.speed))
        self._report(run)
        self._now_s = run.now_s
        view = self._view(run)
        self._do(run, self.controller.step(view), view)
        view = self._view(run)
        next_s = self.controller.next_decision(view).due_s
        if self._newcomers == "warming":
            next_s = min(next_s, self._ready_s)
        elif run.group and sum(view.room.values()) > len(run.group):
            next_s = min(next_s, run.now_s + _LOOK_S)
        return next_s

    def losing(self, run: Run) -> None:
        """Report the steps that were done."""
        self._report(run)

    def failed(self, run: Run, dead: frozenset[str]) -> None:
        """Tell the controller that nodes of the group are lost."""
        self._now_s = run.now_s
        self._newcomers = "none"
        self.controller.failed(dead, frozenset(), WorkerDied(rank=0, node=None))

    def _report(self, run: Run) -> None:
        """Report the newest step as rank 0 does, at the time at which it ended."""
        steps = run.group_steps
        if steps <= self._reported or not run.group:
            return
        self._now_s = max(self._now_s, min(run.last_step_s, run.now_s))
        done = run.done
        self.controller.reported(
            {
                "step": done - 1,
                "total_steps": self._total_steps,
                "world_size": len(run.group),
                "seconds": run.step_s,
                "step_cost": run.speed.sizes.global_batch,
                "num_again": max(self._most_reported - done + 1, 0),
                "held_step": run.committed,
                "copied_step": 0,
                "durable_step": run.committed,
                "is_last": False,
                "commit_s": run.last_commit_s,
                "eval_s": 0.0,
            }
        )
        self._reported, self._most_reported = steps, run.most_done

    def _places(self, run: Run) -> dict[str, int]:
        """Node -> workers that it can have. With few counts, as many places as the largest that fits."""
        nodes = [node for node in run.alive if node not in run.draining]
        if not self._counts:
            return dict.fromkeys(nodes, self._per_node)
        most = max((count for count in self._counts if count <= len(nodes) * self._per_node), default=0)
        room: dict[str, int] = {}
        for node in sorted(nodes, key=lambda node: node not in run.group):
            if places := min(self._per_node, most - sum(room.values())):
                room[node] = places
        return room

    def _view(self, run: Run) -> View:
        room = self._places(run)
        if not run.group:
            return View(room=room, draining={})
        if self._newcomers == "warming":
            if not self._warm_nodes <= run.alive.keys():
                self._newcomers = "failed"
            elif run.now_s >= self._ready_s:
                self._newcomers = "ready"
        is_parked = run.phase == "parked"
        if is_parked and not self._has_parked:
            self.controller.committed(run.costs.save_s, run.costs.save_s)
        self._has_parked = is_parked
        return View(
            room=room,
            draining={node: max(0.0, leaves_s - run.now_s) for node, leaves_s in run.draining.items()},
            nodes=run.group,
            parked=frozenset(range(len(run.group))) if is_parked else frozenset(),
            newcomers=self._newcomers,
            progress=int(run.now_s),  # it never hangs
        )

    def _do(self, run: Run, act: Act, view: View) -> None:
        """Do what the controller wants."""
        match act.kind:
            case "warm":
                free = [place for place in _by_age(run, view.room) if place not in run.group]
                self._warm_nodes = frozenset(free[: act.world_size])
                self._newcomers, self._ready_s = "warming", run.now_s + run.costs.lead_s
            case "abandon_newcomers":
                self._newcomers = "none"
            case "stop":
                run.ask_to_stop(cut=act.cut)
            case "resize":
                self._resize(run, act, view)
            case _:
                pass
        if act.kind in _WHAT or act.events:
            run.tell(_WHAT.get(act.kind, "waits"), act.events)

    def _resize(self, run: Run, act: Act, view: View) -> None:
        """Start the next group, on nodes of the last one first, then on those with newcomers."""
        places = _by_age(run, view.room)
        places.sort(key=lambda node: (node not in run.group, node not in self._warm_nodes))
        group = tuple(places[: act.world_size])
        if len(group) < act.world_size:
            self.controller.unplaced(len(group), act.world_size)
            return
        self._newcomers, self._warm_nodes, self._reported, self._has_parked = "none", frozenset(), 0, False
        run.start(group, planned=act.planned or not run.group)
        self.controller.started(group)


def _by_age(run: Run, room: Mapping[str, int]) -> list[str]:
    """The node of each place, oldest nodes first."""
    return [node for node in run.alive for _ in range(room.get(node, 0))]

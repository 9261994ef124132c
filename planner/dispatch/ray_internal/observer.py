"""Looks at Ray's cluster and at the group that runs, for the elastic controller's `View`, and hears how groups fare."""

import logging
import time
from collections.abc import Mapping, Sequence

import ray

from planner.base.node_market import MARKET_LABEL, ON_DEMAND
from planner.base.text import last_line
from planner.dispatch import mailbox
from planner.dispatch.keeper_census import Census
from planner.dispatch.keepers import NodePlace, places
from planner.dispatch.ray_internal import kv_get
from planner.dispatch.ray_internal.autoscaler import Autoscaler
from planner.dispatch.ray_internal.diagnosis import (
    cause,
    culprit,
    has_died,
    lost_memory,
    mistake_of,
    out_of_memory,
    silent_nodes,
)
from planner.dispatch.ray_internal.group_names import PollStatus, Worker
from planner.dispatch.ray_internal.groups import NewProcessesGroup
from planner.dispatch.ray_internal.reporter import Reporter
from planner.dispatch.ray_internal.worker_progress import WorkerProgress
from planner.elastic.controller import ElasticController
from planner.elastic.floor import kept_workers, num_on_demand
from planner.elastic.view import View
from planner.events.failures import StartFailed
from planner.events.outlook import Starts

_log = logging.getLogger(__name__)

# Ray sets this label on every node (https://docs.ray.io/en/latest/ray-core/scheduling/labels.html).
NODE_ID_LABEL = "ray.io/node-id"
# Time between two looks at the cluster. Each costs the coordinator a few ms.
_LOOK_S = 0.5
# Time between two probes of a node that did not answer but is alive for Ray.
_PROBE_AGAIN_S = 5.0


class Observer:
    """What is known of the cluster and of the group that runs. It is the `Listener` of the groups."""

    def __init__(
        self, controller: ElasticController, reporter: Reporter, autoscaler: Autoscaler, launch_id: str
    ) -> None:
        self._controller, self._reporter, self._autoscaler = controller, reporter, autoscaler
        self._launch_id = launch_id
        self.census: Census | None = None
        """looks after the keepers of the launch. None: it has none"""
        self.group: NewProcessesGroup | None = None
        """the one that runs"""
        self.room: Mapping[str, int] = {}
        """node -> workers, without nodes that are dead or have notice"""
        self.num_bad = 0
        """the part of `room` on nodes whose workers keep dying"""
        self.markets: Mapping[str, str] = {}
        """node -> its label of how it is rented. Nodes without this label are missing"""
        self.hosts: Mapping[str, str] = {}
        """node -> name"""
        self.places: Mapping[str, NodePlace] = {}
        """what a keeper must know of its node. Empty without a census"""
        self._looked_s = self._probed_s = float("-inf")
        self._draining: Mapping[str, float] = {}
        self._dead: frozenset[str] = frozenset()
        self._suspects: set[str] = set()
        self._parked: set[int] = set()
        self._worker_progress = WorkerProgress()
        self._is_ending = False

    # -- the cluster

    def is_due(self, num_workers: int) -> bool:
        """Whether to look again: each half second, and as soon as all workers of the group have parked."""
        return len(self._parked) == num_workers or time.monotonic() - self._looked_s >= _LOOK_S

    def look(self) -> bool:
        """Refresh what is known of the cluster. False if the cluster did not answer."""
        self._looked_s = time.monotonic()
        try:
            room = self._autoscaler.room()
            draining = ray._private.state.state.get_draining_nodes() or {}
            known = ray.nodes()
            nodes = {node["NodeID"]: node for node in known if node["Alive"]}
            if kv_get(mailbox.end_request_key(self._launch_id)):
                self._is_ending = True
        except Exception:  # noqa: BLE001  # no error here may end a group that trains
            _log.warning("the query for the cluster's nodes failed", exc_info=True)
            return False
        now_s = time.time()
        self.hosts = {node: found.get("NodeManagerHostname", "") for node, found in nodes.items()}
        if self.census is not None:
            self.places = places(nodes.values())
        labels = {node: (found.get("Labels") or {}).get(MARKET_LABEL) for node, found in nodes.items()}
        self.markets = {node: market for node, market in labels.items() if market}
        self._suspects &= set(nodes)
        if self._suspects and time.monotonic() - self._probed_s > _PROBE_AGAIN_S:
            self._probed_s = time.monotonic()
            self._suspects = silent_nodes(self._suspects)
        self._draining = {
            node: max(deadline_ms / 1000 - now_s, 0.0) if deadline_ms else float("inf")
            for node, deadline_ms in draining.items()
            if node in nodes
        }
        self._dead = frozenset(node["NodeID"] for node in known if not node["Alive"]) | self._suspects
        # Nodes whose workers keep dying count here: the controller excludes them if enough is left without them.
        usable = nodes.keys() - self.leaving
        self.room = {node: count for node, count in room.items() if node in usable}
        self.num_bad = sum(self.room.get(node, 0) for node in self._controller.bad_nodes)
        return True

    @property
    def leaving(self) -> set[str]:
        """Nodes with notice, and nodes that do not answer."""
        return {*self._draining, *self._suspects}

    @property
    def on_demand(self) -> frozenset[str]:
        """The nodes that the job's floor may be on. Empty if it has none."""
        found = frozenset(node for node, market in self.markets.items() if market == ON_DEMAND)
        return found if self._controller.floor else frozenset()

    @property
    def num_on_demand(self) -> int:
        """The workers that on-demand nodes have room for."""
        return sum(self.room.get(node, 0) for node in self.on_demand)

    def label_selectors(self, kept: Sequence[str], count: int) -> list[dict[str, str]] | None:
        """The labels that the nodes of `count` more workers must have now, beside those on `kept`. None: any nodes.

        They keep workers off bad nodes if there is enough room without them. With a floor, they name the kind of each
        node: Ray would place a worker without such a label first, perhaps on the node that another one needs.
        """
        avoided = {*self._controller.bad_nodes, *self._suspects}
        usable = {node: places for node, places in self.room.items() if node not in avoided}
        if sum(usable.values()) < len(kept) + count:
            avoided, usable = set(), dict(self.room)
        every = {NODE_ID_LABEL: f"!in({','.join(sorted(avoided))})"} if avoided else {}
        if not self._controller.floor:
            return [every] * count if every else None
        first = num_on_demand(kept, count, usable, self.on_demand)
        kinds = [ON_DEMAND] * first + [f"!{ON_DEMAND}"] * (count - first)
        return [{**every, MARKET_LABEL: kind} for kind in kinds]

    def kept_workers(self, nodes: Sequence[str], size: int) -> list[int]:
        """The workers that go on in a group of `size`, by their places in `nodes`, which has the node of each."""
        return kept_workers(nodes, size, self.room, self.on_demand, self._controller.floor)

    def _probe(self, nodes: set[str]) -> set[str]:
        """The nodes that do not answer. They are suspects from now on."""
        silent = silent_nodes(nodes)
        self._suspects |= silent
        return silent

    # -- the group that runs

    def view(self, workers: Sequence[Worker] = ()) -> View:
        """What is known now. `workers` are those of the group that runs, by rank."""
        nodes = tuple(worker.metadata.node_id for worker in workers)
        return View(
            room=self.room,
            draining=self._draining,
            dead=self._dead,
            markets=self.markets,
            nodes=nodes,
            can_hold=self.census is not None and self.census.can_hold(nodes),
            parked=frozenset(self._parked),
            silent=frozenset(self.group.silent_ranks() if self.group else ()),
            newcomers=self.group.newcomers() if self.group else "none",
            progress=self._worker_progress.total(workers),
            is_ending=self._is_ending,
        )

    def hear(self, status: PollStatus) -> None:
        """Pass rank 0's reports to the controller, and note which ranks have parked."""
        for rank, worker in status.worker_statuses.items():
            report = worker.training_report
            if report is None:
                continue
            if report.metrics.get(mailbox.PARKED):
                self._parked.add(rank)
                if rank == 0:
                    commit_s, durable_after_s = (float(report.metrics[key]) for key in ("commit_s", "durable_after_s"))
                    is_held = bool(report.metrics.get("is_held"))
                    self._controller.committed(commit_s, durable_after_s, is_held=is_held)
            elif rank == 0:
                self._controller.reported(report.metrics)
                self._reporter.stepped()
                if report.metrics.get("is_last"):
                    self._reporter.tell_driver_of_stop(self._controller.last_step)

    def set_group(self, group: NewProcessesGroup | None) -> None:
        """Record which group runs, without what is known of the last one. None: no group."""
        self.group, self._worker_progress = group, WorkerProgress()
        self._parked.clear()

    # -- called by the groups

    def started(self, group: NewProcessesGroup) -> None:
        """Record that a group trains."""
        self.set_group(group)
        if self.census is not None:
            self.census.mark_start()
        nodes = tuple(worker.metadata.node_id for worker in group.get_workers())
        self._controller.started(nodes)
        self._reporter.tell_driver(Starts(size=len(nodes), how="loading"))

    def failed(self, group: NewProcessesGroup, errors: dict[int, Exception]) -> None:
        """Record that workers of the group failed.

        Raises:
            TrainingFailed: groups failed too often.
        """
        nodes = {rank: worker.metadata.node_id for rank, worker in enumerate(group.get_workers())}
        # Workers with broken collectives are often reported before the lost one, so every node of the group is probed.
        # The others are probed too: nodes often die together, and the next group may start there.
        silent = self._probe({*nodes.values(), *self.room})
        group.give_up(silent)
        dead = frozenset(node for node in nodes.values() if node in silent or node in self._draining)
        died = [rank for rank, error in errors.items() if has_died(error)]
        blamed = frozenset(nodes[rank] for rank in died or culprit(errors))
        reason = cause(died, nodes, errors)
        if lost_memory(errors):
            self._controller.lost_memory(reason)
        else:
            mistake = None if died else mistake_of(errors, nodes)
            with self._reporter.verdict():
                self._controller.failed(dead, blamed, reason, mistake, out_of_memory(errors, nodes))
            self._reporter.keep_caps()
        self._reporter.tell_driver(*self._controller.events)

    def start_failed(self, error: Exception) -> None:
        """Record that a group could not be started.

        Raises:
            TrainingFailed: groups failed too often.
        """
        silent = self._probe(set(self.room))
        reason = StartFailed(error=last_line(str(error), type(error).__name__))
        with self._reporter.verdict():
            self._controller.failed(frozenset(silent), frozenset(), reason)
        self._reporter.tell_driver(*self._controller.events)

    def unplaced(self, placed: int, asked: int) -> None:
        """Record that only `placed` of `asked` workers got a place: Ray counted places that are taken or gone."""
        self._probe(set(self.room))
        self._controller.unplaced(placed, asked)

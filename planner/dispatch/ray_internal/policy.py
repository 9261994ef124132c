"""planner's scaling policy in Ray Train's controller: it observes and acts for `planner.elastic.controller`.

It runs in the controller's process, next to the worker group. It is written for Ray 2.60.
`group_names.py` and `train_names.py` list the private names of Ray that it needs.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import ray
from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
    get_or_create_autoscaling_coordinator,
)
from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy, NoopDecision, ResizeDecision

from planner.base.text import last_line
from planner.dispatch import mailbox
from planner.dispatch.controller_heartbeat import HeartbeatSender
from planner.dispatch.keeper_census import Census, wanted
from planner.dispatch.keepers import NodePlace, places
from planner.dispatch.live_status import StatusPublisher
from planner.dispatch.ray_internal import kv_get, kv_put
from planner.dispatch.ray_internal.autoscaler import Autoscaler
from planner.dispatch.ray_internal.diagnosis import (
    cause,
    culprit,
    has_died,
    lost_memory,
    mistake_of,
    silent_nodes,
    whereabouts,
)
from planner.dispatch.ray_internal.group_names import (
    PollStatus,
    ScalingConfig,
    TrainRunContext,
    Worker,
    WorkerGroupState,
)
from planner.dispatch.ray_internal.groups import GroupFactory, NewProcessesGroup
from planner.dispatch.ray_internal.hand_over import HandOver, remove_placement_groups
from planner.dispatch.ray_internal.worker_progress import WorkerProgress
from planner.elastic.controller import ElasticController
from planner.elastic.mistakes import GaveUp
from planner.elastic.node_requests import NodeRequests
from planner.elastic.states import Waiting
from planner.elastic.view import Act, View
from planner.errors import PlannerError, TrainingFailed
from planner.events.event import Event
from planner.events.failures import AutoscalerRejects, StartFailed
from planner.events.outlook import Starts
from planner.plan import workers_on_node
from planner.wording.event_text import text_of, text_of_all

_log = logging.getLogger(__name__)

# Ray sets this label on every node (https://docs.ray.io/en/latest/ray-core/scheduling/labels.html).
NODE_ID_LABEL = "ray.io/node-id"
# Time between two looks at the cluster. Each costs the coordinator a few ms.
_LOOK_S = 0.5
# Ray's controller loops without a pause while no group runs.
_IDLE_S = 0.2
_QUERY_TIMEOUT_S = 5.0
# Time between two probes of a node that did not answer but is alive for Ray.
_PROBE_AGAIN_S = 5.0


class Policy(ElasticScalingPolicy):  # type: ignore[misc]
    """Observes and acts for the elastic controller."""

    _census: Census | None = None
    """looks after the keepers of the launch. None: it has none"""

    def __init__(
        self,
        scaling_config: ScalingConfig,
        controller: ElasticController,
        *,
        run: str,
        launch_id: str,
        warm_up: Callable[[], None],
        keep_processes: bool,
        make_census: Callable[[], Census | None],
    ) -> None:
        super().__init__(scaling_config)
        self.warm_up = warm_up
        self.hand_over = HandOver()
        self._controller, self._run, self._launch_id = controller, run, launch_id
        self._is_ending = False
        # What the driver's terminal shows, and what it showed when the group started.
        self._told: tuple[Event, ...] = ()
        self._loading: tuple[Event, ...] = ()
        self._tells_of_stop = False
        self._keep, self._make_census = keep_processes, make_census
        self._places: dict[str, NodePlace] = {}
        self._looked_s = float("-inf")
        self._room: dict[str, int] = {}
        self._draining: dict[str, float] = {}
        self._dead: frozenset[str] = frozenset()
        self._parked: set[int] = set()
        self._suspects: set[str] = set()
        self._probed_s = float("-inf")
        self._num_bad = 0
        self._group: NewProcessesGroup | None = None
        self._worker_progress = WorkerProgress()
        self._heartbeat: HeartbeatSender | None = None
        self._node_requests = NodeRequests(time.monotonic)
        self._autoscaler = Autoscaler()
        self._publisher = StatusPublisher(launch_id)
        self._hosts: dict[str, str] = {}

    def after_controller_start(self, train_run_context: TrainRunContext) -> None:
        """Prepare the launch, and make the factory that Ray's controller creates groups with."""
        # Start the heartbeat first: if the calls below hang, it stops after a while and the driver notices.
        self._heartbeat = HeartbeatSender(partial(kv_put, mailbox.heartbeat_key(self._launch_id)))
        self._heartbeat.start()
        # How long Ray waits for the processes of a group to leave it before it kills them.
        os.environ.setdefault("TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S", "5")
        self._cancel_old_request()
        self._remove_old_placement_groups()
        super().after_controller_start(train_run_context)
        kv_put(f"requester-{self._run}", self._requester_id)
        self._census = self._make_census()
        self.groups = GroupFactory(self, keeps_processes=self._keep)

    def _cancel_old_request(self) -> None:
        """Cancel the request of a killed driver. It would reserve places for three minutes."""
        if requester := kv_get(f"requester-{self._run}"):
            try:
                get_or_create_autoscaling_coordinator().cancel_request.remote(requester_id=requester)
            except Exception:  # noqa: BLE001  # the request will expire
                _log.warning("the request of an earlier launch could not be cancelled", exc_info=True)

    def _remove_old_placement_groups(self) -> None:
        """Remove the placement groups of an earlier controller of this launch."""
        try:
            remove_placement_groups(self.places_name)
        except Exception:  # noqa: BLE001  # the run goes on with fewer places
            _log.warning("the places of an earlier controller could not be removed", exc_info=True)

    @property
    def places_name(self) -> str:
        """The prefix of the names of this launch's placement groups."""
        return f"planner-{self._launch_id}-"

    # -- called by Ray's controller

    def make_decision_for_non_running_worker_group(self) -> NoopDecision | ResizeDecision:
        """Start a group, or wait for nodes."""
        self._turned()
        self._parked.clear()
        self._group = None
        self._maybe_send_resource_request()
        if not self._look():
            time.sleep(_IDLE_S)
            return NoopDecision()
        self._hear_autoscaler()
        view = View(room=self._room, draining=self._draining, dead=self._dead, is_ending=self._is_ending)
        act = self._controller.step(view)
        self._care_for_keepers(view)
        if act.kind != "resize":
            shortage = None if act.kind == "end" else self._autoscaler.shortage
            self._tell_driver(*act.events, *(() if shortage is None else (shortage,)))
            if act.kind == "end":
                self._ended()
            self._publish(view, act)
            time.sleep(_IDLE_S)
            return NoopDecision()
        self._tell_driver(*self._controller.events, Starts(size=act.world_size, how="new"))
        self._publish(view, act)
        return self._get_resize_decision(act.world_size)

    def make_decision_for_running_worker_group(
        self, worker_group_state: WorkerGroupState, worker_group_status: PollStatus
    ) -> NoopDecision | ResizeDecision:
        """Keep the group, prepare a change, or make it."""
        self._turned()
        self._maybe_send_resource_request()
        self._hear(worker_group_status)
        stopping = len(self._parked) == worker_group_state.num_workers
        if not stopping and time.monotonic() - self._looked_s < _LOOK_S:
            return NoopDecision()
        if not self._look():
            return NoopDecision()
        self._hear_autoscaler()
        view = self._view(worker_group_state.workers)
        try:
            with self._telling_verdict():
                act = self._controller.step(view)
        except PlannerError:
            raise
        except Exception:  # noqa: BLE001
            # A bug in the controller must not end a group that trains.
            _log.exception("the elastic controller made no decision")
            return NoopDecision()
        self._care_for_keepers(view)
        decision = self._do(act, worker_group_state)
        self._publish(view, act)
        return decision

    def _care_for_keepers(self, view: View) -> None:
        """Say which nodes need a keeper. Call it after the controller has decided on `view`."""
        if self._census is not None:
            self._census.order(wanted(self._controller.state, view), self._places)

    def _turned(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.turned()

    def _get_num_workers_for_resource_request(self) -> int:
        """The workers to request: a useful count, plus one for each place on a bad node.

        The autoscaler takes bad nodes for usable ones.
        """
        return self._node_requests.count([count + self._num_bad for count in self._controller.worth_asking])

    def _maybe_send_resource_request(self) -> None:
        """Request again if the number changed, and every 20 s: a request expires after 180 s."""
        num_workers = self._get_num_workers_for_resource_request()
        if num_workers != self._autoscaler.asked or self._autoscaler.is_due:
            self._send_resource_request()

    def _send_resource_request(self) -> None:
        """Send the request. Unlike Ray's own, it also shows free places that were not requested."""
        assert self._requester_id is not None
        self._autoscaler.ask(
            self._autoscaling_coordinator,
            self._requester_id,
            self.scaling_config,
            self._get_num_workers_for_resource_request(),
        )

    def _hear_autoscaler(self) -> None:
        """Note whether the autoscaler accepts the request. Asks it only while places are missing."""
        asked = self._autoscaler.asked
        if sum(self._room.values()) >= asked:
            self._autoscaler.shortage = None
            if asked > 0:
                self._node_requests.mark_accepted(asked)  # otherwise the binary search could end below this count
            return
        verdict = self._autoscaler.verdict()
        if verdict == "accepted":
            self._node_requests.mark_accepted(asked)
        elif verdict == "rejected":
            self._node_requests.mark_rejected(asked)
            self._maybe_send_resource_request()
            if self._autoscaler.asked != asked:
                self._controller.note(AutoscalerRejects(workers=asked, now_asked=self._autoscaler.asked))

    def on_controller_start_worker_group(self, *, scaling_config: object, num_workers: int) -> dict[str, str] | None:  # noqa: ARG002
        """Keep workers off bad nodes if there is enough room without them, and tell the group how long it may wait."""
        first_s = self._controller.first_collectives_s(num_workers)
        with contextlib.suppress(Exception):  # the group begins with the usual timeout
            kv_put(mailbox.collectives_key(self._launch_id), f"{first_s:.3f}")
        return self.label_selector(num_workers)

    def label_selector(self, num_workers: int) -> dict[str, str] | None:
        """The labels that nodes for `num_workers` workers must have now. None: any node."""
        avoided = {*self._controller.bad_nodes, *self._suspects}
        elsewhere = sum(count for node, count in self._room.items() if node not in avoided)
        if not avoided or elsewhere < num_workers:
            return None
        return {NODE_ID_LABEL: f"!in({','.join(sorted(avoided))})"}

    # -- called by the worker group

    def group_started(self, group: NewProcessesGroup) -> None:
        """Record that a group trains."""
        self._group, self._worker_progress = group, WorkerProgress()
        self._parked.clear()
        if self._census is not None:
            self._census.mark_start()
        workers = group.get_workers()
        self._controller.started(tuple(worker.metadata.node_id for worker in workers))
        self._loading = (Starts(size=len(workers), how="loading"),)
        self._tell_driver(*self._loading)

    def group_failed(self, group: NewProcessesGroup, errors: dict[int, Exception]) -> None:
        """Record that workers of the group failed.

        Raises:
            TrainingFailed: groups failed too often.
        """
        nodes = {rank: worker.metadata.node_id for rank, worker in enumerate(group.get_workers())}
        # Workers with broken collectives are often reported before the lost one, so every node of the group is probed.
        # The others are probed too: nodes often die together, and the next group may start there.
        silent = silent_nodes({*nodes.values(), *self._room})
        self._suspects |= silent
        group.give_up(silent)
        dead = {node for node in nodes.values() if node in silent or node in self._draining}
        died = [rank for rank, error in errors.items() if has_died(error)]
        blamed = died or culprit(errors)
        reason = cause(died, nodes, errors)
        if lost_memory(errors):
            self._controller.lost_memory(reason)
        else:
            mistake = None if died else mistake_of(errors, nodes)
            with self._telling_verdict():
                blamed_nodes = frozenset(nodes[rank] for rank in blamed)
                self._controller.failed(frozenset(dead), blamed_nodes, reason, mistake)
        self._tell_driver(*self._controller.events)

    def start_failed(self, error: Exception) -> None:
        """Record that a group could not be started.

        Raises:
            TrainingFailed: groups failed too often.
        """
        silent = silent_nodes(set(self._room))
        self._suspects |= silent
        reason = StartFailed(error=last_line(str(error), type(error).__name__))
        with self._telling_verdict():
            self._controller.failed(frozenset(silent), frozenset(), reason)
        self._tell_driver(*self._controller.events)

    def unplaced(self, placed: int, asked: int) -> None:
        """Record that only `placed` of `asked` workers got a place: Ray counted places that are taken or gone."""
        self._suspects |= silent_nodes(set(self._room))
        self._controller.unplaced(placed, asked)

    # -- observe

    def _look(self) -> bool:
        """Refresh what the policy knows of the cluster. False if the cluster did not answer."""
        self._looked_s = time.monotonic()
        try:
            reserved = ray.get(
                # `recompute`: by itself, the coordinator updates only every 20 s.
                self._autoscaling_coordinator.get_reserved_resources.remote(self._requester_id, recompute=True),
                timeout=_QUERY_TIMEOUT_S,
            )
            draining = ray._private.state.state.get_draining_nodes() or {}
            known = ray.nodes()
            nodes = {node["NodeID"]: node for node in known if node["Alive"]}
            alive = set(nodes)
            if kv_get(mailbox.end_request_key(self._launch_id)):
                self._is_ending = True
        except Exception:  # noqa: BLE001  # no error here may end a group that trains
            _log.warning("the query for the cluster's nodes failed", exc_info=True)
            return False
        now_s = time.time()
        self._hosts = {node: found.get("NodeManagerHostname", "") for node, found in nodes.items()}
        if self._census is not None:
            self._places = places(nodes.values())
        self._suspects &= alive
        if self._suspects and time.monotonic() - self._probed_s > _PROBE_AGAIN_S:
            self._probed_s = time.monotonic()
            self._suspects = silent_nodes(self._suspects)
        self._draining = {
            node: max(deadline_ms / 1000 - now_s, 0.0) if deadline_ms else float("inf")
            for node, deadline_ms in draining.items()
            if node in alive
        }
        # Ray's own `_count_possible_workers` divides floats, so that 0.1 fits 9 times into 1.
        taken = self.scaling_config._resources_per_worker_not_none
        room = {node: workers_on_node(found, taken) for node, found in reserved.items()}
        unusable = {*self._draining, *self._suspects}
        self._dead = frozenset(node["NodeID"] for node in known if not node["Alive"]) | self._suspects
        # Nodes whose workers keep dying count here: the controller excludes them if enough is left without them.
        self._room = {node: count for node, count in room.items() if node in alive and node not in unusable}
        self._num_bad = sum(self._room.get(node, 0) for node in self._controller.bad_nodes)
        return True

    def _hear(self, status: PollStatus) -> None:
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
                self._stepped()
                if report.metrics.get("is_last"):
                    self._tell_driver_of_stop(self._controller.last_step)

    def _view(self, workers: Sequence[Worker]) -> View:
        nodes = tuple(worker.metadata.node_id for worker in workers)
        return View(
            room=self._room,
            draining=self._draining,
            dead=self._dead,
            nodes=nodes,
            can_hold=self._census is not None and self._census.can_hold(nodes),
            parked=frozenset(self._parked),
            silent=frozenset(self._group.silent_ranks() if self._group else ()),
            newcomers=self._group.newcomers() if self._group else "none",
            progress=self._worker_progress.total(workers),
            is_ending=self._is_ending,
        )

    # -- tell

    @contextlib.contextmanager
    def _telling_verdict(self) -> Iterator[None]:
        """Publish why the run ends, if it does. Ray passes on only a part of the text.

        Raises:
            TrainingFailed: the controller gave up.
        """
        try:
            yield
        except GaveUp as error:
            text = text_of(error.event)
            with contextlib.suppress(Exception):  # the driver then has Ray's text
                kv_put(mailbox.verdict_key(self._launch_id), text)
            raise TrainingFailed(text) from None

    def _tell_driver(self, *events: Event) -> None:
        """Publish the status for the driver's terminal: while no group runs, no worker writes the ledger."""
        if events and events != self._told:
            self._told, self._tells_of_stop = events, False
            with contextlib.suppress(Exception):  # the status is only shown
                kv_put(mailbox.state_key(self._launch_id), text_of_all(events))

    def _tell_driver_of_stop(self, event: Event | None) -> None:
        """Publish what the group waits for. The live status has it with the time that is left."""
        if event is not None:
            self._tell_driver(event)
        self._tells_of_stop = event is not None

    def _publish(self, view: View, act: Act) -> None:
        """Publish the live status, which the driver copies into the run's folder."""
        if act.kind in {"warm", "abandon_newcomers"} and self._group is not None:
            view = replace(view, newcomers=self._group.newcomers())
        self._publisher.publish(
            self._controller,
            view,
            newcomers=self._group.newcomer_nodes if self._group is not None else list,
            hosts=self._hosts,
            why=self._why(view),
            at_once=act.kind != "nothing",
        )

    def _why(self, view: View) -> str:
        """What is waited for while no worker trains, with the time that is left now. May be empty."""
        if isinstance(self._controller.state, Waiting):
            return text_of_all(self._controller.next_decision(view).events)
        stop = self._controller.stop if self._tells_of_stop else None
        return text_of_all(self._told if stop is None else (stop,))

    def _stepped(self) -> None:
        """Clear the status if it is still that of the group's start. A later one, such as a stop, stays."""
        if self._loading and self._told == self._loading:
            self._told = self._loading = ()
            with contextlib.suppress(Exception):  # the status is only shown
                kv_put(mailbox.state_key(self._launch_id), "")

    def _ended(self) -> None:
        kv_put(mailbox.end_reply_key(self._launch_id), "yes")

    # -- act

    def _do(self, act: Act, state: WorkerGroupState) -> NoopDecision | ResizeDecision:
        """Carry out an act on the group that runs."""
        assert self._group is not None, "group_started was called"
        for event in act.events:
            # rank 0 writes the ledger
            state.workers[0].actor.execute.remote(mailbox.post_event, event)
        if act.kind == "warm":
            self._group.warm(act.world_size)
        elif act.kind == "abandon_newcomers":
            self._group.abandon_newcomers()
        elif act.kind == "stop":
            for worker in state.workers:
                worker.actor.execute.remote(mailbox.request_stop, act.in_memory)
            self._tell_driver_of_stop(self._controller.stop)
        elif act.kind == "end":
            self._tell_driver(*act.events)  # workers that have parked write no ledger
            self._ended()
        elif act.kind == "resize":
            if not act.planned:
                self._controller.note(whereabouts(state.workers))
            leaving = set(self._draining) | self._suspects
            self._group.plan_change(act.world_size if act.planned else 0, leaving)
            self._tell_driver(*self._controller.events, Starts(size=act.world_size, how="after_stop"))
            return self._get_resize_decision(act.world_size)
        return NoopDecision()

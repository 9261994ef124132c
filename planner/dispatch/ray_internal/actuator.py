"""Carries out what the elastic controller decides (`Act`) on Ray's worker groups, keepers and autoscaler."""

import logging
import time
from collections.abc import Sequence

from planner.dispatch import mailbox
from planner.dispatch.keeper_census import wanted
from planner.dispatch.ray_internal.autoscaler import Autoscaler
from planner.dispatch.ray_internal.diagnosis import whereabouts
from planner.dispatch.ray_internal.group_names import Worker
from planner.dispatch.ray_internal.hand_over import remove_placement_groups
from planner.dispatch.ray_internal.observer import Observer
from planner.dispatch.ray_internal.reporter import Reporter
from planner.elastic.controller import ElasticController
from planner.elastic.node_requests import NodeRequests
from planner.elastic.view import Act, View
from planner.events.failures import AutoscalerRejects
from planner.events.outlook import Starts

_log = logging.getLogger(__name__)


class Actuator:
    """Changes what the observer sees. It knows which numbers of nodes it has requested."""

    def __init__(
        self, controller: ElasticController, observer: Observer, reporter: Reporter, autoscaler: Autoscaler
    ) -> None:
        self._controller, self._observer = controller, observer
        self._reporter, self._autoscaler = reporter, autoscaler
        self._node_requests = NodeRequests(time.monotonic)

    def clear_up(self, places_name: str) -> None:
        """Cancel the request of an earlier driver, and remove the placement groups of an earlier controller."""
        self._autoscaler.cancel_earlier()
        try:
            remove_placement_groups(places_name)
        except Exception:  # noqa: BLE001  # the run goes on with fewer places
            _log.warning("the places of an earlier controller could not be removed", exc_info=True)

    # -- nodes

    def num_requested(self) -> int:
        """The workers to request: a useful count, plus one for each place on a bad node.

        The autoscaler takes bad nodes for usable ones.
        """
        num_bad = self._observer.num_bad
        return self._node_requests.count([count + num_bad for count in self._controller.worth_asking])

    def request_nodes(self) -> None:
        """Request as many workers as are useful now. Call it often: it repeats a request that would expire."""
        self._autoscaler.ask(self.num_requested(), self._controller.floor)

    def hear_autoscaler(self) -> None:
        """Note whether the autoscaler accepts the request. Asks it only while places are missing."""
        asked = self._autoscaler.asked
        has_floor = self._observer.num_on_demand >= self._controller.floor
        if has_floor and sum(self._observer.room.values()) >= asked:
            self._autoscaler.shortage = None
            if asked > 0:
                self._node_requests.mark_accepted(asked)  # otherwise the binary search could end below this count
            return
        verdict = self._autoscaler.verdict()
        if verdict == "accepted":
            self._node_requests.mark_accepted(asked)
        elif verdict == "rejected":
            self._node_requests.mark_rejected(asked)
            self.request_nodes()
            if self._autoscaler.asked != asked:
                self._controller.note(AutoscalerRejects(workers=asked, now_asked=self._autoscaler.asked))

    def order_keepers(self, view: View) -> None:
        """Say which nodes need a keeper. Call it after the controller has decided on `view`."""
        if (census := self._observer.census) is not None:
            census.order(wanted(self._controller.state, view), self._observer.places)

    # -- groups

    def do(self, act: Act, workers: Sequence[Worker]) -> None:
        """Carry out an act on the group that runs. For a resize, prepare the group's end: Ray then ends it."""
        group = self._observer.group
        assert group is not None, "Listener.started was called"
        self._reporter.tell_ledger(act.events, workers)
        if act.kind == "warm":
            group.warm(act.world_size, self._observer.leaving)
        elif act.kind == "abandon_newcomers":
            group.abandon_newcomers()
        elif act.kind == "stop":
            for worker in workers:
                worker.actor.execute.remote(mailbox.request_stop, act.in_memory, act.cut)
            self._reporter.tell_driver_of_stop(self._controller.stop)
        elif act.kind == "end":
            self._reporter.tell_driver(*act.events)  # workers that have parked write no ledger
            self._reporter.ended()
        elif act.kind == "resize":
            if not act.planned:
                self._controller.note(whereabouts(workers))
            group.plan_change(act.world_size if act.planned else 0, self._observer.leaving)
            self._reporter.tell_driver(*self._controller.events, Starts(size=act.world_size, how="after_stop"))

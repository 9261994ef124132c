"""Tells what the controller decides to its three addressees: the ledger, the driver and its terminal, and the log.

The driver reads Ray's key-value store (`planner.dispatch.mailbox`). The ledger is written by rank 0.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from planner.dispatch import mailbox
from planner.dispatch.capacity_log import CapacityLog
from planner.dispatch.controller_heartbeat import HeartbeatSender
from planner.dispatch.live_status import StatusPublisher
from planner.dispatch.ray_internal import kv_put
from planner.dispatch.ray_internal.group_names import Worker
from planner.dispatch.ray_internal.groups import NewProcessesGroup
from planner.elastic.controller import ElasticController
from planner.elastic.mistakes import GaveUp
from planner.elastic.states import Waiting
from planner.elastic.view import Act, View
from planner.errors import StoreError, TrainingFailed
from planner.events.capacity import Capacity
from planner.events.event import Event
from planner.events.outlook import Starts
from planner.plan.lowered_caps import LoweredCaps
from planner.store.lowered_caps import caps_to_text, keep_caps
from planner.store.storage import Storage
from planner.wording.event_text import text_of, text_of_all

_log = logging.getLogger(__name__)


class Reporter:
    """The only one here that makes texts of events."""

    def __init__(self, controller: ElasticController, launch_id: str, run: str) -> None:
        """Take the controller, the id of its launch, and the URL of the run's folder."""
        self._controller, self._launch_id, self._run = controller, launch_id, run
        self._kept_caps: LoweredCaps | None = None
        self._capacity = CapacityLog()
        # What the driver's terminal shows.
        self._told: tuple[Event, ...] = ()
        self._tells_of_stop = False
        self._publisher = StatusPublisher(controller, launch_id)
        self.heartbeat = HeartbeatSender(partial(kv_put, mailbox.heartbeat_key(launch_id)))

    # -- the driver

    def tell_driver(self, *events: Event) -> None:
        """Publish the status for the driver's terminal: while no group runs, no worker writes the ledger."""
        events = tuple(event for event in events if not isinstance(event, Capacity))  # for the ledger alone
        if events and events != self._told:
            self._told, self._tells_of_stop = events, False
            with contextlib.suppress(Exception):  # also an event that has no text: it is only shown
                kv_put(mailbox.state_key(self._launch_id), text_of_all(events))

    def tell_driver_of_stop(self, event: Event | None) -> None:
        """Publish what the group waits for. The live status has it with the time that is left."""
        if event is not None:
            self.tell_driver(event)
        self._tells_of_stop = event is not None

    def tell_without_group(self, act: Act, shortage: Event | None) -> None:
        """Tell the driver of an act while no group runs. `shortage` is why nodes do not come."""
        if act.kind == "resize":
            self.tell_driver(*self._controller.events, Starts(size=act.world_size, how="new"))
        elif act.kind == "end":
            self.tell_driver(*act.events)
            self.ended()
        else:
            self.tell_driver(*act.events, *(() if shortage is None else (shortage,)))

    def stepped(self) -> None:
        """Clear the status if it is still that of the group's start. A later one, such as a stop, stays."""
        match self._told:
            case (Starts(how="loading"),):
                self._told = ()
                self._try_to_put(mailbox.state_key, "")

    def ended(self) -> None:
        """Reply to the driver that it may end the run. Without the reply it would wait, so an error is raised."""
        kv_put(mailbox.end_reply_key(self._launch_id), "yes")

    @contextlib.contextmanager
    def verdict(self) -> Iterator[None]:
        """Publish why the run ends, if it does. Ray passes on only a part of the text.

        Raises:
            TrainingFailed: the controller gave up.
        """
        try:
            yield
        except GaveUp as error:
            text = text_of(error.event)
            self._try_to_put(mailbox.verdict_key, text)  # otherwise, the driver has Ray's text
            raise TrainingFailed(text) from None

    def publish(self, view: View, act: Act, group: NewProcessesGroup | None, hosts: Mapping[str, str]) -> None:
        """Publish the live status, which the driver copies into the run's folder.

        Args:
            view: what the controller has decided on.
            act: what it decided. It is carried out by now.
            group: the one that runs.
            hosts: node -> name or address.
        """
        if act.kind in {"warm", "abandon_newcomers"} and group is not None:
            view = replace(view, newcomers=group.newcomers())
        self._publisher.publish(
            view,
            newcomers=group.newcomer_nodes if group is not None else list,
            hosts=hosts,
            why=self._why(view),
            at_once=act.kind != "nothing",
        )

    def _why(self, view: View) -> str:
        """What is waited for while no worker trains, with the time that is left now. May be empty."""
        if isinstance(self._controller.state, Waiting):
            return text_of_all(self._controller.next_decision(view).events)
        stop = self._controller.stop if self._tells_of_stop else None
        return text_of_all(self._told if stop is None else (stop,))

    # -- the workers

    def note_capacity(self, view: View) -> None:
        """Let the ledger know of nodes that have come, gone or got notice."""
        if (event := self._capacity.changed(view, time.time())) is not None:
            self._controller.note(event)

    def tell_ledger(self, events: Sequence[Event], workers: Sequence[Worker]) -> None:
        """Hand events to rank 0, which writes the ledger."""
        for event in events:
            workers[0].actor.execute.remote(mailbox.post_event, event)

    def tell_next_group(self, first_s: float) -> None:
        """Publish for how many seconds the first collectives of the group that starts now may wait, and its caps."""
        self._try_to_put(mailbox.collectives_key, f"{first_s:.3f}")  # otherwise, it begins with the usual timeout
        self._capacity.forget()
        caps = self._controller.caps
        self._try_to_put(mailbox.caps_key, caps_to_text(caps if caps.lowered else None))

    def keep_caps(self) -> None:
        """Keep the lowered caps in the run's folder, for later launches. Nothing if they are there."""
        caps = self._controller.caps
        if not caps.lowered or caps == self._kept_caps:
            return
        try:
            keep_caps(Storage(self._run), caps)
            self._kept_caps = caps
        except StoreError:  # a later launch lowers them again
            _log.warning("the lowered caps cannot be kept in the run's folder", exc_info=True)

    def _try_to_put(self, key: Callable[[str], str], text: str) -> None:
        """Publish what the run can do without."""
        with contextlib.suppress(Exception):
            kv_put(key(self._launch_id), text)

"""Which nodes have a keeper: a thread in the controller's process makes them, asks how they are, and ends them.

The policy says which nodes need one (`Wanted`) and never waits for this thread.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from planner.base.text import last_line
from planner.dispatch.keepers import KeeperActors, NodePlace, Published, has_keepers, is_closed, publish
from planner.elastic.states import Ending, Running, State
from planner.elastic.view import View
from planner.keeper.addresses import Address
from planner.train.setup import Launch

_log = logging.getLogger(__name__)

_TURN_S = 1.0
# While a keeper starts, workers may wait for it.
_TURN_STARTING_S = 0.1
_ANSWER_S = 2.0
# Without an answer for this long, nothing is left in a keeper's memory.
_SILENT_S = 10.0
_TRY_AGAIN_S = 10.0
# Workers whose keeper is missing ask again every 10 s. If they do not know a new one yet, they commit their last step.
_KNOWN_S = 30.0
# Actors start within seconds, also on a busy machine.
_START_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which nodes need a keeper."""

    nodes: frozenset[str] = frozenset()
    """those of the group, and those that may join it"""
    leaving: frozenset[str] = frozenset()
    """nodes with notice. No keeper starts there"""
    ends_others: bool = False
    """whether keepers of all other nodes end: the group has what it needs of them. A node with a keeper is busy for
    Ray. It would neither end after a notice nor be given back by an autoscaler"""


def wanted(state: State, view: View) -> Wanted:
    """Which nodes need a keeper, by the controller's state after it decided on `view`."""
    leaving = frozenset(view.draining)
    match state:
        case Ending():
            return Wanted(leaving=leaving)
        case Running(group=group):
            return Wanted(nodes=frozenset(view.nodes), leaving=leaving, ends_others=group.num_steps > 0)
    places = frozenset(node for node, count in view.room.items() if count > 0)
    return Wanted(nodes=frozenset(view.nodes) | places, leaving=leaving)


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """One keeper, as this controller knows it."""

    since_s: float
    """when it was asked for"""
    answered_s: float = -math.inf
    address: Address | None = None
    """None while it starts"""
    asked: Any = None
    """the reference that is awaited. None if nothing is"""


class Census:
    """The keepers of a launch. `order`, `mark_start` and `can_hold` return at once. `turn` is called by a thread."""

    def __init__(
        self,
        actors: KeeperActors,
        publish: Callable[[Published], None],
        *,
        is_closed: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without keepers. `start` begins the thread.

        Args:
            actors: makes and asks keepers.
            publish: tells the workers which keepers there are. Called when that changes.
            is_closed: whether the launch has ended, so that no keeper may start.
            clock: seconds, never going back.
        """
        self._actors, self._publish, self._is_closed, self._clock = actors, publish, is_closed, clock
        self._lock = threading.Lock()
        self._wanted = Wanted()
        self._places: Mapping[str, NodePlace] = {}
        self._kept: Mapping[str, _Kept] = {}
        self._failed_s: dict[str, float] = {}
        self._began_s = -math.inf
        self._has_found = False
        self._published: Published | None = None
        self._changed, self._ended = threading.Event(), threading.Event()

    # -- called by the policy

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="planner-keepers", daemon=True).start()

    def stop(self) -> None:
        """End the thread soon. The keepers stay."""
        self._ended.set()
        self._changed.set()

    def order(self, wanted: Wanted, places: Mapping[str, NodePlace]) -> None:
        """Say which nodes need a keeper. `places` has all living nodes."""
        with self._lock:
            is_new = wanted != self._wanted or places.keys() != self._places.keys()
            self._wanted, self._places = wanted, places
        if is_new:
            self._changed.set()

    def mark_start(self) -> None:
        """Record that a group starts now. Its workers learn once which keepers there are."""
        self._began_s = self._clock()

    def can_hold(self, nodes: Collection[str]) -> bool:
        """Whether each of these nodes has a keeper that answers, and that the group's workers know."""
        kept, now_s = self._kept, self._clock()
        found = [kept.get(node) for node in nodes]
        return bool(found) and all(
            each is not None
            and each.address is not None
            and (each.since_s <= self._began_s or now_s - each.since_s > _KNOWN_S)
            and now_s - each.answered_s < _SILENT_S
            for each in found
        )

    # -- the thread

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.turn()
            except Exception:  # noqa: BLE001  # the run goes on without keepers until Ray answers again
                _log.warning("the keepers could not be looked after", exc_info=True)
            is_starting = any(each.address is None for each in self._kept.values())
            self._changed.wait(_TURN_STARTING_S if is_starting else _TURN_S)
            self._changed.clear()

    def turn(self) -> None:
        """End, make and ask keepers once, and publish what has changed. Waits some seconds for answers at most.

        Raises:
            Exception: Ray does not answer.
        """
        with self._lock:
            wanted, places = self._wanted, self._places
        if not places:
            return
        kept = {node: each for node, each in self._kept.items() if node in places}
        if not self._has_found:
            kept |= {node: _Kept(since_s=self._clock()) for node in self._actors.find() if node in places}
            self._has_found = True
        for node in [node for node in kept if wanted.ends_others and node not in wanted.nodes]:
            del kept[node]
            self._actors.end(node)
        kept |= {node: _Kept(since_s=self._clock()) for node in self._lacking(kept, wanted, places)}
        self._tell(kept)
        kept = {node: self._ask(node, each, places[node]) for node, each in kept.items()}
        self._tell(self._hear(kept))

    def _lacking(self, kept: Collection[str], wanted: Wanted, places: Mapping[str, NodePlace]) -> list[str]:
        """The nodes that get a keeper now."""
        ready_s = self._clock() - _TRY_AGAIN_S
        nodes = [
            node
            for node in sorted(wanted.nodes - wanted.leaving)
            if node in places and node not in kept and self._failed_s.get(node, -math.inf) <= ready_s
        ]
        return nodes if nodes and not self._is_closed() else []

    def _ask(self, node: str, each: _Kept, place: NodePlace) -> _Kept:
        """The keeper with a question that is under way."""
        if each.asked is not None:
            return each
        try:
            asked = self._actors.open(node, place) if each.address is None else self._actors.ping(node)
        except Exception as error:  # noqa: BLE001  # it failed, as an answer may
            asked = error
        return replace(each, asked=asked)

    def _hear(self, kept: Mapping[str, _Kept]) -> dict[str, _Kept]:
        """The keepers after the answers that are there. One that has ended, or cannot start, is left out.

        One that Ray cannot reach now stays known: workers may reach it, and it may have the only copies of a step.
        """
        is_starting = any(each.address is None for each in kept.values())
        asked = {node: each.asked for node, each in kept.items() if not isinstance(each.asked, Exception)}
        answers = self._actors.answers(asked, _TURN_STARTING_S if is_starting else _ANSWER_S)
        answers |= {node: each.asked for node, each in kept.items() if isinstance(each.asked, Exception)}
        found = {}
        for node, each in kept.items():
            answer = answers.get(node)
            if isinstance(answer, Exception) and each.address is not None and not self._actors.is_gone(answer):
                found[node] = replace(each, asked=None)
            elif isinstance(answer, Exception):
                self._failed_s[node] = self._clock()
                _log.warning("node %s has no keeper: %s", node, last_line(str(answer), type(answer).__name__))
            elif node not in answers and each.address is None and self._clock() - each.since_s > _START_S:
                self._failed_s[node] = self._clock()
                self._actors.end(node)
            elif node not in answers:
                found[node] = each
            else:
                address = answer if isinstance(answer, Address) else each.address
                found[node] = replace(each, address=address, answered_s=self._clock(), asked=None)
        return found

    def _tell(self, kept: Mapping[str, _Kept]) -> None:
        """Publish the keepers if that changes what is known."""
        self._kept = kept
        now = Published(
            addresses=tuple(each.address for _, each in sorted(kept.items()) if each.address is not None),
            starting=tuple(sorted(node for node, each in kept.items() if each.address is None)),
        )
        if now != self._published:
            self._publish(now)
            self._published = now


def census_of(launch: Launch) -> Census | None:
    """The census of a launch's keepers, with a thread that runs. None if the launch keeps nothing in memory."""
    if not has_keepers(launch):
        return None
    actors = KeeperActors(launch.launch_id, launch.keeper_secret)
    census = Census(actors, partial(publish, launch.launch_id), is_closed=partial(is_closed, launch.launch_id))
    census.start()
    return census

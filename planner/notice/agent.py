"""Watches one cloud for one node, and gives the node notice when the cloud does.

    look -> is it news? -> drain -> wait a while -> look

Nothing that a metadata server says or does ends the agent; what ends it is the end of its node.
"""

import math
import random
import time
from collections.abc import Callable
from typing import Protocol

from planner.errors import RunError
from planner.notice.fetch import Unreachable
from planner.notice.notice import Cloud, Notice, Seen, Trouble

# Deadlines that are so close to one another are the same one: clouds round them, and ours of a preemption drift.
_SAME_S = 1.0
# An outage may hide a notice of thirty seconds: whoever asks every ten still has twenty.
_SLOWEST_S = 10.0
_JITTER = 0.2
_NODE_LOOK_S = 5.0
# A node of Ray gives its head up after so long.
_HEAD_GONE_S = 60.0


class Node(Protocol):
    """The Ray node that runs on this machine."""

    def drain(self, remaining_s: float, message: str) -> None:
        """Give notice that it goes in so many seconds; infinite where nobody says when.

        Raises:
            RunError: the cluster does not accept it, or cannot be asked.
        """

    def is_alive(self) -> bool:
        """Whether the cluster counts it.

        Raises:
            RunError: the cluster cannot be asked.
        """


def is_news(deadline_s: float, drained_s: float | None) -> bool:
    """Whether a node that was drained for `drained_s` (Unix seconds; None: it was not) is to hear of a deadline.

    The same one again is no news, nor is a later one: who is ready by noon is ready by one.
    """
    return drained_s is None or deadline_s < drained_s - _SAME_S


def pause_s(poll_s: float, outages: int, dice: float) -> float:
    """How long to wait after so many looks in a row without an answer; `dice` in [0, 1).

    Twice as long each time, up to 10 s. Jittered by a fifth, lest a thousand nodes ask in step.
    """
    slower_s = min(poll_s * 2.0 ** min(outages, 10), max(poll_s, _SLOWEST_S))
    return slower_s * (1 - _JITTER + 2 * _JITTER * dice)


class Agent:
    """The loop, and what it remembers from one look to the next."""

    def __init__(
        self,
        cloud: Cloud,
        node: Node,
        say: Callable[[str], None],
        *,
        follow_advice: bool,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cloud, self._node, self._say = cloud, node, say
        self._follow_advice = follow_advice
        self._clock, self._sleep = clock, sleep
        self._drained_s: float | None = None
        self._said: set[str] = set()
        self._outages = 0
        self._is_withdrawn = False

    def run(self) -> None:
        """Watch until the node has left its cluster, or the cluster is gone."""
        looked_s = reached_s = self._clock()
        while True:
            self._sleep(self.turn())
            now_s = self._clock()
            if now_s - looked_s < _NODE_LOOK_S:
                continue
            looked_s = now_s
            try:
                if not self._node.is_alive():
                    self._say("this node has left its Ray cluster: there is nothing left to watch for")
                    return
                reached_s = now_s
            except RunError as error:
                self._say_once(f"the Ray cluster cannot be asked: {error}")
                if now_s - reached_s > _HEAD_GONE_S:
                    self._say(f"the Ray cluster has not answered for {now_s - reached_s:.0f} s: it is gone")
                    return

    def turn(self) -> float:
        """Look once, do what is to be done, and say how many seconds to wait."""
        seen = self._look()
        is_outage = isinstance(seen, Trouble) and seen.is_outage
        if self._outages and not is_outage:
            self._say(f"{self._cloud.name} answers again")
        self._outages = self._outages + 1 if is_outage else 0
        if isinstance(seen, Notice):
            self._hear(seen)
        elif isinstance(seen, Trouble):
            self._complain(seen)
        elif self._drained_s is not None and not self._is_withdrawn:
            self._is_withdrawn = True
            self._say("the notice is no longer there, but Ray does not take a drain back: the node stays given up")
        return pause_s(self._cloud.poll_s, self._outages, random.random())

    def _look(self) -> Seen:
        try:
            return self._cloud.look(self._clock())
        except Unreachable as error:
            return Trouble(what="no answer", detail=str(error), is_outage=True)

    def _complain(self, trouble: Trouble) -> None:
        words = f"{self._cloud.name}: {trouble.what}{f': {trouble.detail}' if trouble.detail else ''}"
        if trouble.is_outage:
            if self._outages == 1:
                self._say(f"{words}; asked again, every {_SLOWEST_S:.0f} s at least")
        elif trouble.what not in self._said:
            self._said.add(trouble.what)
            self._say(f"{words}; this is said once")

    def _hear(self, notice: Notice) -> None:
        if notice.is_advice and not self._follow_advice:
            self._say_once(f"{self._cloud.name}: {notice.what}; it names no moment, and without --rebalance it is left")
            return
        now_s = self._clock()
        deadline_s = max(notice.deadline_s, now_s)
        if not is_news(deadline_s, self._drained_s):
            return
        remaining_s = deadline_s - now_s
        when = f"{remaining_s:.0f} s left" if remaining_s < math.inf else "no moment named"
        self._say_once(f"{self._cloud.name}: {notice.what}")
        try:
            self._node.drain(remaining_s, f"{self._cloud.name}: {notice.what}")
        except RunError as error:
            self._say_once(f"the notice could not be passed on, and will be tried again: {error}")
            return
        self._drained_s, self._is_withdrawn = deadline_s, False
        self._say(f"passed on to Ray: {when}")

    def _say_once(self, words: str) -> None:
        if words not in self._said:
            self._said.add(words)
            self._say(words)

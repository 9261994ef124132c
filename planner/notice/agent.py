"""Polls one cloud for one node, and drains the node when the cloud gives notice.

    look -> is it news? -> drain -> pause -> look

The agent ends when its node has left the cluster. No answer of a metadata server ends it.
"""

import math
import random
import time
from collections.abc import Callable
from typing import Protocol

from planner.errors import RunError
from planner.notice.fetch import Unreachable
from planner.notice.notice import Cloud, Notice, Seen, Trouble

# Deadlines closer than this are one deadline: clouds round them, and the computed one of Google Cloud drifts.
_SAME_S = 1.0
# An outage may hide a notice of 30 s. Polling every 10 s still leaves 20 s.
_SLOWEST_S = 10.0
_JITTER = 0.2
_NODE_LOOK_S = 5.0
# A Ray node gives up its head after this time.
_HEAD_GONE_S = 60.0


class Node(Protocol):
    """The Ray node that runs on this machine."""

    def drain(self, remaining_s: float, message: str) -> None:
        """Tell Ray that the node goes in `remaining_s` seconds, infinite if the cloud names no deadline.

        Raises:
            RunError: the cluster does not accept it, or does not answer.
        """

    def is_alive(self) -> bool:
        """Whether the node is alive in its Ray cluster.

        Raises:
            RunError: the cluster does not answer.
        """


def is_news(deadline_s: float, drained_s: float | None) -> bool:
    """Whether a deadline is new to a node: it was not drained yet, or it was drained for a later time.

    Args:
        deadline_s: the deadline in Unix seconds.
        drained_s: the deadline that the node was drained for, None if it was not drained.
    """
    return drained_s is None or deadline_s < drained_s - _SAME_S


def pause_s(poll_s: float, outages: int, dice: float) -> float:
    """Seconds to wait before the next look. Doubles with each outage, up to 10 s.

    Jitter of 20% keeps a thousand nodes from asking at once.

    Args:
        poll_s: the cloud's poll interval.
        outages: number of looks in a row without an answer.
        dice: a random number in [0, 1).
    """
    slower_s = min(poll_s * 2.0 ** min(outages, 10), max(poll_s, _SLOWEST_S))
    return slower_s * (1 - _JITTER + 2 * _JITTER * dice)


class Agent:
    """The polling loop, with its state from one look to the next."""

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
        """Poll until the node has left its cluster, or the cluster has not answered for 60 s."""
        looked_s = reached_s = self._clock()
        while True:
            self._sleep(self.turn())
            now_s = self._clock()
            if now_s - looked_s < _NODE_LOOK_S:
                continue
            looked_s = now_s
            try:
                if not self._node.is_alive():
                    self._say("this node has left its Ray cluster, so the agent ends")
                    return
                reached_s = now_s
            except RunError as error:
                self._say_once(f"the Ray cluster does not answer: {error}")
                if now_s - reached_s > _HEAD_GONE_S:
                    self._say(f"the Ray cluster has not answered for {now_s - reached_s:.0f} s, so the agent ends")
                    return

    def turn(self) -> float:
        """Look once, act on the answer, and return the seconds to wait."""
        seen = self._look()
        is_outage = isinstance(seen, Trouble) and seen.is_outage
        if self._outages and not is_outage:
            self._say(f"{self._cloud.name} answers again")
        self._outages = self._outages + 1 if is_outage else 0
        if isinstance(seen, Notice):
            self._pass_on(seen)
        elif isinstance(seen, Trouble):
            self._report(seen)
        elif self._drained_s is not None and not self._is_withdrawn:
            self._is_withdrawn = True
            self._say("the cloud withdrew its notice, but Ray cannot cancel a drain: this node gets no new work")
        return pause_s(self._cloud.poll_s, self._outages, random.random())

    def _look(self) -> Seen:
        try:
            return self._cloud.look(self._clock())
        except Unreachable as error:
            return Trouble(what="no answer", detail=str(error), is_outage=True)

    def _report(self, trouble: Trouble) -> None:
        text = f"{self._cloud.name}: {trouble.what}{f': {trouble.detail}' if trouble.detail else ''}"
        if trouble.is_outage:
            if self._outages == 1:
                self._say(f"{text}. The agent asks again at least every {_SLOWEST_S:.0f} s")
        elif trouble.what not in self._said:
            self._said.add(trouble.what)
            self._say(f"{text}. This is reported once")

    def _pass_on(self, notice: Notice) -> None:
        if notice.is_advice and not self._follow_advice:
            self._say_once(f"{self._cloud.name}: {notice.what} without a deadline. Ignored without --rebalance")
            return
        now_s = self._clock()
        deadline_s = max(notice.deadline_s, now_s)
        if not is_news(deadline_s, self._drained_s):
            return
        remaining_s = deadline_s - now_s
        when = f"{remaining_s:.0f} s left" if remaining_s < math.inf else "no deadline"
        self._say_once(f"{self._cloud.name}: {notice.what}")
        try:
            self._node.drain(remaining_s, f"{self._cloud.name}: {notice.what}")
        except RunError as error:
            self._say_once(f"could not pass the notice on to the cluster, will try again: {error}")
            return
        self._drained_s, self._is_withdrawn = deadline_s, False
        self._say(f"passed on to Ray: {when}")

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)

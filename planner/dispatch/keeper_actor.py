"""The Ray actor around a node's keeper: `planner.keeper.server.Keeper` in a process that outlives workers."""

import contextlib
import os
import threading
import time
from collections.abc import Callable

from planner.base.host_memory import available_bytes
from planner.keeper.addresses import Address
from planner.keeper.server import Keeper

# As `planner.train.host_room` counts. Nothing is taken beforehand, and a keeper also looks at what is available when it
# gives room: the workers' memory grows after it has started.
_SHARE_OF_MEMORY = 0.8
IDLE_END_S = 600.0
"""without a request and without a call of the controller, a keeper ends itself: its driver was killed"""
_LOOK_S = 15.0


def bound_bytes(available: int, num_nodes: int) -> int:
    """Bytes that the keeper of one of `num_nodes` nodes on one host may use: an equal part of 80 % of `available`."""
    return int(_SHARE_OF_MEMORY * available / num_nodes)


class KeeperActor:
    """A node's keeper. It serves from the first `open` on, in threads of this process."""

    def __init__(self, *, is_watched: bool = False) -> None:
        """Begin without a keeper.

        Args:
            is_watched: end the process when nobody has used it for long, also if nobody ever opened it: its driver may
                have died in between.
        """
        self._keeper: Keeper | None = None
        self._address: Address | None = None
        self._called_s = time.monotonic()
        if is_watched:
            watch = threading.Thread(
                # `sys.exit` would end this thread alone.
                target=self._end_if_idle,
                args=(os._exit,),
                name="planner-keeper-idle",
                daemon=True,
            )
            watch.start()

    def open(self, *, node: str, host: str, num_nodes: int, secret: str) -> Address:
        """Start the keeper, if that was not done before. Returns where it listens.

        The secret is no argument of the constructor, because Ray stores those for its whole life.

        Args:
            node: Ray's id of this node.
            host: address of this node, where the keeper listens.
            num_nodes: nodes of the cluster on this node's host. They share its memory.
            secret: of the launch.

        Raises:
            OSError: this machine does not have the address `host`.
        """
        self._called_s = time.monotonic()
        if self._keeper is None or self._address is None:
            bound = bound_bytes(available_bytes(), num_nodes)
            self._keeper = Keeper(bound_bytes=bound, secret=secret, host=host, available=available_bytes)
            self._address = self._keeper.address_on(node)
        return self._address

    def ping(self) -> None:
        """Answer, and note that the controller lives."""
        self._called_s = time.monotonic()

    def is_idle(self) -> bool:
        """Whether nobody has used this keeper for so long that its launch must have ended."""
        idle_s = time.monotonic() - self._called_s
        return min(idle_s, self._keeper.idle_s if self._keeper is not None else idle_s) > IDLE_END_S

    def _end_if_idle(self, end: Callable[[int], None]) -> None:
        while not self.is_idle():
            time.sleep(_LOOK_S)
        if self._keeper is not None:
            with contextlib.suppress(Exception):  # the process ends, and its memory with it
                self._keeper.close()
        end(0)

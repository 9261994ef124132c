"""A keeper's connections to other keepers. They are kept for the next copy."""

import threading
from collections.abc import Callable
from typing import Any

from planner.keeper.addresses import Address
from planner.keeper.errors import KeeperDamaged, KeeperError, KeeperFull, KeeperGone, OtherKeeperGone
from planner.keeper.handshake import connect
from planner.keeper.protocol import Wire

# Less than a client's own limit, so that the client learns which keeper is silent.
_SILENCE_S = 30.0


class Links:
    """Idle connections by address. Several may lead to the same keeper, one for each worker that sends at one time."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._lock = threading.Lock()
        self._idle: dict[Address, list[Wire]] = {}
        self._is_closed = False

    def use(self, address: Address, exchange: Callable[[Wire], Any]) -> None:
        """Run `exchange` over a connection. One that has broken since it was last used is replaced, once.

        Raises:
            OtherKeeperGone: no connection, or it broke.
            KeeperFull, KeeperDamaged, KeeperError: the other keeper refused. The message names it.
        """
        with self._lock:
            wire = self._idle[address].pop() if self._idle.get(address) else None
        if wire is not None:
            try:
                self._exchanged(address, wire, exchange)
            except OtherKeeperGone:
                pass  # it may have ended long ago
            else:
                return
        try:
            wire = connect(address, self._secret, _SILENCE_S)
        except KeeperGone as error:
            raise OtherKeeperGone(str(error)) from error
        self._exchanged(address, wire, exchange)

    def close(self) -> None:
        """End all idle connections."""
        with self._lock:
            self._is_closed = True
            wires = [wire for idle in self._idle.values() for wire in idle]
            self._idle.clear()
        for wire in wires:
            wire.close()

    def _exchanged(self, address: Address, wire: Wire, exchange: Callable[[Wire], Any]) -> None:
        try:
            exchange(wire)
        except KeeperGone as error:
            wire.close()
            raise OtherKeeperGone(f"The keeper of node {address.node} is gone: {error}") from error
        # The other keeper has answered, so the connection can be used again.
        except KeeperError as error:
            self._keep(address, wire)
            kind = next((kind for kind in (KeeperFull, KeeperDamaged) if isinstance(error, kind)), KeeperError)
            raise kind(f"The keeper of node {address.node}: {error}") from error
        except BaseException:
            wire.close()
            raise
        self._keep(address, wire)

    def _keep(self, address: Address, wire: Wire) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.setdefault(address, []).append(wire)
                return
        wire.close()

"""One worker's connections to keepers: its own node's, and its replicas'. What is lost is looked for again."""

import logging
import threading
import time
from collections.abc import Callable

from planner.events.event import Event
from planner.events.saves import KeeperFound, KeeperLost, ReplicaLost
from planner.keeper.addresses import Address, Keepers
from planner.keeper.client import KeeperClient
from planner.keeper.errors import KeeperError, KeeperFull

_log = logging.getLogger(__name__)

# A keeper that has died is replaced within seconds, and a new worker may begin before its node's keeper.
_SEARCH_AGAIN_S = 10.0
# A network that was cut, or a keeper that was full or suspended, may be well again.
_FORGIVE_S = 60.0

Find = Callable[[], Keepers | None]
"""asks which keepers there are now. It may take seconds"""


class KeeperLinks:
    """The connections of one generation.

    Args:
        keepers: as they are known at the begin. None: there are none, and none is looked for.
        replica_on: the node that gets replicas. Empty: none does.
        find: asks for the keepers again.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        keepers: Keepers | None,
        replica_on: str = "",
        find: Find = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keepers, self._replica_on, self._find, self._clock = keepers, replica_on, find, clock
        self._searched_s = clock()
        self._search: threading.Thread | None = None
        self._found: Keepers | None = None
        self._greeted: tuple[KeeperClient, KeeperClient] | None = None
        self._was_lost = self._is_full = False
        self._failed: Address | None = None
        self._failed_s = 0.0
        self._events: list[Event] = []
        self._lost: list[KeeperClient] = []  # another thread may still use them
        self.training: KeeperClient | None = None
        """for the training thread. None: no keeper"""
        self.publisher: KeeperClient | None = None
        """for the thread that publishes. A client serves one thread at a time"""
        if keepers is not None:
            self._use(_greeted(keepers))
        self._was_lost = not self.is_up

    @property
    def is_up(self) -> bool:
        """Whether copies can be kept in memory that outlives this process."""
        return self.training is not None and self.publisher is not None

    @property
    def replica(self) -> Address | None:
        """The keeper that gets replicas. None if there is none that answers."""
        found = self._keepers.of(self._replica_on) if self._keepers is not None and self._replica_on else None
        has_failed = found == self._failed and self._clock() - self._failed_s < _FORGIVE_S
        return None if has_failed else found

    def advance(self) -> None:
        """Use what was found, and look again for what is lacking. On the training thread, at every step."""
        # The thread has ended, so what it found is complete. No lock is needed.
        if self._search is not None and not self._search.is_alive():
            self._search, found, clients = None, self._found, self._greeted
            self._keepers = found or self._keepers
            self._use(clients)
        is_lacking = (not self.is_up and not self._is_full) or (bool(self._replica_on) and self.replica is None)
        is_time = self._clock() - self._searched_s > _SEARCH_AGAIN_S
        if self._keepers is not None and is_lacking and is_time and self._search is None:
            self._searched_s = self._clock()
            is_own_lost = not self.is_up and not self._is_full
            self._search = threading.Thread(target=self._look, args=[is_own_lost], name="planner-keepers", daemon=True)
            self._search.start()

    def lose(self, error: KeeperError) -> None:
        """Go on without the own keeper for now. Mapped memory stays usable. Any thread."""
        self._is_full |= isinstance(error, KeeperFull)  # it would be again, until older copies are freed
        if self.is_up:
            self._events.append(KeeperLost(is_full=self._is_full, reason=str(error)))
        self._lost += [client for client in (self.training, self.publisher) if client is not None]
        self.training = self.publisher = None
        self._was_lost = True

    def lose_replica(self, address: Address, error: KeeperError) -> None:
        """Go on without this keeper for replicas for a while, or until there is another one. Any thread."""
        self._failed, self._failed_s = address, self._clock()
        self._events.append(ReplicaLost(node=address.node, reason=str(error)))

    def try_again(self) -> None:
        """Copies of earlier generations are being freed: a keeper that was full may have room soon. Any thread."""
        self._is_full, self._failed = False, None

    def take_events(self) -> list[Event]:
        """Events for the ledger: what does not work any more, and what works again."""
        events, self._events = self._events, []
        return events

    def drop_lost(self) -> None:
        """End lost connections, and free the memory that they map. No thread may use one."""
        for client in self._lost:
            client.close()
        self._lost.clear()

    def close(self, *, is_publishing: bool) -> None:
        """End the connections, but not the one that a thread still uses."""
        for client in (*self._lost, self.training, None if is_publishing else self.publisher):
            if client is not None:
                client.close()
        self._lost.clear()
        self._keepers = self.training = self.publisher = None

    def _look(self, is_own_lost: bool) -> None:
        """In the thread: ask for the keepers, and greet the own one. It may take seconds."""
        self._found = self._greeted = None
        try:
            self._found = self._find()
        except Exception:  # noqa: BLE001  # training goes on without keepers
            _log.warning("the keepers could not be asked for", exc_info=True)
        if self._found is not None and is_own_lost:
            self._greeted = _greeted(self._found)

    def _use(self, clients: tuple[KeeperClient, KeeperClient] | None) -> None:
        if clients is None:
            return
        self.training, self.publisher = clients
        if self._was_lost:
            self._events.append(KeeperFound())


def _greeted(keepers: Keepers) -> tuple[KeeperClient, KeeperClient] | None:
    """Two connections to the own node's keeper. None if there is none that answers."""
    if keepers.own is None:
        return None
    try:
        # Entered by hand: they stay open until `close`.
        one, other = (KeeperClient(keepers.own, keepers.secret).__enter__() for _ in range(2))
    except KeeperError:
        _log.warning("the keeper of node %s does not answer", keepers.node, exc_info=True)
        return None
    return one, other

"""What a probe does on one node, and how it asks several nodes at once."""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from planner.probe.devices import Copies, copies
from planner.probe.figures import Move
from planner.probe.network import Receiver, send
from planner.probe.storage import StorageProbe

LOOPBACK = "127.0.0.1"
Answer = TypeVar("Answer")


class NodeProbe:
    """One node's part of a probe: files below `url`, and a port at `address` if it is asked for one.

    Args:
        url: a folder that exists, or an fsspec URL.
        folder: the probe's own folder there, for all nodes.
        node: what this node's files are called.
        address: the node's address in the cluster.
        token: 32 bytes that a sender must know.
    """

    def __init__(self, *, url: str, folder: str, node: str, address: str, token: bytes) -> None:
        self.storage = StorageProbe(url, folder, node)
        self._address, self._token = address, token
        self._receiver: Receiver | None = None

    def open(self) -> int:
        """Make the folder. Returns the free bytes there, or -1 if nobody knows.

        Raises:
            StoreError: there is no such folder, or it cannot be written to.
        """
        self.storage.open()
        return self.storage.free_bytes()

    def sees(self, other: str) -> bool:
        """Whether the files of another node are here."""
        return self.storage.sees(other)

    def write(self, num_bytes: int, limit_s: float) -> Move:
        """Write a file durably (see `StorageProbe.write`)."""
        return self.storage.write(num_bytes, limit_s)

    def read(self, limit_s: float) -> Move:
        """Read the newest file."""
        return self.storage.read(limit_s)

    def small_files(self, repeats: int, limit_s: float) -> tuple[list[float], list[float]]:
        """Seconds of each put-if-absent and of each replacement of a small file."""
        return self.storage.small_files(repeats, limit_s)

    def listen(self) -> int:
        """Receive from other nodes from now on. Returns the port."""
        self._receiver = self._receiver or Receiver(self._address, self._token)
        return self._receiver.port

    def send(self, address: str, port: int, num_bytes: int) -> Move:
        """Send bytes to another node that listens."""
        return send(address, port, self._token, num_bytes)

    def stop(self) -> None:
        """Make what this node does end soon."""
        self.storage.stop()

    def clean(self) -> str:
        """Remove everything. Returns what could not be removed, as text."""
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None
        return self.storage.clean()


class Nodes(Protocol):
    """The nodes of a probe, by their number from 0. Each has one `NodeProbe`."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]

    def ask(self, method: Callable[..., Answer], arguments: Mapping[int, tuple[object, ...]]) -> list[Answer]:
        """Call a method of `NodeProbe` on several nodes at once.

        Args:
            method: such as `NodeProbe.write`.
            arguments: node -> arguments.

        Returns:
            The answers, in the order of `arguments`.

        Raises:
            PlannerError: a node failed. With several nodes, the message names it.
        """
        ...

    def copies(self) -> list[Copies]:
        """Each node's copies between memory and GPU."""
        ...


class ThisMachine:
    """This machine as the only node."""

    def __init__(self, name: str, probe: NodeProbe) -> None:
        self.names: tuple[str, ...] = (name,)
        self.addresses: tuple[str, ...] = (LOOPBACK,)
        self._probe = probe

    def ask(self, method: Callable[..., Answer], arguments: Mapping[int, tuple[object, ...]]) -> list[Answer]:
        """Call the method here."""
        return [method(self._probe, *each) for each in arguments.values()]

    def copies(self) -> list[Copies]:
        """This machine's copies."""
        return [copies()]

"""What a probe does on one node, and how it asks several nodes at once."""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from planner.probe.devices import Copies, copies
from planner.probe.figures import Move
from planner.probe.network import Receiver, send
from planner.probe.storage import StorageProbe

LOOPBACK = "127.0.0.1"
Answer = TypeVar("Answer")


class NodeProbe(StorageProbe):
    """One node's part of a probe: files below `url`, and a port at `address` if it is asked for one.

    Args:
        url: a folder that exists, or an fsspec URL.
        folder: the probe's own folder there, for all nodes.
        node: what this node's files are called.
        address: the node's address in the cluster.
        token: 32 bytes that a sender must know.
    """

    def __init__(self, *, url: str, folder: str, node: str, address: str, token: bytes) -> None:
        super().__init__(url, folder, node)
        self._address, self._token = address, token
        self._receiver: Receiver | None = None

    def listen(self) -> int:
        """Receive from other nodes from now on. Returns the port."""
        self._receiver = self._receiver or Receiver(self._address, self._token)
        return self._receiver.port

    def send(self, address: str, port: int, num_bytes: int) -> Move:
        """Send bytes to another node that listens."""
        return send(address, port, self._token, num_bytes)

    def clean(self) -> str:
        """Remove everything. Returns what could not be removed, as text."""
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None
        return super().clean()


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

"""Where the keepers of a launch are."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a node's keeper listens."""

    node: str
    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Keepers:
    """What a worker knows of its launch's keepers."""

    node: str
    """this worker's own"""
    addresses: tuple[Address, ...]
    """of all nodes that have one"""
    is_on_floor: bool = False
    """whether this worker's node belongs to the job's floor: an on-demand node, and `workers.min_on` asks for those"""
    secret: str
    """shared by the keepers and workers of one launch. Who does not have it gets nothing"""

    def of(self, node: str) -> Address | None:
        """The address of a node's keeper. None if it has none."""
        return next((address for address in self.addresses if address.node == node), None)

    @property
    def own(self) -> Address | None:
        """The address of this node's keeper. None if it has none."""
        return self.of(self.node)

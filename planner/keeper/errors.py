"""What can go wrong with a keeper.

KeeperError                a keeper refused, or cannot do what was asked
+-- KeeperGone             no answer: the connection ended, or a timeout passed
+-- OtherKeeperGone        this keeper answers, but the one that it sends a copy to does not
+-- KeeperFull             a keeper's memory has no room for a copy
+-- KeeperDamaged          bytes differ from their digest
+-- NotCovered             the copies do not have all that was asked for
"""

from planner.errors import MAX_CHARS, printable_lines, shortened


class KeeperError(Exception):
    """A keeper refused, or cannot do what was asked. At most 500 characters."""

    def __init__(self, text: str = "") -> None:
        super().__init__(shortened(printable_lines(shortened(text, MAX_CHARS)), MAX_CHARS))


class KeeperGone(KeeperError):
    """A keeper does not answer: the connection ended, a timeout passed, or something else listens there."""


class OtherKeeperGone(KeeperError):
    """This keeper answers. The one that it was to send a copy to does not."""


class KeeperFull(KeeperError):
    """A copy does not fit into a keeper's bound. Copies that are sealed there stay."""


class KeeperDamaged(KeeperError):
    """Bytes differ from their digest: in memory, or on the way."""


class NotCovered(KeeperError):
    """The copies of a step do not have all that was asked for, or describe a tensor in another way."""


BY_NAME = {kind.__name__: kind for kind in (KeeperError, OtherKeeperGone, KeeperFull, KeeperDamaged)}
"""those that an answer may name"""

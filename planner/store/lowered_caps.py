"""`caps.json`: the caps on micro-batches that a run has lowered because workers ran out of memory.

The controller writes it before the next group starts. The next launch begins with it. Nobody needs it to audit a run:
the header of each generation has the lowerings that it was planned with.
"""

from typing import Annotated, ClassVar, Self

from pydantic import Field

from planner.base.format_versions import STORED
from planner.errors import StoreError
from planner.plan.lowered_caps import Caps, LoweredCaps, wrong_lowerings
from planner.store.records import Count, LoweredCapRecord, Sealed, seal, unseal
from planner.store.storage import Storage

CAPS_FILE = "caps.json"
_MOST_BYTES = 2**20


class LoweredCapsRecord(Sealed):
    """All lowerings of a run. Caps on tokens are 0 if there are none."""

    stored_as: ClassVar[str] = "caps"

    format: int = STORED["caps"]
    job_micro: Count
    """the job's cap, which they replace"""
    job_tokens: Count = 0
    lowered: Annotated[tuple[LoweredCapRecord, ...], Field(strict=False)]

    @classmethod
    def of(cls, caps: LoweredCaps) -> Self:
        """How they are stored."""
        return cls(
            job_micro=caps.of.max_micro,
            job_tokens=caps.of.max_tokens or 0,
            lowered=tuple(map(LoweredCapRecord.of, caps.lowered)),
        )

    @property
    def value(self) -> LoweredCaps:
        """The caps."""
        of = Caps(max_micro=self.job_micro, max_tokens=self.job_tokens or None)
        return LoweredCaps(of=of, lowered=tuple(each.value for each in self.lowered))


def caps_to_text(caps: LoweredCaps | None) -> str:
    """A text for `caps_of_text`. Empty for None."""
    return "" if caps is None else seal(LoweredCapsRecord.of(caps)).decode()


def caps_of_text(text: str) -> LoweredCaps | None:
    """What `caps_to_text` was called with.

    Raises:
        StoreError: it is another text, or no run lowers caps so.
    """
    if not text:
        return None
    caps = unseal(text.encode(), LoweredCapsRecord, CAPS_FILE).value
    if wrong := next(wrong_lowerings(caps.of, caps.lowered), ""):
        raise StoreError(f"{CAPS_FILE}: {wrong}")
    return caps


def keep_caps(storage: Storage, caps: LoweredCaps) -> None:
    """Write them in place of those before.

    Raises:
        StoreError: the store cannot be used.
    """
    storage.write(CAPS_FILE, caps_to_text(caps).encode())


def read_caps(storage: Storage) -> LoweredCaps | None:
    """The caps that a run has lowered. None if it has lowered none.

    Raises:
        NewerFormat: another version of planner wrote them.
        StoreError: they are torn or altered, or the store does not answer.
    """
    return caps_of_text(storage.read_first(CAPS_FILE, _MOST_BYTES).decode(errors="replace"))

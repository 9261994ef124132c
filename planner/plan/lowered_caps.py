"""Caps on micro-batches that a run has lowered, because a worker ran out of memory.

A global batch is the same at any cap: with a lower one, a step has more rounds. Caps are lowered for a kind of device,
and a group takes the least of its devices' caps. They only fall, and each lowering at least halves the largest
micro-batch, so a run has at most `log2(batch.max_micro)` of them for each kind of device.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Self

from planner.plan.factory import BatchSizes


@dataclass(frozen=True, kw_only=True)
class Caps:
    """The most that a micro-batch may have."""

    max_micro: int
    """in samples"""
    max_tokens: int | None = None
    """in tokens. None: only samples are counted"""

    @classmethod
    def of(cls, sizes: BatchSizes) -> Self:
        """The caps of these batch sizes."""
        return cls(max_micro=sizes.max_micro, max_tokens=sizes.max_tokens)

    def least(self, other: "Caps") -> "Caps":
        """The lower one of each. `other` has a cap on tokens if and only if this has one."""
        tokens = None if self.max_tokens is None or other.max_tokens is None else min(self.max_tokens, other.max_tokens)
        return Caps(max_micro=min(self.max_micro, other.max_micro), max_tokens=tokens)

    def is_within(self, other: "Caps") -> bool:
        """Whether neither cap is above that of `other`, and both have a cap on tokens or none has."""
        if (self.max_tokens is None) != (other.max_tokens is None):
            return False
        return self.max_micro <= other.max_micro and (self.max_tokens or 0) <= (other.max_tokens or 0)


@dataclass(frozen=True, kw_only=True)
class LoweredCap:
    """One lowering."""

    device: str
    """kind of device: a GPU's name, or `CPU`"""
    place: str
    """where memory ran out (`planner.base.memory_errors.MemoryPlace`)"""
    was: Caps
    """in force in the group that failed"""
    now: Caps


@dataclass(frozen=True, kw_only=True)
class LoweredCaps:
    """All lowerings of a run, oldest first."""

    of: Caps
    """the job's caps that they replace. A job with other caps begins anew: the user has decided"""
    lowered: tuple[LoweredCap, ...] = ()

    def where(self, devices: Collection[str]) -> tuple[LoweredCap, ...]:
        """The lowerings for these kinds of devices."""
        return tuple(each for each in self.lowered if each.device in devices)

    def with_one(self, lowered: LoweredCap) -> Self:
        """A copy with one more."""
        return replace(self, lowered=(*self.lowered, lowered))

    def for_job(self, caps: Caps) -> "LoweredCaps":
        """The same for a job with these caps: none, if they are not those that were lowered."""
        return self if caps == self.of else LoweredCaps(of=caps)


def least_caps(of: Caps, lowered: Collection[LoweredCap]) -> Caps:
    """The job's caps after these lowerings."""
    for each in lowered:
        of = of.least(each.now)
    return of


def lowered_sizes(sizes: BatchSizes, lowered: Collection[LoweredCap]) -> BatchSizes:
    """The batch sizes of a group whose devices have these lowerings."""
    caps = least_caps(Caps.of(sizes), lowered)
    return replace(sizes, max_micro=caps.max_micro, max_tokens=caps.max_tokens)


def lower(was: Caps, *, samples: int, tokens: int | None, longest: int | None) -> Caps | None:
    """The caps after memory ran out: half of the largest micro-batch. None if that is one sample.

    Args:
        was: the caps in force.
        samples: of the largest micro-batch in force.
        tokens: of the largest micro-batch in force. None: as many as the cap.
        longest: tokens of the longest sample, below which the cap on tokens cannot be. None if it is not known: then
            that cap stays.
    """
    samples = min(samples, was.max_micro)
    if samples < 2:  # one sample cannot be divided
        return None
    if was.max_tokens is None or longest is None:
        return Caps(max_micro=samples // 2, max_tokens=was.max_tokens)
    half = max(min(tokens or was.max_tokens, was.max_tokens) // 2, longest)
    return Caps(max_micro=samples // 2, max_tokens=min(half, was.max_tokens))


def wrong_lowerings(of: Caps, lowered: Collection[LoweredCap]) -> Iterator[str]:
    """What is wrong with lowerings on record.

    Args:
        of: the job's caps.
        lowered: those on record, oldest first.
    """
    before: dict[str, Caps] = {}
    for each in lowered:
        if not each.was.is_within(before.get(each.device, of)):
            yield f"a cap was lowered for {each.device} from {caps_text(each.was)}, which was not in force"
        if not (0 < each.now.max_micro <= each.was.max_micro // 2 and each.now.is_within(each.was)):
            yield f"a cap was lowered for {each.device} from {caps_text(each.was)} to {caps_text(each.now)}"
        before[each.device] = each.now


def misfits(
    of: Caps,
    lowered: Collection[LoweredCap],
    found: Caps,
    *,
    is_auto: bool = False,
    are_tokens_auto: bool = False,
) -> Iterator[str]:
    """What is wrong with lowerings on record, or with the caps of a plan that is said to follow from them.

    Args:
        of: the job's caps.
        lowered: those on record, oldest first.
        found: the caps of the plan on record.
        is_auto: whether the memory of the group's devices may have made the cap on samples lower.
        are_tokens_auto: whether it may have made the cap on tokens lower.
    """
    yield from wrong_lowerings(of, lowered)
    wanted = least_caps(of, lowered)
    least, has_tokens = wanted.least(found), found.max_tokens is not None
    allowed = Caps(
        max_micro=least.max_micro if is_auto else wanted.max_micro,
        max_tokens=least.max_tokens if are_tokens_auto and has_tokens else wanted.max_tokens,
    )
    if found != allowed:
        yield f"its micro-batches have at most {caps_text(found)}, and its job and lowered caps say {caps_text(wanted)}"


def caps_text(caps: Caps) -> str:
    """`8 samples` or `8 samples and 4,096 tokens`."""
    samples = "1 sample" if caps.max_micro == 1 else f"{caps.max_micro} samples"
    return samples if caps.max_tokens is None else f"{samples} and {caps.max_tokens:,} tokens"

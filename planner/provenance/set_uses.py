"""What a run used of each set of a mixture, by name."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.base.text import counted
from planner.data.base import SetRows
from planner.order.set_counts import SetCounts


@dataclass(frozen=True, kw_only=True)
class SetUse:
    """How many samples of one set of a mixture the steps used."""

    name: str
    """path, configuration and split"""
    samples: int
    """of the set in an epoch: its rows without those that are held out"""
    whole_epochs: int
    """epochs that the steps completed. Each used all samples of the set once, or there is a finding"""
    after: int
    """samples of the set in the epoch that is not complete"""


def uses_of(sets: Sequence[SetRows], counts: SetCounts) -> tuple[SetUse, ...]:
    """What the steps used, set by set."""
    return tuple(
        SetUse(name=each.name, samples=samples, whole_epochs=counts.whole_epochs, after=after)
        for each, samples, after in zip(sets, counts.order.set_samples, counts.after, strict=True)
    )


def miscount_texts(sets: Sequence[SetRows], counts: SetCounts) -> list[str]:
    """Epochs that did not use exactly the samples of a set, one sentence each."""
    wanted = counts.order.set_samples
    return [
        f"epoch {found.epoch} used {counted(found.used, 'sample')} of {sets[found.set_number].name}, "
        f"which has {wanted[found.set_number]}"
        for found in counts.miscounts
    ]

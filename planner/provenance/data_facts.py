"""What the ledger and manifests say of a run's data, and how it differs from that of a job. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from planner.base.text import as_submitted, counted
from planner.data.base import SampleDataset, SetRows
from planner.data.evaluation import WithEvaluation
from planner.events.resuming import EvaluationChanged
from planner.order.order import Order, chosen_in
from planner.store.data_facts import StoredEvaluation, StoredSet, evaluation_in, facts_about, sets_in

_MOST_NAMED = 5


def data_facts(dataset: SampleDataset, order: Order) -> dict[str, Any]:
    """The facts about a job's data, as JSON values. Empty if it is one data set, of which samples are held out."""
    sets = dataset.sets
    evaluation = _evaluation(dataset, order.num_held_out) if isinstance(dataset, WithEvaluation) else None
    return facts_about(_stored(sets, order.set_held_out) if sets else (), evaluation)


def _evaluation(dataset: WithEvaluation, num_samples: int) -> StoredEvaluation:
    evaluation = dataset.evaluation
    return StoredEvaluation(
        samples=num_samples,
        rows=evaluation.num_rows,
        fingerprint=dataset.evaluation_fingerprint,
        sets=_stored(evaluation.sets, evaluated_of_sets(evaluation, num_samples)),
    )


def evaluated_of_sets(evaluation: SampleDataset, num_samples: int) -> tuple[int, ...]:
    """How many of `num_samples` samples to evaluate on are of each set of a mixture. Empty for a single data set."""
    return chosen_in(tuple(each.num_rows for each in evaluation.sets), num_samples) if evaluation.sets else ()


def _stored(sets: Sequence[SetRows], evaluated: Sequence[int]) -> tuple[StoredSet, ...]:
    return tuple(
        StoredSet(name=as_submitted(each.name), rows=each.num_rows, evaluated=count, fingerprint=each.fingerprint)
        for each, count in zip(sets, evaluated, strict=True)
    )


def set_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How the sets of the mixture differ between a run's facts and those of a job, one text each."""
    return _differences(sets_in(before), sets_in(now))


def evaluation_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[EvaluationChanged]:
    """One event if both evaluate on a data set of its own, and the samples differ. Else none."""
    old, new = evaluation_in(before), evaluation_in(now)
    if old is None or new is None or old.fingerprint == new.fingerprint:
        return []
    sets = "; ".join(_differences(old.sets, new.sets)) or None
    return [EvaluationChanged(before=old.samples, now=new.samples, sets=sets)]


def _differences(before: Sequence[StoredSet], now: Sequence[StoredSet]) -> list[str]:
    """How sets differ, one text each. Empty if either is not known."""
    if not before or not now:
        return []
    old, new = _numbered(before), _numbered(now)
    found = [
        *(f"{key[0]} is gone" for key in old if key not in new),
        *(f"{key[0]} is new" for key in new if key not in old),
        *(_difference(old[key], each) for key, each in new.items() if key in old),
    ]
    found = [text for text in found if text]
    if not found and list(old) != list(new):
        found = ["the sets are in another order"]
    more = len(found) - _MOST_NAMED
    return [*found[:_MOST_NAMED], *([f"and {counted(more, 'set')} more"] if more > 0 else [])]


def _numbered(sets: Sequence[StoredSet]) -> dict[tuple[str, int], StoredSet]:
    """The sets by name. Of one name there may be several, with other fractions."""
    seen = Counter[str]()
    found = {}
    for each in sets:
        found[each.name, seen[each.name]] = each
        seen[each.name] += 1
    return found


def _difference(before: StoredSet, now: StoredSet) -> str:
    if before.rows != now.rows:
        return f"{now.name} has {counted(now.rows, 'row')} and had {before.rows}"
    return f"{now.name} has other content" if before.fingerprint != now.fingerprint else ""

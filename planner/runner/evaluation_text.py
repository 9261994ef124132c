"""What a job trains on and evaluates, as text for a dry run."""

from collections.abc import Sequence

from planner.base.text import as_submitted, counted
from planner.data.base import SampleDataset
from planner.data.evaluation import WithEvaluation
from planner.job import Job
from planner.order.order import Order
from planner.provenance.data_facts import evaluated_of_sets

_MOST_SETS = 50


def mixture_texts(dataset: SampleDataset, order: Order) -> tuple[str, ...]:
    """How many samples an epoch trains on, and how many of each set of a mixture. Empty for a single data set."""
    sets = (dataset.training if isinstance(dataset, WithEvaluation) else dataset).sets
    if not sets:
        return ()
    text = f"{counted(order.num_samples, 'sample')} of {len(sets)} data sets in an epoch"
    return (text, *_of_sets("samples", [each.name for each in sets], order.set_samples))


def evaluation_texts(job: Job, dataset: SampleDataset, order: Order) -> tuple[str, ...]:
    """How many samples are evaluated, where they come from, and how many are of each set. Empty if none are."""
    if not job.eval.is_on:
        return ()
    number = order.num_held_out
    if not isinstance(dataset, WithEvaluation):
        part = f" ({job.eval.samples})" if isinstance(job.eval.samples, str) else ""
        text = f"{number} of {counted(order.num_rows, 'sample')}{part}, held out of training"
        return (text, *_of_sets("held out", [each.name for each in dataset.sets], order.set_held_out))
    evaluation = dataset.evaluation
    assert job.eval.data is not None  # where such a data set comes from
    source = (
        f"{len(job.eval.data.sets)} data sets" if job.eval.data.mixture else as_submitted(job.eval.data.sets[0].name)
    )
    return (
        f"{number} of {counted(evaluation.num_rows, 'sample')} of {source} (eval.data)",
        f"All {counted(order.num_samples, 'sample')} of data are trained on.",
        *_of_sets("evaluated", [each.name for each in evaluation.sets], evaluated_of_sets(evaluation, number)),
    )


def _of_sets(what: str, names: Sequence[str], counts: Sequence[int]) -> tuple[str, ...]:
    """One text for each set of a mixture. Empty if there are no sets."""
    texts = [f"{what} of {as_submitted(name)}: {count}" for name, count in zip(names, counts, strict=False)]
    more = len(texts) - _MOST_SETS
    return (*texts[:_MOST_SETS], *([f"and {counted(more, 'set')} more"] if more > 0 else []))

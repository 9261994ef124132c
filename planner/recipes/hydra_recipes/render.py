"""What the writers of the DPO repository and of HALOs share."""

from collections.abc import Sequence

from planner.job import RowsData, duration
from planner.recipes.hydra_recipes.datasets import System, names_in
from planner.recipes.rendering import DATA_SETS, Rendering, length_in_examples
from planner.recipes.scalars import number
from planner.recipes.split import nearest_multiple
from planner.recipes.system import BatchSplit
from planner.recipes.trl.render_trackers import UNNAMED, experiment

TORCH = {"rmsprop": "RMSprop", "adamw": "AdamW", "sgd": "SGD"}
_EVAL = "that system evaluates a test split, so write n_eval_examples and eval_every, both in examples"


def _named(rendering: Rendering, system: System) -> list[str]:
    """The system's names of the data sets to train on, empty if it does not name all of them."""
    data = rendering.job.data
    return names_in(system, data if isinstance(data, RowsData) else None, "train")


def datasets(rendering: Rendering, system: System) -> str:
    """The names of the data sets in a command, or the placeholder for them."""
    if not (names := _named(rendering, system)):
        return "DATA"
    rendering.write(DATA_SETS)
    return ",".join(names)


def yours_of(rendering: Rendering, system: System) -> str:
    """What the user writes for the placeholders of a command. Empty if it has none."""
    data = "" if _named(rendering, system) else "your data for DATA"
    name = "a name for NAME" if experiment(rendering.job) == UNNAMED else ""
    return " and ".join(filter(None, [data, name]))


def evaluation(rendering: Rendering, system: System, option: str) -> None:
    """Writes how many rows of the system's own test split are evaluated, if the job evaluates those."""
    test, samples = names_in(system, rendering.job.eval.data, "test"), rendering.job.eval.samples
    if test and (system == "halos" or test == _named(rendering, system)) and isinstance(samples, int) and samples:
        rendering.write("eval.data eval.samples", f"{option}={samples}")
        every = duration.parse(rendering.job.eval.every)
        if every.unit in {"examples", "steps"}:
            size = rendering.job.batch.global_batch if every.unit == "steps" else 1
            rendering.write("eval.every", f"{option.replace('n_eval_examples', 'eval_every')}={every.amount * size}")
    rendering.leave("eval", _EVAL)


def prompts(rendering: Rendering, prefix: str, default: str) -> None:
    """Writes the longest prompt of rows that do not fit into the context."""
    most = rendering.value("data.max_prompt")
    arguments = [f"{prefix}max_prompt_length={most}"] if most else []
    rendering.write_or_leave(
        "data.max_prompt",
        arguments,
        f"this job has no limit, but the default of {prefix}max_prompt_length is {default}",
    )


def length(rendering: Rendering, sign: str) -> None:
    """Writes one of the two lengths and unsets the other, because a run ends with the one reached first."""
    epochs, names = rendering.job.train.epochs, "train.epochs train.steps train.examples"
    if epochs is None:
        rendering.write(names, f"{sign}n_epochs=null", f"{sign}n_examples={length_in_examples(rendering.job)}")
    elif epochs.is_integer():
        rendering.write(names, f"{sign}n_epochs={number(epochs)}")
    else:
        rendering.leave(names, f"n_epochs must be whole, so write {sign}n_epochs=null {sign}n_examples=N")


def schedule(rendering: Rendering, kind: str, why: str) -> None:
    """Writes a schedule of the only kind that the system has for the job's loss, which falls to 0 if it falls."""
    its = rendering.job.train.schedule
    if its.kind == kind:
        rendering.write("train.schedule.kind")
        if kind == "constant" or not its.final_fraction:
            rendering.write("train.schedule.final_fraction")
    rendering.leave("train.schedule.kind train.schedule.final_fraction", why)


def eval_batch(split: BatchSplit, unit: int) -> tuple[int, tuple[str, ...]]:
    """The multiple of `unit` nearest to the recipe's evaluation batch, and a note if it differs from that."""
    written = split.recipe.eval_batch
    evaluated = nearest_multiple(written or split.batch, unit)
    if not written or evaluated == written:
        return evaluated, ()
    note = f"eval_batch_size {evaluated} instead of {written}, which {unit} does not divide (training is the same)"
    return evaluated, (note,)


def or_theirs(split: BatchSplit, arguments: Sequence[str]) -> Sequence[str]:
    """The arguments, or `...` if the recipe is a file or a folder of this system."""
    return ["..."] if split.is_own and not split.recipe.arguments else arguments

"""What the DPO repository and HALOs' branch legacy share: they slice batches and count cadences in examples."""

from dataclasses import dataclass

from planner.recipes.recipe import AmbiguousUnit, BatchOutcome
from planner.recipes.scalars import number
from planner.recipes.split import dropped_by_slicing, used_by_slicing


@dataclass(frozen=True, kw_only=True)
class Sliced:
    """A batch that is cut into A slices, and each slice into W. An evaluation batch is cut only into W."""

    batch: int
    accumulation: int
    eval_batch: int
    is_sharded: bool
    """whether there is one process per GPU. If not, one process uses all GPUs"""

    def on_empty(self) -> tuple[str, bool]:
        """What a model does with an empty batch, and whether it raises that as an error."""
        return "no rows on a GPU", False

    def takes(self, gpus: int, micro: int, accumulation: int) -> bool:  # noqa: ARG002
        """True: slicing accepts any split of the batch."""
        return True

    def sliced(self, gpus: int) -> BatchOutcome:
        """What the system does at a GPU count, by slicing alone."""
        processes = gpus if self.is_sharded else 1
        used = used_by_slicing(self.batch, self.accumulation, processes)
        if not used:
            text, is_raised = self.on_empty()
            evaluated = self.eval_text(gpus)
            return BatchOutcome(
                gpus=gpus, verdict="error", batch=None, text=text, is_raised=is_raised, eval_text=evaluated
            )
        return BatchOutcome(
            gpus=gpus,
            verdict="exact" if used == self.batch else "other batch",
            batch=used,
            dropped=tuple(dropped_by_slicing(self.batch, self.accumulation, processes) if used < self.batch else ()),
            eval_text=self.eval_text(gpus),
        )

    def eval_text(self, gpus: int) -> str:
        """How much of an evaluation batch is used at a GPU count, such as `30 of 32`."""
        processes = gpus if self.is_sharded else 1
        used = self.eval_batch // processes * processes
        return f"{used} of {self.eval_batch}" if used != self.eval_batch else str(used)


def eval_every_unit(eval_every: int, batch: int, unit: str, lowered_to: int | None = None) -> AmbiguousUnit:
    """The unit of `eval_every`: examples, lowered to a multiple of `lowered_to`, by default of the batch."""
    whole = eval_every // (lowered_to or batch) * (lowered_to or batch)
    if not whole:
        there = "less than a batch, so it becomes 0 and ends the run"
        return AmbiguousUnit(key="eval_every", value=str(eval_every), there=there, here="every: 1 step")
    lowered = "" if whole == eval_every else f", lowered to {whole}"
    return AmbiguousUnit(
        key="eval_every", value=str(eval_every), there=f"{unit}s{lowered}: every {number(whole / batch)} steps",
        here=f"eval.every: {whole} examples{' rounded' if whole % batch else ''}",
    )  # fmt: skip


def n_examples_unit(n_examples: int, batch: int) -> AmbiguousUnit:
    """The unit of `n_examples`: examples, rounded up to the batch that reaches it."""
    steps = -(-n_examples // batch)
    rounded = "" if steps * batch == n_examples else f", rounded up to {steps * batch}"
    return AmbiguousUnit(
        key="n_examples", value=str(n_examples), there=f"examples{rounded}: {steps} steps",
        here=f"train.examples: {steps * batch}",
    )  # fmt: skip

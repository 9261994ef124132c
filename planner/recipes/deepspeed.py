"""DeepSpeed's JSON: train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x GPUs.

Any of them may be left out (runtime/config.py): what is missing is worked out by `//`, and all are asserted to fit.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.recipes.drafting import Options, finish, job_name, make_own, order_sections, set_batch, set_workers
from planner.recipes.entries import Keys
from planner.recipes.recipe import AmbiguousUnit, BatchOutcome, CheckOptions, Draft, Recipe, Trap

_BATCH, _MICRO = "train_batch_size", "train_micro_batch_size_per_gpu"
_STEPS = "gradient_accumulation_steps"
_REASONS = {
    "zero_optimization": "planner shards by FSDP2",
    "bf16": "precision is your loop's",
    "fp16": "precision is your loop's",
    "optimizer": "the optimizer is your loop's",
    "scheduler": "the schedule is your loop's",
    "steps_per_print": "the ledger has every step",
    "wall_clock_breakdown": "the ledger has every step's time",
}


def is_deepspeed(tree: Mapping[str, Any]) -> bool:
    """Whether these are the keys of such a file."""
    return _BATCH in tree or _MICRO in tree or ("zero_optimization" in tree and _STEPS in tree)


def read(keys: Keys, options: Options) -> Recipe:
    """The batch facts; a DeepSpeed file says nothing of model, data or loss. Mistakes are noted in `keys`."""
    written = {name: _number(keys, name) for name in (_BATCH, _MICRO, _STEPS)}
    if not any(written.values()) and not keys.mistakes:
        keys.wrong(f"found none of {_BATCH}, {_MICRO} and {_STEPS}; write two of them")
    facts = DeepSpeedFacts(batch=written[_BATCH], micro=written[_MICRO], accumulation=written[_STEPS])
    each = (facts.micro or 1) * (facts.accumulation or 1)
    if facts.batch and facts.batch % each:
        keys.lacks(
            f"{_BATCH}: {facts.batch} is no multiple of {_MICRO} x {_STEPS} = {each}, at any GPU count; mend one"
        )
    gpus = options.gpus
    if facts.batch is None and gpus is None and not keys.mistakes:
        keys.wrong(
            f"the GPU count: without {_BATCH} the global batch is GPUs x {_MICRO} x {_STEPS}; write the count "
            "that the file "
            "was tuned for (convert --gpus W, check --tuned-for W)"
        )
    if gpus is not None and (error := facts.error(gpus)) and not keys.mistakes:
        keys.lacks(f"at {gpus} GPUs, {error}; write numbers that fit, or leave one out")
    batch, micro, steps = _sizes_of(facts, gpus)
    draft = Draft()
    draft.set("name", job_name(keys.source.rpartition("/")[2].removesuffix(".json")))
    fits = gpus is not None and not facts.error(gpus)
    how = f"{batch} = {gpus} GPUs x {micro} x {steps}" if fits else f"{batch}: {_BATCH}"
    set_batch(draft, keys, options, batch, micro, how)
    if keys.value("gradient_clipping") == "auto":
        text = "gradient_clipping auto is max_grad_norm of the Trainer's recipe, 1 by default there"
        draft.derive("train.clip_norm", 1.0, f"train.clip_norm 1: {text}")
        draft.to_do.append(f"train.clip_norm: {text}; write yours if it is another")
    else:
        clip = keys.number("gradient_clipping", 0.0)
        draft.derive("train.clip_norm", clip or None, f"train.clip_norm {clip or 'null'}: gradient_clipping")
    draft.derive("train.epochs", 1, "train.epochs 1: a DeepSpeed file does not say how long; mend it")
    set_workers(draft, batch, gpus)
    order_sections(draft)
    finish(draft, keys, _REASONS, "nothing here stands for it")
    make_own(draft, "what your script trains", "a DeepSpeed file says nothing of model, data and loss")
    fixed = replace(facts, tuned=batch, tuned_gpus=gpus)
    return Recipe(
        source=keys.source,
        method="what your script trains",
        unit="sample",
        global_batch=batch,
        accumulation=steps,
        gpus=gpus,
        micro=micro,
        eval_batch=None,
        draft=draft,
        foreign=fixed,
    )


def _sizes_of(facts: "DeepSpeedFacts", gpus: int | None) -> tuple[int, int | None, int]:
    """The global batch, what one GPU held (none if the file does not tell), and the accumulation steps.

    A file that does not fit its own GPU count still says its batch and its micro-batch.
    """
    if gpus is not None and not facts.error(gpus):
        return facts.filled(gpus)
    batch = facts.batch or 1
    return batch, min(facts.micro, batch) if facts.micro else None, facts.accumulation or 1


def _number(keys: Keys, name: str) -> int | None:
    if keys.value(name) == "auto":
        keys.wrong(f"{name}: found auto, which the Trainer fills in; write the TRL recipe, or a number")
        return None
    return keys.whole(name) if keys.has(name) else None


@dataclass(frozen=True, kw_only=True)
class DeepSpeedFacts:
    """A file as DeepSpeed reads it; None is what it does not say."""

    batch: int | None
    micro: int | None
    accumulation: int | None
    tuned: int = 0
    """the batch that it was tuned for"""
    tuned_gpus: int | None = None
    """the GPU count that it is said to be tuned for"""

    def filled(self, gpus: int) -> tuple[int, int, int]:
        """Batch, micro-batch and accumulation, completed as DeepSpeed does. They may not fit each other."""
        batch, micro, steps = self.batch, self.micro, self.accumulation
        if batch is None:
            micro, steps = micro or 1, steps or 1
            return micro * steps * gpus, micro, steps
        if micro is None:
            steps = steps or 1
            return batch, batch // gpus // steps, steps
        return batch, micro, batch // micro // gpus if steps is None else steps

    def error(self, gpus: int) -> str:
        """The arithmetic by which DeepSpeed refuses a GPU count; empty if it starts."""
        batch, micro, steps = self.filled(gpus)
        if not micro:
            return f"AssertionError: m = {batch} // {gpus} // {steps} = 0"
        if not steps:
            return f"AssertionError: A = {batch} // {micro} // {gpus} = 0"
        if batch != micro * steps * gpus:
            return f"AssertionError: {_BATCH} {batch} != {micro} x {steps} x {gpus}"
        return ""

    def words(self, gpus: int) -> str:
        """What DeepSpeed prints at a GPU count at which it refuses (runtime/config.py, _batch_assertion)."""
        batch, micro, steps = self.filled(gpus)
        for what, value in (("Micro batch size per gpu", micro), ("Gradient accumulation steps", steps)):
            if not value:
                return f"{what}: {value} has to be greater than 0"
        return (
            "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step "
            f"* world_size {batch} != {micro} * {steps} * {gpus}"
        )

    def takes(self, gpus: int, micro: int, accumulation: int) -> bool:  # noqa: ARG002  # whatever it is
        """Whether DeepSpeed would start with another split of the same batch: with any that fits."""
        return True

    def outcome(self, gpus: int) -> BatchOutcome:
        """What happens at a GPU count."""
        if text := self.error(gpus):
            return BatchOutcome(gpus=gpus, verdict="error", batch=None, text=text)
        batch = self.filled(gpus)[0]
        return BatchOutcome(gpus=gpus, verdict="exact" if batch == self.tuned else "other batch", batch=batch)

    def units(self) -> list[AmbiguousUnit]:
        """Nothing in a DeepSpeed file misleads by its unit."""
        return []

    def traps(self, question: CheckOptions) -> list[Trap]:
        """What the outcome alone does not show."""
        made = []
        if (gpus := self.tuned_gpus) and self.error(gpus):
            text = f'DeepSpeed does not start with this file on {gpus} GPUs: "{self.words(gpus)}".'
            made.append(Trap(name="tuned for", text=text))
        if self.batch is None and any(self.outcome(count).verdict != "exact" for count in question.counts):
            text = f"Without {_BATCH} nothing holds the batch: it grows with the GPUs."
            made.append(Trap(name="no global batch", text=text))
        return made


def file_text(gpus: int, micro: int, accumulation: int, *, precision: str = "bf16") -> str:
    """A DeepSpeed file with all three batch numbers, in the job's `precision`."""
    rest = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": precision != "fp32"}}
    return with_sizes(rest, gpus, micro, accumulation)


def with_sizes(tree: dict[str, Any], gpus: int, micro: int, accumulation: int) -> str:
    """The user's DeepSpeed file with the three batch numbers replaced."""
    sizes = {_BATCH: gpus * micro * accumulation, _MICRO: micro, _STEPS: accumulation}
    return json.dumps({**sizes, **tree, **sizes}, indent=2) + "\n"

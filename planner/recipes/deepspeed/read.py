"""DeepSpeed's JSON: train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x GPUs.

Each of the three may be missing. DeepSpeed (runtime/config.py) derives missing ones by `//`, then asserts the product.
"""

from dataclasses import dataclass, replace

from planner.recipes.deepspeed.keys import BATCH, MICRO, RULES, STEPS
from planner.recipes.deepspeed.trackers import set_trackers
from planner.recipes.drafting import RecipeOptions, finish, job_name, make_own, order_sections, set_batch, set_workers
from planner.recipes.engine import refuse_values
from planner.recipes.entries import KeyReader, flat
from planner.recipes.overrides import overrides
from planner.recipes.recipe import AmbiguousUnit, BatchOutcome, CheckOptions, Draft, Recipe, Trap
from planner.recipes.rule import NO_SETTING
from planner.recipes.source import RecipeSource


def read(found: RecipeSource, options: RecipeOptions) -> Recipe:
    """The recipe in a DeepSpeed file, with the overrides applied.

    Raises:
        RecipeError: a value is wrong or missing.
    """
    entries = flat(found.tree, found.source)
    overrides(found.arguments, entries)
    keys = KeyReader(source=found.source, entries=entries, is_for_job=options.is_for_job, rules=RULES)
    recipe = recipe_from(keys, options)
    keys.raise_mistakes()
    return recipe


def recipe_from(keys: KeyReader, options: RecipeOptions) -> Recipe:
    """The recipe in a DeepSpeed file, which sets batch sizes but no model, data or loss. Notes mistakes in `keys`."""
    refuse_values(keys, "DeepSpeed", but="auto")
    sizes = (BATCH, MICRO, STEPS)
    if auto := [name for name in sizes if keys.value(name) == "auto"]:
        keys.wrong(
            f"{', '.join(auto)}: found auto, which the Trainer fills in from its own recipe. Give planner that recipe "
            "(its command with --deepspeed FILE), or write numbers"
        )
    written = {name: _number(keys, name) for name in sizes}
    if not any(written.values()) and not keys.mistakes:
        keys.wrong(f"found none of {BATCH}, {MICRO} and {STEPS}. Write two of them")
    facts = DeepSpeedFacts(batch=written[BATCH], micro=written[MICRO], accumulation=written[STEPS])
    each = (facts.micro or 1) * (facts.accumulation or 1)
    if facts.batch and facts.batch % each:
        keys.lacks(
            f"{BATCH}: {facts.batch} is no multiple of {MICRO} x {STEPS} = {each}, so no GPU count fits. Correct one"
        )
    gpus = options.gpus
    if facts.batch is None and gpus is None and not keys.mistakes:
        keys.wrong(
            f"the GPU count: without {BATCH} the global batch is GPUs x {MICRO} x {STEPS}. Write the count that "
            f"the file was tuned for ({options.gpus_option} W)"
        )
    if gpus is not None and (error := facts.error(gpus)) and not keys.mistakes:
        keys.lacks(f"at {gpus} GPUs, {error}. Write numbers that fit, or leave one out")
    batch, micro, steps = _sizes_of(facts, gpus)
    draft = Draft()
    draft.set("name", job_name(keys.source.rpartition("/")[2].removesuffix(".json")))
    fits = gpus is not None and not facts.error(gpus)
    how = f"{batch} = {gpus} GPUs x {micro} x {steps}" if fits else f"{batch}: {BATCH}"
    set_batch(draft, keys, options, batch, micro, how)
    if keys.value("gradient_clipping") == "auto":
        text = "gradient_clipping auto means max_grad_norm of the Trainer's recipe, whose default is 1"
        draft.derive("train.clip_norm", 1.0, f"train.clip_norm 1: {text}")
        draft.ask(f"train.clip_norm: {text}. Change it if your recipe sets another one")
    else:
        clip = keys.number("gradient_clipping", 0.0)
        draft.derive("train.clip_norm", clip or None, f"train.clip_norm {clip or 'null'}: gradient_clipping")
    draft.derive("train.epochs", 1, "train.epochs 1: a DeepSpeed file does not set the length. Write yours")
    set_workers(draft, batch, gpus)
    set_trackers(draft, keys)
    order_sections(draft)
    finish(draft, keys, RULES.reasons(keys.entries), NO_SETTING)
    make_own(draft, "what your script trains", "a DeepSpeed file names no model, data or loss")
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
    """Global batch, micro-batch (None if unknown) and accumulation steps, also if the file does not fit `gpus`."""
    if gpus is not None and not facts.error(gpus):
        return facts.filled(gpus)
    batch = facts.batch or 1
    return batch, min(facts.micro, batch) if facts.micro else None, facts.accumulation or 1


def _number(keys: KeyReader, name: str) -> int | None:
    if keys.value(name) == "auto":
        return None
    return keys.whole(name) if keys.has(name) else None


@dataclass(frozen=True, kw_only=True)
class DeepSpeedFacts:
    """The batch numbers of a DeepSpeed file (None if missing), and what DeepSpeed does with them."""

    batch: int | None
    micro: int | None
    accumulation: int | None
    tuned: int = 0
    """the batch that the file was tuned for"""
    tuned_gpus: int | None = None
    """the GPU count that the user says it was tuned for"""

    def filled(self, gpus: int) -> tuple[int, int, int]:
        """Batch, micro-batch and accumulation steps, completed as DeepSpeed does. Their product may be wrong."""
        batch, micro, steps = self.batch, self.micro, self.accumulation
        if batch is None:
            micro, steps = micro or 1, steps or 1
            return micro * steps * gpus, micro, steps
        if micro is None:
            steps = steps or 1
            return batch, batch // gpus // steps, steps
        return batch, micro, batch // micro // gpus if steps is None else steps

    def error(self, gpus: int) -> str:
        """The arithmetic of DeepSpeed's refusal at a GPU count, empty if it starts."""
        batch, micro, steps = self.filled(gpus)
        if not micro:
            return f"AssertionError: m = {batch} // {gpus} // {steps} = 0"
        if not steps:
            return f"AssertionError: A = {batch} // {micro} // {gpus} = 0"
        if batch != micro * steps * gpus:
            return f"AssertionError: {BATCH} {batch} != {micro} x {steps} x {gpus}"
        return ""

    def message(self, gpus: int) -> str:
        """What DeepSpeed prints when it refuses a GPU count (runtime/config.py, _batch_assertion)."""
        batch, micro, steps = self.filled(gpus)
        for what, value in (("Micro batch size per gpu", micro), ("Gradient accumulation steps", steps)):
            if not value:
                return f"{what}: {value} has to be greater than 0"
        return (
            "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step "
            f"* world_size {batch} != {micro} * {steps} * {gpus}"
        )

    def takes(self, gpus: int, micro: int, accumulation: int) -> bool:  # noqa: ARG002
        """True: DeepSpeed starts with any split of the batch."""
        return True

    def outcome(self, gpus: int) -> BatchOutcome:
        """What DeepSpeed does at a GPU count."""
        if text := self.error(gpus):
            return BatchOutcome(gpus=gpus, verdict="error", batch=None, text=text)
        batch = self.filled(gpus)[0]
        return BatchOutcome(gpus=gpus, verdict="exact" if batch == self.tuned else "other batch", batch=batch)

    def units(self) -> list[AmbiguousUnit]:
        """Empty: no unit in a DeepSpeed file is ambiguous."""
        return []

    def traps(self, options: CheckOptions) -> list[Trap]:
        """What the outcomes do not show."""
        made = []
        if (gpus := self.tuned_gpus) and self.error(gpus):
            text = f'DeepSpeed does not start with this file on {gpus} GPUs: "{self.message(gpus)}".'
            made.append(Trap(name="tuned for", text=text))
        if self.batch is None and any(self.outcome(count).verdict != "exact" for count in options.counts):
            text = f"Without {BATCH} the batch grows with the GPU count."
            made.append(Trap(name="no global batch", text=text))
        return made

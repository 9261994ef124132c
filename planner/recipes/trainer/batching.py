"""What the Trainer and TRL do with a recipe at each GPU count (TRL 0.19 to HEAD, transformers 4.53 and 5.23)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from planner.recipes.recipe import AmbiguousUnit, BatchOutcome, CheckOptions, Trap
from planner.recipes.split import repeats_of_even_batches
from planner.recipes.trainer.accelerate import DeepSpeedSizes
from planner.recipes.trainer.keys import MICRO, STEPS
from planner.recipes.trainer.traps import by_length, data_parallel, not_read, padding_free, resumes, version_of

# Losses whose value depends on the split of a batch, and how.
_VARIES = {
    "kto": "TRL pairs completions within micro-batches of m and averages the KL over m x GPUs",
    "aot": "TRL sorts within the micro-batch of each GPU",
    "aot_pair": "TRL sorts within the micro-batch of each GPU",
    "bco_pair": "TRL keeps a running mean over micro-batches",
    "orpo": "TRL's likelihood term is a mean over the tokens of a micro-batch",
}
_LEAST_MICRO = {"kto": 2}
"""the smallest micro-batch that TRL takes, if it is above 1"""
_NEVER_DIVIDED = ((4, 49), (4, 52))
"""first and last version of transformers that, with some versions of TRL, do not divide the loss by A"""
_PARTIAL_STEPS = (4, 55)
"""the first version of transformers that divides the loss of an epoch's last, partial step by its own A"""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Counts of processes with which a recipe's system does not start."""

    text: str
    """the error, short enough for a table cell"""
    least: int = 1
    most: int | None = None
    multiple_of: int = 1

    def refuses(self, gpus: int) -> bool:
        """Whether it does not start on these GPUs."""
        return gpus < self.least or (self.most is not None and gpus > self.most) or bool(gpus % self.multiple_of)


@dataclass(frozen=True, kw_only=True)
class TrainerFacts:
    """The settings of a recipe on which transformers' Trainer and TRL depend, and what they do with it."""

    method: str
    loss: str
    unit: str
    micro: int
    """per_device_train_batch_size"""
    accumulation: int
    """gradient_accumulation_steps, or what the system makes of it at `tuned_gpus`"""
    tuned_gpus: int
    batch: int
    """the global batch at the GPU count that the recipe was tuned for"""
    eval_micro: int
    evaluates: bool
    splits_batches: bool
    even_batches: bool
    drops_last: bool
    num_generations: int | None
    generation_batch: int | None
    steps_per_generation: int
    names_steps: bool
    """whether the recipe names steps_per_generation"""
    launch_kind: str
    epochs: float | None
    max_steps: int | None
    warmup: str
    warmup_key: str
    warmup_written: str
    eval_every: str
    old_keys: tuple[str, ...]
    packs: bool
    groups_by_length: bool = False
    """whether the Trainer puts rows of similar length into a step"""
    cuts_padding_free: bool = False
    """whether the recipe has padding_free and a limit of rows"""
    eval_generations: int = 8
    """num_generations of an evaluation"""
    deepspeed: DeepSpeedSizes | None = None
    """DeepSpeed's own batch sizes, None without DeepSpeed"""
    mesh: int | None = None
    """the number of processes that accelerate's parallelism_config needs, None if any"""
    accelerator: Mapping[str, Any] | None = None
    """accelerator_config without what changes the batch, None if the recipe does not have it"""
    num_steps: bool = False
    """whether `accumulation` is num_steps of accelerator_config"""
    unread: tuple[str, ...] = ()
    """files of the launcher or DeepSpeed that are not on this machine"""
    is_alone: bool = False
    """whether Python starts the script without a launcher"""
    is_launched: bool = False
    """whether a launcher starts the script, by the recipe's command or by an accelerate file"""
    may_shard: bool = True
    """whether the script may run under FSDP, although nothing read says so"""
    resumes: bool = False
    """whether the recipe names a checkpoint to resume from"""
    is_trl: bool = True
    """whether TRL's own scripts train it, for what is known of its versions"""
    names: Mapping[str, str] = field(default_factory=dict)
    """the Trainer's keys whose names differ in the recipe's system, and those names"""
    workers: int | None = None
    """the processes that the recipe starts whatever the GPU count is, None if one for each GPU"""
    sharing: int = 1
    """how many processes share the same rows, by tensor or context parallelism"""
    fills: int = 0
    """the batch to which the system fills up by its choice of A if the recipe names no A. 0 if it names one"""
    leaves_out: bool = False
    """whether an epoch leaves out the last rows that are not one for each GPU"""
    rounds_warmup: str = "up"
    """how the system rounds a warmup that is a part of all steps"""
    own_traps: tuple[Trap, ...] = ()
    """what the system does silently in its own way"""
    limits: tuple[Limit, ...] = ()
    """counts of processes with which the recipe's system does not start"""
    varies: str = ""
    """why the loss depends on the split of a batch, if it does so otherwise than in TRL"""
    least_transformers: tuple[int, ...] = ()
    """the oldest version of transformers that the recipe's system takes, empty if planner knows none"""
    handbook_keys: tuple[str, ...] = ()
    """the recipe's keys that only the alignment-handbook's scripts up to v0.3 take"""

    def name(self, key: str) -> str:
        """The name of a key of the Trainer in the recipe's system."""
        return self.names.get(key, key)

    def processes(self, gpus: int) -> int:
        """The number of processes on these GPUs."""
        return self.workers or gpus

    def batch_at(self, gpus: int) -> int:
        """The global batch at a GPU count: m * A * W, or m * A with split_batches, where m is of all GPUs."""
        return self.micro * self.steps(gpus) * (1 if self.splits_batches else self.replicas(gpus))

    def steps(self, gpus: int) -> int:
        """A at a GPU count."""
        return max(1, ceil(self.fills / self.micro / self.processes(gpus))) if self.fills else self.accumulation

    def replicas(self, gpus: int) -> int:
        """The number of processes that read different rows, at least 1, at a GPU count."""
        return max(self.processes(gpus) // self.sharing, 1)

    def takes(self, gpus: int, micro: int, accumulation: int) -> bool:
        """Whether the Trainer would train exactly the same batch with another split."""
        steps = self.steps_per_generation if self.names_steps else accumulation
        other = replace(
            self, micro=micro, accumulation=accumulation, steps_per_generation=steps,
            splits_batches=False, deepspeed=None, mesh=None, launch_kind="", fills=0,
            sharing=1, limits=tuple(each for each in self.limits if each.multiple_of == 1),
        )  # fmt: skip
        return other.outcome(gpus).verdict == "exact"

    def outcome(self, gpus: int) -> BatchOutcome:
        """What the Trainer does at a GPU count."""
        text, is_raised = self._refusal(gpus)
        if text:
            return BatchOutcome(gpus=gpus, verdict="error", batch=None, text=text, is_raised=is_raised)
        batch, processes = self.batch_at(gpus), self.processes(gpus)
        return BatchOutcome(
            gpus=gpus,
            verdict="exact" if batch == self.batch else "other batch",
            batch=batch,
            eval_text=f"{self.eval_micro * processes} ({self.eval_micro} x {processes})" if self.evaluates else "-",
        )

    def _refusal(self, gpus: int) -> tuple[str, bool]:
        """The error, empty if it starts, and whether it is raised."""
        if text := self._size_error(self.processes(gpus)):
            return text, True
        if self.launch_kind == "NO" and gpus > 1:
            return "accelerate starts 1 process (distributed_type NO)", False
        return self._start_error(gpus), True

    def _size_error(self, processes: int) -> str:
        """The error if the micro-batch of a GPU is none, or too small for the method. Empty if it is not."""
        if self.splits_batches and self.micro % processes:
            return f"ValueError: split_batches, {self.micro} % {processes} = {self.micro % processes}"
        least = _LEAST_MICRO.get(self.method, 1) if self.is_trl else 1
        if self.micro // (processes if self.splits_batches else 1) < least:
            return f"ValueError: {self.method.upper()} needs a micro-batch above {least - 1}"
        return ""

    def _start_error(self, gpus: int) -> str:
        """The error if this number of processes contradicts another setting, empty if it does not."""
        for limit in self.limits:
            if limit.refuses(gpus):
                return limit.text
        processes = self.processes(gpus)
        if self.mesh not in {None, processes}:
            return f"ValueError: parallelism_config is for {self.mesh} processes"
        if self.deepspeed and (other := self.deepspeed.other(processes, self.micro, self.steps(gpus))):
            return _contradiction(*other)
        return self._groups(processes)[0] if self.num_generations else ""

    def _groups(self, gpus: int) -> tuple[str, str]:
        """The error if GRPO would not generate or evaluate whole groups at once, and its cause. Empty if it does."""
        assert self.num_generations
        step, made = self.micro * gpus, self.generation_batch
        if made and made % step:
            cause = f"splits generation_batch_size {made} into {self.name(MICRO)} x GPUs, which must divide it"
            return f"ValueError: generation_batch_size {made} % {step}", cause
        made = made or step * self.steps_per_generation
        if made % self.num_generations:
            error = f"ValueError: {made} % num_generations {self.num_generations} = {made % self.num_generations}"
            of = f"{self.name(MICRO)} x GPUs x steps_per_generation"
            of = "generation_batch_size" if self.generation_batch else of
            cause = f"generates {of} completions at once, which must be whole groups of {self.num_generations}"
            return error, cause
        evaluated, size = self.eval_micro * gpus, self.eval_generations
        if self.evaluates and evaluated % size:
            of = self.name("per_device_eval_batch_size")
            cause = f"evaluates {of} x GPUs completions at once, which must be whole groups of {size}"
            return f"ValueError: eval {evaluated} % num_generations {size}", cause
        return "", ""

    def units(self) -> list[AmbiguousUnit]:
        """The numbers whose units are easily mistaken."""
        rows = [
            AmbiguousUnit(
                key=self.name(MICRO),
                value=str(self.micro),
                there="of all GPUs (split_batches)" if self.splits_batches else f"{self.unit}s per GPU and micro-batch",
                here=f"batch.global: {self.batch}",
            ),
        ]
        if self.num_steps:
            there = "replaces gradient_accumulation_steps"
            rows.append(
                AmbiguousUnit(key="num_steps", value=str(self.accumulation), there=there, here="no such setting")
            )
        if self.warmup_written != "0":
            there = (
                "optimizer steps, of any size"
                if "steps" in self.warmup
                else f"of all steps, rounded {self.rounds_warmup}"
            )
            here = f"warmup: {self.warmup}"
            rows.append(AmbiguousUnit(key=self.warmup_key, value=self.warmup_written, there=there, here=here))
        if self.eval_every:
            there = "optimizer steps, of any size" if self.eval_every.endswith("steps") else "of the run"
            rows.append(
                AmbiguousUnit(
                    key=self.name("eval_steps"),
                    value=self.eval_every,
                    there=there,
                    here=f"eval.every: {self.eval_every}",
                )
            )
        return rows

    def traps(self, options: CheckOptions) -> list[Trap]:
        """What the outcomes do not show."""
        made = [
            self._silent(options),
            self._schedule(options),
            self._kto(options),
            self._grpo(options),
            self._varies(),
            self._not_divided(options),
            self._repeats(options),
            self._left_out(options),
            self._tuned(),
            self._last_step(options),
            self._no_sync(options),
            self._versions(options),
            self._handbook(),
            not_read(self.unread),
            resumes(self._oldest(options)) if self.resumes else None,
            by_length() if self.groups_by_length else None,
            padding_free() if self.cuts_padding_free else None,
            *self.own_traps,
        ]
        if self.packs:
            text = "The unit is a packed row, so the number of conversations in a batch depends on their lengths."
            made.append(Trap(name="packing", text=text))
        # Under a launcher or DeepSpeed each process has one GPU.
        if not self.is_launched and self.launch_kind != "DEEPSPEED" and max(options.counts) > 1:
            made.append(data_parallel(self.micro * self.accumulation, is_alone=self.is_alone and self.is_trl))
        return [trap for trap in made if trap]

    def _silent(self, options: CheckOptions) -> Trap | None:
        other = [count for count in options.counts if self.outcome(count).verdict == "other batch"]
        if not other:
            return None
        batches = [f"{self.batch_at(count)} at {count}" for count in sorted({min(other), max(other)})]
        if self.fills:
            text = (
                f"{self.name(STEPS)} is not set, so it is {self.fills} / {self.micro} / GPUs, rounded up: the batch is "
                f"{' and '.join(batches)} GPUs, and {self.batch} at {self.tuned_gpus}."
            )
            return Trap(name="derived accumulation", text=text)
        text = (
            f"The batch is {self.name(MICRO)} x {self.name(STEPS)} x GPUs: "
            f"{' and '.join(batches)} GPUs. The learning rate stays that of batch {self.batch}, a number that the "
            "recipe does not contain."
        )
        return Trap(name="no global batch", text=text)

    def _schedule(self, options: CheckOptions) -> Trap | None:
        if not self.max_steps or all(self.outcome(count).verdict != "other batch" for count in options.counts):
            return None
        text = (
            f"max_steps {self.max_steps} counts steps of any batch, so another GPU count trains on another amount of "
            "data."
        )
        return Trap(name="max_steps", text=text)

    def _kto(self, options: CheckOptions) -> Trap | None:
        """Only at as many GPUs as the batch has completions is 1 the only micro-batch that keeps the batch."""
        if not self.is_trl or self.method != "kto" or self.micro < 2 or self.batch not in options.counts:
            return None
        text = (
            f"Batch {self.batch} at {self.batch} GPUs needs micro-batches of 1. TRL refuses them, because each "
            "completion's KL partner is another one in its micro-batch."
        )
        return Trap(name="KTO micro-batch", text=text)

    def _grpo(self, options: CheckOptions) -> Trap | None:
        if not self.num_generations:
            return None
        causes: dict[str, list[str]] = {}
        for count in options.counts:
            if cause := self._groups(self.processes(count))[1]:
                causes.setdefault(cause, []).append(str(count))
        if not causes:
            return None
        who = "TRL" if self.is_trl else "The trainer"
        text = " ".join(
            f"{who} {cause}. It refuses {', '.join(bad)} GPU{'s' * (bad != ['1'])}." for cause, bad in causes.items()
        )
        text += " In planner, make each sample a whole group, which is not cut."
        return Trap(name="group cuts", text=text)

    def _varies(self) -> Trap | None:
        why = self.varies or (self.is_trl and (_VARIES.get(self.loss) or _VARIES.get(self.method)))
        if not why:
            return None
        return Trap(name="depends on the split", text=f"{why}, so the loss of the same batch depends on its split.")

    def _not_divided(self, options: CheckOptions) -> Trap | None:
        if self.accumulation == 1 or self.method not in {"dpo", "orpo"} or not self.is_trl:
            return None
        last = "0.13" if self.method == "dpo" else "0.19.1"
        affected = _is_between(options.transformers, *_NEVER_DIVIDED)
        if affected is False:
            return None
        which = f"transformers {options.transformers}" if affected else "transformers 4.49 to 4.52"
        text = (
            f"With {which} and trl up to {last} the loss is not divided by the {self.accumulation} accumulation steps, "
            "so gradients grow with gradient_accumulation_steps at the same batch. transformers 4.53 and newer divide "
            "it."
        )
        return Trap(name="accumulation not divided", text=text)

    def _repeats(self, options: CheckOptions) -> Trap | None:
        if not self.even_batches or self.drops_last or self.splits_batches or max(options.counts) == 1:
            return None
        if options.rows is None:
            text = (
                f"An epoch is filled up to a multiple of {self.micro} x GPUs rows with rows from its start "
                "(--rows N counts them)."
            )
            return Trap(name="repeated rows", text=text)
        found = {count: repeats_of_even_batches(options.rows, count, self.micro) for count in options.counts}
        worst = max(found, key=lambda count: found[count])
        if not found[worst]:
            return None
        text = (
            f"Up to {found[worst]} of {options.rows} rows are visited twice in an epoch (at {worst} GPUs), because "
            f"each GPU gets the same number of batches of {self.micro}."
        )
        return Trap(name="repeated rows", text=text)

    def _left_out(self, options: CheckOptions) -> Trap | None:
        rows = options.rows
        if not self.leaves_out or not rows or not (lost := {n: rows % n for n in options.counts if rows % n}):
            return None
        most = max(lost, key=lambda count: lost[count])
        return Trap(
            name="rows left out", text=f"Up to {lost[most]} of {rows} rows are left out in an epoch (at {most} GPUs)."
        )

    def _tuned(self) -> Trap | None:
        error = self._refusal(self.tuned_gpus)[0]
        if not error:
            return None
        gpus = f"{self.tuned_gpus} GPU{'s' * (self.tuned_gpus > 1)}"
        text = f"It does not start on {gpus}, the count that it was tuned for: {error}."
        return Trap(name="tuned for", text=text)

    def _last_step(self, options: CheckOptions) -> Trap | None:
        if self.accumulation == 1 or self.method == "sft":
            return None
        if options.rows and not any(options.rows % self.batch_at(count) for count in options.counts):
            return None
        if self._oldest(options) >= _PARTIAL_STEPS:
            return None
        who = f"transformers {options.transformers or 'up to 4.54'}"
        text = (
            f"{who} divides the last, partial step of an epoch by {self.accumulation}, too, so its rows weigh less. "
            "planner has no partial steps."
        )
        return Trap(name="last step of an epoch", text=text)

    def _oldest(self, options: CheckOptions) -> tuple[int, ...]:
        """The version of transformers that the user names, else the oldest one that the recipe's system takes."""
        return version_of(options.transformers) if options.transformers else self.least_transformers

    def _no_sync(self, options: CheckOptions) -> Trap | None:
        if self.accumulation == 1 or self.launch_kind not in {"", "FSDP"}:
            return None
        is_unsaid = not self.launch_kind and (self.is_alone or not self.may_shard)
        if is_unsaid or max(options.counts) == 1:
            return None
        begin = "Under FSDP" if self.launch_kind else "If the script starts under FSDP"
        text = (
            f"{begin}, accumulation runs in no_sync: each GPU holds the gradient of the whole model. So accumulating "
            "on fewer GPUs takes more memory (not with DeepSpeed)."
        )
        return Trap(name="memory", text=text)

    def _versions(self, options: CheckOptions) -> Trap | None:
        if not self.old_keys:
            return None
        shown = ", ".join(self.old_keys)
        if options.transformers and version_of(options.transformers) < (5, 0):
            return None
        who = "Newer TRL and transformers 5 refuse" if self.is_trl else "transformers 5 and systems that use it refuse"
        return Trap(name="does not load", text=f"{who} {shown}. The recipe needs older versions.")

    def _handbook(self) -> Trap | None:
        if not self.handbook_keys:
            return None
        text = (
            f"{', '.join(self.handbook_keys)}: only scripts of the alignment-handbook up to v0.3 take this. Newer "
            "scripts and TRL's own refuse the file."
        )
        return Trap(name="older handbook", text=text)


def _contradiction(name: str, its: int, ours: int) -> str:
    """What transformers refuses if DeepSpeed has another size, short enough for a table cell."""
    short = {"gradient_accumulation_steps": "A", "train_micro_batch_size_per_gpu": "m"}.get(name, "batch")
    return f"ValueError: DeepSpeed's {short}={its}, the recipe's {short}={ours}"


def _is_between(version: str | None, low: tuple[int, int], high: tuple[int, int]) -> bool | None:
    """Whether a version lies between two others, by its first two parts. None if it is unknown."""
    return None if version is None else low <= version_of(version)[:2] <= high

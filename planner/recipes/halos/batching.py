"""What HALOs does with a recipe at each GPU count (launch.py, trainers.py and dataloader.py at 4831988)."""

from dataclasses import dataclass
from typing import Literal

from planner.recipes.hydra_recipes.batch_slicing import Sliced, eval_every_unit
from planner.recipes.hydra_recipes.forks import Fork
from planner.recipes.recipe import AmbiguousUnit, BatchOutcome, CheckOptions, Trap
from planner.recipes.scalars import number
from planner.recipes.split import groups_cut

Meaning = Literal["total", "per accumulation step", "legacy"]

# Losses that depend on the micro-batch in HALOs, and why.
_VARIES = {
    "sft": "HALOs averages over the tokens of a micro-batch, then over micro-batches",
    "ppo": "HALOs whitens advantages within each micro-batch",
    "grpo": "HALOs takes group statistics and token means within a micro-batch of all GPUs",
}


@dataclass(frozen=True, kw_only=True)
class HalosFacts(Sliced):
    """The settings of a recipe on which HALOs' behaviour depends, and that behaviour."""

    written: int
    """model.batch_size"""
    meaning: Meaning
    method: str
    unit: str
    is_unpaired: bool
    eval_every: int
    n_examples: int | None
    n_epochs: float | None
    warmup: str
    """a cadence"""
    is_fsdp: bool
    model_choice: str
    clip_norm: float | None
    """None if the recipe does not set it, or clips nothing"""
    clips: bool
    group: int | None
    """completions per prompt of a sampling command, None if there is none"""
    reward_model_path: bool
    fork: Fork
    """what the recipe has that HALOs does not have"""

    @property
    def is_legacy(self) -> bool:
        """Whether the recipe is of the branch legacy, which slices batches as the DPO repository does."""
        return self.meaning == "legacy"

    @property
    def lowered_to(self) -> int:
        """The number of samples to a multiple of which HALOs lowers `eval_every`."""
        return self.written if self.is_legacy else self.batch

    def divisor(self, gpus: int) -> int:
        """The number of which batch and evaluation batch must be multiples."""
        return gpus * self.accumulation if self.meaning == "total" else gpus

    def outcome(self, gpus: int) -> BatchOutcome:
        """What HALOs does at a GPU count."""
        if self.is_legacy:
            return self._legacy(gpus)
        text = self._refusal(gpus)
        if text:
            return BatchOutcome(gpus=gpus, verdict="error", batch=None, text=text)
        return BatchOutcome(gpus=gpus, verdict="exact", batch=self.batch, eval_text=str(self.eval_batch))

    def micro(self, gpus: int) -> int:
        """Rows of one forward pass on one GPU."""
        return self.written // self.divisor(gpus)

    def takes(self, gpus: int, micro: int, accumulation: int) -> bool:
        """Whether HALOs would start with another split of the batch. An unpaired completion must not be alone."""
        del accumulation  # any, if the evaluation batch matches
        return not self.is_unpaired or micro * gpus > 1

    def _refusal(self, gpus: int) -> str:
        divisor = self.divisor(gpus)
        shown = f"{gpus} x {self.accumulation}" if self.meaning == "total" else str(gpus)
        if self.written % divisor:
            return f"ValueError: {self.written} % ({shown}) = {self.written % divisor}"
        if self.eval_batch % divisor:
            return f"ValueError: eval {self.eval_batch} % ({shown}) = {self.eval_batch % divisor}"
        if self.is_unpaired and self.micro(gpus) * gpus <= 1:
            return "ValueError: a lone completion"
        if not self.eval_every // self.batch:
            return f"ZeroDivisionError: eval_every {self.eval_every} < {self.batch}"
        return ""

    def _legacy(self, gpus: int) -> BatchOutcome:
        """What the branch legacy does: each accumulation step draws a batch of its own and slices it over the GPUs."""
        processes = gpus if self.is_sharded else 1
        each = self.written // processes * processes
        if not each:
            text = f"{self.written} rows, {gpus} slices: empty"
            return BatchOutcome(gpus=gpus, verdict="error", batch=None, text=text, is_raised=False)
        if not self.eval_every // self.written:
            text = f"ZeroDivisionError: eval_every {self.eval_every} < {self.written}"
            return BatchOutcome(gpus=gpus, verdict="error", batch=None, text=text)
        return BatchOutcome(
            gpus=gpus,
            verdict="exact" if each == self.written else "other batch",
            batch=each * self.accumulation,
            dropped=tuple(
                (step * self.written + each, (step + 1) * self.written)
                for step in range(self.accumulation)
                if each < self.written
            ),
            eval_text=self.eval_text(gpus),
        )

    def units(self) -> list[AmbiguousUnit]:
        """The numbers whose units are easily mistaken."""
        rows = [eval_every_unit(self.eval_every, self.batch, self.unit, self.lowered_to), self._warmup()]
        if self.n_examples:
            rows.append(self._n_examples())
        return rows

    def _warmup(self) -> AmbiguousUnit:
        """The row of the warmup, in the unit of the recipe."""
        here = f"warmup: {self.warmup}"
        if self.warmup.endswith("steps"):
            steps = int(self.warmup.split()[0])
            there = f"optimizer steps, of {self.batch} {self.unit}s: {steps * self.batch}"
            return AmbiguousUnit(key="warmup_steps", value=str(steps), there=there, here=here)
        share = number(float(self.warmup[:-1]) / 100)
        return AmbiguousUnit(
            key="warmup", value=share, there="a fraction of the steps, from a tenth of the rate", here=here
        )

    def steps(self, accumulation: int) -> int:
        """Optimizer steps of a run that n_examples ends.

        HALOs counts examples after each micro-batch (B / A examples over all GPUs). The run ends with the first one
        that reaches n_examples, and an incomplete group of A micro-batches makes no step.
        """
        assert self.n_examples is not None
        micro_batches = -(-self.n_examples * accumulation // self.batch)
        return micro_batches // accumulation

    def _n_examples(self) -> AmbiguousUnit:
        counts = {steps: self.steps(steps) for steps in (1, 2, 4) if not self.batch % steps}
        shown = ", ".join(f"{found} steps at A={steps}" for steps, found in counts.items())
        whole = -(-(self.n_examples or 0) // self.batch) * self.batch
        return AmbiguousUnit(
            key="n_examples",
            value=str(self.n_examples),
            there=shown if len(set(counts.values())) > 1 else f"{counts[1]} steps",
            here=f"train.examples: {whole}",
        )

    def traps(self, options: CheckOptions) -> list[Trap]:
        """What the outcomes do not show."""
        made = [
            self.fork.trap(),
            self._nowhere(options),
            self._clip(options),
            self._kto(options),
            self._grpo(options),
            self._varies(),
            self._eval_accumulation(),
            self._no_sync(options),
            self._n_examples_trap(),
            self._one_gpu(options),
            self._tail(options),
        ]
        if self.method == "slic":
            made.append(
                Trap(
                    name="slic", text="Its two losses have different shapes, so they add up only at a micro-batch of 1."
                )
            )
        if self.reward_model_path:
            text = "HALOs does not read model.reward_model_path. The reward model's key is model.reward_model.path."
            made.append(Trap(name="reward model", text=text))
        if self.model_choice == "qwen":
            text = "model=qwen wraps QWenBlock, which Qwen2 models do not have, so accelerate refuses to start."
            made.append(Trap(name="qwen", text=text))
        return [trap for trap in made if trap]

    def _nowhere(self, options: CheckOptions) -> Trap | None:
        if self.method != "ppo" or any(self.outcome(count).verdict == "exact" for count in options.counts):
            return None
        text = (
            f"This recipe starts at none of these counts. Its batch_size {self.written} with {self.accumulation} "
            f"accumulation steps is from before 2025-05-01, when it meant {self.written * self.accumulation}."
        )
        return Trap(name="starts nowhere", text=text)

    def _clip(self, options: CheckOptions) -> Trap | None:
        if not self.is_fsdp or self.is_legacy or not self.clips or max(options.counts) == 1:
            return None
        norm = f"to {number(self.clip_norm)} " if self.clip_norm else ""
        text = (
            f"Gradients are clipped {norm}per GPU, each shard by its own norm, so the effect of max_grad_norm depends "
            "on the GPU count. planner clips by the global norm."
        )
        return Trap(name="clipping per shard", text=text)

    def _kto(self, options: CheckOptions) -> Trap | None:
        if not self.method.startswith("kto"):
            return None
        if self.is_legacy:
            text = (
                f"The KL baseline is averaged over the {self.written} completions of an accumulation step, not over "
                f"the {self.batch} of an optimizer step, so it changes with accumulation. planner pools the whole "
                "global batch."
            )
            return Trap(name="KL baseline", text=text) if self.accumulation > 1 else None
        ones = [count for count in options.counts if self.outcome(count).verdict == "exact" and self.micro(count) == 1]
        pool = self.batch // self.accumulation
        text = (
            f"The KL baseline pairs neighbours within a micro-batch and averages over {pool} completions (batch / A), "
            "so it changes with GPUs and accumulation."
        )
        if ones:
            text += (
                f" At {', '.join(map(str, ones))} GPUs the micro-batch is 1, and each completion is its own partner."
            )
        return Trap(name="KL baseline", text=f"{text} planner pools the whole global batch.")

    def _grpo(self, options: CheckOptions) -> Trap | None:
        pool = self.batch // self.accumulation
        if self.method != "grpo" or not pool:  # HALOs starts at no count with more steps than completions
            return None
        size = options.group_size or self.group
        if size is None:
            text = (
                f"HALOs compares groups only within {pool} completions (batch / A). It cuts groups whose size does not "
                f"divide {pool}, and a lone member learns nothing (--group-size N counts the cut groups: size 6 cuts "
                f"{groups_cut(64, 6, pool)} of 64)."
            )
            return Trap(name="group cuts", text=text)
        cut = groups_cut(64, size, pool)
        text = (
            f"HALOs compares groups of {size} only within {pool} completions (batch / A) and cuts {cut} of 64 prompts"
        )
        more = {steps: groups_cut(64, size, self.batch // steps) for steps in (1, 2, 4) if not self.batch % steps}
        shown = ", ".join(f"{found} at A={steps}" for steps, found in more.items())
        text += f" ({shown})." if any(more.values()) else " at A = 1, 2 and 4."
        return Trap(
            name="group cuts",
            text=f"{text} GPUs may also disagree on the number of micro-batches, and hang. "
            "In planner, make each sample a whole group.",
        )

    def _varies(self) -> Trap | None:
        why = _VARIES.get(self.method)
        if why is None or (self.is_legacy and self.method == "sft"):
            return None
        text = f"{why}, so the loss of the same batch changes with GPUs and accumulation."
        return Trap(name="depends on the split", text=text)

    def _eval_accumulation(self) -> Trap | None:
        if self.meaning != "total" or self.accumulation == 1:
            return None
        text = (
            f"HALOs divides eval_batch_size {self.eval_batch} by the accumulation steps, too, although evaluation does "
            "not accumulate. A larger A can make it invalid."
        )
        return Trap(name="evaluation", text=text)

    def _no_sync(self, options: CheckOptions) -> Trap | None:
        if self.accumulation == 1 or not self.is_fsdp or self.is_legacy or self.method == "ppo":
            return None
        if max(options.counts) == 1:  # one GPU holds the whole gradient anyway
            return None
        text = (
            "Accumulation runs under no_sync: each GPU holds the gradient of the whole model, 2 bytes per parameter "
            "in bf16 (16 GB for 8B). A = 1 does not need it."
        )
        return Trap(name="memory", text=text)

    def _n_examples_trap(self) -> Trap | None:
        if not self.n_examples or not self.n_examples % self.batch:
            return None
        told = "" if self.is_legacy else f", and the schedule expects {self.n_examples // self.written}"
        text = (
            f"n_examples {self.n_examples} is no multiple of {self.batch}: the run has {self.steps(1)} steps at "
            f"A=1 and {self.steps(2)} at A=2{told}."
        )
        return Trap(name="n_examples", text=text)

    def _one_gpu(self, options: CheckOptions) -> Trap | None:
        if self.is_legacy or 1 not in options.counts or self.outcome(1).verdict == "error":
            return None
        text = (
            "At 1 GPU HALOs trains on the last, partial batch of an epoch with full weight. At 2 and more it drops it."
        )
        return Trap(name="one GPU", text=text)

    def _tail(self, options: CheckOptions) -> Trap | None:
        rows, size = options.rows, self.lowered_to
        is_whole = bool(rows and not rows % size)
        if (is_whole and self.is_legacy) or (not self.is_legacy and max(options.counts) == 1):
            return None
        if is_whole:
            text = "At 2 and more GPUs the evaluation set is cut to a multiple of the training batch."
            return Trap(name="epoch ends", text=text)
        lost = f"{rows % size} of {rows}" if rows else f"rows mod {size} (--rows N counts them)"
        if self.is_legacy:
            text = f"The last rows of an epoch that fill no batch are dropped: {lost}."
            return Trap(name="epoch ends", text=f"{text} planner continues into the next epoch.")
        return Trap(
            name="epoch ends",
            text=(
                f"At 2 and more GPUs the last rows of an epoch that fill no batch are dropped: {lost}. The evaluation "
                "set is cut to a multiple of the training batch, too."
            ),
        )

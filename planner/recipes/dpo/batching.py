"""What the DPO repository does with a recipe at each GPU count (train.py, trainers.py and utils.py at f8b8c0f)."""

from dataclasses import dataclass

from planner.recipes.hydra_recipes.batch_slicing import Sliced, eval_every_unit, n_examples_unit
from planner.recipes.hydra_recipes.forks import Fork
from planner.recipes.recipe import AmbiguousUnit, BatchOutcome, CheckOptions, Trap

# Blocks whose models refuse an empty batch in transformers 4.29.2. Llama accepts it, and its mean is NaN.
_REFUSE_EMPTY = ("GPTNeoXLayer", "GPT2Block", "GPTJBlock")

_GPUS_OF_A_MACHINE = 8


@dataclass(frozen=True, kw_only=True)
class DpoFacts(Sliced):
    """The settings of a recipe on which the repository's behaviour depends, and that behaviour."""

    trainer: str
    block: str
    unit: str
    eval_every: int
    n_examples: int | None
    n_epochs: int | None
    n_eval: int
    warmup_steps: int
    is_bf16: bool
    fork: Fork
    """what the recipe has that the repository does not have"""

    @property
    def has_own_trainer(self) -> bool:
        """Whether the repository does not have the recipe's trainer."""
        return "trainer" in self.fork.loss

    def on_empty(self) -> tuple[str, bool]:
        """What this recipe's model does with an empty batch, and whether it raises that as an error."""
        if self.block in _REFUSE_EMPTY:
            return "ValueError: batch_size has to be defined and > 0", True
        return "no rows on a GPU: NaN" if self.block == "LlamaDecoderLayer" else "no rows on a GPU", False

    def outcome(self, gpus: int) -> BatchOutcome:
        """What the repository does at a GPU count."""
        found = self.sliced(gpus)
        no_eval = self.is_sharded and self.eval_batch < gpus and self.block in _REFUSE_EMPTY
        if found.verdict != "error" and (not self.eval_every // self.batch):
            return BatchOutcome(
                gpus=gpus, verdict="error", batch=None, text="ZeroDivisionError: eval_every < batch_size",
                eval_text=found.eval_text,
            )  # fmt: skip
        if found.verdict != "error" and no_eval:
            text, is_raised = self.on_empty()
            return BatchOutcome(
                gpus=gpus, verdict="error", batch=None, text=text, is_raised=is_raised, eval_text=found.eval_text
            )
        return found

    def _eval_rounding(self) -> str:
        whole = -(-self.n_eval // self.eval_batch) * self.eval_batch
        return f"whole batches of {self.eval_batch}" + ("" if whole == self.n_eval else f": rounded up to {whole}")

    def units(self) -> list[AmbiguousUnit]:
        """The numbers whose units are easily mistaken."""
        rows = [
            eval_every_unit(self.eval_every, self.batch, self.unit),
            AmbiguousUnit(
                key="warmup_steps",
                value=str(self.warmup_steps),
                there=f"optimizer steps: {self.warmup_steps * self.batch} {self.unit}s",
                here=f"warmup: {self.warmup_steps} steps",
            ),
            AmbiguousUnit(
                key="n_eval_examples",
                value=str(self.n_eval),
                there=self._eval_rounding(),
                here=f"eval.samples: {-(-self.n_eval // self.eval_batch) * self.eval_batch}",
            ),
        ]
        if self.n_examples:
            rows.append(n_examples_unit(self.n_examples, self.batch))
        return rows

    def traps(self, options: CheckOptions) -> list[Trap]:
        """What the outcomes do not show."""
        made = [self._lost(options), self._empty(options), self._zero_division(), self._tail(options)]
        if self.n_examples and self.n_epochs:
            text = (
                f"n_examples {self.n_examples} and n_epochs {self.n_epochs} are both set. The run ends with the one "
                "reached first. Write n_epochs=null to train for n_examples."
            )
            made.append(Trap(name="two lengths", text=text))
        if self.unit == "pair":
            text = f"batch_size {self.batch} counts pairs. The README's effective batch size counts two sequences each."
            made.append(Trap(name="pairs", text=text))
        if not self.is_sharded and max(options.counts) > 1:
            text = f"{self.trainer} is one process: more GPUs hold more layers, but do not shorten a step."
            made.append(Trap(name="one process", text=text))
        if self.is_bf16 and self.is_sharded:
            made.append(Trap(name="bf16 sums", text="With fsdp_policy_mp bfloat16, gradients are summed in bf16, too."))
        if self.is_sharded and max(options.counts) > _GPUS_OF_A_MACHINE:
            made.append(
                Trap(
                    name="one machine", text="FSDPTrainer uses all GPUs of one machine. It cannot use several machines."
                )
            )
        made = [self.fork.trap(), *made]
        return [trap for trap in made if trap]

    def _lost(self, options: CheckOptions) -> Trap | None:
        cut = [found for count in options.counts if (found := self.outcome(count)).dropped and found.batch]
        if not cut:
            return None
        worst = min(cut, key=lambda found: (found.batch or 0, found.gpus))
        lost = self.batch - (worst.batch or 0)
        text = (
            f"The same positions of every batch are dropped (at {worst.gpus} GPUs {lost} of {self.batch}, "
            f"{lost / self.batch:.1%}), while the counter adds {self.batch}. An epoch does not train on those rows."
        )
        return Trap(name="rows cut off", text=text)

    def _empty(self, options: CheckOptions) -> Trap | None:
        empty = [count for count in options.counts if self.sliced(count).verdict == "error"]
        if not empty:
            return None
        text = (
            f"A batch of fewer than {self.accumulation} x GPUs rows leaves every GPU without rows. GPT-NeoX, GPT-2 and "
            'GPT-J end with "batch_size has to be defined and > 0", Llama continues with NaN.'
        )
        return Trap(name="empty batches", text=text)

    def _zero_division(self) -> Trap | None:
        if self.eval_every // self.batch:
            return None
        text = f"eval_every {self.eval_every} is below batch_size {self.batch}. It becomes 0, and `% 0` ends the run."
        return Trap(name="eval_every", text=text)

    def _tail(self, options: CheckOptions) -> Trap | None:
        rows = options.rows
        if rows and not rows % self.batch:
            return None
        lost = f"{rows % self.batch} of {rows}" if rows else f"rows mod {self.batch} (--rows N counts them)"
        text = (
            f"The last rows of an epoch that fill no batch are dropped: {lost}. planner continues into the next epoch."
        )
        return Trap(name="epoch ends", text=text)

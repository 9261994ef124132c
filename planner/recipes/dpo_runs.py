"""What the DPO repository does with a recipe at each GPU count (train.py, trainers.py and utils.py at f8b8c0f)."""

from dataclasses import dataclass

from planner.recipes.recipe import AmbiguousUnit, BatchOutcome, CheckOptions, Trap
from planner.recipes.slicing import Sliced, eval_every_unit, n_examples_unit

# Blocks whose models refuse an empty batch in transformers 4.29.2; Llama takes it, and its mean is NaN.
_REFUSE_EMPTY = ("GPTNeoXLayer", "GPT2Block", "GPTJBlock")

_GPUS_OF_A_MACHINE = 8


@dataclass(frozen=True, kw_only=True)
class DpoFacts(Sliced):
    """A recipe as the repository trains it."""

    trainer: str
    block: str
    unit: str
    eval_every: int
    n_examples: int | None
    n_epochs: int | None
    n_eval: int
    warmup_steps: int
    is_bf16: bool

    def empty_text(self) -> str:
        """What a model does with a batch of no rows."""
        if self.block in _REFUSE_EMPTY:
            return "ValueError: batch_size has to be defined and > 0"
        return "no rows on a GPU: NaN" if self.block == "LlamaDecoderLayer" else "no rows on a GPU"

    def outcome(self, gpus: int) -> BatchOutcome:
        """What happens at a GPU count."""
        found = self.sliced(gpus)
        no_eval = self.is_sharded and self.eval_batch < gpus and self.block in _REFUSE_EMPTY
        if found.verdict != "error" and (not self.eval_every // self.batch):
            return BatchOutcome(
                gpus=gpus, verdict="error", batch=None, text="ZeroDivisionError: eval_every < batch_size",
                eval_text=found.eval_text,
            )  # fmt: skip
        if found.verdict != "error" and no_eval:
            text = self.empty_text()
            return BatchOutcome(gpus=gpus, verdict="error", batch=None, text=text, eval_text=found.eval_text)
        return found

    def _eval_rounding(self) -> str:
        whole = -(-self.n_eval // self.eval_batch) * self.eval_batch
        return f"whole batches of {self.eval_batch}" + ("" if whole == self.n_eval else f": rounded up to {whole}")

    def units(self) -> list[AmbiguousUnit]:
        """Numbers in units that mislead."""
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

    def traps(self, question: CheckOptions) -> list[Trap]:
        """What the outcome alone does not show."""
        made = [self._lost(question), self._empty(question), self._zero_division(), self._tail(question)]
        if self.n_examples and self.n_epochs:
            text = (
                f"n_examples {self.n_examples} and n_epochs {self.n_epochs} are both set, and whichever comes "
                "first ends "
                "the run; n_epochs=null lets n_examples rule."
            )
            made.append(Trap(name="two lengths", text=text))
        if self.unit == "pair":
            text = f"batch_size {self.batch} counts pairs; the README's effective batch size counts two sequences each."
            made.append(Trap(name="pairs", text=text))
        if not self.is_sharded:
            text = f"{self.trainer} is one process: more GPUs hold more layers, and make no step shorter."
            made.append(Trap(name="one process", text=text))
        if self.is_bf16 and self.is_sharded:
            made.append(Trap(name="bf16 sums", text="With fsdp_policy_mp bfloat16 gradients are also summed in bf16."))
        if self.is_sharded and max(question.counts) > _GPUS_OF_A_MACHINE:
            made.append(
                Trap(name="one machine", text="FSDPTrainer takes every GPU of one machine, and none of another.")
            )
        return [trap for trap in made if trap]

    def _lost(self, question: CheckOptions) -> Trap | None:
        cut = [found for count in question.counts if (found := self.outcome(count)).dropped and found.batch]
        if not cut:
            return None
        worst = min(cut, key=lambda found: (found.batch or 0, found.gpus))
        lost = self.batch - (worst.batch or 0)
        text = (
            f"The same positions of every batch are thrown away (at {worst.gpus} GPUs {lost} of {self.batch}, "
            f"{lost / self.batch:.1%}), while the counter adds {self.batch}: in one epoch those rows are never "
            "trained on."
        )
        return Trap(name="rows cut off", text=text)

    def _empty(self, question: CheckOptions) -> Trap | None:
        empty = [count for count in question.counts if self.sliced(count).verdict == "error"]
        if not empty:
            return None
        text = (
            f"Below {self.accumulation} x GPUs rows in a batch every GPU gets none: GPT-NeoX, GPT-2 and GPT-J end with "
            '"batch_size has to be defined and > 0", Llama goes on with NaN.'
        )
        return Trap(name="empty batches", text=text)

    def _zero_division(self) -> Trap | None:
        if self.eval_every // self.batch:
            return None
        text = f"eval_every {self.eval_every} is below batch_size {self.batch}: it becomes 0, and `% 0` ends the run."
        return Trap(name="eval_every", text=text)

    def _tail(self, question: CheckOptions) -> Trap:
        rows = question.rows
        lost = f"here {rows % self.batch} of {rows}" if rows else f"rows mod {self.batch} (--rows N says how many)"
        text = (
            f"The last rows of each epoch that fill no batch are dropped: {lost}. planner runs on into the next epoch."
        )
        return Trap(name="epoch ends", text=text)

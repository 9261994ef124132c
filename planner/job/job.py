"""The job: what to train, on what, towards which goal. One frozen model, checked once at birth.

A job names model, data, objective and goal; what can be derived (shares, rounds, accumulation) is derived
by `planner.plan`. This room knows no file format (`planner.files` reads YAML), no torch and no Ray.
"""

from typing import Annotated, Any, Self, get_args

from pydantic import Field, field_validator, model_validator

from planner.job import cadence
from planner.job.data import Data
from planner.job.model import Model
from planner.job.objective import LmObjective, Objective, ReferenceSource
from planner.job.run import Batch, Checkpoint, Eval, Train, Workers
from planner.job.section import Section
from planner.plan import BatchSizes

# Which data an objective learns from.
_DATA_OF = {
    "lm": ("text", "jsonl", "tokens"),
    "sft": ("chat",),
    "dpo": ("pairs",),
    "ipo": ("pairs",),
    "simpo": ("pairs",),
    "kto": ("feedback",),
    "own": ("own",),
}


class Job(Section):
    """One training run, complete. Equal jobs have equal digests."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$",
        description="1 to 63 of a-z, 0-9, dot, dash and underscore, of which a letter or digit first",
    )
    model: Annotated[Model, Field(discriminator="kind", description="what is trained")]
    data: Annotated[Data, Field(discriminator="kind", description="what to train on")]
    objective: Annotated[Objective, Field(discriminator="kind", description="what the loss is")] = LmObjective()
    batch: Batch
    train: Train
    eval: Eval = Eval()
    workers: Workers = Workers()
    checkpoint: Checkpoint = Checkpoint()

    @field_validator("objective", mode="before")
    @classmethod
    def _objective_by_name(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _all_or_nothing_is_own(self) -> Self:
        kinds = {
            "model": self.model.kind,
            "data": self.data.kind,
            "objective": self.objective.kind,
            "train.optimizer": self.train.optimizer.kind,
        }
        ours = [name for name, kind in kinds.items() if kind != "own"]
        if 0 < len(ours) < len(kinds):
            raise ValueError(
                f"kind: own goes for all of {', '.join(kinds)} or for none; {' and '.join(ours)} "
                f"{'is' if len(ours) == 1 else 'are'} not"
            )
        return self

    @model_validator(mode="after")
    def _objective_declares_its_reference(self) -> Self:
        """Refuse an objective class without `reference`: planner would have to guess its reference."""
        found = getattr(self.objective, "reference", "nothing")
        if found not in (known := get_args(ReferenceSource)):
            raise ValueError(
                f"{type(self.objective).__name__} must declare `reference`, one of {', '.join(known)}; found {found}"
            )
        return self

    @model_validator(mode="after")
    def _every_worker_has_a_sample(self) -> Self:
        least, size = self.workers.min, self.batch.global_batch
        if least > size:
            raise ValueError(
                f"workers.min {least} is above batch.global {size}: a worker has at least one sample of each; write a "
                f"workers.min of at most {size}"
            )
        return self

    @model_validator(mode="after")
    def _data_suits_the_objective(self) -> Self:
        objective, data = self.objective, self.data.kind
        if data not in (kinds := _DATA_OF[objective.kind]):
            fitting = [name for name, its in _DATA_OF.items() if data in its]
            raise ValueError(
                f"objective {objective.kind} does not learn from data.kind {data}; write data.kind "
                f"{' or '.join(kinds)}, or objective: {' or '.join(fitting)}"
            )
        if self.model.kind == "hf" and objective.kind == "lm":
            raise ValueError(
                "model.kind hf reads data.kind chat, pairs or feedback; plain texts are chat rows, too "
                '({"text": ...}), with objective: sft and data.loss_on: all'
            )
        if self.model.kind != "hf" and getattr(objective, "reference_model", None) is not None:
            raise ValueError("objective.reference_model goes with model.kind hf; leave it out")
        if objective.kind == "kto" and self.batch.global_batch < 2:
            raise ValueError(
                "objective kto needs a batch.global of at least 2: its KL baseline pairs every prompt with the "
                "completion of another sample of the same global batch"
            )
        return self

    @model_validator(mode="after")
    def _examples_are_whole_steps(self) -> Self:
        every = self.checkpoint.every
        written = {
            "train.schedule.warmup": self.train.schedule.warmup,
            "eval.every": self.eval.every,
            **({} if every == "auto" else {"checkpoint.every": every}),
        }
        found = {key: cadence.mismatch(cadence.parse(text), self.batch.global_batch) for key, text in written.items()}
        if wrong := [f"{key}: {words}" for key, words in found.items() if words]:
            raise ValueError("; ".join(wrong))
        return self

    @property
    def is_own(self) -> bool:
        """Whether its training loop is the user's."""
        return self.data.kind == "own"

    @property
    def run_path(self) -> str:
        """The folder or URL of the run."""
        return self.checkpoint.path or f"runs/{self.name}"


def batch_sizes(job: Job) -> BatchSizes:
    """All that a plan needs to know of a job."""
    return BatchSizes(global_batch=job.batch.global_batch, max_micro=job.batch.max_micro, equality=job.batch.equality)

"""The job: what to train, on what data, with which objective. One frozen model, validated when it is made.

A job names model, data, objective and batch. `planner.plan` derives the rest (shares, rounds, accumulation).
`planner.files` reads jobs from YAML.
"""

from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from planner.job import duration
from planner.job.after import AfterRun
from planner.job.data import Data
from planner.job.data_registry import DATA_KINDS, data_spec_of
from planner.job.kind_registry import KindField
from planner.job.model import Model, OwnModel
from planner.job.objective import Objective, ReferenceChoice
from planner.job.objective_registry import OBJECTIVES, spec_of
from planner.job.objectives.lm import LmObjective
from planner.job.rows import Rows, RowsData
from planner.job.section import Section
from planner.job.settings import Batch, Checkpoint, Eval, Train, Workers
from planner.job.tracking import Trackers
from planner.plan import BatchSizes, WorkerRange, worker_range
from planner.plan.factory import MAX_TOKENS


class Job(Section):
    """All settings of one training run. Equal jobs have equal digests."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$",
        description="name of the run: 1 to 63 of a-z, 0-9, dot, dash and underscore, beginning with a letter or digit",
    )
    model: Annotated[Model, Field(discriminator="kind", description="the model to train")]
    data: Annotated[Data, KindField(DATA_KINDS), Field(description="the data to train on")]
    objective: Annotated[Objective, KindField(OBJECTIVES), Field(description="the loss to minimise")] = LmObjective()
    after: AfterRun = Field(
        default=None,
        description="earlier run whose weights this run begins with: its folder or URL, or a section. null means none",
    )
    batch: Batch
    train: Train
    eval: Eval = Eval()
    workers: Workers = Workers()
    checkpoint: Checkpoint = Checkpoint()
    tracking: Trackers = Field(default=(), description="where the run's curves are sent: one tracker or a list")

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
                f"write kind: own in all of {', '.join(kinds)} or in none. {' and '.join(ours)} "
                f"{'has' if len(ours) == 1 else 'have'} another kind"
            )
        return self

    @model_validator(mode="after")
    def _weights_can_come_from_a_run(self) -> Self:
        if self.after is not None and self.model.kind == "own":
            raise ValueError(
                "after sets the first weights of planner's own models, and your loop makes its model itself. Remove "
                "after, and load the tensors in your loop (planner.train.checkpoints.checkpoint.read)"
            )
        return self

    @model_validator(mode="after")
    def _every_worker_has_a_sample(self) -> Self:
        least, size = self.workers.min, self.batch.global_batch
        if least > size:
            raise ValueError(
                f"workers.min {least} is above batch.global {size}, and each worker needs a sample of every step. "
                f"Write a workers.min of at most {size}"
            )
        return self

    @model_validator(mode="after")
    def _data_suits_the_objective(self) -> Self:
        objective, data = spec_of(self.objective), data_spec_of(self.data)
        if data.samples in objective.samples:
            return self
        kinds = [spec.kind for spec in DATA_KINDS.usable_specs() if spec.samples in objective.samples]
        fitting = [spec.kind for spec in OBJECTIVES.usable_specs() if data.samples in spec.samples]
        ways = {"data.kind ": kinds, "objective: ": fitting}
        fix = ", or ".join(f"{key}{' or '.join(found)}" for key, found in ways.items() if found)
        raise ValueError(f"objective {objective.kind} does not learn from data.kind {data.kind}. Write {fix}")

    @model_validator(mode="after")
    def _data_suits_the_model(self) -> Self:
        data, model = data_spec_of(self.data), self.model
        if model.kind not in data.models:
            raise ValueError(
                f"model.kind {model.kind} does not read data.kind {data.kind}. Write model.kind "
                f"{' or '.join(data.models)}"
            )
        if flaw := self.data.flaw_with(model):
            raise ValueError(flaw)
        return self

    @model_validator(mode="after")
    def _evaluation_suits_the_data(self) -> Self:
        if self.eval.data is not None and not isinstance(self.data, RowsData):
            raise ValueError(
                f"eval.data is a data set of rows, and data.kind is {self.data.kind}. Write eval.samples alone, which "
                "holds samples out of training, or data.kind chat, pairs or feedback"
            )
        return self

    @model_validator(mode="after")
    def _objective_has_what_it_needs(self) -> Self:
        if self.model.kind != "hf" and self.reference.model is not None:
            raise ValueError("objective.reference_model needs model.kind hf. Remove it")
        spec = spec_of(self.objective)
        if self.batch.global_batch < spec.least_batch:
            because = f": {spec.least_batch_because}" if spec.least_batch_because else ""
            raise ValueError(f"objective {spec.kind} needs a batch.global of at least {spec.least_batch}{because}")
        return self

    @model_validator(mode="after")
    def _kernels_suit_the_job(self) -> Self:
        settings = {"compile": "blocks", "kernels": "liger"}
        asked = [f"{name} {value}" for name, value in settings.items() if getattr(self.train, name) == value]
        if asked and self.batch.equality == "bitwise":
            raise ValueError(
                f"train.{asked[0]} may change bits from one world size to another. Remove it, or write "
                "batch.equality: balanced"
            )
        if self.train.compile and self.model.kind == "hf" and self.model.frozen == "nf4":
            raise ValueError("train.compile blocks cannot compile 4-bit weights (model.frozen nf4). Remove one of them")
        if self.train.kernels == "liger" and self.model.kind != "hf":
            raise ValueError("train.kernels liger needs model.kind hf. Remove it")
        if self.train.kernels == "liger" and not self.workers.gpus:
            raise ValueError("train.kernels liger needs GPUs, and workers.gpus is 0. Write train.kernels: own")
        return self

    @model_validator(mode="after")
    def _attention_suits_the_job(self) -> Self:
        if self.model.kind != "hf" or self.model.attention not in ("flash_attention_2", "varlen"):
            return self
        name, is_torchs = self.model.attention, self.model.attention == "varlen"
        # Both kernels take 16-bit numbers only. The package's does not ask torch whether sums need an order.
        reasons = {
            "computes in bf16, and train.precision is fp32": self.train.precision != "bf16",
            "may change bits from one world size to another, and batch.equality is bitwise": (
                self.batch.equality == "bitwise"
            ),
            "needs GPUs, and workers.gpus is 0": not self.workers.gpus,
            "was not tried in compiled blocks, and train.compile is blocks": is_torchs and bool(self.train.compile),
        }
        if found := [reason for reason, is_so in reasons.items() if is_so]:
            raise ValueError(f"model.attention {name} {found[0]}. Write model.attention: auto")
        return self

    @model_validator(mode="after")
    def _lengths_are_known(self) -> Self:
        if self.batch.max_tokens is None:
            return self
        if self.is_own:
            raise ValueError(
                "batch.max_tokens needs the length of each sample, and your own loop's samples may have no tokens. "
                "Remove it"
            )
        return self

    @model_validator(mode="after")
    def _own_models_are_not_measured(self) -> Self:
        if self.is_own and self.batch.max_micro == "auto":
            raise ValueError("batch.max_micro auto: your loop makes the model, so it is not measured. Write a number")
        return self

    @model_validator(mode="after")
    def _examples_are_whole_steps(self) -> Self:
        every = self.checkpoint.every
        written = {
            "train.schedule.warmup": self.train.schedule.warmup,
            "eval.every": self.eval.every,
            **({} if every == "auto" else {"checkpoint.every": every}),
        }
        found = {key: duration.mismatch(duration.parse(text), self.batch.global_batch) for key, text in written.items()}
        if wrong := [f"{key}: {reason}" for key, reason in found.items() if reason]:
            raise ValueError(". ".join(wrong))
        return self

    @property
    def is_own(self) -> bool:
        """Whether the user wrote the training loop."""
        return self.data.kind == "own"

    @property
    def eval_data(self) -> RowsData | None:
        """The section `data` with the rows of `eval.data` in place of its own. None if the job has no `eval.data`.

        They are tokenized ahead, since each evaluation uses all of them.
        """
        if self.eval.data is None:
            return None
        assert isinstance(self.data, RowsData)  # checked when the job was made
        theirs = {name: getattr(self.eval.data, name) for name in Rows.model_fields}
        return self.data.model_copy(update={**theirs, "tokenize": "ahead"})

    @property
    def reference(self) -> ReferenceChoice:
        """The reference model of the objective."""
        return spec_of(self.objective).reference_of(self.objective)

    @property
    def run_path(self) -> str:
        """The folder or URL of the run."""
        return self.checkpoint.path or f"runs/{self.name}"


def sequences_of(job: Job) -> int:
    """How many sequences a sample becomes: 2 of a pair."""
    return 2 if data_spec_of(job.data).samples == "pairs" else 1


def most_sample_tokens(job: Job) -> int:
    """The most tokens that a sample may have: each of its sequences fills the context."""
    assert not isinstance(job.model, OwnModel)  # its loop makes its samples
    return sequences_of(job) * (job.data.sample_tokens(job.model) or job.model.context)


def _most_tokens(job: Job) -> int | None:
    """`batch.max_tokens`. With `auto`, the most that could help: as many as the most samples could have."""
    most = job.batch.max_tokens
    return min(job.batch.most_micro * most_sample_tokens(job), MAX_TOKENS) if most == "auto" else most


def batch_sizes(job: Job) -> BatchSizes:
    """The batch settings that a plan is made from."""
    batch = job.batch
    return BatchSizes(
        global_batch=batch.global_batch,
        max_micro=batch.most_micro,
        equality=batch.equality,
        max_tokens=_most_tokens(job),
        attention_at=batch.attention_at,
    )


def workers_of(job: Job) -> WorkerRange:
    """The worker counts that a run of the job may use."""
    return worker_range(workers_min=job.workers.min, workers_max=job.workers.max, global_batch=job.batch.global_batch)

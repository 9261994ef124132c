"""The job: what to train, on what, towards which goal. One frozen model, checked once at birth.

A job names model, data, objective and goal; what can be derived (shares, rounds, accumulation) is derived
by `planner.plan`. This module knows no file format (`planner.files` reads YAML), no torch and no Ray.
"""

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

# The largest values that the plan room promises to serve (see `planner.plan.layout`).
MAX_GLOBAL_BATCH = 2**20
MAX_MICRO = 4096
MAX_WORKERS = 65_536


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class GptModel(_Section):
    """A decoder-only transformer over bytes (vocabulary 256)."""

    kind: Literal["gpt"] = Field(description="the kind of model")
    layers: int = Field(ge=1, le=512, description="transformer blocks")
    width: int = Field(ge=1, le=65_536, description="features per token; a multiple of heads")
    heads: int = Field(ge=1, le=1024, description="attention heads per block")
    context: int = Field(ge=1, le=2**20, description="tokens per sample")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of activations set to zero in training")
    tied_embeddings: bool = Field(default=False, description="one matrix for the token embedding and the head")

    @model_validator(mode="after")
    def _width_splits_into_heads(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} does not split into {self.heads} heads; write a multiple of {self.heads}"
            )
        return self


class OwnModel(_Section):
    """Made by the train function of `data.path`."""

    kind: Literal["own"] = Field(description="made by your own loop")


class OwnData(_Section):
    """A Python file with a training loop of your own: `dataset()`, which returns a map, and `train(run)`."""

    kind: Literal["own"] = Field(description="a loop of your own")
    path: str = Field(min_length=1, description="the Python file")


class TextData(_Section):
    """Text files as one stream of bytes, cut into samples of `model.context` tokens."""

    kind: Literal["text"] = Field(description="files as one stream")
    path: str = Field(min_length=1, description="a file, a folder, a glob, or python-stdlib")


class JsonlData(_Section):
    """One JSON object per line; each row is a sample, cut to `model.context` tokens."""

    kind: Literal["jsonl"] = Field(description="a row per line")
    path: str = Field(min_length=1, description="a file or a glob")
    field: str = Field(default="text", min_length=1, description="the key that holds the text")


class TokensData(_Section):
    """A file that `planner prepare` made of text or jsonl: the same samples, opened at once at any size."""

    kind: Literal["tokens"] = Field(description="a file that planner prepare made")
    path: str = Field(min_length=1, description="the file that planner prepare made")


class LmObjective(_Section):
    """Next-token prediction: the mean cross-entropy over every loss-bearing token of the global batch."""

    kind: Literal["lm"] = Field(default="lm", description="what the loss is")


class OwnObjective(_Section):
    """Computed by the train function of `data.path`."""

    kind: Literal["own"] = Field(description="computed by your own loop")


class Batch(_Section):
    """The two numbers that a plan is made from."""

    global_batch: int = Field(alias="global", ge=1, le=MAX_GLOBAL_BATCH, description="samples per optimizer step")
    max_micro: int = Field(ge=1, le=MAX_MICRO, description="the most samples that one forward pass can hold")
    equality: Literal["batches", "bitwise"] = Field(
        default="batches", description="what is equal at every world size: each step's samples, or every bit"
    )


# Said by more than one optimizer.
_LR = "peak learning rate"
_EPS = "added to the denominator of the update"
_L2 = "times the weight, added to the gradient"


class AdamW(_Section):
    """AdamW with decoupled weight decay."""

    kind: Literal["adamw"] = Field(description="the optimizer")
    lr: float = Field(gt=0, le=100, description=_LR)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.999), strict=False, description="decay of the averages of the gradient and of its square"
    )
    eps: float = Field(default=1e-8, gt=0, le=1, description=_EPS)
    weight_decay: float = Field(
        default=0.0, ge=0, le=100, description="times the learning rate: the share of a weight taken off at each step"
    )


class RMSprop(_Section):
    """RMSprop, as the DPO repository trains with."""

    kind: Literal["rmsprop"] = Field(description="the optimizer")
    lr: float = Field(gt=0, le=100, description=_LR)
    alpha: float = Field(default=0.99, ge=0, lt=1, description="decay of the average of the squared gradient")
    eps: float = Field(default=1e-8, gt=0, le=1, description=_EPS)
    weight_decay: float = Field(default=0.0, ge=0, le=100, description=_L2)


class SGD(_Section):
    """Stochastic gradient descent with optional momentum."""

    kind: Literal["sgd"] = Field(description="the optimizer")
    lr: float = Field(gt=0, le=1000, description=_LR)
    momentum: float = Field(default=0.0, ge=0, lt=1, description="share of the last update that is kept")
    weight_decay: float = Field(default=0.0, ge=0, le=100, description=_L2)


class OwnOptimizer(_Section):
    """Made by the train function of `data.path`, learning rates included."""

    kind: Literal["own"] = Field(description="made by your own loop")


class Schedule(_Section):
    """Learning rate over optimizer steps: linear warmup, then one of three shapes down to `final_fraction`."""

    kind: Literal["constant", "linear", "cosine"] = Field(default="constant", description="shape after the warmup")
    warmup_steps: int = Field(default=0, ge=0, le=2**40, description="optimizer steps from 0 up to the peak rate")
    final_fraction: float = Field(default=0.0, ge=0, le=1, description="of the peak rate, at the last step")


class Train(_Section):
    """How long, with what optimizer, in which precision. Exactly one of `steps` and `epochs`."""

    steps: int | None = Field(default=None, ge=1, le=2**40, description="optimizer steps; or write epochs")
    epochs: int | None = Field(
        default=None, ge=1, le=2**20, description="passes over all samples that are not held out; or write steps"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="of the first weights, the data's order and dropout")
    optimizer: AdamW | RMSprop | SGD | OwnOptimizer = Field(
        discriminator="kind", description="what turns gradients into updates"
    )
    schedule: Schedule = Schedule()
    clip_norm: float | None = Field(default=1.0, gt=0, description="of the global gradient; null: no clipping")
    precision: Literal["fp32", "bf16"] = Field(default="fp32", description="of the forward and backward pass")
    activation_checkpointing: bool = Field(
        default=False, description="compute activations twice rather than keep them: less memory, more time"
    )
    non_finite: Literal["stop", "skip"] = Field(
        default="stop", description="a gradient that is not finite stops the run, or its step is skipped and logged"
    )

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            found = "neither" if self.steps is None else "both (null takes one away, as in --set train.epochs=null)"
            raise ValueError(f"write exactly one of steps and epochs; found {found}")
        return self

    @model_validator(mode="after")
    def _own_loops_see_to_these(self) -> Self:
        if self.optimizer.kind == "own":
            for name in ("schedule", "precision", "activation_checkpointing"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} is your own loop's business, as the optimizer is; leave it out here")
        return self


class Eval(_Section):
    """Held-out samples, taken out of the training order; 0 samples means no evaluation."""

    samples: int = Field(default=0, ge=0, le=MAX_GLOBAL_BATCH, description="rows held out; 0: no evaluation")
    every_steps: int = Field(default=100, ge=1, le=2**40, description="optimizer steps from one evaluation to the next")


class Workers(_Section):
    """How many workers the run may have, and what one of them takes from the cluster."""

    min: int = Field(default=1, ge=1, le=MAX_WORKERS, description="with fewer workers the run waits")
    max: int = Field(default=8, ge=1, le=MAX_WORKERS, description="the most workers; above batch.global, none is used")
    cpus: float = Field(default=1.0, ge=0, le=4096, description="CPU cores per worker")
    gpus: int = Field(default=1, ge=0, le=1, description="1: a GPU each; 0: train on the CPU")
    resources: dict[str, Annotated[float, Field(gt=0, le=2**40)]] = Field(
        default_factory=dict, description="custom Ray resources per worker: name and amount"
    )
    loader_processes: int = Field(
        default=0, ge=0, le=256, description="beside each worker, to read its next steps; 0: a thread in the worker"
    )
    keep_processes: Literal["auto", "never"] = Field(
        default="auto", description="auto: who stays through a resize keeps his process where that is known to work"
    )

    @model_validator(mode="after")
    def _range(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}; write a min of at most max")
        if not self.cpus and not self.gpus and not self.resources:
            raise ValueError("a worker must take something: set cpus, gpus or resources above 0")
        return self


class Checkpoint(_Section):
    """Where the run lives and how often it commits."""

    path: str = Field(default="", description="a folder or an fsspec URL; empty: runs/<name>")
    every_steps: Literal["auto"] | Annotated[int, Field(ge=1, le=2**40)] = Field(
        default="auto", description="from one commit to the next; auto: by measured saves and losses"
    )
    keep: int = Field(default=2, ge=1, le=10_000, description="newest commits whose files are kept")


class Job(_Section):
    """One training run, complete. Equal jobs have equal digests."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$",
        description="1 to 63 of a-z, 0-9, dot, dash and underscore, of which a letter or digit first",
    )
    model: Annotated[GptModel | OwnModel, Field(discriminator="kind", description="what is trained")]
    data: Annotated[
        TextData | JsonlData | TokensData | OwnData, Field(discriminator="kind", description="what to train on")
    ]
    objective: Annotated[LmObjective | OwnObjective, Field(discriminator="kind")] = LmObjective()
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

    @property
    def is_own(self) -> bool:
        """Whether its training loop is the user's."""
        return self.data.kind == "own"

    @property
    def run_path(self) -> str:
        """The folder or URL of the run."""
        return self.checkpoint.path or f"runs/{self.name}"


def to_json(job: Job) -> str:
    """The job as canonical JSON: sorted keys, the names of the job file."""
    return json.dumps(job.model_dump(mode="json", by_alias=True), sort_keys=True, separators=(",", ":"))


def digest(value: _Section) -> str:
    """SHA-256 of the canonical JSON of a job or of one of its sections, as 64 hex digits."""
    text = json.dumps(value.model_dump(mode="json", by_alias=True), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

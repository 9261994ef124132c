"""The job: what to train, on what, towards which goal. One frozen model, checked once at birth.

A job names model, data, objective and goal; what can be derived (shares, rounds, accumulation) is derived
by `planner.plan`. This module knows no file format (`planner.files` reads YAML), no torch and no Ray.
"""

from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

from planner import cadence
from planner.limits import LEAST_RESOURCE, MAX_GLOBAL_BATCH, MAX_MICRO, MAX_WORKERS


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _cadence(value: object, least: int) -> str:
    """In its one way to write it, so that equal jobs have equal digests."""
    try:
        return str(cadence.parse(value, least))
    except ValueError:
        raise PydanticCustomError("cadence", "should be a cadence") from None


def _cadence_schema(least: int, *words: str) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "anyOf": [
                *({"const": word, "type": "string"} for word in words),
                {"type": "integer", "minimum": least, "maximum": cadence.MAX_STEPS},
                {"type": "string", "pattern": cadence.PATTERN, "examples": list(cadence.SUCH_AS)},
            ]
        }
    )


# `100 steps`, `20000 examples`, `0.5 epochs` or `10%` of the run; a whole number is steps. See `planner.lengths`.
_Stretch = Annotated[str, BeforeValidator(lambda value: _cadence(value, 0)), _cadence_schema(0)]
_Every = Annotated[str, BeforeValidator(lambda value: _cadence(value, 1)), _cadence_schema(1)]
_AutoOrEvery = Annotated[
    str,
    BeforeValidator(lambda value: value if value == "auto" else _cadence(value, 1)),
    _cadence_schema(1, "auto"),
]


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


_NAME = Annotated[str, Field(min_length=1)]


class Lora(_Section):
    """Low-rank adapters beside frozen weights (Hu et al. 2021), by the peft library."""

    rank: int = Field(default=16, ge=1, le=4096, description="of the two factors")
    alpha: float = Field(default=32.0, gt=0, le=2**20, description="the adapters are scaled by alpha / rank")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of an adapter's inputs set to zero in training")
    targets: Annotated[tuple[_NAME, ...], Field(strict=False, min_length=1)] | None = Field(
        default=None,
        description="ends of the names of the layers that get one; null: all linear layers but the head",
    )


class HfModel(_Section):
    """A causal language model of the Hugging Face transformers library, with its tokenizer."""

    kind: Literal["hf"] = Field(description="the kind of model")
    path: str = Field(min_length=1, description="a local folder, or a name on the Hugging Face hub")
    revision: str | None = Field(default=None, min_length=1, description="of a name on the hub: branch, tag or commit")
    context: int = Field(ge=2, le=2**22, description="tokens per sample; longer ones are cut")
    weights: Literal["pretrained", "random"] = Field(
        default="pretrained", description="random: the folder's configuration with first weights from train.seed"
    )
    attention: Literal["sdpa", "eager", "flash_attention_2"] = Field(
        default="sdpa", description="how transformers computes it"
    )
    chat_template: str | None = Field(
        default=None, min_length=1, description="a Jinja file; null: the one that comes with the tokenizer"
    )
    lora: Lora | None = Field(default=None, description="train adapters alone; null: all weights")


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


_SPLIT = "of a data set folder or of rows that name theirs; null: the only one, or train"


class _Rows(_Section):
    """What data sets of prompts and completions share."""

    path: str = Field(
        min_length=1, description="JSON array, jsonl or parquet files (a file or a glob), or a data set folder"
    )
    split: str | None = Field(default=None, min_length=1, description=_SPLIT)
    max_prompt: int | None = Field(
        default=None,
        ge=1,
        le=2**22,
        description="tokens that a prompt is cut to where it and its completion do not fit",
    )
    cut_prompt: Literal["start", "end"] = Field(default="start", description="the end of a prompt that is cut off")
    bad_rows: Literal["refuse", "skip"] = Field(
        default="refuse", description="a row that cannot be used stops the run, or is left out and counted"
    )


class ChatData(_Rows):
    """Conversations or prompts with their completions, for supervised fine-tuning."""

    kind: Literal["chat"] = Field(description="conversations, or prompts with completions")
    loss_on: Literal["completions", "all"] = Field(
        default="completions", description="tokens that bear loss: those of the assistant, or all"
    )
    packing: bool = Field(default=False, description="several conversations in a row, which is the sample then")

    @model_validator(mode="after")
    def _packed_rows_are_whole(self) -> Self:
        if self.packing and self.max_prompt is not None:
            raise ValueError("packing cuts no prompts; leave max_prompt out, or packing")
        return self


class PairsData(_Rows):
    """A prompt with a chosen and a rejected completion, for preference optimisation."""

    kind: Literal["pairs"] = Field(description="prompts with a chosen and a rejected completion")


class FeedbackData(_Rows):
    """Completions that are desirable or not; a pair counts as two of them."""

    kind: Literal["feedback"] = Field(description="prompts with a completion that is desirable or not")


# Where an objective's reference log-probabilities come from. Each objective declares its own: as a field where the
# user chooses, else as a constant. "none" is a uniform reference, or no use for one.
ReferenceSource = Literal["model", "cached", "none"]


class LmObjective(_Section):
    """Next-token prediction: the mean cross-entropy over every loss-bearing token of the global batch."""

    reference: ClassVar[ReferenceSource] = "none"

    kind: Literal["lm"] = Field(default="lm", description="what the loss is")


class SftObjective(_Section):
    """Supervised fine-tuning: the cross-entropy of completions."""

    reference: ClassVar[ReferenceSource] = "none"

    kind: Literal["sft"] = Field(description="supervised fine-tuning")
    mean_over: Literal["tokens", "samples"] = Field(
        default="tokens",
        description="tokens: every token of the global batch weighs the same; samples: sums of tokens, a mean of those",
    )


_BETA = "how strongly the policy is held to its reference"
_REFERENCE = "log-probabilities of the first weights: from a second frozen model, or computed once and kept in the run"
_REFERENCE_MODEL = "another model than the first weights: a local folder, or a name on the hub"


class DpoObjective(_Section):
    """Direct preference optimisation (Rafailov et al. 2023); with label smoothing, conservative DPO."""

    kind: Literal["dpo"] = Field(description="direct preference optimisation")
    beta: float = Field(default=0.1, gt=0, le=1000, description=_BETA)
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5, description="share of labels taken to be wrong")
    reference: ReferenceSource = Field(default="model", description=f"{_REFERENCE}; none: uniform")
    reference_model: str | None = Field(default=None, min_length=1, description=_REFERENCE_MODEL)


class IpoObjective(_Section):
    """Identity preference optimisation (Azar et al. 2023)."""

    kind: Literal["ipo"] = Field(description="identity preference optimisation")
    beta: float = Field(default=0.1, gt=0, le=1000, description=_BETA)
    log_probs: Literal["mean", "sum"] = Field(
        default="mean", description="of a completion's tokens: TRL and HALOs take the mean, the DPO repository the sum"
    )
    reference: Literal["model", "cached"] = Field(default="model", description=_REFERENCE)
    reference_model: str | None = Field(default=None, min_length=1, description=_REFERENCE_MODEL)


class SimpoObjective(_Section):
    """Simple preference optimisation (Meng et al. 2024), without a reference."""

    reference: ClassVar[ReferenceSource] = "none"

    kind: Literal["simpo"] = Field(description="simple preference optimisation")
    beta: float = Field(default=2.0, gt=0, le=1000, description="scales the difference of mean log-probabilities")
    gamma_beta_ratio: float = Field(default=0.5, ge=0, le=1000, description="the margin asked for, divided by beta")


class KtoObjective(_Section):
    """Kahneman-Tversky optimisation (Ethayarajh et al. 2024), of completions without partners."""

    reference: ClassVar[ReferenceSource] = "model"

    kind: Literal["kto"] = Field(description="Kahneman-Tversky optimisation")
    beta: float = Field(default=0.1, gt=0, le=1000, description=_BETA)
    desirable_weight: float = Field(default=1.0, ge=0, le=1000, description="of desirable completions in the loss")
    undesirable_weight: float = Field(default=1.0, ge=0, le=1000, description="of undesirable completions in the loss")
    reference_model: str | None = Field(default=None, min_length=1, description=_REFERENCE_MODEL)


class OwnObjective(_Section):
    """Computed by the train function of `data.path`."""

    reference: ClassVar[ReferenceSource] = "none"

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
    warmup: _Stretch = Field(default="0 steps", description="from 0 up to the peak rate; a whole number is steps")
    final_fraction: float = Field(default=0.0, ge=0, le=1, description="of the peak rate, at the last step")


class Train(_Section):
    """How long, with what optimizer, in which precision. Exactly one of `steps`, `epochs` and `examples`."""

    steps: int | None = Field(
        default=None, ge=1, le=cadence.MAX_STEPS, description="optimizer steps; or write epochs or examples"
    )
    epochs: float | None = Field(
        default=None,
        gt=0,
        le=cadence.MAX_EPOCHS,
        description="passes over all samples that are not held out, such as 3 or 0.5; or write steps or examples",
    )
    examples: int | None = Field(
        default=None,
        ge=1,
        le=cadence.MAX_EXAMPLES,
        description="samples to train on: the run ends with the step that reaches them; or write steps or epochs",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="of the first weights, the data's order and dropout")
    optimizer: AdamW | RMSprop | SGD | OwnOptimizer = Field(
        discriminator="kind", description="what turns gradients into updates"
    )
    schedule: Schedule = Schedule()
    clip_norm: float | None = Field(
        default=1.0,
        gt=0,
        description="of the global gradient; null: no clipping, which is the default where the optimizer is your own",
    )
    precision: Literal["fp32", "bf16"] = Field(default="fp32", description="of the forward and backward pass")
    activation_checkpointing: bool = Field(
        default=False, description="compute activations twice rather than keep them: less memory, more time"
    )
    non_finite: Literal["stop", "skip"] = Field(
        default="stop", description="a gradient that is not finite stops the run, or its step is skipped and logged"
    )

    @model_validator(mode="before")
    @classmethod
    def _own_optimizers_are_not_clipped(cls, value: Any) -> Any:
        """Set no clipping for an optimizer of the user's own, unless they ask for it."""
        if not isinstance(value, dict) or "clip_norm" in value:
            return value
        optimizer = value.get("optimizer")
        is_own = isinstance(optimizer, OwnOptimizer) or (isinstance(optimizer, dict) and optimizer.get("kind") == "own")
        return {**value, "clip_norm": None} if is_own else value

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        found = [name for name in ("steps", "epochs", "examples") if getattr(self, name) is not None]
        if len(found) != 1:
            words = (
                f"{' and '.join(found)} (null takes one away, as in --set train.{found[-1]}=null)" if found else "none"
            )
            raise ValueError(f"write exactly one of steps, epochs and examples; found {words}")
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
    every: _Every = Field(default="100 steps", description="from one evaluation to the next; a whole number is steps")


class Workers(_Section):
    """How many workers the run may have, and what one of them takes from the cluster."""

    min: int = Field(default=1, ge=1, le=MAX_WORKERS, description="with fewer workers the run waits")
    max: int = Field(default=8, ge=1, le=MAX_WORKERS, description="the most workers; above batch.global, none is used")
    cpus: float = Field(default=1.0, ge=0, le=4096, description="CPU cores per worker")
    gpus: int = Field(default=1, ge=0, le=1, description="1: a GPU each; 0: train on the CPU")
    resources: dict[str, Annotated[float, Field(ge=LEAST_RESOURCE, le=2**40)]] = Field(
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
        if 0 < self.cpus < LEAST_RESOURCE:
            raise ValueError(
                f"cpus {self.cpus:g} is below {LEAST_RESOURCE:g}, the least that Ray counts; write 0 or more"
            )
        if not self.cpus and not self.gpus and not self.resources:
            raise ValueError("a worker must take something: set cpus, gpus or resources above 0")
        return self

    @property
    def taken(self) -> dict[str, float]:
        """What one worker takes from its node: Ray's name of a resource -> amount, above 0."""
        wanted = {"CPU": self.cpus, "GPU": float(self.gpus), **self.resources}
        return {name: amount for name, amount in wanted.items() if amount > 0}


class Checkpoint(_Section):
    """Where the run lives and how often it commits."""

    path: str = Field(default="", description="a folder or an fsspec URL; empty: runs/<name>")
    every: _AutoOrEvery = Field(
        default="auto",
        description="from one commit to the next; a whole number is steps; auto: by measured saves and losses",
    )
    keep: int = Field(default=2, ge=1, le=10_000, description="newest commits whose files are kept")


Model = GptModel | HfModel | OwnModel
Data = TextData | JsonlData | TokensData | ChatData | PairsData | FeedbackData | OwnData
Objective = LmObjective | SftObjective | DpoObjective | IpoObjective | SimpoObjective | KtoObjective | OwnObjective

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


class Job(_Section):
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

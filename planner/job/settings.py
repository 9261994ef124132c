"""The job's sections `batch`, `train`, `eval`, `workers` and `checkpoint`."""

import math
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from planner.job import duration
from planner.job.optimizer import Optimizer, OwnOptimizer
from planner.job.resource_names import NOT_CUSTOM, refusal
from planner.job.rows import Rows
from planner.job.section import STORED_JOB, AutoOrEvery, DurationText, Every, Section
from planner.plan.factory import MAX_GLOBAL_BATCH, MAX_MICRO, MAX_TOKENS, MAX_WORKERS
from planner.plan.node_packing import LEAST_RESOURCE
from planner.plan.plan import Mode, canonical_mode


class Batch(Section):
    """The global batch, and how it may be split over workers."""

    global_batch: int = Field(alias="global", ge=1, le=MAX_GLOBAL_BATCH, description="samples per optimizer step")
    max_micro: Annotated[int, Field(ge=1, le=MAX_MICRO)] | Literal["auto"] = Field(
        description="most samples that fit into one forward pass. auto: each worker group computes how many (not in "
        "bitwise runs)"
    )
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | Literal["auto"] | None = Field(
        default=None,
        description="most tokens of a micro-batch. With it, samples of unequal length form micro-batches without "
        "padding, and workers get equal numbers of tokens. auto: each worker group computes how many (not in bitwise "
        "runs). null means that only samples are counted",
    )
    attention_at: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        description="length at which a sample's attention costs as much as all else: about 6 x the model's width. "
        "Only with max_tokens. null means that a sample costs its tokens",
    )
    equality: Annotated[Mode, BeforeValidator(canonical_mode)] = Field(
        default="balanced",
        description="balanced: the same samples in each step at every world size. "
        "bitwise: also the same bits of the weights",
    )

    @property
    def most_micro(self) -> int:
        """`max_micro`. With `auto`, the most that could help: workers find out what fits when there are some."""
        return min(self.global_batch, MAX_MICRO) if self.max_micro == "auto" else self.max_micro

    @property
    def auto_cap(self) -> Literal["max_tokens", "max_micro", ""]:
        """The cap that worker groups compute. Of both, tokens decide. Empty if both are numbers."""
        if self.max_tokens == "auto":
            return "max_tokens"
        return "max_micro" if self.max_micro == "auto" else ""

    @model_validator(mode="after")
    def _bits_need_a_number(self) -> Self:
        if self.auto_cap and self.equality == "bitwise":
            raise ValueError(
                f"{self.auto_cap} auto follows from the GPUs, and with equality bitwise the bits follow from "
                f"{self.auto_cap}. Write a number: planner plan JOB --gpu NAME shows which ones fit"
            )
        return self

    @model_validator(mode="after")
    def _attention_has_a_limit(self) -> Self:
        if self.attention_at is not None and self.max_tokens is None:
            raise ValueError(
                f"attention_at {self.attention_at} says what a sample costs, and without max_tokens samples are only "
                "counted. Write max_tokens, or remove attention_at"
            )
        return self


class Schedule(Section):
    """The learning rate over optimizer steps: a linear warmup, then one of three shapes."""

    kind: Literal["constant", "linear", "cosine"] = Field(default="constant", description="shape after the warmup")
    warmup: DurationText = Field(
        default="0 steps", description="duration of the rise from 0 to the peak rate. A whole number counts steps"
    )
    final_fraction: float = Field(
        default=0.0, ge=0, le=1, description="rate of the last step as a fraction of the peak rate (linear and cosine)"
    )


class Train(Section):
    """Length, optimizer and precision of the training. Set exactly one of `steps`, `epochs` and `examples`."""

    steps: int | None = Field(
        default=None,
        ge=1,
        le=duration.MAX_STEPS,
        description="length of the run in optimizer steps. Set this, epochs or examples",
    )
    epochs: float | None = Field(
        default=None,
        gt=0,
        le=duration.MAX_EPOCHS,
        description="length of the run in passes over the training samples, such as 0.5. Set this, steps or examples",
    )
    examples: int | None = Field(
        default=None,
        ge=1,
        le=duration.MAX_EXAMPLES,
        description="length of the run in samples, rounded up to whole steps. Set this, steps or epochs",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of the first weights, the data order and dropout")
    optimizer: Optimizer = Field(discriminator="kind", description="the optimizer and its learning rate")
    schedule: Schedule = Schedule()
    clip_norm: float | None = Field(
        default=1.0,
        gt=0,
        description="largest norm of the global gradient. null means no clipping, the default with optimizer kind own",
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="floating-point format of the forward and backward pass"
    )
    activation_checkpointing: Literal["selective"] | bool = Field(
        default=False,
        description="compute activations again in the backward pass, for less memory and more time. selective: keep "
        "the results of attention and of every second matrix product",
    )
    compile: Literal[False, "blocks"] = Field(
        default=False,
        description="blocks: compile each block of the model (torch.compile). Not in bitwise runs",
    )
    kernels: Literal["auto", "own", "liger"] = Field(
        default="auto",
        description="own: torch's kernels, and losses in chunks. liger: Liger's kernels for norms, positions and "
        "feed-forward layers (GPUs only, needs the extra `liger`, not in bitwise runs). auto: own",
    )
    non_finite: Literal["stop", "skip"] = Field(
        default="stop", description="stop the run at a gradient that is not finite, or skip and log the step"
    )

    @model_validator(mode="before")
    @classmethod
    def _own_optimizers_are_not_clipped(cls, value: Any) -> Any:
        """Turn clipping off for a user's own optimizer, unless the job sets it."""
        if not isinstance(value, dict) or "clip_norm" in value:
            return value
        optimizer = value.get("optimizer")
        is_own = isinstance(optimizer, OwnOptimizer) or (isinstance(optimizer, dict) and optimizer.get("kind") == "own")
        return {**value, "clip_norm": None} if is_own else value

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        found = [name for name in ("steps", "epochs", "examples") if getattr(self, name) is not None]
        if len(found) != 1:
            way_out = f" (null removes one, as in train.{found[-1]}=null)" if found else ""
            raise ValueError(
                f"found {' and '.join(found) or 'no length'}. Write exactly one of steps, epochs and examples{way_out}"
            )
        return self

    @model_validator(mode="after")
    def _own_loops_see_to_these(self) -> Self:
        if self.optimizer.kind == "own":
            for name in ("schedule", "precision", "activation_checkpointing", "compile", "kernels"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"your own training loop decides {name}. Remove it from the job")
        return self


_PART = r"^([0-9]*\.[0-9]+|[0-9]+)%$"


def _number_or_part(value: object) -> int | str:
    """A number of samples, or a part of the rows such as `5%` in its only written form."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_GLOBAL_BATCH:
        return value
    try:
        if isinstance(value, str) and value.endswith("%"):
            return str(duration.parse(value, 1))
    except ValueError:
        pass
    raise PydanticCustomError("samples", "should be a whole number or a part such as 5%")


_Samples = Annotated[
    int | str,
    BeforeValidator(_number_or_part),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": MAX_GLOBAL_BATCH},
                {"type": "string", "pattern": _PART, "examples": ["5%"]},
            ]
        }
    ),
]


class Eval(Section):
    """Evaluation on samples that are never trained on. A number of them, or a part such as 5%, rounded up.

    Without `data` they are held out of training, and 0 means no evaluation. With `data`, 0 means all of its samples.
    """

    samples: _Samples = Field(
        default=0,
        description="samples held out of training, or used of eval.data",
    )
    data: Rows | None = Field(
        default=None,
        description="a data set of its own for evaluation, such as a test split. Its kind, cut and packing are those "
        "of the section data. Then nothing is held out of training",
    )
    every: Every = Field(
        default="100 steps", description="duration between two evaluations. A whole number counts steps"
    )

    @property
    def is_on(self) -> bool:
        """Whether the job evaluates."""
        return self.samples != 0 or self.data is not None

    def num_samples(self, num_rows: int) -> int:
        """How many of `num_rows` rows are evaluated: rows of `data`, or without it rows of the training data."""
        if isinstance(self.samples, str):
            return math.ceil(duration.parse(self.samples).amount * Fraction(num_rows, 100))
        return self.samples or (num_rows if self.data is not None else 0)


def _custom_resource(name: str, info: ValidationInfo) -> str:
    """Refuse a name that Ray does not take as a custom resource."""
    if info.context != STORED_JOB and (wrong := refusal(name)):
        raise ValueError(wrong)
    return name


_ResourceName = Annotated[str, AfterValidator(_custom_resource)]


class Workers(Section):
    """How many workers the run may have, and what each of them takes from the cluster."""

    min: int = Field(default=1, ge=1, le=MAX_WORKERS, description="fewest workers. With fewer, the run waits")
    min_on: Literal["any", "on-demand"] = Field(
        default="any",
        description="nodes that must have room for workers.min workers. on-demand: those with the label "
        "ray.io/market-type=on-demand, so that losing all spot nodes leaves workers.min",
    )
    max: int = Field(
        default=8, ge=1, le=MAX_WORKERS, description="most workers. The run never uses more than batch.global"
    )
    cpus: float = Field(default=1.0, ge=0, le=4096, description="CPU cores per worker")
    gpus: int = Field(default=1, ge=0, le=1, description="GPUs per worker. 0 means to train on the CPU")
    resources: dict[_ResourceName, Annotated[float, Field(ge=LEAST_RESOURCE, le=2**40)]] = Field(
        default_factory=dict,
        description="custom Ray resources per worker, by name. Not CPU, GPU, memory or an accelerator",
        json_schema_extra={"propertyNames": {"not": {"enum": list(NOT_CUSTOM)}}},
    )
    loader_processes: int = Field(
        default=0, ge=0, le=256, description="processes per worker that load its next steps. 0 means one thread"
    )
    keep_processes: Literal["auto", "never"] = Field(
        default="auto",
        description="whether a worker that stays through a resize keeps its process. auto: where that is known to work",
    )

    @model_validator(mode="after")
    def _range(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}. Write a min of at most {self.max}")
        if 0 < self.cpus < LEAST_RESOURCE:
            raise ValueError(
                f"cpus {self.cpus:g} is below {LEAST_RESOURCE:g}, the least that Ray counts. Write 0 or at least that"
            )
        if not self.cpus and not self.gpus and not self.resources:
            raise ValueError("a worker takes no resource. Set cpus, gpus or resources above 0")
        return self

    @property
    def floor(self) -> int:
        """How many workers need a place on an on-demand node: `min` if it is pinned to such nodes, else 0."""
        return self.min if self.min_on == "on-demand" else 0

    @property
    def taken(self) -> dict[str, float]:
        """The resources that one worker takes from its node: Ray's name of a resource -> amount, above 0."""
        wanted = {"CPU": self.cpus, "GPU": float(self.gpus), **self.resources}
        return {name: amount for name, amount in wanted.items() if amount > 0}


class Checkpoint(Section):
    """Where the run is stored, and how often it commits."""

    path: str = Field(default="", description="a folder or an fsspec URL. Empty means runs/<name>")
    every: AutoOrEvery = Field(
        default="auto",
        description="duration between commits. A whole number counts steps, auto follows measured saves and failures",
    )
    keep: int = Field(default=2, ge=1, le=10_000, description="number of newest commits whose files are kept")
    verify: Literal["on_load", "read_back"] = Field(
        default="on_load",
        description="when files are compared with their digests. on_load: at every load. read_back: also after writing",
    )
    memory: Literal["auto", "off"] | Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default="auto",
        description="steps between copies into the memory of this node and of the next one. auto: so often that copies "
        "take at most 2% of the time. off: no copies, and resizes go through storage",
    )

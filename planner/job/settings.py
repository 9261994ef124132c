"""How the job is run: how long, at which batch, on which workers, and what it leaves behind."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from planner.job import duration
from planner.job.optimizer import Optimizer, OwnOptimizer
from planner.job.section import AutoOrEvery, Every, Section, Stretch
from planner.plan.layout import Mode, current_mode
from planner.plan.limits import LEAST_RESOURCE, MAX_GLOBAL_BATCH, MAX_MICRO, MAX_WORKERS


class Batch(Section):
    """The two numbers that a plan is made from."""

    global_batch: int = Field(alias="global", ge=1, le=MAX_GLOBAL_BATCH, description="samples per optimizer step")
    max_micro: int = Field(ge=1, le=MAX_MICRO, description="the most samples that one forward pass can hold")
    equality: Annotated[Mode, BeforeValidator(current_mode)] = Field(
        default="balanced", description="what is equal at every world size: each step's samples, or every bit"
    )


class Schedule(Section):
    """Learning rate over optimizer steps: linear warmup, then one of three shapes down to `final_fraction`."""

    kind: Literal["constant", "linear", "cosine"] = Field(default="constant", description="shape after the warmup")
    warmup: Stretch = Field(default="0 steps", description="from 0 up to the peak rate; a whole number is steps")
    final_fraction: float = Field(default=0.0, ge=0, le=1, description="of the peak rate, at the last step")


class Train(Section):
    """How long, with what optimizer, in which precision. Exactly one of `steps`, `epochs` and `examples`."""

    steps: int | None = Field(
        default=None, ge=1, le=duration.MAX_STEPS, description="optimizer steps; or write epochs or examples"
    )
    epochs: float | None = Field(
        default=None,
        gt=0,
        le=duration.MAX_EPOCHS,
        description="passes over all samples that are not held out, such as 3 or 0.5; or write steps or examples",
    )
    examples: int | None = Field(
        default=None,
        ge=1,
        le=duration.MAX_EXAMPLES,
        description="samples to train on: the run ends with the step that reaches them; or write steps or epochs",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="of the first weights, the data's order and dropout")
    optimizer: Optimizer = Field(discriminator="kind", description="what turns gradients into updates")
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


class Eval(Section):
    """Held-out samples, taken out of the training order; 0 samples means no evaluation."""

    samples: int = Field(default=0, ge=0, le=MAX_GLOBAL_BATCH, description="rows held out; 0: no evaluation")
    every: Every = Field(default="100 steps", description="from one evaluation to the next; a whole number is steps")


class Workers(Section):
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
        default="auto",
        description="auto: a worker that stays through a resize keeps its process, where that is known to work",
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


class Checkpoint(Section):
    """Where the run lives and how often it commits."""

    path: str = Field(default="", description="a folder or an fsspec URL; empty: runs/<name>")
    every: AutoOrEvery = Field(
        default="auto",
        description="from one commit to the next; a whole number is steps; auto: by measured saves and losses",
    )
    keep: int = Field(default=2, ge=1, le=10_000, description="newest commits whose files are kept")

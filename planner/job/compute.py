"""How workers compute the passes of a job: the choices that `auto` leaves open, for workers and for dry runs.

What is installed differs from machine to machine, so each worker takes the first attention of a list that it has.
"""

from dataclasses import dataclass
from typing import Literal

from planner.job.job import Job
from planner.job.model import HfModel, OwnModel

FLASH = "flash_attention_2"
"""transformers' name of flash attention"""
VARLEN = "varlen"
"""planner's name of torch's own flash attention (`train.models.varlen_attention`)"""
GPU_ATTENTION = (FLASH, VARLEN)
"""attention that runs on GPUs alone"""


@dataclass(frozen=True, kw_only=True)
class GpusAlone:
    """A setting that works on GPUs alone."""

    setting: str
    instead: str
    """what works everywhere"""


@dataclass(frozen=True, kw_only=True)
class ComputeRule:
    """How a worker computes forward and backward passes."""

    precision: Literal["fp32", "bf16"]
    """of the passes. Trained weights and the optimizer's state are float32"""
    attention: tuple[str, ...]
    """names of `model.attention`. A worker takes the first that is installed there and that the model has"""
    kernels: Literal["own", "liger"]
    """of norms, positions and feed-forward layers"""
    compile: Literal[False, "blocks"]
    activation_checkpointing: Literal["selective"] | bool
    frozen: Literal["fp32", "nf4"]
    """how linear layers below adapters are stored"""


def compute_rule(job: Job, *, on_gpu: bool) -> ComputeRule | None:
    """How workers compute the job's passes. None: the user's own loop decides it.

    Args:
        job: the job.
        on_gpu: whether workers train on GPUs. A local run for GPUs trains on the CPU where there are none.
    """
    model, train = job.model, job.train
    if isinstance(model, OwnModel):
        return None
    attention: tuple[str, ...] = ("sdpa",)
    if isinstance(model, HfModel):
        is_bitwise = job.batch.equality == "bitwise"
        choices = attention_choices(train.precision, on_gpu=on_gpu, is_deterministic=is_bitwise)
        attention = choices if model.attention == "auto" else (model.attention,)
    return ComputeRule(
        precision=train.precision,
        attention=attention,
        kernels=kernels_of(train.kernels),
        compile=train.compile,
        activation_checkpointing=train.activation_checkpointing,
        frozen=model.frozen if isinstance(model, HfModel) else "fp32",
    )


def gpus_alone(job: Job) -> GpusAlone | None:
    """The setting of a job that works on GPUs alone, or None."""
    if isinstance(job.model, HfModel) and job.model.attention in GPU_ATTENTION:
        return GpusAlone(setting=f"model.attention {job.model.attention}", instead="model.attention: auto")
    if kernels_of(job.train.kernels) == "liger":
        return GpusAlone(setting="train.kernels liger", instead="train.kernels: own")
    return None


def attention_choices(precision: str, *, on_gpu: bool, is_deterministic: bool) -> tuple[str, ...]:
    """What `model.attention: auto` stands for: the first of these that is installed and that the model has.

    The backward pass of flash attention adds in any order, so deterministic runs do without it.
    """
    return (FLASH, "sdpa") if on_gpu and precision == "bf16" and not is_deterministic else ("sdpa",)


def kernels_of(setting: Literal["auto", "own", "liger"]) -> Literal["own", "liger"]:
    """What `train.kernels` stands for. `auto` is `own`: no gain of Liger's kernels was measured yet."""
    return "own" if setting == "auto" else setting

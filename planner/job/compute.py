"""How workers compute the passes of a job: the choices that `auto` leaves open, for workers and for dry runs.

What is installed differs from machine to machine, so each worker takes the first attention of a list that it has.
"""

from dataclasses import dataclass
from typing import Literal

from planner.job.job import Job
from planner.job.model import GptModel, HfModel, OwnModel

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
    """names of `model.attention`. A worker takes the first that it can compute and that the model has"""
    attention_because: str
    """why the first is `varlen` where the job leaves the choice to planner. Else empty"""
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
    attention = _own_attention(job, on_gpu=on_gpu)
    if isinstance(model, HfModel):
        is_bitwise = job.batch.equality == "bitwise"
        choices = attention_choices(job, on_gpu=on_gpu, is_deterministic=is_bitwise)
        attention = choices if model.attention == "auto" else (model.attention,)
    return ComputeRule(
        precision=train.precision,
        attention=attention,
        attention_because=_packs(job) if attention[0] == VARLEN and len(attention) > 1 else "",
        kernels=kernels_of(train.kernels),
        compile=train.compile,
        activation_checkpointing=train.activation_checkpointing,
        frozen=model.frozen if isinstance(model, HfModel) else "fp32",
    )


def packing_setting(job: Job) -> str:
    """The setting that puts several texts into one row of the model's input. Empty if each row is one text."""
    return job.data.packing_setting or ("batch.max_tokens" if job.batch.max_tokens is not None else "")


def _packs(job: Job) -> str:
    """What a job's packing setting does. Empty without one."""
    setting = packing_setting(job)
    return f"{setting} puts several texts into one row" if setting else ""


def gpus_alone(job: Job) -> GpusAlone | None:
    """The setting of a job that works on GPUs alone, or None."""
    if isinstance(job.model, HfModel) and job.model.attention in GPU_ATTENTION:
        return GpusAlone(setting=f"model.attention {job.model.attention}", instead="model.attention: auto")
    if kernels_of(job.train.kernels) == "liger":
        return GpusAlone(setting="train.kernels liger", instead="train.kernels: own")
    return None


def attention_choices(job: Job, *, on_gpu: bool, is_deterministic: bool) -> tuple[str, ...]:
    """What `model.attention: auto` stands for: the first of these that a worker can compute and that the model has.

    Without flash attention, packed rows on GPUs take a mask of all tokens by all tokens, 4 to 5 times as long
    (`packed` in bench/results/gpu.json). The backward pass of flash attention adds in any order, so deterministic runs
    do without it. torch's own was not tried in compiled blocks.
    """
    if not on_gpu or job.train.precision != "bf16" or is_deterministic:
        return ("sdpa",)
    first = (VARLEN,) if packing_setting(job) and not job.train.compile else ()
    return (*first, FLASH, "sdpa")


DECIDE_ATTENTION = (
    "batch.equality",
    "batch.max_tokens",
    "data.documents",
    "data.packing",
    "model.attention",
    "train.compile",
    "train.precision",
)
"""settings that decide `attention_choices`. If one changes when a run resumes, `auto` is chosen anew"""


def attention_order(choices: tuple[str, ...], before: str | None) -> tuple[str, ...]:
    """The choices of `auto` in the order in which a worker of a later generation takes them.

    Args:
        choices: `attention_choices`.
        before: what the run's newest commit says that its generation computed with. It comes first, so that a resume
            does not change it. Empty: the commit is of a planner that recorded none, and had no `varlen` in `auto`.
            None: there is no commit, or one of `DECIDE_ATTENTION` has changed since.
    """
    if before is None:
        return choices
    if not before:
        return tuple(name for name in choices if name != VARLEN)
    return (before, *(name for name in choices if name != before)) if before in choices else choices


def _own_attention(job: Job, *, on_gpu: bool) -> tuple[str, ...]:
    """Those of planner's own model (`planner.train.models.gpt`)."""
    model = job.model
    if not isinstance(model, GptModel) or model.dropout or not packing_setting(job):
        return ("sdpa",)
    is_bitwise = job.batch.equality == "bitwise"
    takes_kernel = VARLEN in attention_choices(job, on_gpu=on_gpu, is_deterministic=is_bitwise)
    return (VARLEN, "sdpa") if takes_kernel else ("sdpa",)


def kernels_of(setting: Literal["auto", "own", "liger"]) -> Literal["own", "liger"]:
    """What `train.kernels` stands for. `auto` is `own`: no gain of Liger's kernels was measured yet."""
    return "own" if setting == "auto" else setting

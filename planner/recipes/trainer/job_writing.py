"""Writes a job in the keys of a system on transformers' Trainer, under the names that the system's rows have."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from planner.job import AdamW, ChatData, HfModel
from planner.recipes.rendering import (
    DATA_SETS,
    Rendering,
    attention_of,
    leave_loss,
    leave_model,
    length_in_steps,
    remark_selective,
    truth,
    warmup_share,
    warmup_steps,
)
from planner.recipes.rule import Rules
from planner.recipes.scalars import number


@dataclass(frozen=True, kw_only=True)
class Words:
    """The keys of a system, as options or as a YAML file."""

    rendering: Rendering
    rules: Rules
    title: str
    """the system's name in messages"""
    longer: str
    """what it does with rows longer than model.context"""
    names: Mapping[str, str] = field(default_factory=dict)
    """TRL's keys of a loss whose names differ in the system, and those names"""
    in_file: bool = False
    """whether the system takes its keys from a file alone"""

    def put(self, names: str, values: Mapping[str, Any]) -> None:
        """Write values of the job, which are named in one text, by keys of the Trainer or of the system's own."""
        options = []
        for key, value in values.items():
            row = self.rules.of_key(key)
            name = row.name if row else key
            if self.in_file:
                self.rendering.file += yaml.safe_dump({name: value}, width=10_000)
            else:
                options.append(f"--{name} {_option(value)}")
        self.rendering.write(names, *options)

    def carry(self, *keys: str) -> None:
        """Write the job's value of each of these keys by its row, if the job has one."""
        for key in keys:
            row = self.rules.of_key(self.names.get(key, key))
            assert row is not None, key
            if (value := self.rendering.value(row.ours)) is not None:
                self.put(row.ours, {row.name: value})


def _option(value: Any) -> str:
    """A value as argparse takes it."""
    if isinstance(value, bool):
        return truth(value=value)
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, list):
        return " ".join(map(shlex.quote, value))
    return shlex.quote(json.dumps(value) if isinstance(value, dict) else value)


def write_common(words: Words) -> None:
    """Write the model, the optimizer, the length and all else that the systems on the Trainer take alike.

    Objective, data, adapters and attention differ. They are written before.
    """
    rendering = words.rendering
    train = rendering.job.train
    _model(words)
    _optimizer(words)
    names = "train.epochs train.steps train.examples"
    if train.epochs:
        words.put(names, {"num_train_epochs": train.epochs})
    else:
        words.put(names, {"max_steps": length_in_steps(rendering.job)})
    _schedule(words)
    words.put("train.clip_norm", {"max_grad_norm": train.clip_norm or 0})
    words.carry("seed")
    if train.precision == "bf16":
        words.put("train.precision", {"bf16": True})
    rendering.leave("train.precision", f"write the precision in {words.title}'s keys")
    remark_selective(rendering)
    words.put("train.compile", {"torch_compile": True} if train.compile else {})
    if train.kernels != "liger":
        rendering.write("train.kernels")
    if not rendering.job.tracking and not words.in_file:
        words.put("", {"report_to": "none"})
    rendering.leave("tracking", f"write report_to and {words.title}'s keys for it")
    words.put("", {"output_dir": "OUT"})
    rendering.leave("name", "write a folder for OUT")


def _model(words: Words) -> None:
    rendering, model = words.rendering, words.rendering.job.model
    if isinstance(model, HfModel):
        words.put("model.path model.context", {"model_name_or_path": model.path, "max_length": model.context})
        words.carry("model_revision")
        rendering.remark(f"rows longer than model.context: {words.longer}")
    leave_model(rendering)


def adapters(words: Words, own: Mapping[str, Any], targets: Mapping[str, Any], frozen: Mapping[str, Any]) -> None:
    """Write LoRA and QLoRA. The systems take only whole numbers for alpha.

    Args:
        words: the system's keys.
        own: what turns adapters on.
        targets: the layers that get adapters.
        frozen: what stores frozen weights in nf4.
    """
    model = words.rendering.job.model
    lora = model.lora if isinstance(model, HfModel) else None
    if lora is None or lora.alpha != int(lora.alpha):
        return
    words.put("", own)
    words.carry("lora_r")
    words.put("model.lora.alpha", {"lora_alpha": int(lora.alpha)})
    words.carry("lora_dropout")
    words.put("model.lora.targets", targets)
    words.put("model.frozen", frozen if isinstance(model, HfModel) and model.frozen == "nf4" else {})


def loss(words: Words, own: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the objective. `own` has the keys that name each kind."""
    rendering = words.rendering
    kind = rendering.job.objective.kind
    words.put("objective.kind", own[kind])
    if kind != "sft":
        words.carry("beta")
    if rendering.value("objective.label_smoothing") is not None:
        words.carry("label_smoothing")
    if kind == "kto":
        words.carry("desirable_weight", "undesirable_weight")
    if (ratio := rendering.value("objective.gamma_beta_ratio")) is not None:
        words.put("objective.gamma_beta_ratio", {"simpo_gamma": rendering.value("objective.beta") * ratio})
    leave_loss(rendering, "tokens", "mean")
    if rendering.job.reference.source == "cached":
        rendering.leave("objective.reference", f"{words.title} computes it anew in each step, which is equal")
    rendering.leave("objective.reference", f"{words.title}'s {kind} uses a reference, so the loss differs")


def rows(words: Words, on_all: Mapping[str, Any], packing: Mapping[str, Any]) -> None:
    """Write which tokens bear loss, and packing. List the data sets, which each system describes in its own way.

    Args:
        words: the system's keys.
        on_all: what puts loss on all tokens, and not only on completions.
        packing: what packs rows without attention between conversations.
    """
    rendering, data = words.rendering, words.rendering.job.data
    rendering.leave(DATA_SETS, "write your data set for DATA")
    rendering.write("data.kind")
    if isinstance(data, ChatData):
        words.put("data.loss_on", on_all if data.loss_on == "all" else {})
        words.put("data.packing", packing if data.packing else {})
        if data.packing:
            rendering.remark(f"data.packing: {words.title} fills its rows otherwise, so other rows share a batch")
    if rendering.value("data.max_prompt") is None and isinstance(data, ChatData):
        rendering.write("data.max_prompt data.cut_prompt")
    rendering.leave("data.max_prompt data.cut_prompt", f"{words.title} has no limit of the prompt alone")
    if not rendering.job.eval.samples and rendering.job.eval.data is None:
        rendering.write("eval")
    rendering.leave("eval", f"write the evaluation in {words.title}'s keys")


def attention(words: Words, *, packs: bool = False) -> str:
    """How attention is computed. `packs`: packed rows need flash attention in that system."""
    job = words.rendering.job
    if not isinstance(job.model, HfModel):
        return ""
    if not (packs and isinstance(job.data, ChatData) and job.data.packing):
        return attention_of(job.model)
    if job.model.attention in {"sdpa", "eager"}:
        words.rendering.leave("model.attention", f"{words.title} keeps conversations apart only in flash attention")
    return "flash_attention_2"


def _optimizer(words: Words) -> None:
    rendering, optimizer = words.rendering, words.rendering.job.train.optimizer
    if optimizer.kind == "own":
        return
    name = "adamw_torch" if isinstance(optimizer, AdamW) else optimizer.kind
    words.put("train.optimizer.kind", {"optim": name})
    words.carry("learning_rate", "weight_decay")
    if optimizer.weight_decay:
        rendering.remark(
            f"train.optimizer.weight_decay: in {words.title} biases and norms do not decay, in planner all weights do"
        )
    if isinstance(optimizer, AdamW):
        betas = {f"adam_beta{index}": beta for index, beta in enumerate(optimizer.betas, start=1)}
        words.put("train.optimizer.betas", betas)
        words.carry("adam_epsilon")
    rendering.leave("train.optimizer", "transformers 5 takes these as optim_args, older ones use torch's defaults")


def _schedule(words: Words) -> None:
    rendering, schedule = words.rendering, words.rendering.job.train.schedule
    kind: dict[str, Any] = {"lr_scheduler_type": schedule.kind.replace("constant", "constant_with_warmup")}
    if schedule.kind == "cosine" and schedule.final_fraction:
        kind = {"lr_scheduler_type": "cosine_with_min_lr"}
        kind["lr_scheduler_kwargs"] = {"min_lr_rate": schedule.final_fraction}
    words.put("train.schedule.kind", kind)
    if schedule.kind != "linear" or not schedule.final_fraction:
        rendering.write("train.schedule.final_fraction")
    rendering.leave("train.schedule.final_fraction", f"{words.title}'s linear rate falls to 0")
    share, steps = warmup_share(rendering.job), warmup_steps(rendering.job)
    why = f"write the warmup in {words.title}'s keys"
    if steps and not (words.in_file and steps == "1"):
        words.put("train.schedule.warmup", {"warmup_steps": int(steps)})
    elif share and not (words.in_file and rendering.job.objective.kind == "simpo"):
        words.put("train.schedule.warmup", {"warmup_ratio": float(share)})
    elif steps or share:
        why = "axolotl makes 2 steps of 1" if steps else "axolotl's simpo takes warmup_steps alone"
    rendering.leave("train.schedule.warmup", why)

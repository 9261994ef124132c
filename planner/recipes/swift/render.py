"""Writes a batch as options of ms-swift's commands, and a job as all of them."""

from collections.abc import Sequence
from typing import Any

from planner.errors import NoExactSplit
from planner.job import HfModel
from planner.recipes.recipe import Recipe, Rewrite
from planner.recipes.rendering import Rendering
from planner.recipes.swift.keys import RULES, TYPES
from planner.recipes.system import BatchSplit
from planner.recipes.trainer import writing
from planner.recipes.trainer.job_writing import Words, adapters, attention, loss, rows, write_common
from planner.recipes.trainer.keys import MICRO, STEPS

_METHODS = (*TYPES, "ipo")
_COMMANDS = ("sft", "pt", "rlhf")


_LOSSES: dict[str, dict[str, Any]] = {
    "sft": {},
    "dpo": {"rlhf_type": "dpo", "loss_type": "sigmoid"},
    "ipo": {"rlhf_type": "dpo", "loss_type": "ipo"},
    "simpo": {"rlhf_type": "simpo", "cpo_alpha": 0},
    "kto": {"rlhf_type": "kto"},
}


def render_command(rendering: Rendering) -> None:
    """Write the job's values as options of ms-swift's commands."""
    words = Words(
        rendering=rendering, rules=RULES, title="ms-swift",
        longer="ms-swift leaves them out (truncation_strategy), planner cuts them",
    )  # fmt: skip
    model, train = rendering.job.model, rendering.job.train
    words.put("", {"use_hf": True, "dataset": "DATA"})
    loss(words, _LOSSES)
    rows(words, {"loss_scale": "all"}, {"packing": True})
    if attention_name := attention(words, packs=True):
        words.put("model.attention", {"attn_impl": attention_name})
    lora = model.lora if isinstance(model, HfModel) else None
    targets = list(lora.targets) if lora and lora.targets else ["all-linear"]
    frozen = {"quant_method": "bnb", "quant_bits": 4, "bnb_4bit_use_double_quant": False}
    adapters(words, {"tuner_type": "lora"}, {"lora_target_modules": targets}, frozen)
    if lora is None:
        words.put("", {"tuner_type": "full"})
    if train.precision == "fp32":
        words.put("train.precision", {"torch_dtype": "float32", "fp16": False, "bf16": False})
    elif lora is None:
        rendering.remark("train.precision: ms-swift trains weights in the model's own type, planner in fp32")
    checkpointing = bool(train.activation_checkpointing)
    words.put("train.activation_checkpointing", {"gradient_checkpointing": checkpointing})
    words.put("train.kernels", {"use_liger_kernel": True} if train.kernels == "liger" else {})
    write_common(words)
    if isinstance(model, HfModel):
        rendering.remark("model.chat_template: ms-swift builds its own template, planner takes the tokenizer's")


def render(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """The command for a split, with the recipe's own file and options."""
    recipe = split.recipe
    micro, steps = writing.sizes(split)
    config = writing.config_of(split) if split.is_own else "" if arguments else writing.YOUR_CONFIG
    name = _name(recipe, is_own=split.is_own)
    if launcher := writing.launcher_options(split):
        if config:
            raise NoExactSplit(
                f"ms-swift reads {config} only behind swift {name}, and that reads no accelerate file. Leave out "
                "--accelerate, or write the file's keys as options"
            )
        program = f"accelerate launch {launcher} swift/cli/{name}.py"
    else:
        program = f"NPROC_PER_NODE={split.gpus} swift {name}"
    options = [f"--{MICRO} {micro}", *([] if steps is None else [f"--{STEPS} {steps}"])]
    words = [f"{split.assignments}{program}", *([config] if config else []), *arguments, *options]
    notes = writing.notes(split)
    if name == "sft" and (config == writing.YOUR_CONFIG or (split.is_own and not recipe.script)):
        notes = (*notes, "write swift pt or swift rlhf instead if the file is one of those")
    return Rewrite(command=" ".join(words), file=split.file, notes=notes)


def _name(recipe: Recipe, *, is_own: bool) -> str:
    """The command that trains the recipe: that of its own command, else by its method."""
    name = recipe.script.removeprefix("swift ").removesuffix(".py") if is_own else ""
    return name if name in _COMMANDS else "rlhf" if recipe.method in _METHODS else "sft"

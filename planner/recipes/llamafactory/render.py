"""Writes a batch as options of `llamafactory-cli train`, and a job as all of them."""

from collections.abc import Sequence

from planner.errors import NoExactSplit
from planner.job import HfModel
from planner.recipes.llamafactory.keys import RULES
from planner.recipes.recipe import Rewrite
from planner.recipes.rendering import Rendering
from planner.recipes.system import BatchSplit
from planner.recipes.trainer import writing
from planner.recipes.trainer.batching import Limit, TrainerFacts
from planner.recipes.trainer.job_writing import Words, adapters, attention, loss, rows, write_common
from planner.recipes.trainer.keys import MICRO, STEPS

_LOSSES: dict[str, dict[str, str]] = {
    "sft": {"stage": "sft"},
    "dpo": {"stage": "dpo", "pref_loss": "sigmoid"},
    "ipo": {"stage": "dpo", "pref_loss": "ipo"},
    "simpo": {"stage": "dpo", "pref_loss": "simpo"},
    "kto": {"stage": "kto"},
}
_LONG = "LLaMA-Factory cuts each turn's prompt and answer, planner the end"
_LONG_PAIRS = "LLaMA-Factory shares cutoff_len between prompt and completion and cuts both, planner the prompt first"
_ATTENTION = {"eager": "disabled", "flash_attention_2": "fa2"}


def render_command(rendering: Rendering) -> None:
    """Write the job's values as options of `llamafactory-cli train`."""
    words = Words(
        rendering=rendering, rules=RULES, title="LLaMA-Factory",
        longer=_LONG if rendering.job.objective.kind == "sft" else _LONG_PAIRS,
    )  # fmt: skip
    model, train = rendering.job.model, rendering.job.train
    words.put("", {"do_train": True, "dataset": "DATA"})
    loss(words, _LOSSES)
    rows(words, {"train_on_prompt": True}, {"neat_packing": True})
    if attention_name := attention(words):
        words.put("model.attention", {"flash_attn": _ATTENTION.get(attention_name, attention_name)})
    lora = model.lora if isinstance(model, HfModel) else None
    targets = ",".join(lora.targets) if lora and lora.targets else "all"
    frozen = {"quantization_bit": 4, "double_quantization": False}
    adapters(words, {"finetuning_type": "lora"}, {"lora_target_modules": targets}, frozen)
    if lora is None:
        words.put("", {"finetuning_type": "full"})
    off = not train.activation_checkpointing
    words.put("train.activation_checkpointing", {"disable_gradient_checkpointing": off})
    words.put("train.kernels", {"enable_liger_kernel": True} if train.kernels == "liger" else {})
    if train.precision == "fp32":
        words.put("train.precision", {"bf16": False})
    write_common(words)


def render(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """The command for a split, with the recipe's own file and options.

    Raises:
        NoExactSplit: a setting of the recipe takes no such split.
    """
    micro, steps = writing.sizes(split)
    if split.accumulation > 1 and any("layerwise" in limit.text for limit in _limits(split)):
        raise NoExactSplit(
            f"a layer-wise optimizer takes no accumulation, and {split.arithmetic} has {split.accumulation} steps of "
            "it. Write galore_layerwise=false (or apollo_layerwise=false) behind the recipe, or use `planner run`"
        )
    its = {MICRO: micro, STEPS: steps}
    config = writing.config_of(split) if split.is_own else "" if arguments else writing.YOUR_CONFIG
    sign = "{}={}" if config else "--{} {}"
    options = [sign.format(name, value) for name, value in its.items() if value is not None]
    if launcher := writing.launcher_options(split):
        program = f"accelerate launch {launcher} src/train.py"
    else:
        program = f"{_variables(split)} llamafactory-cli train"
    words = [f"{split.assignments}{program}", *([config] if config else []), *arguments, *options]
    return Rewrite(command=" ".join(words), file=split.file, notes=writing.notes(split))


def _limits(split: BatchSplit) -> Sequence[Limit]:
    facts = split.recipe.foreign
    return facts.limits if split.is_own and isinstance(facts, TrainerFacts) else ()


def _variables(split: BatchSplit) -> str:
    """The variables that start as many processes. One that is plain has no torch.distributed, which some keys want."""
    if split.gpus == 1 and any(limit.most == 1 for limit in _limits(split)):
        return "CUDA_VISIBLE_DEVICES=0"
    return f"FORCE_TORCHRUN=1 NPROC_PER_NODE={split.gpus}"

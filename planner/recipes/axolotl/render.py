"""Writes a batch as options of `axolotl train`, and a job as axolotl's YAML."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from planner.base.disk import is_file
from planner.errors import NoExactSplit
from planner.job import HfModel
from planner.recipes.axolotl.keys import RULES
from planner.recipes.config_reader import mapping_of, text_of
from planner.recipes.recipe import Recipe, Rewrite
from planner.recipes.rendering import Rendering
from planner.recipes.scalars import FALSE_TEXTS
from planner.recipes.system import BatchSplit
from planner.recipes.trainer import writing
from planner.recipes.trainer.batching import TrainerFacts
from planner.recipes.trainer.job_writing import Words, adapters, attention, loss, rows, write_common

_SIZES = ("micro_batch_size", "gradient_accumulation_steps")


def why_not(recipe: Recipe, gpus: int) -> str:
    """Why axolotl takes no split of the recipe's batch at a count, with what to do. Empty if it may take one."""
    if text := writing.why_not(recipe, gpus):
        return text
    tree, facts = _tree(recipe), recipe.foreign
    assert isinstance(facts, TrainerFacts)
    given = {_name(each) for each in recipe.arguments}
    if facts.workers is not None and not facts.is_alone:
        return f"Ray starts its {facts.workers} workers from a command of its own. Remove use_ray from the recipe"
    if tree.get("batch_size") or "batch_size" in given:
        return "axolotl refuses batch_size beside gradient_accumulation_steps, so remove it from the recipe"
    if tree.get("strict") is True and (lacks := [name for name in _SIZES if name not in tree]):
        return (
            "with strict: true axolotl drops options for keys that the file does not have. Write "
            f"{' and '.join(lacks)} into {recipe.config or recipe.source}"
        )
    n, made = facts.num_generations, facts.generation_batch or recipe.global_batch // gpus
    if facts.method == "grpo" and n and (made % n or (gpus > 1 and made < n * gpus)):
        return (
            f"axolotl wants micro_batch_size x gradient_accumulation_steps, which is {made} there, to be a multiple of "
            f"trl.num_generations {n}, and no less than {n} x GPUs. Use fewer GPUs"
        )
    return ""


def _tree(recipe: Recipe) -> Mapping[str, Any]:
    """The keys of the recipe's file, none if it is not here."""
    path = recipe.config or recipe.source
    return mapping_of(text_of(path), path) if is_file(path) else {}


_FILE = "axolotl.yaml"
_LOSSES: dict[str, dict[str, Any]] = {
    "sft": {},
    "dpo": {"rl": "dpo"},
    "ipo": {"rl": "ipo"},
    "simpo": {"rl": "simpo", "cpo_alpha": 0},
    "kto": {"rl": "kto", "remove_unused_columns": False},
}
_NAMES = {
    "beta": "rl_beta",
    "label_smoothing": "dpo_label_smoothing",
    "desirable_weight": "kto_desirable_weight",
    "undesirable_weight": "kto_undesirable_weight",
}


def render_command(rendering: Rendering) -> None:
    """Write the job's values as axolotl's YAML."""
    words = Words(
        rendering=rendering, rules=RULES, title="axolotl", names=_NAMES, in_file=True,
        longer="axolotl leaves them out, planner cuts them",
    )  # fmt: skip
    model, train, kind = rendering.job.model, rendering.job.train, rendering.job.objective.kind
    form = "chat_template" if kind == "sft" else "TYPE"
    words.put("", {"datasets": [{"path": "DATA", "type": form}]})
    if form == "TYPE":
        rendering.remark("datasets: write for TYPE how axolotl reads your rows")
    loss(words, _LOSSES)
    rows(words, {"train_on_inputs": True}, {"sample_packing": True})
    if attention_name := attention(words, packs=True):
        words.put("model.attention", {"attn_implementation": attention_name})
    lora = model.lora if isinstance(model, HfModel) else None
    nf4 = isinstance(model, HfModel) and model.frozen == "nf4"
    targets: dict[str, Any] = {"lora_target_linear": True}
    if lora and lora.targets:
        targets = {"lora_target_modules": list(lora.targets)}
    adapters(words, {"adapter": "qlora" if nf4 else "lora"}, targets, {"load_in_4bit": True})
    if train.precision == "fp32":
        words.put("train.precision", {"bf16": False})
    elif lora is None:
        rendering.remark("train.precision: axolotl trains weights in bf16 if bf16 is true, planner in fp32")
    if nf4:
        rendering.remark("model.frozen nf4: axolotl quantizes the scales, too")
    if kind == "sft":
        rendering.remark("objective sft: axolotl averages the means of micro-batches, planner averages over all tokens")
    checkpointing = bool(train.activation_checkpointing)
    words.put("train.activation_checkpointing", {"gradient_checkpointing": checkpointing})
    write_common(words)


def render(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """The command for a split, with the recipe's own file and options."""
    micro, steps = writing.sizes(split)
    options = [f"--micro-batch-size {micro}", *([] if steps is None else [f"--gradient-accumulation-steps {steps}"])]
    launcher = writing.launcher_options(split)
    how = f"-- {launcher}" if launcher else f"--launcher torchrun -- --nproc_per_node {split.gpus}"
    config = writing.config_of(split) if split.is_own else _FILE if split.file else writing.YOUR_CONFIG
    words = [f"{split.assignments}axolotl train {config}", *_dashed(arguments), *options, how]
    notes = (f"write the lines below the command into {_FILE}",) if split.file else writing.notes(split)
    return Rewrite(command=" ".join(words), file=split.file, notes=notes)


def _name(argument: str) -> str:
    return argument.partition("=")[0].lstrip("-+").replace("-", "_")


def _dashed(arguments: Sequence[str]) -> list[str]:
    """The recipe's options without its sizes, as `axolotl train` takes them: `--lora-r 8`, `--no-sample-packing`.

    Those of no key are left out, because axolotl ignores them.
    """
    made: list[str] = []
    index = 0
    while index < len(arguments):
        word, index = arguments[index], index + 1
        quote = word[0] if word.startswith(("'", '"')) else ""
        name, (_, sign, value) = _name(word.removeprefix(quote)), word.partition("=")
        value = f"{quote}{value}" if sign else value
        if not sign and index < len(arguments) and not arguments[index].startswith("--"):
            value, index = arguments[index], index + 1
        row = RULES.row(name)
        if row is None or name in _SIZES:
            continue
        option = name.replace("_", "-")
        if row.value == "truth" and row.name == name:
            made.append(f"--no-{option}" if value.strip("'\"").lower() in FALSE_TEXTS else f"--{option}")
        elif "." in name and name.count(".") > 1:
            raise NoExactSplit(f"axolotl train takes no option --{option}. Write the key into the recipe's file")
        else:
            between = "=" if sign and ("=" in value or value.startswith("-")) else " "
            made.append(f"--{option}{between}{value or shlex.quote(value)}")
    return made

"""Writes a job as options of TRL's scripts, and the command."""

import json
import shlex
from collections.abc import Sequence
from pathlib import PurePath

from planner.job import AdamW, ChatData, HfModel
from planner.recipes.engine import written
from planner.recipes.recipe import Recipe, Rewrite, ToDo
from planner.recipes.rendering import (
    Rendering,
    attention_of,
    leave_loss,
    leave_model,
    leave_padding,
    leave_rows,
    length_in_steps,
    remark_selective,
    truth,
    warmup_share,
    warmup_steps,
)
from planner.recipes.scalars import number
from planner.recipes.system import BatchSplit
from planner.recipes.trainer import writing
from planner.recipes.trainer.accelerate import launch_notes, local_file, read_launch
from planner.recipes.trainer.batching import TrainerFacts
from planner.recipes.trainer.launcher import ONE_PROCESS, SHIPPED_BY_TRL
from planner.recipes.trl.keys import METHODS, RULES
from planner.recipes.trl.render_data import LISTED, data_to_trl
from planner.recipes.trl.render_trackers import trackers_to_trl

# The accelerate file in the commands of the alignment-handbook.
_SHIPPED_FILE = "recipes/accelerate_configs/zero3.yaml"
# The file behind --config, for data sets or for a list of trackers.
_DATA_FILE, _TRACKERS_FILE = "data.yaml", "trackers.yaml"
# Scripts that are not in scripts/ of the alignment-handbook but in TRL's repository.
_FOLDERS = {"kto.py": "trl/scripts", "grpo.py": "trl/scripts", "cpo.py": "examples/scripts"}


def to_trl(rendering: Rendering) -> None:
    """Write the job's values as options of TRL's scripts."""
    job = rendering.job
    train = job.train
    data_to_trl(rendering)
    _loss(rendering)
    leave_loss(rendering, "tokens", "mean")
    if isinstance(job.model, HfModel):
        path = f"--model_name_or_path {shlex.quote(job.model.path)}"
        rendering.write("model.path model.context", path, f"--max_length {job.model.context}")
        rendering.write("model.attention", f"--attn_implementation {attention_of(job.model)}")
        written(rendering, RULES, "model_revision")
        _adapters(rendering, job.model)
    leave_model(rendering)
    leave_rows(rendering, all_of_it=True, packs=True)
    leave_padding(rendering, _padding(rendering))
    _prompts(rendering)
    _optimizer(rendering)
    names = "train.epochs train.steps train.examples"
    length = f"--num_train_epochs {number(train.epochs)}" if train.epochs else f"--max_steps {length_in_steps(job)}"
    rendering.write(names, length)
    _schedule(rendering)
    written(rendering, RULES, "max_grad_norm")
    rendering.write("train.precision", f"--bf16 {truth(value=train.precision == 'bf16')}")
    if train.precision != "bf16":
        rendering.remark("train.precision fp32: zero3.yaml has mixed_precision: bf16. Write no in a copy of it")
    # False in TRL 0.19, true in 1.16.
    checkpointing = truth(value=bool(train.activation_checkpointing))
    rendering.write("train.activation_checkpointing", f"--gradient_checkpointing {checkpointing}")
    remark_selective(rendering)
    rendering.write("train.compile", *(["--torch_compile true"] if train.compile else []))
    rendering.write("train.kernels", *(["--use_liger_kernel true"] if train.kernels == "liger" else []))
    written(rendering, RULES, "seed")
    trackers_to_trl(rendering)


def _adapters(rendering: Rendering, model: HfModel) -> None:
    """Write the options of LoRA and QLoRA. TRL takes only whole numbers for alpha."""
    lora = model.lora
    if lora is None or lora.alpha != int(lora.alpha):
        return
    targets = ["all-linear"] if lora.targets is None else [shlex.quote(name) for name in lora.targets]
    rendering.write(
        "model.lora",
        *("--use_peft true", f"--lora_r {lora.rank}", f"--lora_alpha {int(lora.alpha)}"),
        *(f"--lora_dropout {number(lora.dropout)}", f"--lora_target_modules {' '.join(targets)}"),
    )
    rendering.write("model.frozen", *(["--load_in_4bit true"] if model.frozen == "nf4" else []))


def _loss(rendering: Rendering) -> None:
    """Writes the options of the objective. Its kind decides which script of TRL runs."""
    kind = rendering.job.objective.kind
    rendering.write("objective.kind", *(["--loss_type ipo"] if kind == "ipo" else []))
    written(rendering, RULES, "beta", "label_smoothing", "desirable_weight", "undesirable_weight")
    if (ratio := rendering.value("objective.gamma_beta_ratio")) is not None:
        gamma = number(rendering.value("objective.beta") * ratio)
        rendering.write("objective.gamma_beta_ratio", "--loss_type simpo", f"--simpo_gamma {gamma}", "--cpo_alpha 0")
        rendering.remark(
            "the script: TRL 0.19 has it among the examples of its repository, not in its package. TRL 1.16 has only "
            "CPOTrainer in trl.experimental.cpo, so write a script around it"
        )
    if rendering.job.reference.source == "cached":
        rendering.write("objective.reference", "--precompute_ref_log_probs true")
    elif rendering.job.reference.source == "none":
        rendering.leave("objective.reference", "TRL's dpo uses a reference, so the loss differs")


def _prompts(rendering: Rendering) -> None:
    if rendering.job.data.kind == "chat":
        if rendering.value("data.max_prompt") is None:
            rendering.write("data.max_prompt data.cut_prompt")
        rendering.leave("data.max_prompt data.cut_prompt", "TRL cuts the end of a conversation")
    elif rendering.value("data.max_prompt") is None:
        rendering.leave(
            "data.max_prompt", "this job has no limit, but --max_prompt_length is 512 in TRL 0.19 (1.16 has none)"
        )
    rendering.leave("data.max_prompt", "write --max_prompt_length if your version of TRL has it")
    rendering.leave("data.cut_prompt", "TRL keeps the end of a prompt unless its truncation_mode says otherwise")


def _padding(rendering: Rendering) -> str:
    """Why the command leaves padding on. TRL 1.16 refuses padding_free beside max_length, which cuts long rows."""
    job = rendering.job
    if isinstance(job.data, ChatData):
        if job.data.packing:
            return "packed rows have no padding in TRL either"
        return (
            "TRL 1.16 refuses padding_free beside max_length. If no row is longer than model.context, write "
            "--padding_free true --max_length None instead"
        )
    if job.data.kind == "pairs" and job.objective.kind != "simpo":
        return "TRL 1.16 pads pairs, also with padding_free"
    return "TRL has no padding_free for this method"


def _optimizer(rendering: Rendering) -> None:
    optimizer = rendering.job.train.optimizer
    if optimizer.kind == "own":
        return
    name = "adamw_torch" if isinstance(optimizer, AdamW) else optimizer.kind
    rendering.write(
        "train.optimizer.kind train.optimizer.lr", f"--optim {name}", f"--learning_rate {number(optimizer.lr)}"
    )
    written(rendering, RULES, "weight_decay")
    if optimizer.weight_decay:
        rendering.remark(
            "train.optimizer.weight_decay: in TRL biases and norms do not decay, in planner all weights do"
        )
    if isinstance(optimizer, AdamW):
        betas = [f"--adam_beta{index} {number(beta)}" for index, beta in enumerate(optimizer.betas, start=1)]
        rendering.write("train.optimizer.betas", *betas)
        written(rendering, RULES, "adam_epsilon")
    rendering.leave("train.optimizer", "transformers 5 takes these as --optim_args, older ones use torch's defaults")


def _schedule(rendering: Rendering) -> None:
    schedule = rendering.job.train.schedule
    kind = f"--lr_scheduler_type {schedule.kind.replace('constant', 'constant_with_warmup')}"
    if schedule.kind == "cosine" and schedule.final_fraction:
        rate = number(schedule.final_fraction)
        kind = f"--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{{\"min_lr_rate\": {rate}}}'"
    rendering.write("train.schedule.kind", kind)
    if schedule.kind != "linear" or not schedule.final_fraction:
        rendering.write("train.schedule.final_fraction")
    rendering.leave("train.schedule.final_fraction", "TRL's linear rate falls to 0")
    share, steps = warmup_share(rendering.job), warmup_steps(rendering.job)
    arguments = [f"--warmup_steps {steps}"] if steps else [f"--warmup_ratio {share}"] if share else []
    rendering.write_or_leave("train.schedule.warmup", arguments, "write --warmup_steps in optimizer steps")
    if share:
        rendering.remark(f"--warmup_ratio is for transformers 4, for transformers 5 write --warmup_steps {share}")


# -- the command


def render(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """TRL's command for a split. Its options win over the YAML and over the launcher's file."""
    recipe = split.recipe
    config = _file_of(split) or _own_file(recipe)
    # Scripts that take their file first need `--option=value` as one argument (H4ArgumentParser).
    sign, before = ("=", "") if recipe.config_first else (" ", "--config ")
    launch_file = _launch_file(recipe)
    path = local_file(recipe)
    multi = " --multi_gpu" if path and split.gpus > 1 and read_launch(path).kind == "NO" else ""
    launch = f"accelerate launch --config_file {launch_file or _SHIPPED_FILE}{multi} --num_processes {split.gpus}"
    command = [
        f"{split.assignments}{launch}",
        _script(recipe, is_trls=LISTED in split.file.splitlines()),
        *([f"{before}{config}"] if config else []),
        *_without_accelerator(arguments),
        f"--per_device_train_batch_size{sign}{split.micro}",
        f"--gradient_accumulation_steps{sign}{split.accumulation}",
        *_accelerator(recipe, sign),
    ]
    return Rewrite(
        command=" ".join(command),
        file=split.file,
        notes=(
            *_launch_notes(recipe, split.gpus, split.micro, split.accumulation),
            *_file_notes(split),
            *writing.unset(split),
        ),
        unsaid=() if launch_file else (ToDo(text=_launcher_unsaid(recipe)),),
    )


def _own_file(recipe: Recipe) -> str:
    """The recipe's file if it is one of TRL, which refuses a file of another system. Empty otherwise."""
    if recipe.system != "trl":
        return ""
    is_yaml = PurePath(recipe.source).suffix in {".yaml", ".yml"}
    return recipe.config or (recipe.source if is_yaml else "")


def _accelerator(recipe: Recipe, sign: str) -> list[str]:
    """The option accelerator_config without what changes the batch, if the recipe has that section."""
    foreign = recipe.foreign
    if recipe.system != "trl" or not isinstance(foreign, TrainerFacts) or foreign.accelerator is None:
        return []
    return [f"--accelerator_config{sign}{shlex.quote(json.dumps(foreign.accelerator))}"]


def _without_accelerator(arguments: Sequence[str]) -> list[str]:
    """The arguments without accelerator_config, which `_accelerator` writes anew."""
    kept, skips = [], False
    for argument in arguments:
        name = argument.strip("'").partition("=")[0].lstrip("-+").replace("-", "_")
        is_it = name.partition(".")[0] == "accelerator_config"
        is_value = skips and not argument.startswith("--")
        skips = (is_it and "=" not in argument.partition("{")[0]) or (is_value and not is_it)
        if not is_it and not is_value:
            kept.append(argument)
    return kept


def _file_of(split: BatchSplit) -> str:
    """The name of the file that the command reads, empty if it needs none."""
    if "dataset" in split.file:
        return _DATA_FILE
    return _TRACKERS_FILE if split.file else ""


def _file_notes(split: BatchSplit) -> list[str]:
    """A note on the file that the command reads, if the job has several data sets or trackers."""
    name = _file_of(split)
    what = "no list of data sets" if name == _DATA_FILE else "only one tracker"
    return [f"write the lines below the command into {name}: the command line takes {what}"] if name else []


def _script(recipe: Recipe, *, is_trls: bool) -> str:
    """The recipe's script if it has a folder or is your own, else that of TRL or the handbook, else YOUR_SCRIPT.

    With `is_trls` only TRL's own script reads the data.
    """
    if ("/" in recipe.script_path or recipe.system == "trainer") and recipe.script_path.endswith(".py"):
        return shlex.quote(recipe.script_path)
    method = {"ipo": "dpo", "cdpo": "dpo", "simpo": "cpo"}.get(recipe.method, recipe.method)
    # A script or command of another system does not read TRL's options.
    named = recipe.script if recipe.system == "trl" else ""
    stem = PurePath(named).name or method
    stem = stem if stem.endswith(".py") else f"{stem}.py"
    is_there = named or stem in _FOLDERS or method in METHODS
    return f"{_FOLDERS.get(stem, 'trl/scripts' if is_trls else 'scripts')}/{stem}" if is_there else "YOUR_SCRIPT"


def _launch_file(recipe: Recipe) -> str:
    """The path of the recipe's accelerate file, or of a file that TRL ships. Empty if the recipe has none."""
    if recipe.system != "trl" and not local_file(recipe):
        return ""
    name = recipe.launch_file
    if name == ONE_PROCESS:
        return ""
    return f"trl/accelerate_configs/{name}.yaml" if name in SHIPPED_BY_TRL else name


def _launcher_unsaid(recipe: Recipe) -> str:
    one = recipe.launch_file == ONE_PROCESS
    named = (
        f"{ONE_PROCESS} starts one process"
        if one
        else f"{recipe.launch_file} does not exist"
        if recipe.launch_file
        else "the recipe names no accelerate file"
    )
    text = f"the launcher: {named}, so the command has {PurePath(_SHIPPED_FILE).name}"
    return f"{text}. Write your own instead, or give it as --accelerate FILE"


def _launch_notes(recipe: Recipe, gpus: int, micro: int, steps: int) -> list[str]:
    """Notes on settings in the accelerate file that the command line cannot override."""
    foreign, path = recipe.foreign, local_file(recipe)
    launch = read_launch(path) if path else None
    own = foreign.deepspeed if isinstance(foreign, TrainerFacts) else None
    sizes = own or (launch.deepspeed if launch and launch.kind == "DEEPSPEED" else None)
    notes = sizes.notes(gpus, micro, steps) if sizes else []
    return [*notes, *(launch_notes(path, gpus) if path else [])]

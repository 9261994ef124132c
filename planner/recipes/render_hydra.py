"""Writes a job as overrides of the DPO repository or of HALOs, and the commands of both."""

import shlex
from collections.abc import Sequence

from planner.job import AdamW, HfModel, RowsData, duration
from planner.recipes.dpo_batching import DpoFacts
from planner.recipes.halos_batching import HalosFacts
from planner.recipes.hydra_datasets import System, names_in
from planner.recipes.recipe import Rewrite
from planner.recipes.rendering import (
    DATA_SETS,
    Rendering,
    attention_of,
    clip_of,
    leave_loss,
    leave_model,
    leave_rows,
    length_in_examples,
    remark_selective,
    truth,
    warmup_share,
    warmup_steps,
)
from planner.recipes.scalars import number
from planner.recipes.split import nearest_multiple
from planner.recipes.system import BatchSplit
from planner.recipes.trl.render_trackers import UNNAMED, experiment, trackers_to_hydra

_TORCH = {"rmsprop": "RMSprop", "adamw": "AdamW", "sgd": "SGD"}
_EVAL = "that system evaluates a test split, so write n_eval_examples and eval_every, both in examples"


def to_dpo(rendering: Rendering) -> None:
    """Write the job's values as overrides of the DPO repository."""
    job = rendering.job
    _dpo_loss(rendering)
    leave_loss(rendering, "samples", "sum")
    if isinstance(job.model, HfModel):
        path = shlex.quote(f"model.name_or_path={job.model.path}")
        rendering.write("model.path model.context", "model=blank_model", path, "model.block_name=BLOCK")
        names = _datasets(rendering, "dpo")
        rendering.write("", f"max_length={job.model.context}", f"datasets=[{names}]", experiment(rendering.job))
        rendering.remark("BLOCK: write the class of the model's blocks, such as LlamaDecoderLayer")
    if yours := _yours(rendering, "dpo"):
        rendering.leave(f"name {DATA_SETS}", f"write {yours}, else the repository takes hh or does not start")
    _prompts(rendering, "", "256")
    rendering.leave("data.cut_prompt", "the repository keeps the end of a prompt only for hh")
    rendering.leave("model.revision", "write the folder of that revision as the model")
    leave_model(rendering)
    leave_rows(rendering, all_of_it=False, packs=False)
    mixed = "bfloat16" if job.train.precision == "bf16" else "null"
    rendering.write("train.precision", f"model.fsdp_policy_mp={mixed}")
    checkpointing = truth(value=bool(job.train.activation_checkpointing))
    rendering.write("train.activation_checkpointing", f"activation_checkpointing={checkpointing}")
    remark_selective(rendering)
    optimizer = job.train.optimizer
    if optimizer.kind != "own":
        rendering.write(
            "train.optimizer.kind train.optimizer.lr",
            f"optimizer={_TORCH[optimizer.kind]}",
            f"lr={number(optimizer.lr)}",
        )
    rendering.leave("train.optimizer", "the repository passes only the rate, all else is torch's default")
    _length(rendering, "")
    rendering.write("train.clip_norm", f"max_grad_norm={clip_of(job, 'inf')}")
    if job.train.schedule.kind == "constant":
        rendering.write("train.schedule.kind train.schedule.final_fraction")
    rendering.leave(
        "train.schedule.kind train.schedule.final_fraction", "the repository keeps the rate constant after its warmup"
    )
    steps = warmup_steps(job)
    arguments = [f"warmup_steps={steps}"] if steps else []
    rendering.write_or_leave("train.schedule.warmup", arguments, "write warmup_steps in optimizer steps")
    rendering.write("train.seed", f"seed={job.train.seed}")
    trackers_to_hydra(rendering, "")
    _evaluation(rendering, "dpo", "n_eval_examples")


def _dpo_loss(rendering: Rendering) -> None:
    objective = rendering.job.objective
    if objective.kind == "sft":
        rendering.write("objective.kind", "loss=sft")
        return
    rendering.write("objective.kind", "loss=dpo", f"loss.name={objective.kind}")
    rendering.write_number("objective.beta", "loss.beta=")
    rendering.write_number("objective.label_smoothing", "loss.label_smoothing=")
    if rendering.job.reference.source == "none":
        rendering.write("objective.reference", "loss.reference_free=true")
    elif rendering.job.reference.source == "cached":
        rendering.leave("objective.reference", "the repository computes the same log-probabilities at every step")


def to_halos(rendering: Rendering) -> None:
    """Write the job's values as overrides of HALOs."""
    job = rendering.job
    train = job.train
    _halos_loss(rendering)
    leave_loss(rendering, "tokens", "mean")
    if yours := _yours(rendering, "halos"):
        rendering.leave(f"name {DATA_SETS}", f"write your model's family for llama, {yours}")
    else:
        rendering.remark("llama: write your model's family")
    if isinstance(job.model, HfModel):
        path = shlex.quote(f"++model.name_or_path={job.model.path}")
        rendering.write("model.path model.context", path, f"++model.max_length={job.model.context}")
        rendering.write("model.attention", f"++model.attn_implementation={attention_of(job.model)}")
    _prompts(rendering, "++model.", "512 in some versions")
    rendering.leave("data.cut_prompt", "HALOs chooses it by data set")
    rendering.leave("model.revision", "write the folder of that revision as the model")
    leave_model(rendering)
    leave_rows(rendering, all_of_it=False, packs=False)
    dtype = "bfloat16" if train.precision == "bf16" else "float32"
    rendering.write("train.precision", f"++model.policy_dtype={dtype}")
    if train.precision == "bf16":
        rendering.remark("train.precision bf16: HALOs' weights and optimizer state are bf16, planner's fp32")
    checkpointing = truth(value=bool(train.activation_checkpointing))
    rendering.write("train.activation_checkpointing", f"++model.activation_checkpointing={checkpointing}")
    remark_selective(rendering)
    _halos_optimizer(rendering)
    _length(rendering, "++")
    rendering.write("train.clip_norm", f"++model.max_grad_norm={clip_of(job, 'inf')}")
    share = warmup_share(job) or ("0" if warmup_steps(job) == "0" else "")
    arguments = [f"++warmup={share}"] if share else []
    rendering.write_or_leave("train.schedule.warmup", arguments, "write ++warmup as a fraction of all steps")
    kind = "cosine" if job.objective.kind == "sft" else "constant"
    if train.schedule.kind == kind:
        rendering.write("train.schedule.kind")
        if kind == "constant" or not train.schedule.final_fraction:
            rendering.write("train.schedule.final_fraction")
    rendering.leave(
        "train.schedule.kind train.schedule.final_fraction",
        "HALOs' schedule is cosine down to 0 for sft, and constant for all others",
    )
    rendering.write("train.seed", f"++seed={train.seed}")
    trackers_to_hydra(rendering, "++")
    _evaluation(rendering, "halos", "++n_eval_examples")


def _halos_loss(rendering: Rendering) -> None:
    objective = rendering.job.objective
    is_cdpo = bool(rendering.value("objective.label_smoothing"))
    rendering.write("objective.kind", f"loss={'cdpo' if is_cdpo else objective.kind}", "model=llama")
    train = _datasets(rendering, "halos")
    test = ",".join(names_in("halos", rendering.job.eval.data, "test")) or ("DATA" if train == "DATA" else train)
    rendering.write("", f"train_datasets=[{train}]", f"test_datasets=[{test}]", experiment(rendering.job))
    rendering.write_number("objective.beta", f"++loss.{'tau' if objective.kind == 'ipo' else 'beta'}=")
    if is_cdpo:
        rendering.write_number("objective.label_smoothing", "++loss.epsilon=")
    else:
        rendering.write("objective.label_smoothing")
    for name in ("gamma_beta_ratio", "desirable_weight", "undesirable_weight"):
        rendering.write_number(f"objective.{name}", f"++loss.{name}=")
    if rendering.job.reference.source == "cached":
        rendering.write("objective.reference", "++cache_reference_logprobs=true")
    elif rendering.job.reference.source == "none":
        rendering.leave("objective.reference", "HALOs' dpo uses a reference, so the loss differs")


def _halos_optimizer(rendering: Rendering) -> None:
    optimizer = rendering.job.train.optimizer
    if optimizer.kind != "own":
        rendering.write("train.optimizer.lr", f"++lr={number(optimizer.lr)}")
    if isinstance(optimizer, AdamW):
        rendering.write("train.optimizer.kind", "++optimizer=AdamW")
        rendering.write("train.optimizer.weight_decay", f"++weight_decay={number(optimizer.weight_decay)}")
        betas = [f"++beta{index}={number(beta)}" for index, beta in enumerate(optimizer.betas, start=1)]
        rendering.write("train.optimizer.betas", *betas)
        rendering.leave("train.optimizer.eps", "HALOs does not pass it on, so torch's 1e-8 applies")
    rendering.leave("train.optimizer", "HALOs passes betas, which only AdamW takes, so it trains by AdamW")


def _named(rendering: Rendering, system: System) -> list[str]:
    """The system's names of the data sets to train on, empty if it does not name all of them."""
    data = rendering.job.data
    return names_in(system, data if isinstance(data, RowsData) else None, "train")


def _datasets(rendering: Rendering, system: System) -> str:
    """The names of the data sets in a command, or the placeholder for them."""
    if not (names := _named(rendering, system)):
        return "DATA"
    rendering.write(DATA_SETS)
    return ",".join(names)


def _yours(rendering: Rendering, system: System) -> str:
    """What the user writes for the placeholders of a command. Empty if it has none."""
    data = "" if _named(rendering, system) else "your data for DATA"
    name = "a name for NAME" if experiment(rendering.job) == UNNAMED else ""
    return " and ".join(filter(None, [data, name]))


def _evaluation(rendering: Rendering, system: System, option: str) -> None:
    """Writes how many rows of the system's own test split are evaluated, if the job evaluates those."""
    test, samples = names_in(system, rendering.job.eval.data, "test"), rendering.job.eval.samples
    if test and (system == "halos" or test == _named(rendering, system)) and isinstance(samples, int) and samples:
        rendering.write("eval.data eval.samples", f"{option}={samples}")
        every = duration.parse(rendering.job.eval.every)
        if every.unit in {"examples", "steps"}:
            size = rendering.job.batch.global_batch if every.unit == "steps" else 1
            rendering.write("eval.every", f"{option.replace('n_eval_examples', 'eval_every')}={every.amount * size}")
    rendering.leave("eval", _EVAL)


def _prompts(rendering: Rendering, prefix: str, default: str) -> None:
    """Writes the longest prompt of rows that do not fit into the context."""
    most = rendering.value("data.max_prompt")
    arguments = [f"{prefix}max_prompt_length={most}"] if most else []
    rendering.write_or_leave(
        "data.max_prompt",
        arguments,
        f"this job has no limit, but the default of {prefix}max_prompt_length is {default}",
    )


def _length(rendering: Rendering, sign: str) -> None:
    """Writes one of the two lengths and unsets the other, because a run ends with the one reached first."""
    epochs, names = rendering.job.train.epochs, "train.epochs train.steps train.examples"
    if epochs is None:
        rendering.write(names, f"{sign}n_epochs=null", f"{sign}n_examples={length_in_examples(rendering.job)}")
    elif epochs.is_integer():
        rendering.write(names, f"{sign}n_epochs={number(epochs)}")
    else:
        rendering.leave(names, f"n_epochs must be whole, so write {sign}n_epochs=null {sign}n_examples=N")


# -- the commands


def render_dpo(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """The DPO repository's command for a split, with the arguments and notes on the evaluation batch."""
    evaluated, notes = _eval_batch(split, split.gpus)
    devices = ",".join(map(str, range(split.gpus)))
    sizes = [
        f"batch_size={split.batch}",
        f"gradient_accumulation_steps={split.accumulation}",
        f"eval_batch_size={evaluated}",
    ]
    start = f"{split.assignments}CUDA_VISIBLE_DEVICES={devices} python -u train.py"
    trainer = shlex.quote(f"trainer={_trainer(split)}")
    return Rewrite(command=" ".join([start, *_or_theirs(split, arguments), trainer, *sizes]), notes=notes)


def _trainer(split: BatchSplit) -> str:
    """FSDPTrainer, or the recipe's own trainer if the repository does not have it, since that computes its loss."""
    facts = split.recipe.foreign
    return facts.trainer if split.is_own and isinstance(facts, DpoFacts) and facts.has_own_trainer else "FSDPTrainer"


def render_halos(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """HALOs' command for a split, with the arguments and notes on evaluation, memory and version."""
    steps, facts = split.accumulation, split.recipe.foreign
    # The command keeps the recipe's own HALOs, and in an older one model.batch_size counts one accumulation step.
    is_older = split.is_own and isinstance(facts, HalosFacts) and facts.meaning == "per accumulation step"
    evaluated, notes = _eval_batch(split, split.gpus * (1 if is_older else steps))
    sizes = [
        f"++model.batch_size={split.batch // steps if is_older else split.batch}",
        f"++model.gradient_accumulation_steps={steps}",
        f"++model.eval_batch_size={evaluated}",
    ]
    if steps > 1:
        notes += (f"no_sync: with {steps} accumulation steps each GPU holds the gradient of the whole model",)
    which = "before 2025-05-01 (batch_size counts one accumulation step)" if is_older else "of 2025-05-01 or newer"
    version = f"for HALOs {which}, with any --config_file of accelerate_config/: its count is overridden"
    file = "accelerate_config/fsdp_8gpu.yaml"
    start = f"{split.assignments}accelerate launch --config_file {file} --num_processes {split.gpus} launch.py"
    return Rewrite(command=" ".join([start, *_or_theirs(split, arguments), *sizes]), notes=(*notes, version))


def _eval_batch(split: BatchSplit, unit: int) -> tuple[int, tuple[str, ...]]:
    """The multiple of `unit` nearest to the recipe's evaluation batch, and a note if it differs from that."""
    written = split.recipe.eval_batch
    evaluated = nearest_multiple(written or split.batch, unit)
    if not written or evaluated == written:
        return evaluated, ()
    note = f"eval_batch_size {evaluated} instead of {written}, which {unit} does not divide (training is the same)"
    return evaluated, (note,)


def _or_theirs(split: BatchSplit, arguments: Sequence[str]) -> Sequence[str]:
    """The arguments, or `...` if the recipe is a file or a folder of this system."""
    return ["..."] if split.is_own and not split.recipe.arguments else arguments

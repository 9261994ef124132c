"""Writes a job as overrides of HALOs, and the command."""

from collections.abc import Sequence

from planner.job import AdamW, HfModel
from planner.recipes.engine import written
from planner.recipes.halos.batching import HalosFacts
from planner.recipes.halos.keys import RULES
from planner.recipes.hydra_recipes.datasets import names_in
from planner.recipes.hydra_recipes.render import (
    datasets,
    eval_batch,
    evaluation,
    length,
    or_theirs,
    prompts,
    schedule,
    yours_of,
)
from planner.recipes.recipe import Rewrite
from planner.recipes.rendering import (
    DATA_SETS,
    Rendering,
    attention_of,
    leave_loss,
    leave_model,
    leave_rows,
    remark_selective,
    warmup_share,
    warmup_steps,
)
from planner.recipes.scalars import number
from planner.recipes.system import BatchSplit
from planner.recipes.trl.render_trackers import experiment, trackers_to_hydra


def render_command(rendering: Rendering) -> None:
    """Write the job's values as overrides of HALOs."""
    job = rendering.job
    train = job.train
    _loss(rendering)
    leave_loss(rendering, "tokens", "mean")
    if yours := yours_of(rendering, "halos"):
        rendering.leave(f"name {DATA_SETS}", f"write your model's family for llama, {yours}")
    else:
        rendering.remark("llama: write your model's family")
    if isinstance(job.model, HfModel):
        _write(rendering, "model.name_or_path", "model.max_length")
        rendering.write("model.attention", f"++model.attn_implementation={attention_of(job.model)}")
    prompts(rendering, "++model.", "512 in some versions")
    rendering.leave("data.cut_prompt", "HALOs chooses it by data set")
    rendering.leave("model.revision", "write the folder of that revision as the model")
    leave_model(rendering)
    leave_rows(rendering, all_of_it=False, packs=False)
    dtype = "bfloat16" if train.precision == "bf16" else "float32"
    rendering.write("train.precision", f"++model.policy_dtype={dtype}")
    if train.precision == "bf16":
        rendering.remark("train.precision bf16: HALOs' weights and optimizer state are bf16, planner's fp32")
    _write(rendering, "model.activation_checkpointing")
    remark_selective(rendering)
    _optimizer(rendering)
    length(rendering, "++")
    _write(rendering, "model.max_grad_norm")
    share = warmup_share(job) or ("0" if warmup_steps(job) == "0" else "")
    arguments = [f"++warmup={share}"] if share else []
    rendering.write_or_leave("train.schedule.warmup", arguments, "write ++warmup as a fraction of all steps")
    kind = "cosine" if job.objective.kind == "sft" else "constant"
    schedule(rendering, kind, "HALOs' schedule is cosine down to 0 for sft, and constant for all others")
    _write(rendering, "seed")
    trackers_to_hydra(rendering, "++")
    evaluation(rendering, "halos", "++n_eval_examples")


def _write(rendering: Rendering, *names: str) -> None:
    written(rendering, RULES, *names, sign="++")


def _loss(rendering: Rendering) -> None:
    objective = rendering.job.objective
    is_cdpo = bool(rendering.value("objective.label_smoothing"))
    rendering.write("objective.kind", f"loss={'cdpo' if is_cdpo else objective.kind}", "model=llama")
    train = datasets(rendering, "halos")
    test = ",".join(names_in("halos", rendering.job.eval.data, "test")) or ("DATA" if train == "DATA" else train)
    rendering.write("", f"train_datasets=[{train}]", f"test_datasets=[{test}]", experiment(rendering.job))
    _write(rendering, "loss.tau" if objective.kind == "ipo" else "loss.beta")
    if is_cdpo:
        _write(rendering, "loss.epsilon")
    else:
        rendering.write("objective.label_smoothing")
    _write(rendering, "loss.gamma_beta_ratio", "loss.desirable_weight", "loss.undesirable_weight")
    if rendering.job.reference.source == "cached":
        rendering.write("objective.reference", "++cache_reference_logprobs=true")
    elif rendering.job.reference.source == "none":
        rendering.leave("objective.reference", "HALOs' dpo uses a reference, so the loss differs")


def _optimizer(rendering: Rendering) -> None:
    optimizer = rendering.job.train.optimizer
    if optimizer.kind != "own":
        _write(rendering, "lr")
    if isinstance(optimizer, AdamW):
        rendering.write("train.optimizer.kind", "++optimizer=AdamW")
        _write(rendering, "weight_decay")
        betas = [f"++beta{index}={number(beta)}" for index, beta in enumerate(optimizer.betas, start=1)]
        rendering.write("train.optimizer.betas", *betas)
        rendering.leave("train.optimizer.eps", "HALOs does not pass it on, so torch's 1e-8 applies")
    rendering.leave("train.optimizer", "HALOs passes betas, which only AdamW takes, so it trains by AdamW")


def render(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """HALOs' command for a split, with the arguments and notes on evaluation, memory and version."""
    steps, facts = split.accumulation, split.recipe.foreign
    # The command keeps the recipe's own HALOs, and in an older one model.batch_size counts one accumulation step.
    is_older = split.is_own and isinstance(facts, HalosFacts) and facts.meaning == "per accumulation step"
    evaluated, notes = eval_batch(split, split.gpus * (1 if is_older else steps))
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
    return Rewrite(command=" ".join([start, *or_theirs(split, arguments), *sizes]), notes=(*notes, version))

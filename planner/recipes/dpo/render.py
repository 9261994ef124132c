"""Writes a job as overrides of the DPO repository, and the command."""

import shlex
from collections.abc import Sequence

from planner.job import HfModel
from planner.recipes.dpo.batching import DpoFacts
from planner.recipes.dpo.keys import RULES
from planner.recipes.engine import written
from planner.recipes.hydra_recipes.render import (
    TORCH,
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
    leave_loss,
    leave_model,
    leave_rows,
    remark_selective,
    warmup_steps,
)
from planner.recipes.system import BatchSplit
from planner.recipes.trl.render_trackers import experiment, trackers_to_hydra


def render_command(rendering: Rendering) -> None:
    """Write the job's values as overrides of the DPO repository."""
    job = rendering.job
    _loss(rendering)
    leave_loss(rendering, "samples", "sum")
    if isinstance(job.model, HfModel):
        rendering.write("", "model=blank_model")
        _write(rendering, "model.name_or_path")
        rendering.write("", "model.block_name=BLOCK")
        _write(rendering, "max_length")
        rendering.write("", f"datasets=[{datasets(rendering, 'dpo')}]", experiment(job))
        rendering.remark("BLOCK: write the class of the model's blocks, such as LlamaDecoderLayer")
    if yours := yours_of(rendering, "dpo"):
        rendering.leave(f"name {DATA_SETS}", f"write {yours}, else the repository takes hh or does not start")
    prompts(rendering, "", "256")
    rendering.leave("data.cut_prompt", "the repository keeps the end of a prompt only for hh")
    rendering.leave("model.revision", "write the folder of that revision as the model")
    leave_model(rendering)
    leave_rows(rendering, all_of_it=False, packs=False)
    mixed = "bfloat16" if job.train.precision == "bf16" else "null"
    rendering.write("train.precision", f"model.fsdp_policy_mp={mixed}")
    _write(rendering, "activation_checkpointing")
    remark_selective(rendering)
    if (kind := job.train.optimizer.kind) != "own":
        rendering.write("train.optimizer.kind", f"optimizer={TORCH[kind]}")
        _write(rendering, "lr")
    rendering.leave("train.optimizer", "the repository passes only the rate, all else is torch's default")
    length(rendering, "")
    _write(rendering, "max_grad_norm")
    schedule(rendering, "constant", "the repository keeps the rate constant after its warmup")
    steps = warmup_steps(job)
    arguments = [f"warmup_steps={steps}"] if steps else []
    rendering.write_or_leave("train.schedule.warmup", arguments, "write warmup_steps in optimizer steps")
    _write(rendering, "seed")
    trackers_to_hydra(rendering, "")
    evaluation(rendering, "dpo", "n_eval_examples")


def _write(rendering: Rendering, *names: str) -> None:
    written(rendering, RULES, *names, sign="")


def _loss(rendering: Rendering) -> None:
    objective = rendering.job.objective
    if objective.kind == "sft":
        rendering.write("objective.kind", "loss=sft")
        return
    rendering.write("objective.kind", "loss=dpo", f"loss.name={objective.kind}")
    _write(rendering, "loss.beta", "loss.label_smoothing")
    if rendering.job.reference.source == "none":
        rendering.write("objective.reference", "loss.reference_free=true")
    elif rendering.job.reference.source == "cached":
        rendering.leave("objective.reference", "the repository computes the same log-probabilities at every step")


def render(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """The DPO repository's command for a split, with the arguments and notes on the evaluation batch."""
    evaluated, notes = eval_batch(split, split.gpus)
    devices = ",".join(map(str, range(split.gpus)))
    sizes = [
        f"batch_size={split.batch}",
        f"gradient_accumulation_steps={split.accumulation}",
        f"eval_batch_size={evaluated}",
    ]
    start = f"{split.assignments}CUDA_VISIBLE_DEVICES={devices} python -u train.py"
    trainer = shlex.quote(f"trainer={_trainer(split)}")
    return Rewrite(command=" ".join([start, *or_theirs(split, arguments), trainer, *sizes]), notes=notes)


def _trainer(split: BatchSplit) -> str:
    """FSDPTrainer, or the recipe's own trainer if the repository does not have it, since that computes its loss."""
    facts = split.recipe.foreign
    return facts.trainer if split.is_own and isinstance(facts, DpoFacts) and facts.has_own_trainer else "FSDPTrainer"

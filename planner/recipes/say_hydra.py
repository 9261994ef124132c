"""A job's values as overrides of the DPO repository and of HALOs, and the commands of both."""

import shlex
from collections.abc import Sequence

from planner.job import AdamW, HfModel
from planner.recipes.recipe import Rewrite
from planner.recipes.saying import (
    Saying,
    clip_of,
    leave_loss,
    leave_model,
    leave_rows,
    length_in_examples,
    truth,
    warmup_share,
    warmup_steps,
)
from planner.recipes.scalars import number
from planner.recipes.split import nearest_multiple
from planner.recipes.system import Split

_TORCH = {"rmsprop": "RMSprop", "adamw": "AdamW", "sgd": "SGD"}
_EVAL = "there a test split is evaluated: write n_eval_examples and eval_every, both in examples"


def to_dpo(saying: Saying) -> None:
    """Overrides of the DPO repository."""
    job = saying.job
    _dpo_loss(saying)
    leave_loss(saying, "samples", "sum")
    if isinstance(job.model, HfModel):
        path = shlex.quote(f"model.name_or_path={job.model.path}")
        saying.write("model.path model.context", "model=blank_model", path, "model.block_name=BLOCK")
        saying.write("", f"max_length={job.model.context}", "datasets=[DATA]", "exp_name=NAME")
        saying.remark("BLOCK: write the class of the model's blocks, such as LlamaDecoderLayer")
    saying.leave(
        "name data.path data.split",
        "DATA and NAME: write your data and a name; without them the repository takes hh, or does not start",
    )
    _prompts(saying, "", "256")
    saying.leave("data.cut_prompt", "the repository keeps the end of prompts of hh alone")
    saying.leave("model.revision", "write the folder of that revision as the model")
    leave_model(saying)
    leave_rows(saying, all_of_it=False, packs=False)
    mixed = "bfloat16" if job.train.precision == "bf16" else "null"
    saying.write("train.precision", f"model.fsdp_policy_mp={mixed}")
    checkpointing = truth(value=job.train.activation_checkpointing)
    saying.write("train.activation_checkpointing", f"activation_checkpointing={checkpointing}")
    optimizer = job.train.optimizer
    if optimizer.kind != "own":
        saying.write(
            "train.optimizer.kind train.optimizer.lr",
            f"optimizer={_TORCH[optimizer.kind]}",
            f"lr={number(optimizer.lr)}",
        )
    saying.leave("train.optimizer", "the repository passes on the rate alone, all else is torch's default there")
    _length(saying, "")
    saying.write("train.clip_norm", f"max_grad_norm={clip_of(job, 'inf')}")
    if job.train.schedule.kind == "constant":
        saying.write("train.schedule.kind train.schedule.final_fraction")
    saying.leave("train.schedule.kind train.schedule.final_fraction", "after its warmup the rate stays constant there")
    steps = warmup_steps(job)
    words = [f"warmup_steps={steps}"] if steps else []
    saying.write_or_leave("train.schedule.warmup", words, "write warmup_steps in optimizer steps")
    saying.write("train.seed", f"seed={job.train.seed}")
    saying.leave("eval", _EVAL)


def _dpo_loss(saying: Saying) -> None:
    objective = saying.job.objective
    if objective.kind == "sft":
        saying.write("objective.kind", "loss=sft")
        return
    saying.write("objective.kind", "loss=dpo", f"loss.name={objective.kind}")
    saying.write_number("objective.beta", "loss.beta=")
    saying.write_number("objective.label_smoothing", "loss.label_smoothing=")
    if saying.job.reference.source == "none":
        saying.write("objective.reference", "loss.reference_free=true")
    elif saying.job.reference.source == "cached":
        saying.leave("objective.reference", "the repository computes the same at every step")


def to_halos(saying: Saying) -> None:
    """Overrides of HALOs."""
    job = saying.job
    train = job.train
    _halos_loss(saying)
    leave_loss(saying, "tokens", "mean")
    saying.leave(
        "name data.path data.split",
        "model=llama names the model's family, DATA the data, NAME the run: write yours",
    )
    if isinstance(job.model, HfModel):
        path = shlex.quote(f"++model.name_or_path={job.model.path}")
        saying.write("model.path model.context", path, f"++model.max_length={job.model.context}")
        saying.write("model.attention", f"++model.attn_implementation={job.model.attention}")
    _prompts(saying, "++model.", "512 in some versions")
    saying.leave("data.cut_prompt", "HALOs chooses it by the data set")
    saying.leave("model.revision", "write the folder of that revision as the model")
    leave_model(saying)
    leave_rows(saying, all_of_it=False, packs=False)
    dtype = "bfloat16" if train.precision == "bf16" else "float32"
    saying.write("train.precision", f"++model.policy_dtype={dtype}")
    if train.precision == "bf16":
        saying.remark("train.precision bf16: weights and optimizer state are bf16 there, too, fp32 here")
    checkpointing = truth(value=train.activation_checkpointing)
    saying.write("train.activation_checkpointing", f"++model.activation_checkpointing={checkpointing}")
    _halos_optimizer(saying)
    _length(saying, "++")
    saying.write("train.clip_norm", f"++model.max_grad_norm={clip_of(job, 'inf')}")
    share = warmup_share(job) or ("0" if warmup_steps(job) == "0" else "")
    words = [f"++warmup={share}"] if share else []
    saying.write_or_leave("train.schedule.warmup", words, "write ++warmup as a fraction of all steps")
    kind = "cosine" if job.objective.kind == "sft" else "constant"
    if train.schedule.kind == kind:
        saying.write("train.schedule.kind")
        if kind == "constant" or not train.schedule.final_fraction:
            saying.write("train.schedule.final_fraction")
    saying.leave(
        "train.schedule.kind train.schedule.final_fraction",
        "HALOs is cosine for sft, down to 0, and constant for all others",
    )
    saying.write("train.seed", f"++seed={train.seed}")
    saying.leave("eval", _EVAL)


def _halos_loss(saying: Saying) -> None:
    objective = saying.job.objective
    is_cdpo = bool(saying.value("objective.label_smoothing"))
    saying.write("objective.kind", f"loss={'cdpo' if is_cdpo else objective.kind}", "model=llama")
    saying.write("", "train_datasets=[DATA]", "test_datasets=[DATA]", "exp_name=NAME")
    saying.write_number("objective.beta", f"++loss.{'tau' if objective.kind == 'ipo' else 'beta'}=")
    if is_cdpo:
        saying.write_number("objective.label_smoothing", "++loss.epsilon=")
    else:
        saying.write("objective.label_smoothing")
    for name in ("gamma_beta_ratio", "desirable_weight", "undesirable_weight"):
        saying.write_number(f"objective.{name}", f"++loss.{name}=")
    if saying.job.reference.source == "cached":
        saying.write("objective.reference", "++cache_reference_logprobs=true")
    elif saying.job.reference.source == "none":
        saying.leave("objective.reference", "HALOs' dpo has a reference, another loss")


def _halos_optimizer(saying: Saying) -> None:
    optimizer = saying.job.train.optimizer
    if optimizer.kind != "own":
        saying.write("train.optimizer.lr", f"++lr={number(optimizer.lr)}")
    if isinstance(optimizer, AdamW):
        saying.write("train.optimizer.kind", "++optimizer=AdamW")
        saying.write("train.optimizer.weight_decay", f"++weight_decay={number(optimizer.weight_decay)}")
        betas = [f"++beta{index}={number(beta)}" for index, beta in enumerate(optimizer.betas, start=1)]
        saying.write("train.optimizer.betas", *betas)
        saying.leave("train.optimizer.eps", "HALOs never passes it on; torch's is 1e-8")
    saying.leave("train.optimizer", "HALOs passes betas on, which no other optimizer takes; it trains by AdamW")


def _prompts(saying: Saying, prefix: str, default: str) -> None:
    """The longest prompt, for rows that do not fit into the context."""
    most = saying.value("data.max_prompt")
    words = [f"{prefix}max_prompt_length={most}"] if most else []
    saying.write_or_leave(
        "data.max_prompt", words, f"{prefix}max_prompt_length is {default} there, and here no prompt is cut to a length"
    )


def _length(saying: Saying, sign: str) -> None:
    """Write one of the two lengths and unset the other: there a run ends with the first that is reached."""
    epochs, names = saying.job.train.epochs, "train.epochs train.steps train.examples"
    if epochs is None:
        saying.write(names, f"{sign}n_epochs=null", f"{sign}n_examples={length_in_examples(saying.job)}")
    elif epochs.is_integer():
        saying.write(names, f"{sign}n_epochs={number(epochs)}")
    else:
        saying.leave(names, f"epochs are whole there; write {sign}n_epochs=null {sign}n_examples=N")


# -- the commands


def render_dpo(split: Split, words: Sequence[str]) -> Rewrite:
    """What to type for a batch at a GPU count."""
    evaluated, notes = _eval_batch(split, split.gpus)
    devices = ",".join(map(str, range(split.gpus)))
    sizes = [
        f"batch_size={split.batch}",
        f"gradient_accumulation_steps={split.accumulation}",
        f"eval_batch_size={evaluated}",
    ]
    start = f"CUDA_VISIBLE_DEVICES={devices} python -u train.py"
    return Rewrite(command=" ".join([start, *_or_theirs(split, words), "trainer=FSDPTrainer", *sizes]), notes=notes)


def render_halos(split: Split, words: Sequence[str]) -> Rewrite:
    """What to type for a batch at a GPU count."""
    steps = split.accumulation
    evaluated, notes = _eval_batch(split, split.gpus * steps)
    sizes = [
        f"++model.batch_size={split.batch}",
        f"++model.gradient_accumulation_steps={steps}",
        f"++model.eval_batch_size={evaluated}",
    ]
    if steps > 1:
        notes += (f"no_sync: with {steps} accumulation steps each GPU holds a whole gradient",)
    version = "for HALOs of 2025-05-01 or newer; --config_file: any of accelerate_config/, the count is overridden"
    file = "accelerate_config/fsdp_8gpu.yaml"
    start = f"accelerate launch --config_file {file} --num_processes {split.gpus} launch.py"
    return Rewrite(command=" ".join([start, *_or_theirs(split, words), *sizes]), notes=(*notes, version))


def _eval_batch(split: Split, unit: int) -> tuple[int, tuple[str, ...]]:
    """The evaluation batch, a multiple of what the system divides it by, and a remark if it is another one."""
    written = split.recipe.eval_batch
    evaluated = nearest_multiple(written or split.batch, unit)
    if not written or evaluated == written:
        return evaluated, ()
    note = f"eval_batch_size {evaluated} in place of {written}, which {unit} does not divide; training is the same"
    return evaluated, (note,)


def _or_theirs(split: Split, words: Sequence[str]) -> Sequence[str]:
    """The words, or a mark where those of the recipe stand in a file or a folder."""
    return ["..."] if split.is_own and not split.recipe.words else words

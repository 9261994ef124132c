"""A job's settings in the words of each foreign system, and what those have no words for."""

from planner.interop.scalars import number
from planner.job import (
    AdamW,
    ChatData,
    DpoObjective,
    HfModel,
    IpoObjective,
    Job,
    KtoObjective,
    OwnOptimizer,
    SftObjective,
    SimpoObjective,
)

# Words to type, and sentences on what has none.
Said = tuple[list[str], list[str]]

_TORCH = {"rmsprop": "RMSprop", "adamw": "AdamW", "sgd": "SGD"}


def to_dpo(job: Job) -> Said:
    """Overrides of the DPO repository."""
    words, unsaid = [f"loss={'sft' if job.objective.kind == 'sft' else 'dpo'}"], _unlike(job, "samples", "sum")
    if beta := _beta(job):
        words += [f"loss.name={job.objective.kind}", f"loss.beta={beta}"]
    if isinstance(job.objective, DpoObjective) and job.objective.label_smoothing:
        words.append(f"loss.label_smoothing={number(job.objective.label_smoothing)}")
    if job.model.kind == "hf":
        words += ["model=blank_model", f"model.name_or_path={job.model.path}", "model.block_name=BLOCK"]
        words += [f"max_length={job.model.context}", "datasets=[DATA]", "exp_name=NAME"]
        unsaid.append(
            "DATA and NAME: write your data and a name; without them the repository takes hh, or does not start"
        )
        unsaid.append("BLOCK: write the class of the model's blocks, such as LlamaDecoderLayer")
    words += ["loss.reference_free=true"] if _is_reference_free(job) else []
    words += [f"max_prompt_length={most}"] if (most := _max_prompt(job)) else []
    words += ["model.fsdp_policy_mp=bfloat16"] if job.train.precision == "bf16" else []
    words += ["activation_checkpointing=true"] if job.train.activation_checkpointing else []
    unsaid += _unlike_data(job, all_of_it=False, packs=False)
    optimizer = job.train.optimizer
    if not isinstance(optimizer, OwnOptimizer):
        words += [f"optimizer={_TORCH[optimizer.kind]}", f"lr={number(optimizer.lr)}"]
        unsaid.append("train.optimizer: all but the rate is torch's default there")
    words += _hydra_length(job, "", forget="n_epochs=null")
    words.append(f"max_grad_norm={_clip(job, 'inf')}")
    if job.train.schedule.kind != "constant":
        unsaid.append(f"train.schedule {job.train.schedule.kind}: after its warmup the rate stays constant there")
    words += [f"warmup_steps={steps}"] if (steps := _warmup_steps(job)) else []
    unsaid += [] if steps else [_no_warmup(job, "warmup_steps in optimizer steps")]
    return [*words, f"seed={job.train.seed}"], unsaid


def to_halos(job: Job) -> Said:
    """Overrides of HALOs."""
    train, objective = job.train, job.objective
    is_cdpo = isinstance(objective, DpoObjective) and objective.label_smoothing > 0
    loss = "cdpo" if is_cdpo else objective.kind
    words = [f"loss={loss}", "model=llama", "train_datasets=[DATA]", "test_datasets=[DATA]", "exp_name=NAME"]
    unsaid = [
        *_unlike(job, "tokens", "mean"),
        "model=llama names the model's family, DATA the data, NAME the run: write yours",
    ]
    if job.model.kind == "hf":
        words += [f"++model.name_or_path={job.model.path}", f"++model.max_length={job.model.context}"]
    words += _halos_objective(job)
    words += [f"++model.max_prompt_length={most}"] if (most := _max_prompt(job)) else []
    unsaid += _unlike_data(job, all_of_it=False, packs=False)
    if _is_reference_free(job):
        unsaid.append("objective.reference none: HALOs' dpo has a reference, another loss")
    if isinstance(train.optimizer, AdamW):
        words += ["++optimizer=AdamW", f"++lr={number(train.optimizer.lr)}"]
        words.append(f"++weight_decay={number(train.optimizer.weight_decay)}")
        words += [f"++beta{index}={number(beta)}" for index, beta in enumerate(train.optimizer.betas, start=1)]
    else:
        unsaid.append(f"train.optimizer {train.optimizer.kind}: HALOs passes betas on, which it does not take")
    words += [*_hydra_length(job, "++"), f"++model.max_grad_norm={_clip(job, 'inf')}"]
    if share := _warmup_share(job):
        words.append(f"++warmup={share}")
    else:
        unsaid.append(_no_warmup(job, "++warmup as a fraction of all steps"))
    if (train.schedule.kind == "cosine") != (objective.kind == "sft"):
        unsaid.append(f"train.schedule {train.schedule.kind}: HALOs is cosine for sft and constant for all others")
    return [*words, f"++seed={train.seed}"], unsaid


def to_trl(job: Job) -> Said:
    """Options of TRL's scripts."""
    train = job.train
    words, unsaid = ["--dataset_name DATA", "--output_dir OUT"], _unlike(job, "tokens", "mean")
    unsaid.append("DATA and OUT: write your data set and a folder")
    if isinstance(job.objective, SimpoObjective):
        unsaid.append(
            "the script: TRL 0.19 has it in the examples of its repository, not in its package; TRL 1.16 has "
            "CPOTrainer in trl.experimental.cpo and no script, write one around it"
        )
    if share := _warmup_share(job):
        unsaid.append(f"--warmup_ratio is of transformers 4; for transformers 5 write --warmup_steps {share}")
    words += ["--packing"] if isinstance(job.data, ChatData) and job.data.packing else []
    if job.model.kind == "hf":
        words += [f"--model_name_or_path {job.model.path}", f"--max_length {job.model.context}"]
    if beta := _beta(job):
        words += [f"--beta {beta}", *(["--loss_type ipo"] if job.objective.kind == "ipo" else [])]
    if isinstance(job.objective, DpoObjective) and job.objective.label_smoothing:
        words.append(f"--label_smoothing {number(job.objective.label_smoothing)}")
    words += _trl_objective(job)
    if _is_reference_free(job):
        unsaid.append("objective.reference none: TRL's dpo has a reference, another loss")
    if most := _max_prompt(job):
        unsaid.append(f"data.max_prompt {most}: --max_prompt_length, where that version of TRL has it")
    unsaid += _unlike_data(job, all_of_it=True, packs=True)
    words += _trl_optimizer(job)
    words += _trl_length(job)
    words += _trl_schedule(job)
    if not _warmup_share(job) and not _warmup_steps(job):
        unsaid.append(_no_warmup(job, "--warmup_steps in optimizer steps"))
    words.append(f"--max_grad_norm {_clip(job, '0')}")
    words.append(f"--bf16 {str(train.precision == 'bf16').lower()}")
    if train.precision != "bf16":
        unsaid.append("train.precision fp32: zero3.yaml says mixed_precision: bf16; write no into a copy of it")
    words += ["--gradient_checkpointing"] if train.activation_checkpointing else []
    return [*words, f"--seed {train.seed}"], unsaid


def to_torchtitan(job: Job) -> Said:
    """Options of torchtitan."""
    train, optimizer = job.train, job.train.optimizer
    words, unsaid = [], []
    if job.model.kind == "hf":
        words.append(f"--training.seq_len {job.model.context}")
        unsaid.append(f"model.path {job.model.path}: torchtitan has models and checkpoints of its own (--model.flavor)")
    if isinstance(optimizer, AdamW):
        words += ["--optimizer.name AdamW", f"--optimizer.lr {number(optimizer.lr)}"]
    if train.steps:
        words.append(f"--training.steps {train.steps}")
    else:
        unsaid.append("the length: torchtitan counts steps (--training.steps)")
    words += [f"--training.max_norm {_clip(job, '')}"] if train.clip_norm else []
    if steps := _warmup_steps(job):
        words.append(f"--lr_scheduler.warmup_steps {steps}")
    else:
        unsaid.append(_no_warmup(job, "--lr_scheduler.warmup_steps"))
    return words, unsaid


def _unlike(job: Job, mean_over: str, log_probs: str) -> list[str]:
    """Where the same name is another loss there."""
    unlike, objective = [], job.objective
    if isinstance(objective, SftObjective) and objective.mean_over != mean_over:
        unlike.append(f"objective.mean_over {objective.mean_over}: the mean is over {mean_over} there, another loss")
    if isinstance(objective, IpoObjective) and objective.log_probs != log_probs:
        unlike.append(f"objective.log_probs {objective.log_probs}: the {log_probs} there, another loss")
    if isinstance(objective, KtoObjective):
        unlike.append("objective kto: its KL baseline is over the whole batch here and over micro-batches there")
    if getattr(objective, "reference_model", None):
        unlike.append("objective.reference_model: there the reference is the first weights")
    if isinstance(job.model, HfModel) and job.model.lora:
        unlike.append("model.lora: write the adapters in that system's own words")
    return unlike


def _unlike_data(job: Job, *, all_of_it: bool, packs: bool) -> list[str]:
    """Where the same rows bear another loss there; `all_of_it`: every token of a conversation does."""
    unlike, data = [], job.data
    if isinstance(job.model, HfModel) and job.model.revision:
        unlike.append(f"model.revision {job.model.revision}: write the folder of that revision as the model")
    if isinstance(data, ChatData) and data.packing and not packs:
        unlike.append("data.packing: a row is one example there, so the batch would be smaller")
    if isinstance(data, ChatData) and all_of_it and data.loss_on == "completions":
        unlike.append("data.loss_on completions: for rows of messages write --assistant_only_loss true")
    if isinstance(data, ChatData) and not all_of_it and data.loss_on == "all":
        unlike.append("data.loss_on all: there only completions bear loss, another loss")
    return unlike


def _max_prompt(job: Job) -> int | None:
    return getattr(job.data, "max_prompt", None)


def _is_reference_free(job: Job) -> bool:
    return isinstance(job.objective, DpoObjective) and job.objective.reference == "none"


def _weights(job: Job, form: str) -> list[str]:
    """KTO's two weights, each where it is not 1."""
    if not isinstance(job.objective, KtoObjective):
        return []
    weights = {"desirable": job.objective.desirable_weight, "undesirable": job.objective.undesirable_weight}
    return [form.format(name, number(weight)) for name, weight in weights.items() if weight != 1]


def _trl_objective(job: Job) -> list[str]:
    objective, words = job.objective, _weights(job, "--{}_weight {}")
    if isinstance(objective, SimpoObjective):
        gamma = number(objective.beta * objective.gamma_beta_ratio)
        words += ["--loss_type simpo", f"--simpo_gamma {gamma}", "--cpo_alpha 0"]
    return words


def _beta(job: Job) -> str:
    beta = getattr(job.objective, "beta", None)
    return "" if beta is None else number(beta)


def _clip(job: Job, none: str) -> str:
    return number(job.train.clip_norm) if job.train.clip_norm else none


def _warmup_steps(job: Job) -> str:
    """The number of a warmup in steps; empty if it is in another unit."""
    warmup = job.train.schedule.warmup
    return warmup.split()[0] if warmup.endswith((" step", " steps")) else ""


def _warmup_share(job: Job) -> str:
    """The fraction of a warmup in percent; empty if it is in another unit."""
    warmup = job.train.schedule.warmup
    return number(float(warmup[:-1]) / 100) if warmup.endswith("%") else ""


def _no_warmup(job: Job, fix: str) -> str:
    return f"train.schedule.warmup {job.train.schedule.warmup}: write {fix}"


def _hydra_length(job: Job, sign: str, forget: str = "") -> list[str]:
    train = job.train
    if train.epochs:
        return [f"{sign}n_epochs={number(train.epochs)}"]
    examples = train.examples or (train.steps or 0) * job.batch.global_batch
    return [*([forget] if forget else []), f"{sign}n_examples={examples}"]


def _halos_objective(job: Job) -> list[str]:
    objective = job.objective
    words = [f"++loss.{'tau' if objective.kind == 'ipo' else 'beta'}={beta}"] if (beta := _beta(job)) else []
    if isinstance(objective, DpoObjective) and objective.label_smoothing:
        words.append(f"++loss.epsilon={number(objective.label_smoothing)}")
    if isinstance(objective, SimpoObjective):
        words.append(f"++loss.gamma_beta_ratio={number(objective.gamma_beta_ratio)}")
    return words + _weights(job, "++loss.{}_weight={}")


def _trl_optimizer(job: Job) -> list[str]:
    optimizer = job.train.optimizer
    if isinstance(optimizer, OwnOptimizer):
        return []
    name = "adamw_torch" if isinstance(optimizer, AdamW) else optimizer.kind
    words = [f"--optim {name}", f"--learning_rate {number(optimizer.lr)}"]
    if isinstance(optimizer, AdamW):
        words.append(f"--weight_decay {number(optimizer.weight_decay)}")
        words += [f"--adam_beta{index} {number(beta)}" for index, beta in enumerate(optimizer.betas, start=1)]
    return words


def _trl_length(job: Job) -> list[str]:
    train = job.train
    if train.epochs:
        return [f"--num_train_epochs {number(train.epochs)}"]
    return [f"--max_steps {train.steps or -(-(train.examples or 0) // job.batch.global_batch)}"]


def _trl_schedule(job: Job) -> list[str]:
    schedule = job.train.schedule
    words = [f"--lr_scheduler_type {schedule.kind.replace('constant', 'constant_with_warmup')}"]
    if schedule.kind == "cosine" and schedule.final_fraction:
        rate = number(schedule.final_fraction)
        words = ["--lr_scheduler_type cosine_with_min_lr", f"--lr_scheduler_kwargs '{{\"min_lr_rate\": {rate}}}'"]
    if steps := _warmup_steps(job):
        words.append(f"--warmup_steps {steps}")
    if share := _warmup_share(job):
        words.append(f"--warmup_ratio {share}")
    return words

"""What cannot be trained exactly at every number of processes, each with its reason and what to do.

The functions read attributes of a trainer and of its settings, and import nothing: tests hand in stand-ins.
"""

from collections.abc import Iterator
from typing import Any

from planner.base.text import enumerated

KNOWN = ("SFTTrainer", "DPOTrainer", "Trainer")
"""trainers whose `compute_loss` was read and measured, by the name of their class"""

# Losses that couple samples, by trainer: why.
_COUPLED = {
    "KTOTrainer": "it estimates its KL term from mismatched pairs within each micro-batch of one process",
    "GRPOTrainer": "it generates completions per process, and compares them within groups that processes share",
    "RLOOTrainer": "it generates completions per process, and compares them within groups that processes share",
    "ORPOTrainer": "its NLL term is a mean over the tokens of one micro-batch",
}

EXACT_DPO = frozenset(
    {
        "sigmoid",
        "hinge",
        "ipo",
        "exo_pair",
        "nca_pair",
        "robust",
        "bco_pair",
        "sppo_hard",
        "apo_zero",
        "apo_down",
        "discopop",
        "sigmoid_norm",
    }
)
"""DPO losses of TRL 1.16 that are a mean of a value per pair (dpo_trainer.py, `_compute_loss`)"""

COUPLED_DPO = {
    "aot": "it sorts the pairs of one micro-batch",
    "aot_pair": "it sorts the pairs of one micro-batch",
    "aot_unpaired": "it sorts the pairs of one micro-batch",
    "sft": "it is a mean over the tokens of one micro-batch",
}
"""DPO losses that couple the pairs of a micro-batch: why"""


def base_trainer(trainer: type) -> type | None:
    """The class of TRL or transformers whose loss a trainer computes. None if its loss is the user's own."""
    for cls in trainer.__mro__:
        # The mixin of this room weighs the loss of the class after it.
        if "compute_loss" in vars(cls) and not cls.__module__.startswith("planner.trl."):
            return cls if cls.__module__.partition(".")[0] in {"trl", "transformers"} else None
    return None


def unknown_trainer(trainer: type) -> str:
    """Why a trainer's loss is not known to be exact. Empty if it is."""
    base = base_trainer(trainer)
    if base is None:
        return (
            f"{trainer.__name__} has a compute_loss of its own, and planner cannot tell whether it is the same at "
            f"every split of the batch. Use {enumerated(KNOWN, 'or')} with their own loss"
        )
    if base.__name__ in KNOWN and base.__module__.startswith(("trl.trainer.", "transformers.trainer")):
        return ""
    why = _COUPLED.get(base.__name__, "planner does not know its loss")
    return f"{base.__name__} cannot be split exactly: {why}. Exact trainers are {enumerated(KNOWN, 'and')}"


def reasons(trainer: Any) -> list[str]:
    """Why this trainer would not train the same at every number of processes, a sentence for each. Empty if it would.

    Args:
        trainer: a trainer of transformers or TRL, made, and not trained yet.
    """
    return [*_settings(trainer.args), *_parallelism(trainer), *_data(trainer), *_loss(trainer)]


def _settings(args: Any) -> Iterator[str]:
    """What TrainingArguments ask for."""
    if args.gradient_accumulation_steps != 1:
        yield (
            f"gradient_accumulation_steps is {args.gradient_accumulation_steps}, and planner derives it from "
            "global_batch and the number of processes. Leave it out"
        )
    if args.auto_find_batch_size:
        yield "auto_find_batch_size changes the micro-batches during a run. Set per_device_train_batch_size"
    if args.train_sampling_strategy != "random":
        yield (
            f"train_sampling_strategy is {args.train_sampling_strategy!r}, and the order of rows is planner's. "
            "Leave it out"
        )
    config = args.accelerator_config
    for name in ("split_batches", "dispatch_batches"):
        if getattr(config, name, None):
            yield f"accelerator_config.{name} shards batches again, and planner shards them. Leave it out"
    if args.neftune_noise_alpha is not None:
        yield (
            "neftune_noise_alpha adds noise that depends on the padded length of a micro-batch, so on the split. Leave "
            "it out"
        )
    if args.save_only_model and str(getattr(args.save_strategy, "value", args.save_strategy)) != "no":
        yield "save_only_model leaves the optimizer out of checkpoints, so a run could not resume. Leave it out"
    if getattr(args, "sync_ref_model", False):
        yield "sync_ref_model changes a model that no checkpoint has, so a run could not resume. Leave it out"


def _parallelism(trainer: Any) -> Iterator[str]:
    """How the model is spread over processes: planner's plan is of data parallelism alone."""
    if trainer.args.n_gpu > 1:
        yield (
            f"one process would use {trainer.args.n_gpu} GPUs by DataParallel, which splits micro-batches again. Start "
            "one process per GPU, with torchrun or Ray Train"
        )
    if trainer.is_deepspeed_enabled:
        yield "DeepSpeed wants equal micro-batches on every process. Use DDP or FSDP"
    if getattr(trainer, "is_distributed_loading_by_transformers", False):
        yield "the model was sharded while it was loaded. Use DDP or FSDP"
    sizes = {"tensor": trainer.get_tp_size(), "context": trainer.get_cp_size(), "sequence": trainer.get_sp_size()}
    for name, size in sizes.items():
        if size > 1:
            yield f"{name} parallelism of {size} lets processes share samples. Use data parallelism alone"


def _data(trainer: Any) -> Iterator[str]:
    """What the rows come from."""
    if not hasattr(trainer.train_dataset, "__getitem__") or not hasattr(trainer.train_dataset, "__len__"):
        yield (
            f"train_dataset is {type(trainer.train_dataset).__name__}, which has no rows by number. Use a map-style "
            "data set, such as datasets.Dataset"
        )


def _loss(trainer: Any) -> Iterator[str]:
    """What couples the samples of a micro-batch."""
    if trainer.compute_loss_func is not None:
        yield "compute_loss_func is your own, and planner cannot tell what it divides by. Leave it out"
    config: Any = getattr(trainer.model, "config", None)
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    if getattr(text_config, "output_router_logits", False):
        yield (
            "the model adds a load-balancing loss over each micro-batch (output_router_logits). Set "
            "router_aux_loss_coef to 0"
        )
    base = base_trainer(type(trainer))
    name = base.__name__ if base is not None else ""
    if name == "DPOTrainer":
        for loss in dict.fromkeys(trainer.loss_types):
            if loss not in EXACT_DPO:
                why = COUPLED_DPO.get(loss, "planner does not know it")
                yield f"loss_type {loss!r} may depend on the split: {why}. Use a loss per pair, such as sigmoid"
    elif not trainer.args.average_tokens_across_devices:
        yield "average_tokens_across_devices is false, so losses are divided by one process's tokens. Leave it out"
    if name == "Trainer" and not (trainer._loss_shifts_labels and trainer.model_accepts_loss_kwargs):
        yield (
            f"the loss of {type(trainer.model).__name__} is not known to be a sum over tokens divided by those of the "
            "whole batch. Use a causal language model of transformers"
        )

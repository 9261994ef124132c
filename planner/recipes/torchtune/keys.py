"""The recipes of torchtune 0.6.1 and the keys that they read. A recipe ignores any other key.

A configuration has no schema: a recipe takes its keys by name, and passes the rest of a section to its component.
"""

from planner.recipes.rule import NO_SETTING, KeyRule, Rules, about, key, keys, reads, says

VERSION = "torchtune 0.6.1"
RECIPES = {
    "full_finetune_single_device": "sft",
    "full_finetune_distributed": "sft",
    "lora_finetune_single_device": "sft",
    "lora_finetune_distributed": "sft",
    "dev/lora_finetune_distributed_multi_dataset": "sft",
    "lora_dpo_single_device": "dpo",
    "lora_dpo_distributed": "dpo",
    "full_dpo_distributed": "dpo",
    "qat_distributed": "qat",
    "qat_lora_finetune_distributed": "qat",
    "knowledge_distillation_single_device": "kd",
    "knowledge_distillation_distributed": "kd",
    "dev/early_exit_finetune_distributed": "early exit",
    "ppo_full_finetune_single_device": "ppo",
}
"""every recipe that trains, and its method"""
TP_RECIPE, FULL_DPO, PPO, MULTI = (
    "full_finetune_distributed",
    "full_dpo_distributed",
    "ppo_full_finetune_single_device",
    "dev/lora_finetune_distributed_multi_dataset",
)
_DPO_LORA = ("lora_dpo_single_device", "lora_dpo_distributed")
_KD = ("knowledge_distillation_single_device", "knowledge_distillation_distributed")
_QAT, _EARLY = "qat_distributed", "dev/early_exit_finetune_distributed"
BACKWARD = ("full_finetune_single_device", TP_RECIPE, FULL_DPO, _QAT, _EARLY, PPO)
"""recipes that read optimizer_in_bwd"""
UNREAD = {
    "clip_grad_norm": (*_DPO_LORA, "knowledge_distillation_distributed", PPO),
    "lr_scheduler": (_QAT, _EARLY, PPO),
    "optimizer_in_bwd": tuple(name for name in RECIPES if name not in BACKWARD),
    "tensor_parallel_dim": tuple(name for name in RECIPES if name != TP_RECIPE),
    "enable_activation_offloading": (*_KD[1:], PPO),
    "ac_mode": tuple(name for name in RECIPES if name not in {TP_RECIPE, _QAT, _EARLY}),
    "shuffle": (MULTI,),
}
"""keys that some recipes do not read, which train as if the key were missing"""
_ALWAYS = (
    "batch_size gradient_accumulation_steps dtype device output_dir seed resume_from_checkpoint model._component_ "
    "optimizer._component_ loss._component_ tokenizer._component_ checkpointer._component_ metric_logger._component_ "
)
_OF_LORA = "model.lora_rank model.lora_alpha model.lora_attn_modules model.apply_lora_to_mlp lr_scheduler._component_ "


def needed_by(recipe: str) -> tuple[str, ...]:
    """The keys without which a recipe ends, null allowed for those that are no sections."""
    names = _ALWAYS
    if recipe == PPO:
        names = names.replace("model._component_", "policy_model._component_")
        names += "shuffle ppo_batch_size ppo_epochs forward_batch_size num_steps optimizer_in_bwd compile "
    else:
        names += "epochs max_steps_per_epoch " + ("" if recipe == MULTI else "shuffle ")
    if "lora" in recipe or recipe in _KD:
        names += _OF_LORA
    if recipe == "lora_dpo_single_device":
        names = names.replace("lr_scheduler._component_", "")
    if recipe == FULL_DPO:
        names += "lr_scheduler._component_ ref_checkpointer._component_ "
    if recipe in {"full_finetune_single_device", "lora_finetune_single_device", "lora_dpo_single_device", _KD[0]}:
        names += "compile "
    if recipe in {*_DPO_LORA, *_KD, PPO}:
        names += "enable_activation_checkpointing "
    if recipe in _KD:
        names += "teacher_model._component_ teacher_checkpointer._component_ kd_loss._component_ "
    names += "quantizer._component_ " if "qat" in recipe else ""
    return tuple((names + ("optimizer_in_bwd" if recipe == "full_finetune_single_device" else "")).split())


def component(name: str, why: str = "", **facts: str) -> tuple[KeyRule, ...]:
    """The rows of a section: its component, and all of its arguments."""
    return (key(f"{name}._component_", why=why, **facts), key(f"{name}.*", why=why or NO_SETTING))


_FOLDER = "planner takes the model as its folder's config.json says"
_SHARDS = "planner shards by FSDP2"
_OWN_LOOP = "your loop decides it"
RULES = Rules(
    (
        *about(
            "the batch",
            key("batch_size", value="whole", effect=reads("samples of one GPU in a forward pass. PPO: of a round")),
            key("gradient_accumulation_steps", value="whole", effect=reads("forward passes in an optimizer step")),
            key("ppo_batch_size", value="whole", effect=reads("rollouts of an optimizer step, on one GPU")),
            keys(
                "forward_batch_size num_steps ppo_epochs", value="whole", effect=reads("what PPO refuses, its length")
            ),
            key("tensor_parallel_dim", value="whole", default=1, effect=reads("GPUs that share their samples")),
            keys(
                "context_parallel_dim data_parallel_replicate_dim data_parallel_shard_dim",
                effect=reads("refused: only newer versions read them"),
            ),
            key("tensor_parallel_plan", why=_SHARDS, effect=reads("tensor_parallel_dim above 1 needs it")),
            key("dataset.packed", ours="data.packing", effect=says("packed rows count")),
            key("dataloader.packed", why="planner has loaders of its own", effect=reads("refused")),
            key(
                "optimizer_in_bwd", why="it changes only memory", effect=reads("refused with accumulation or clipping")
            ),
            key(
                "optimizer.fused", why="it changes only speed", effect=reads("refused with tensor_parallel_dim above 1")
            ),
            key("device", why="planner takes the GPUs of its nodes", effect=reads("offloading needs cuda")),
            key("collate_fn", why="planner pads in its own way", effect=reads("some are refused")),
        ),
        *about(
            "the model",
            key(
                "model._component_", why=_FOLDER, effect=reads("a lora_ builder names the recipe, if nothing else does")
            ),
            key("model.lora_rank", ours="model.lora.rank", value="whole", default=8),
            key("model.lora_alpha", ours="model.lora.alpha", value="number", default=16.0),
            key("model.lora_dropout", ours="model.lora.dropout", value="number", default=0.0),
            keys("model.lora_attn_modules model.use_dora model.quantize_base"),
            keys("model.apply_lora_to_mlp model.apply_lora_to_output", value="truth", default=False),
            key("model.*", why=_FOLDER),
            key(
                "tokenizer.max_seq_len", ours="model.context", value="whole", least=2, effect=reads("packing needs it")
            ),
            key("tokenizer.prompt_template"),
            key("tokenizer.*", why="planner reads the tokenizer in the model's folder"),
            key("checkpointer.checkpoint_dir", ours="model.path", value="text"),
            key("checkpointer.adapter_checkpoint"),
            key("checkpointer.*", why="planner reads the model's folder, and has its own commits"),
            key("resume_from_checkpoint", why="planner resumes its own runs"),
            *component("ref_checkpointer", why="the reference model is planner's objective.reference_model"),
            keys("fsdp_cpu_offload fsdp_reshard_after_forward custom_sharded_layers fsdp low_cpu_ram", why=_SHARDS),
        ),
        *about(
            "the data",
            key("dataset.*"),
            key("dataset*", effect=says("a list is one data set")),
            key("dataloader.*", why="planner has loaders of its own"),
            key("shuffle", why="planner always shuffles"),
        ),
        *about(
            "training",
            key("epochs", ours="train.epochs", value="whole", effect=says("left-over micro-batches go on in the next")),
            key("max_steps_per_epoch", value="whole", effect=says("optimizer steps of each epoch")),
            key("seed", ours="train.seed", value="whole", least=0),
            key(
                "clip_grad_norm", ours="train.clip_norm", value="number", effect=reads("refused with optimizer_in_bwd")
            ),
            key("dtype", ours="train.precision", default="bf16", effect=reads("fp16 is refused")),
            key("enable_activation_checkpointing", ours="train.activation_checkpointing", value="truth", default=False),
            key("enable_activation_offloading", why="it changes only memory", effect=reads("needs checkpointing")),
            keys("ac_mode ac_option", why="planner has true and selective"),
            key("compile", ours="train.compile", effect=reads("refused for QAT")),
            key("optimizer._component_", ours="train.optimizer.kind"),
            key("optimizer.lr", ours="train.optimizer.lr", value="number", default=1e-3),
            key("optimizer.weight_decay", ours="train.optimizer.weight_decay", value="number"),
            keys("optimizer.eps optimizer.alpha optimizer.momentum", value="number"),
            key("optimizer.betas"),
            keys("optimizer.foreach optimizer.capturable optimizer.differentiable", why="it changes only speed"),
            keys("lr_scheduler._component_ lr_scheduler.num_warmup_steps lr_scheduler.num_cycles"),
            keys(
                "loss._component_ loss.beta loss.label_smoothing",
                effect=reads("names the recipe, if nothing else does"),
            ),
            key("loss.num_output_chunks", why="it changes only memory"),
            key("cudnn_deterministic_mode", why="batch.equality bitwise is planner's setting"),
        ),
        *about(
            "methods of their own",
            *component("quantizer", why=_OWN_LOOP),
            *component("policy_model", why=_OWN_LOOP),
            *component("teacher_model", why=_OWN_LOOP),
            *component("kd_loss", why=_OWN_LOOP),
            keys("reward_and_value_model.* teacher_checkpointer.* early_exit_loss.* layer_dropout.*", why=_OWN_LOOP),
            keys("ref_policy_checkpointer.* value_checkpointer.* reward_checkpointer.*", why=_OWN_LOOP),
            keys("kd_ratio fake_quant_after_n_steps gamma lmbda kl_coeff whiten_rewards", why=_OWN_LOOP),
            keys("max_generated_tokens temperature top_k min_response_length penalise_no_eos", why=_OWN_LOOP),
            keys("reward_penalty stop_token_ids enable_kv_cache", why=_OWN_LOOP),
        ),
        *about(
            "results",
            key("metric_logger._component_", ours="tracking.kind"),
            keys("metric_logger.project metric_logger.entity metric_logger.group metric_logger.name"),
            keys("metric_logger.experiment_name metric_logger.tracking_uri metric_logger.run_name"),
            key("metric_logger.*", why="planner's tracker has no such setting"),
            key("output_dir", why="planner has a folder for each run"),
            key("log_every_n_steps", why="planner records and tracks every step"),
            keys("log_peak_memory_stats profiler.*"),
            key("save_adapter_weights_only", why="planner export writes adapters"),
            key("enable_async_checkpointing", why="planner writes commits in the background"),
        ),
    )
)

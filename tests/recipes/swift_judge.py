"""The batch that ms-swift 4.6.0 trains of a command, computed from its source and not from planner's reader.

Every rule names the function and the file that it follows, below ms-swift's folder `swift`. Files of transformers
(5.19), accelerate (1.15) and TRL (0.29), which ms-swift 4.6.0 asks for, are named with their package.
`swift/execute.py` runs ms-swift's own functions and compares.
"""

import json
import math
from dataclasses import dataclass

PRESETS = ("zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload")
FLASH = ("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4")
OWN_LOADER = ("dpo",)
"""of the kinds of `swift rlhf`: `DPOTrainer` has `DataLoaderMixin`. `swift sft` and `pt` always have it"""
KINDS = ("dpo", "orpo", "simpo", "kto", "cpo", "rm", "ppo", "grpo", "gkd")
OF_RLHF = ("num_generations", "num_generations_eval", "generation_batch_size", "steps_per_generation")
OF_RLHF += ("num_mini_batches", "whiten_rewards", "rlhf_type", "reward_funcs", "vllm_mode", "use_vllm", "beta")
"""options that `SftArguments` (arguments/sft_args.py) has not"""
INTEGERS = ("per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size", "max_steps")
INTEGERS += ("sequence_parallel_size", "deepspeed_autotp_size", "packing_length", *OF_RLHF[:5])
FLAGS = ("packing", "padding_free", "streaming", "lazy_tokenize", "group_by_length", "train_dataloader_shuffle")
FLAGS += ("save_only_model", "auto_find_batch_size", "dataloader_drop_last", "whiten_rewards", "use_vllm", "use_ray")
REALS = ("warmup_ratio", "warmup_steps", "split_dataset_ratio", "num_train_epochs")
CHOICES = {"truncation_strategy": ("delete", "left", "right", "split"), "eval_strategy": ("no", "steps", "epoch")}
CHOICES["task_type"] = ("causal_lm", "seq_cls", "embedding", "reranker", "generative_reranker", "decision")
TRUE, FALSE = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")


class Refused(Exception):
    """ms-swift, transformers, accelerate or TRL refuses the command at this number of processes."""


class Unknown(Exception):
    """The batch is not a fact of the command."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one optimizer step takes."""

    micro: int
    """rows that a process computes in one forward pass. With packing a row is a pack of `packing_length` tokens"""
    accumulation: int
    """forward passes of a process in one step"""
    ranks: int
    """groups of processes that read different rows"""
    rows: int
    """of one optimizer step: examples, pairs, or completions of GRPO"""
    is_packed: bool


def batch_at(verb, options, processes):
    """The batch of `swift VERB` with `options` (each a value as YAML has it, or text) on `processes` processes.

    Each process has one GPU.

    Raises:
        Refused: the command does not start there.
        Unknown: no batch follows from the command.
    """
    ask = _Options(options)
    kind = _kind(verb, ask)
    _refuse(verb, kind, ask)
    micro, accumulation = _sizes(kind, ask, processes)
    if ask.flag("use_ray"):
        raise Unknown("device_groups gives the number of processes")
    if "deepspeed_elastic" in ask.words("callbacks") and ask.text("deepspeed"):
        raise Unknown("DeepSpeed's elasticity gives the sizes")
    deepspeed = _deepspeed(ask, micro, accumulation, processes)
    ranks = _ranks(kind is None or kind in OWN_LOADER, ask, deepspeed, processes)
    generations = _generation(kind, ask, micro, accumulation, processes)
    accelerator = ask.mapping("accelerator_config")
    if steps := (accelerator.get("gradient_accumulation_kwargs") or {}).get("num_steps"):
        # `Trainer.create_accelerator_and_postprocess` (transformers/trainer.py)
        if accumulation > 1:
            raise Refused("num_steps is set but gradient_accumulation_steps is greater than 1")
        accumulation = steps
    if accelerator.get("split_batches") and kind and kind not in OWN_LOADER:
        micro = _split(kind, micro * generations, processes) // generations
    if kind == "grpo" and ask.integer("sequence_parallel_size", 1) > 1:
        # `GRPOTrainer.__init__` (rlhf_trainers/grpo_trainer.py): A rounds of the group, one forward pass a process
        accumulation *= ask.integer("sequence_parallel_size", 1)
    _refuse_last(kind, ask, micro, accumulation, processes)
    if ask.flag("auto_find_batch_size"):
        raise Unknown("auto_find_batch_size halves the micro-batch until it fits in memory")
    is_packed = ask.flag("packing") and kind not in {"grpo", "gkd"}  # `_prepare_dataset` (pipelines/train/sft.py)
    rows = micro * accumulation * ranks
    return Batch(micro=micro, accumulation=accumulation, ranks=ranks, rows=rows, is_packed=is_packed)


class _Options:
    """The options as `parse_yaml_args` (cli/main.py) and `HfArgumentParser` (transformers) read them."""

    def __init__(self, options):
        self.given = options

    def _one(self, key):
        value = self.given[key]
        if isinstance(value, list):
            if len(value) != 1:
                raise Refused(f"--{key} takes one value")
            value = value[0]
        return json.dumps(value) if isinstance(value, dict) else str(value)

    def text(self, key, default=None):
        return self._one(key) if key in self.given else default

    def words(self, key):
        value = self.given.get(key, [])
        if key in self.given and value == []:
            raise Refused(f"--{key}: expected at least one argument")
        return [str(each) for each in value] if isinstance(value, list) else [str(value)]

    def integer(self, key, default=None):
        return self._number(key, default, int)

    def real(self, key, default=None):
        return self._number(key, default, float)

    def _number(self, key, default, kind):
        if key not in self.given:
            return default
        try:
            return kind(self._one(key))
        except ValueError:
            raise Refused(f"--{key}: invalid {kind.__name__} value") from None

    def flag(self, key):
        """`string_to_bool` (transformers/hf_argparser.py). An option without a value is true."""
        if self.given.get(key) == []:
            return True
        value = self.text(key, "false").lower()
        if value not in TRUE + FALSE:
            raise Refused(f"--{key}: truthy value expected")
        return value in TRUE

    def mapping(self, key):
        """`json_parse_to_dict` (utils/utils.py) and `__post_init__` (transformers/training_args.py): JSON here."""
        text = self.text(key)
        if text is None:
            return {}
        if not text.lstrip().startswith("{"):
            raise Refused(f"no such file: {text}")
        return json.loads(text)


def _kind(verb, ask):
    """The method of `swift rlhf`, after `_init_simpo` (arguments/rlhf_args.py). None for `sft` and `pt`."""
    if verb != "rlhf":
        return None
    kind = ask.text("rlhf_type", "dpo")
    if kind not in KINDS:
        raise Refused(f"--rlhf_type: invalid choice: {kind}")
    return "cpo" if kind == "simpo" else kind


def _sizes(kind, ask, processes):
    """The micro-batch and the accumulation.

    `_set_default` (arguments/rlhf_args.py) sets the accumulation of GRPO. `TrainArgumentsMixin.__post_init__`
    (trainers/arguments.py) sets all others. A micro-batch below 1 divides by zero in it, or in `len` of
    `BatchSamplerShard` (dataloader/shard.py). An accumulation below 1 computes nothing: `_inner_training_loop`
    (transformers/trainer.py) divides by it.
    """
    micro = ask.integer("per_device_train_batch_size", 1)
    accumulation = ask.integer("gradient_accumulation_steps")
    replaced = (ask.mapping("accelerator_config").get("gradient_accumulation_kwargs") or {}).get("num_steps")
    if micro < 1 or (accumulation is not None and accumulation < 1 and not replaced):
        raise Refused(f"per_device_train_batch_size {micro}, gradient_accumulation_steps {accumulation}")
    if accumulation is None:
        accumulation = 1 if kind == "grpo" else max(1, math.ceil(16 / micro / processes))
    return micro, accumulation


def _refuse_words(kind, ask):
    """`HfArgumentParser` and `_parse_args` (pipelines/base.py): types, choices, and options of other commands."""
    for keys, read in ((INTEGERS, ask.integer), (FLAGS, ask.flag), (REALS, ask.real)):
        for key in keys:
            if key in ask.given:
                read(key)
    for key, values in CHOICES.items():
        if ask.text(key, values[0]) not in values:
            raise Refused(f"--{key}: invalid choice")
    if kind is None and (others := [key for key in OF_RLHF if key in ask.given]):
        raise Refused(f"remaining_argv: {others}")


def _refuse(verb, kind, ask):
    """Checks that no number of processes changes."""
    _refuse_words(kind, ask)
    _refuse_data(verb, kind, ask)
    # `_check_padding_free` (arguments/sft_args.py, arguments/rlhf_args.py)
    if ask.flag("packing") or ask.flag("padding_free"):
        if ask.text("attn_impl") not in FLASH:
            raise Refused("packing and padding_free require a flash attention implementation")
        if kind not in {None, "grpo", "dpo", "kto", "gkd"}:
            raise Refused(f"{kind} does not support padding_free or packing")
    # `_check_sequence_parallel` (arguments/rlhf_args.py)
    if ask.integer("sequence_parallel_size", 1) > 1 and kind not in {None, "grpo", "dpo"}:
        raise Refused(f"{kind} does not support sequence_parallel")
    _refuse_devices(ask)
    if kind == "grpo":
        _refuse_grpo(ask)


def _refuse_devices(ask):
    """`_init_fsdp`, `_check_fsdp2_compatibility` (sft_args.py), `_handle_hf_removed_args` (trainers/arguments.py)."""
    if fsdp := ask.text("fsdp"):
        if ask.text("deepspeed"):
            raise Refused("FSDP2 is not compatible with DeepSpeed")
        of_fsdp = {} if fsdp == "fsdp2" else ask.mapping("fsdp").get("fsdp_config", {})
        if ask.flag("save_only_model") and "SHARDED" in of_fsdp.get("state_dict_type", "SHARDED_STATE_DICT").upper():
            raise Refused("FSDP2 with SHARDED_STATE_DICT is not compatible with save_only_model")
    if ratio := ask.real("warmup_ratio", 0.0):
        if ask.real("warmup_steps", 0):
            raise Refused("`warmup_ratio` and `warmup_steps` cannot be set at the same time")
        if ratio >= 1:
            raise Refused("warmup_ratio must be less than 1")


def _refuse_data(verb, kind, ask):
    """Checks of the data."""
    if not ask.text("model"):  # `ModelArguments.__post_init__`
        raise Refused("Please set --model")
    if not (ask.words("dataset") or ask.words("cached_dataset")):  # `SftArguments.__post_init__`
        raise Refused("Please input the training dataset")
    is_streamed = ask.flag("streaming")
    if ask.flag("lazy_tokenize") and (is_streamed or ask.flag("packing")):  # `_init_lazy_tokenize` (base_args.py)
        raise Refused("lazy_tokenize is incompatible with packing and streaming")
    is_cached = ask.words("cached_dataset") or ask.words("cached_val_dataset")
    if is_cached and (is_streamed or kind == "grpo"):  # `_prepare_dataset`, `_init_grpo`
        raise Refused("cached_dataset does not support streaming, nor GRPO")
    _refuse_split(ask)
    if is_streamed and (ask.integer("max_steps", -1)) <= 0:
        # `set_initial_training_values` (transformers/trainer.py): the data has no length
        raise Refused("the train_dataset does not implement __len__, max_steps has to be specified")
    is_shuffled = ask.flag("train_dataloader_shuffle") if "train_dataloader_shuffle" in ask.given else True
    has_own = kind is None or kind in OWN_LOADER
    is_parallel = ask.integer("sequence_parallel_size", 1) > 1
    if ask.flag("group_by_length") and has_own and not is_parallel and not is_streamed and not is_shuffled:
        raise Refused("shuffle must be True when group_by_length is True")  # `BatchSamplerShard.__init__`
    if ask.text("truncation_strategy") == "split" and kind not in {"grpo", "gkd"}:  # `_encode_dataset`
        has_template = ask.flag("use_chat_template") if "use_chat_template" in ask.given else verb != "pt"
        if kind or has_template or ask.text("task_type", "causal_lm") != "causal_lm":
            raise Refused("`--truncation_strategy split` is only supported for pre-training")


def _refuse_split(ask):
    """Rows held out, and when they are evaluated.

    `post_process` (dataset/dataset_meta.py), `_init_eval_strategy` (sft_args.py), `IntervalStrategy` (transformers).
    """
    ratio = ask.real("split_dataset_ratio", 0)
    strategy = ask.text("eval_strategy", ask.text("save_strategy", "steps"))
    if ask.words("val_dataset") or (ratio > 0 and (ask.flag("streaming") or strategy == "no")):
        ratio = 0
    if ask.words("dataset") and not 0 <= ratio < 1:
        raise Refused(f"split_dataset_ratio {ratio}: it is no part, or leaves no rows to train on")
    if strategy == "best" and _evaluates(ask):
        raise Refused("best is not a valid IntervalStrategy")


def _refuse_grpo(ask):
    """`_init_grpo`, `_check_teacher` and `_init_rollout` (arguments/rlhf_args.py)."""
    if ask.text("truncation_strategy", "left") not in {"left", "delete"}:
        raise Refused("GRPO requires `truncation_strategy 'left' or 'delete'`")
    has_teacher = "teacher_model" in ask.given or "teacher_model_server" in ask.given
    if not has_teacher and ask.integer("num_generations", 8) == 1:
        raise Refused("num_generations must be greater than 1 for GRPO")
    if ask.flag("use_vllm") != ("vllm_mode" in ask.given):
        raise Refused("vllm_mode is required when use_vllm is true, and only then supported")


def _deepspeed(ask, micro, accumulation, processes):
    """The configuration of DeepSpeed, whose sizes must be those of the command.

    `_init_deepspeed` (arguments/sft_args.py): the presets have `auto` sizes. `trainer_config_process` and
    `trainer_config_finalize` (transformers/integrations/deepspeed.py).
    """
    if ask.text("deepspeed") in (None, *PRESETS):
        return {}
    config = ask.mapping("deepspeed")
    sizes = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": micro * accumulation * processes,
    }
    for key, value in sizes.items():
        if config.get(key) not in (None, "auto", value):
            raise Refused(f"DeepSpeed's {key} is {config[key]}, not {value}")
    return config


def _ranks(has_own, ask, deepspeed, processes):
    """How many groups of processes read different rows.

    - `_init_device_mesh` (sequence_parallel/sequence_parallel.py): a mesh of `processes // size` groups. torch refuses
      an axis of size 0, and `SequenceParallelSampler` (sequence_parallel/utils.py) asks for the rank in the mesh,
      which a process outside of it has not.
    - `BatchSamplerShard` (dataloader/shard.py) gives the same rows to the processes of an AutoTP group. DeepSpeed
      (`_init_tp_mesh_device` in deepspeed/utils/groups.py) makes the same kind of mesh.
    - GRPO reads other rows in each process, and computes those of its group together: `split_by_mini_batches`
      (rlhf_trainers/rollout_mixin.py).
    """
    size = ask.integer("sequence_parallel_size", 1)
    tensor = ask.integer("deepspeed_autotp_size") if ask.text("deepspeed") else None
    if tensor is None:
        tensor = deepspeed.get("tensor_parallel", {}).get("autotp_size", 1)
    if tensor > 1 and not has_own:
        raise Unknown("the processes of an AutoTP group read different rows")
    if tensor < 1 and has_own:
        raise Refused("division by zero in `BatchSamplerShard`")
    for each in (size, tensor):
        if each > 1 and processes % each:
            raise Refused(f"{processes} processes are not groups of {each}")
    if size > 1:
        return processes // size
    return processes // tensor if tensor > 1 else processes


def _generation(kind, ask, micro, accumulation, processes):
    """`steps_per_generation` of GRPO and GKD, 1 for the others.

    `_init_generation_batch_params` (rlhf_trainers/args_mixin.py).
    """
    if kind not in {"grpo", "gkd"}:
        return 1
    if ask.integer("sequence_parallel_size", 1) < 1:
        raise Refused("sequence_parallel_size is neither 1 nor a group in `split_by_mini_batches`")
    count = ask.integer("num_generations", 8) if kind == "grpo" else 1
    size, steps = ask.integer("generation_batch_size"), ask.integer("steps_per_generation")
    of_all = micro * processes
    if size is None:
        steps = accumulation if steps is None else steps
        size = of_all * steps
    elif steps is None:
        if size % of_all:
            raise Refused(f"generation_batch_size ({size}) must be divisible by {of_all}")
        steps = size // of_all
    elif size != of_all * steps:
        raise Refused(f"generation_batch_size ({size}) must equal {of_all} * {steps}")
    if steps <= 0:
        raise Refused("steps_per_generation must be > 0")
    if kind == "grpo":
        _refuse_groups(ask, count, size, processes)
    return steps


def _refuse_groups(ask, count, size, processes):
    """The second part of `_init_generation_batch_params`. A count of 0 divides in `_get_train_sampler` (trl)."""
    if count < 1 or size % count:
        raise Refused(f"generation_batch_size ({size}) must be evenly divisible by num_generations ({count})")
    if count > 1 and _evaluates(ask):
        count = ask.integer("num_generations_eval") or count
        if (ask.integer("per_device_eval_batch_size", 1) * processes) % count:
            raise Refused(f"the global eval batch size must be evenly divisible by {count}")


def _evaluates(ask):
    """`_init_val_dataset_exists` (base_args/data_args.py), `_init_eval_strategy` and `__post_init__` (sft_args.py)."""
    if ask.words("eval_dataset"):
        return ask.text("eval_strategy", ask.text("save_strategy", "steps")) != "no"
    ratio = 0 if ask.words("val_dataset") or ask.flag("streaming") else ask.real("split_dataset_ratio", 0)
    is_there = (ask.words("dataset") and ratio > 0) or ask.words("val_dataset") or ask.words("cached_val_dataset")
    return bool(is_there) and ask.text("eval_strategy", ask.text("save_strategy", "steps")) != "no"


def _split(kind, loaded, processes):
    """`split_batches` of accelerate for the trainers that let it prepare their loader.

    `BatchSamplerShard.__init__` (accelerate/data_loader.py). Trainers with `DataLoaderMixin` (trainers/mixin.py) do
    not ask accelerate. `PPOTrainer` (trl) makes an Accelerator of its own, without that configuration.
    """
    if kind == "ppo":
        return loaded
    if loaded % processes:
        raise Refused(f"split_batches: {loaded} rows on {processes} processes")
    if kind in {"grpo", "gkd"}:
        raise Unknown("a generation's part in one process is cut into unequal micro-batches")
    return loaded // processes


def _refuse_last(kind, ask, micro, accumulation, processes):
    """Checks of two trainers.

    `prepare_kto_dataset` (pipelines/train/kto.py), and `PPOTrainer.__init__` (trl/experimental/ppo/ppo_trainer.py).
    """
    if kind == "kto" and ask.words("loss_type") != ["apo_zero_unpaired"]:
        given = ask.integer("gradient_accumulation_steps")
        if given is None:  # the derived number is in the Trainer's arguments alone
            raise Refused("TypeError: 'int' and 'NoneType', because gradient_accumulation_steps is not set")
        if given * ask.integer("per_device_train_batch_size", 1) * processes <= 1:
            raise Refused("batch size is 1 (too small) for KTO")
    if kind == "ppo":
        parts = ask.integer("num_mini_batches", 1)
        if not parts or (micro * accumulation) % parts:
            raise Refused("local_batch_size must be a multiple of num_mini_batches")
        if ask.flag("whiten_rewards") and micro * accumulation // parts < 8:
            raise Refused("the minibatch of a process is insufficient for whitening")
        if parts < 0 or micro * accumulation // parts % micro:
            raise Unknown("the optimizer steps in the middle of a mini-batch")

"""Random recipes of ms-swift, with what `swift_judge` says of each: for fuzzing."""

import json
import shlex
from dataclasses import dataclass

import swift_judge

OF_FILE = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
POOLS = {
    "per_device_train_batch_size": (1, 2, 3, 4, 8, 6, 16, 0, "2"),
    "gradient_accumulation_steps": (1, 2, 4, 3, 8, 0, "4"),
    "sequence_parallel_size": (1, 2, 3, 4),
    "deepspeed": (
        *("zero0", "zero1", "zero2", "zero3", "zero3_offload"),
        {**OF_FILE, "gradient_accumulation_steps": "auto", "train_batch_size": "auto"},
        {**OF_FILE, "gradient_accumulation_steps": 2, "train_batch_size": "auto"},
        {**OF_FILE, "gradient_accumulation_steps": "auto", "train_batch_size": 16},
        {**OF_FILE, "train_micro_batch_size_per_gpu": 2},
    ),
    "deepspeed_autotp_size": (1, 2, 4),
    "fsdp": ("fsdp2",),
    "save_only_model": (True, False),
    "packing": (True, False),
    "padding_free": (True, False),
    "packing_length": (4096,),
    "attn_impl": ("flash_attn", "flash_attention_2", "flash_attention_3", "sdpa", "eager"),
    "accelerator_config": (
        *({"split_batches": True}, {"split_batches": False}, {"even_batches": False}, {"dispatch_batches": False}),
        *({"gradient_accumulation_kwargs": {"num_steps": 4}}, {"gradient_accumulation_kwargs": {}}),
    ),
    "auto_find_batch_size": (True, False),
    "streaming": (True, False),
    "max_steps": (10, -1, 0),
    "lazy_tokenize": (True, False),
    "group_by_length": (True, False),
    "train_dataloader_shuffle": (True, False),
    "truncation_strategy": ("delete", "left", "right", "split"),
    "task_type": ("causal_lm", "seq_cls", "embedding", "reranker"),
    "tuner_type": ("lora", "full"),
    "split_dataset_ratio": (0, 0.1, 0.1, 1, 2.0, -0.1),
    "val_dataset": ("other.jsonl",),
    "cached_val_dataset": ("folder",),
    "eval_dataset": ("gsm8k",),
    "save_strategy": ("no", "steps", "best"),
    "eval_strategy": ("no", "steps", "epoch"),
    "per_device_eval_batch_size": (1, 2, 4),
    "warmup_ratio": (0, 0.1, 0.05, 1),
    "warmup_steps": (0, 10),
    "num_generations": (1, 2, 3, 4, 8, 16),
    "num_generations_eval": (2, 4),
    "generation_batch_size": (8, 16, 24),
    "steps_per_generation": (1, 2, 4),
    "num_mini_batches": (1, 2, 4),
    "whiten_rewards": (True, False),
    "loss_type": ("sigmoid", "apo_zero_unpaired", "kto", "grpo"),
    "dataloader_drop_last": (True, False),
    "cached_dataset": ("folder",),
    "num_train_epochs": (1, 3),
    "use_ray": (False,),
    "callbacks": ("early_stop",),
}
"""options and values of them"""
OF_RLHF = (
    "num_generations",
    "num_generations_eval",
    "generation_batch_size",
    "steps_per_generation",
    "num_mini_batches",
)
OF_RLHF += ("whiten_rewards",)
"""options that `swift sft` and `swift pt` refuse: rare there"""
UNTOUCHED = (
    "deepspeed",
    "fsdp",
    "accelerator_config",
    "use_ray",
    "callbacks",
    "cached_dataset",
    "val_dataset",
    "save_only_model",
)
COMMON = ("per_device_train_batch_size", "gradient_accumulation_steps", "sequence_parallel_size", "deepspeed")
WRONG = (True, 0, -1, 2.5, "x", [], [1, 2], "1e1", None)
"""values for any option but the untouched"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A recipe. Either a tree for a YAML or JSON file, or a command."""

    verb: str
    options: dict
    tree: dict | None
    command: str

    def judged(self, processes):
        """The rows of one step, `-` where ms-swift does not start, `?` where no batch follows."""
        try:
            return str(swift_judge.batch_at(self.verb, self.options, processes).rows)
        except swift_judge.Refused:
            return "-"
        except swift_judge.Unknown:
            return "?"


def case(rng):
    """A random recipe, by a `random.Random`."""
    verb = rng.choice(("sft", "sft", "pt", "rlhf", "rlhf"))
    options = {"model": "org/model", "dataset": "rows.jsonl", "max_length": 2048, "tuner_type": "lora"}
    if verb == "rlhf":
        options["rlhf_type"] = rng.choice(swift_judge.KINDS)
    if options.get("rlhf_type") == "grpo":
        options["reward_funcs"] = "format"
    for key in COMMON:
        if rng.random() < 0.5:
            options[key] = rng.choice(POOLS[key])
    for key in rng.sample(sorted(POOLS), rng.randint(0, 4)):
        if verb == "rlhf" or key not in OF_RLHF or rng.random() < 0.1:
            options[key] = rng.choice(POOLS[key])
    if rng.random() < 0.7 and (options.get("packing") or options.get("padding_free")):
        options["attn_impl"] = "flash_attn"
    if rng.random() < 0.1:
        options[rng.choice(sorted(set(POOLS) - set(UNTOUCHED)))] = rng.choice(WRONG)
    if rng.random() < 0.03:
        options.pop(rng.choice(sorted(options)))
    is_file = verb == "rlhf" or (verb == "sft" and not options.keys() & {*OF_RLHF, "rlhf_type"})
    is_file = is_file and rng.random() < 0.5
    return Case(verb=verb, options=options, tree=options if is_file else None, command=command_of(verb, options))


def command_of(verb, options, launch="NPROC_PER_NODE=12"):
    """The command with those options. A launch is variables before `swift`, or a launcher."""
    starts = not launch or "=" in launch.split()[0]
    words = [f"{launch} swift {verb}".strip() if starts else f"{launch} swift/cli/{verb}.py"]
    for key, value in options.items():
        values = value if isinstance(value, list) else [value]
        texts = (json.dumps(each) if isinstance(each, dict) else str(each) for each in values)
        words.append(" ".join((f"--{key}", *map(shlex.quote, texts))))
    return " \\\n    ".join(words) + "\n"

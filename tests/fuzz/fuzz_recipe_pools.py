"""What random recipes of four systems are made of, and who judges them: a table for each system."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import axolotl_judge
import axolotl_rows
import llamafactory_judge
import llamafactory_rows
import swift_cases
import swift_judge
import swift_rows
import torchtune_judge
import torchtune_rows
import yaml

from planner.recipes.axolotl.keys import RULES as AXOLOTL_RULES
from planner.recipes.swift.keys import RULES as SWIFT_RULES
from planner.recipes.torchtune.keys import RULES as TORCHTUNE_RULES

Tree = dict[str, Any]
# Values of a wrong type, or hard to read.
ODD = [None, True, False, 0, 1, 2, 3, -1, 1.0, 2.5, 1e30, 10**15, "3", "8", "x", "", "auto", "0x8", "1e1", "a,b",
       [], {}, [1], {"a": 1}]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Start:
    """One way to start a recipe."""

    text: str = "{file}"
    """the command. {n} is a number of processes, {more} are the overrides"""
    override: str = ""
    """how it writes an override of {name} to {value}. Empty for a file alone"""
    launcher: str = ""
    """its name for the judge"""
    environment: Mapping[str, str] = ()
    is_launched: bool = False


@dataclass(frozen=True, kw_only=True)
class Pool:
    """What the cases of one system are made of."""

    folder: Path
    """where the cases run"""
    examples: Callable[[], Sequence[tuple[str, Tree]]]
    """torchtune's recipe (else empty) and a shipped configuration"""
    values: Mapping[str, Sequence[Any]]
    """key -> its values. A dot is a section"""
    helps: Mapping[str, Any]
    """keys with which more of the cases make a job"""
    known: Sequence[str]
    """more keys of the system, for values of a wrong type"""
    starts: Sequence[Start]
    words: Sequence[str]
    """words that a command may have at a wrong place"""
    merged: Callable[[Path, Tree, Sequence[str], Mapping[str, Any], Start], Tree]
    """what the system makes of a file and overrides: (file, its tree, words, overrides, start)"""
    batch: Callable[[Tree, int, Start, str, Path], int]
    """the judge: (configuration, GPUs, start, recipe, folder) -> samples of a step, or one of `refused` or `unfixed`"""
    refused: tuple[type[Exception], ...]
    unfixed: tuple[type[Exception], ...] = ()


# -- axolotl

_CLI = "--{dashed} {value}"
_FIRE = "--{name}={value}"


@cache
def _axolotl_examples() -> tuple[tuple[str, Tree], ...]:
    files = [*axolotl_rows.FOLDER.glob("examples/**/*.y*ml"), *axolotl_rows.FOLDER.glob("nemo_gym/*.y*ml")]
    return tuple(("", yaml.safe_load(file.read_text())) for file in sorted(files))


def _axolotl_merged(path: Path, tree: Tree, words: Sequence[str], given: Mapping[str, Any], start: Start) -> Tree:
    """`load_cfg` and `_coerce_value` (cli/config.py): a text over a truth is one."""
    del path, words, start
    made = {name: its for name, its in given.items() if name in tree or not tree.get("strict")}
    truths = {name: its.lower() in {"true", "1", "yes"} for name, its in made.items()
              if isinstance(its, str) and isinstance(tree.get(name), bool)}  # fmt: skip
    return {**tree, **made, **truths}


def _axolotl_batch(config: Tree, gpus: int, start: Start, recipe: str, folder: Path) -> int:
    """One process of Python trains alone, and Ray starts its own workers."""
    del recipe, folder
    processes = 1 if start.launcher == "python" else gpus
    if config.get("use_ray"):
        processes = config.get("ray_num_workers", 1)
        if processes > gpus:
            raise axolotl_judge.Refused(f"Ray waits for {processes} GPUs")
    found = axolotl_judge.batch_at(config, processes)
    count = (config.get("trl") or {}).get("num_generations")
    made = found.rows * processes // found.ranks  # GRPOConfig.__post_init__ of TRL counts GPUs that share rows, too
    if config.get("rl") in {"grpo", "gdpo"} and count and made % count:
        raise axolotl_judge.Refused(f"{made} completions are no groups of {count}")
    return found.rows


_PLUGIN = "axolotl.integrations."
AXOLOTL = Pool(
    folder=axolotl_rows.FOLDER,
    examples=_axolotl_examples,
    values={
        "micro_batch_size": [1, 2, 3, 4, 8, 6, None, 0, "2", 2.0],
        "gradient_accumulation_steps": [1, 2, 4, None, 0, "4", 8],
        "batch_size": [None, 1, 7, 8, 16, 0],
        "tensor_parallel_size": [1, 2, 4, None, 0],
        "context_parallel_size": [1, 2, 4, None, 0],
        "sequence_parallel_degree": [1, 2, None],
        "dp_shard_size": [1, 2, 4, None],
        "dp_replicate_size": [1, 2, 3, None],
        "expert_parallel_size": [1, 2, 4],
        "plugins": [None, [f"{_PLUGIN}expert_parallel.ExpertParallelPlugin"], [f"{_PLUGIN}liger.LigerPlugin"]],
        "fsdp_config": [None, {"offload_params": False}, {}],
        "fsdp_version": [None, 1, 2],
        "fsdp": [None, ["full_shard"]],
        "deepspeed": [None, "deepspeed_configs/zero1.json", "deepspeed_configs/zero3.json", "missing.json"],
        "sample_packing": [True, False, None],
        "attn_implementation": [None, "flash_attention_2", "sdpa", "eager", "flash_attention_2@v2:x/y",
                                "kernels-community/flash-attn2", "fa2"],
        "flash_attention": [True, False, None],
        "multipack_real_batches": [True, False, None],
        "rl": [None, "dpo", "kto", "orpo", "ipo", "simpo", "grpo", "gdpo", "ppo"],
        "trl": [None, {"num_generations": 2}, {"num_generations": 4, "generation_batch_size": 8},
                {"num_generations": 3}, {"beta": 0.1}, {}],
        "accelerator_config": [None, {"split_batches": True}, {"split_batches": False}, {"even_batches": False},
                               {"gradient_accumulation_kwargs": {"num_steps": 4}}],
        "auto_find_batch_size": [True, False, None],
        "streaming": [True, False],
        "max_steps": [None, 10, 0, -1],
        "val_set_size": [0, 0.1, 10, None],
        "remove_unused_columns": [False, None, True],
        "group_by_length": [True, False],
        "ddp": [True, False, None],
        "num_epochs": [1, 0.5, 3, None],
        "warmup_steps": [None, 0, 10, 0.1],
        "warmup_ratio": [None, 0.1],
        "adapter": [None, "lora", "qlora"],
        "load_in_4bit": [True, False, None],
        "load_in_8bit": [False, None],
        "lora_mlp_kernel": [True, False, None],
        "gradient_checkpointing": [True, False, "offload"],
        "gradient_checkpointing_kwargs": [None, {"use_reentrant": True}, {"use_reentrant": False}],
        "use_ray": [False, None, True],
        "ray_num_workers": [1, 2, 4],
        "eval_sample_packing": [None, True, False],
        "evals_per_epoch": [None, 0, 1, 4],
        "per_device_train_batch_size": [16],
        "tokens": [None, ["a"], {"a": "b"}],
        "pretraining_dataset": [None, "org/x", [{"path": "x"}]],
        "datasets": [None, [{"path": "x", "type": "alpaca"}], [{"path": "x", "type": {"field_input": "a"}}], [1], "x"],
        "save_strategy": [None, "best", "steps"],
        "optimizer": ["adamw_torch", "adamw_8bit", "muon"],
        "kd_trainer": [True],
        "dataloader_drop_last": [True, False],
        "wandb_project": [None, "", "x"],
        "strict": [True, False],
        "not_a_key": [1],
    },
    helps={"gradient_checkpointing": True},
    known=[name for name in AXOLOTL_RULES.names if "*" not in name],
    starts=[
        Start(),
        Start(text="axolotl train {file} {more}", override=_CLI),
        Start(text="axolotl train {file} {more} --num-processes {n}", override=_CLI),
        Start(text="axolotl train {file} --launcher torchrun {more} -- --nproc_per_node={n}", override=_CLI),
        Start(text="axolotl train {file} --launcher python {more}", override=_CLI, launcher="python"),
        Start(text="accelerate launch -m axolotl.cli.train {file} {more}", override=_FIRE),
        Start(text="accelerate launch --num_processes {n} -m axolotl.cli.train {file} {more}", override=_FIRE),
        Start(text="CUDA_VISIBLE_DEVICES=0,1 accelerate launch -m axolotl.cli.train {file} {more}", override=_FIRE),
        Start(text="torchrun --nproc_per_node {n} -m axolotl.cli.train {file} {more}", override=_FIRE),
        Start(text="python -m axolotl.cli.train {file} {more}", override=_FIRE, launcher="python"),
    ],
    words=["--micro-batch-size", "--micro-batch-size=2", "--num-processes", "--num_processes=4", "--launcher",
           "torchrun", "python", "accelerate", "--no-sample-packing", "--sample-packing", "--trl.beta", "0.1",
           "--deepspeed", "deepspeed_configs/zero1.json", "--config_file", "x.yaml", "--nnodes", "launch",
           "axolotl.cli.train", "--config=examples/llama-3/lora-1b.yml", "--micro-batch-size=$M", "--no", "--strict",
           "--learning-rate", "1e-4", "--datasets", "--rl", "dpo", "--batch_size=3", "--fsdp_config", "[1,2]",
           "--tensor-parallel-size"],
    merged=_axolotl_merged,
    batch=_axolotl_batch,
    refused=(axolotl_judge.Refused,),
    unfixed=(axolotl_judge.Unknown,),
)  # fmt: skip

# -- LLaMA-Factory

DEEPSPEED = {
    "fixed.json": {"train_batch_size": 32, "train_micro_batch_size_per_gpu": "auto",
                   "gradient_accumulation_steps": "auto", "zero_optimization": {"stage": 2}},
    "shared.json": {"train_batch_size": "auto", "tensor_parallel": {"autotp_size": 2},
                    "zero_optimization": {"stage": 2}},
}  # fmt: skip
"""files of DeepSpeed beside a case's recipe"""


@cache
def _llamafactory_examples() -> tuple[tuple[str, Tree], ...]:
    base = {"model_name_or_path": "model", "do_train": True, "dataset": "identity", "template": "llama3",
            "output_dir": "none", "stage": "sft", "finetuning_type": "lora"}  # fmt: skip
    rows = [row for row in llamafactory_rows.rows() if row.columns["trainer"] == "v0" and row.config.get("do_train")]
    return (*[("", row.config) for row in rows], *[("", base)] * (len(rows) // 2))


def _merged_by_words(judge: Any) -> Callable[..., Tree]:
    return lambda path, _tree, words, _given, _start: judge.load(path, list(words))


def _llamafactory_batch(config: Tree, gpus: int, start: Start, recipe: str, folder: Path) -> int:
    del recipe
    launcher, known = start.launcher or "llamafactory-cli", dict(start.environment)
    return llamafactory_judge.batch_at(config, gpus, launcher=launcher, environment=known, root=folder).samples


def _llamafactory_starts() -> list[Start]:
    variables = [{}] * 4 + [{"FORCE_TORCHRUN": "1"}, {"USE_RAY": "1"}, {"USE_KT": "1"}, {"ALLOW_EXTRA_ARGS": "1"},
                            {"FORCE_TORCHRUN": "1", "USE_KT": "1"}, {"FORCE_TORCHRUN": "0"}, {"USE_RAY": "true"},
                            {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "4"},
                            {"FORCE_TORCHRUN": "1", "NNODES": "2", "NPROC_PER_NODE": "2"}]  # fmt: skip
    launchers = {
        "llamafactory-cli": "llamafactory-cli train",
        "torchrun": "torchrun --nproc_per_node {n} src/train.py",
        "accelerate": "accelerate launch --num_processes {n} src/train.py",
        "deepspeed": "deepspeed --num_gpus {n} src/train.py",
        "python": "python src/train.py",
    }
    made = [
        Start(
            text=" ".join([*(f"{name}={its}" for name, its in each.items()), words, "{file} {more}"]),
            override="{name}={value}",
            launcher=launcher,
            environment=each,
        )
        for launcher, words in launchers.items()
        for each in variables
    ]
    return [*made, *made[: len(variables)] * 2, *[Start()] * 20]


LLAMAFACTORY = Pool(
    folder=llamafactory_judge.FOLDER,
    examples=_llamafactory_examples,
    values={
        "per_device_train_batch_size": [1, 2, 3, 4, 8, 12, 16, "8", 2.0, 0, None, True, -2],
        "gradient_accumulation_steps": [1, 2, 5, 16, "2", 0, None, 1.0],
        "stage": ["sft", "pt", "dpo", "kto", "rm", "ppo", "orpo", "SFT", None],
        "finetuning_type": ["lora", "full", "freeze", "oft", "qlora", None],
        "packing": [True, False, None],
        "neat_packing": [True, False],
        "save_strategy": ["no", "epoch", False, "best"],
        "logging_strategy": ["no", "steps", True],
        "val_size": [0.1, 100, 0, 0.0, 1e-7, 1],
        "eval_strategy": ["steps", "no", "epoch", True, False, None],
        "eval_dataset": ["identity", None],
        "do_eval": [True, False],
        "streaming": [True, False],
        "max_steps": [10, -1, 0],
        "max_samples": [100, None],
        "deepspeed": ["examples/deepspeed/ds_z3_config.json", "examples/deepspeed/ds_z2_config.json", None,
                      *DEEPSPEED],
        "accelerator_config": [{"split_batches": True}, {"split_batches": True, "even_batches": False},
                               {"gradient_accumulation_kwargs": {"num_steps": 4}}, {"even_batches": False}, None, {},
                               {"gradient_accumulation_kwargs": {"num_steps": 1}}],
        "accelerator_config.split_batches": [True, False],
        "use_badam": [True, False],
        "badam_mode": ["ratio", "layer"],
        "use_galore": [True],
        "use_apollo": [True, {"a": 1}],
        "galore_layerwise": [True],
        "apollo_layerwise": [True],
        "quantization_bit": [4, 8, 3, None],
        "mask_history": [True, False],
        "train_on_prompt": [True],
        "auto_find_batch_size": [True, False],
        "reward_model": ["reward"],
        "not_a_key": [1],
        "pref_loss": ["sigmoid", "orpo", "simpo", "ipo", "hinge"],
        "dpo_label_smoothing": [0.1, 0],
        "use_dora": [True],
        "use_rslora": [True],
        "pissa_init": [True],
        "loraplus_lr_ratio": [16.0],
        "adapter_name_or_path": ["a", []],
        "fp8": [True],
        "do_train": [True, False, "true", None],
        "dataset": ["identity", ["identity"], None, "a, b"],
        "model_name_or_path": ["m", None],
        "use_kt": [True],
        "ray_num_workers": [1, 2, 4, 20],
        "use_hyper_parallel": [True],
        "parallelism_config": [{"tp_size": 2}],
        "tensor_model_parallel_size": [2],
        "dpo_beta": [0.1],
        "pref_beta": [0.2],
        "warmup_steps": [100],
        "fsdp": ["full_shard"],
        "fsdp_config": [{"version": 2}],
        "use_llama_pro": [True],
        "interleave_probs": ["0.5,0.5", "1", [0.5, 0.5]],
        "mix_strategy": ["interleave_under", "interleave_over", ["x"]],
        "lora_rank": [8, 0, "8"],
        "lora_alpha": [16, 0],
        "cutoff_len": [1024, 1, "x"],
        "learning_rate": [1e-4, "1e-4", 0],
    },
    helps={"do_train": True},
    known=list(llamafactory_judge.known_keys()),
    starts=_llamafactory_starts(),
    words=["train", "llamafactory-cli", "--stage=dpo", "++stage=dpo", "--stage", "dpo", "deepspeed=null", "stage=",
           "gradient_accumulation_steps=3", "--nproc_per_node", "2", "src/train.py", "NPROC_PER_NODE=2", "$N",
           "per_device_train_batch_size=$M", "accelerator_config={split_batches: true}", "a.b.c=1", "stage.x=1",
           "USE_MCA=1", "FORCE_TORCHRUN=1", "lmf", "RDZV_ID=1", "MAX_NNODES=3"],
    merged=_merged_by_words(llamafactory_judge),
    batch=_llamafactory_batch,
    refused=(llamafactory_judge.Refused,),
    unfixed=(llamafactory_judge.Unfixed,),
)  # fmt: skip

# -- torchtune


@cache
def _torchtune_examples() -> tuple[tuple[str, Tree], ...]:
    return tuple((row.recipe, yaml.safe_load((torchtune_judge.FOLDER / row.file).read_text()))
                 for row in torchtune_rows.rows())  # fmt: skip


def _torchtune_batch(config: Tree, gpus: int, start: Start, recipe: str, folder: Path) -> int:
    """With options of torchrun, or as the command must be for a distributed recipe."""
    del folder
    processes = gpus if start.is_launched else torchtune_rows.launched(recipe, gpus)
    return torchtune_judge.batch_at(recipe, config, processes).samples


_TUNE = "{name}={value}"
TORCHTUNE = Pool(
    folder=torchtune_judge.FOLDER,
    examples=_torchtune_examples,
    values={
        "batch_size": [1, 2, 3, 8, 64, 0, None, "2", 2.0, True],
        "gradient_accumulation_steps": [1, 2, 4, 8, 0, None, "4"],
        "tensor_parallel_dim": [1, 2, 4, None, 0, "2"],
        "tensor_parallel_plan": [{"_component_": "torchtune.models.llama3.base_llama_tp_plan"}, None],
        "context_parallel_dim": [1, 2],
        "data_parallel_shard_dim": [2],
        "optimizer_in_bwd": [True, False, None],
        "clip_grad_norm": [None, 1.0],
        "optimizer.fused": [True, False],
        "dtype": ["bf16", "fp32", "fp16", None],
        "compile": [True, False],
        "enable_activation_offloading": [True, False],
        "enable_activation_checkpointing": [True, False],
        "dataset.packed": [True, False],
        "dataset": [None, {"_component_": "torchtune.datasets.alpaca_dataset"}, "x",
                    [{"_component_": "torchtune.datasets.alpaca_dataset", "packed": True}]],
        "tokenizer.max_seq_len": [None, 1024],
        "epochs": [1, 3, 0],
        "max_steps_per_epoch": [None, 10],
        "ppo_batch_size": [1, 8, 64],
        "forward_batch_size": [1, 3, 16],
        "num_steps": [1, 10000],
        "shuffle": [True, False],
        "seed": [None, 1],
        "device": ["cuda", "cpu"],
        "resume_from_checkpoint": [True, False],
        "lr_scheduler": [None],
        "model.use_dora": [True],
        "model.lora_rank": [8, None],
        "collate_fn": ["torchtune.data.padded_collate_dpo", "torchtune.data.padded_collate_sft"],
        "custom_sharded_layers": [["tok_embeddings"]],
        "ac_mode": ["selective", None],
        "not_a_key": [1, {"a": "${batch_size}"}],
        "output_dir": ["${epochs}/x", "${nothing}"],
    },
    helps={"tokenizer.max_seq_len": 1024},
    known=[name for name in TORCHTUNE_RULES.names if "*" not in name],
    starts=[
        Start(),
        Start(text="tune run {recipe} --config {file} {more}", override=_TUNE),
        Start(text="tune run --nproc_per_node {n} {recipe} --config {file} {more}", override=_TUNE, is_launched=True),
        Start(text="tune run --nproc_per_node={n} {recipe} --config {file} {more}", override=_TUNE, is_launched=True),
        Start(text="tune run --nnodes 2 --nproc_per_node {n} {recipe} --config {file} {more}", override=_TUNE,
              is_launched=True),
        Start(text="torchrun --nproc_per_node {n} recipes/{recipe}.py --config {file} {more}", override=_TUNE,
              is_launched=True),
    ],
    words=["--nproc_per_node", "2", "run", "tune", "--config", "~model.lora_rank", "~dataset", "~batch_size",
           "batch_size=$M", "batch_size", "batch_size=", "a=b=c", "seed=None", "dataset={a: 1}", "model=x.y",
           "optimizer=torch.optim.SGD", "mine.new=[1,2]", "epochs={", "--nnodes", "1:2", "~optimizer._component_",
           "batch_size.x=1", "tokenizer.max_seq_len=${epochs}", "full_finetune_distributed"],
    merged=_merged_by_words(torchtune_judge),
    batch=_torchtune_batch,
    refused=(torchtune_judge.Refused,),
)  # fmt: skip

# -- ms-swift


@cache
def _swift_examples() -> tuple[tuple[str, Tree], ...]:
    """The command of each row, `rlhf`, and its options."""
    return tuple((row.verb, dict(row.options)) for row in swift_rows.rows())


def _swift_merged(path: Path, tree: Tree, words: Sequence[str], given: Mapping[str, Any], start: Start) -> Tree:
    del path, words, start
    return {**tree, **given}


def _swift_batch(config: Tree, gpus: int, start: Start, recipe: str, folder: Path) -> int:
    """A file that no command names trains by `swift rlhf` if it has an option of that alone, else by `swift sft`."""
    del folder
    files = (its for name in ("deepspeed", "fsdp") if isinstance(its := config.get(name), str))
    if others := [its for its in files if not its.startswith("zero") and its != "fsdp2"]:
        raise LookupError(f"{others} may be there where it trains")
    of_file = "sft" if config.keys().isdisjoint(swift_judge.OF_RLHF) else "rlhf"
    return int(swift_judge.batch_at(recipe if start.override else of_file, config, gpus).rows)


_SWIFT = "--{name} {value}"
SWIFT = Pool(
    folder=swift_rows.FOLDER,
    examples=_swift_examples,
    values={name: list(its) for name, its in swift_cases.POOLS.items()},
    helps={"tuner_type": "lora", "attn_impl": "flash_attn", "max_length": 1024},
    known=[name for name in SWIFT_RULES.names if "*" not in name],
    starts=[
        Start(),
        Start(text="NPROC_PER_NODE={n} swift {recipe} {file} {more}", override=_SWIFT),
        Start(text="NNODES=2 NPROC_PER_NODE={n} swift {recipe} {file} {more}", override=_SWIFT),
    ],
    words=["sft", "rlhf", "swift", "--rlhf_type", "dpo", "--packing", "--no_packing", "$M", "--max_steps", "x=1",
           "--per_device_train_batch_size", "$N", "--config", "NPROC_PER_NODE=2", "--deepspeed", "zero2"],
    merged=_swift_merged,
    batch=_swift_batch,
    refused=(swift_judge.Refused,),
    unfixed=(swift_judge.Unknown,),
)  # fmt: skip

POOLS = {"axolotl": AXOLOTL, "llamafactory": LLAMAFACTORY, "swift": SWIFT, "torchtune": TORCHTUNE}


def write_deepspeed(folder: Path) -> None:
    """The files that LLaMA-Factory's `deepspeed` names beside a recipe."""
    for name, its in DEEPSPEED.items():
        (folder / name).write_text(json.dumps(its))

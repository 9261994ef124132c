"""ms-swift's recipes: the job that convert makes of one, its commands, its batch at each count, and what is refused."""

import json
import re
from math import ceil
from pathlib import Path

import pytest

from planner.errors import NoExactSplit, RecipeError
from planner.recipes import CheckOptions, RecipeOptions, job_of, read_recipe
from planner.recipes.rewrite import rewrite
from planner.recipes.swift.keys import RULES

SFT = {
    "model": "org/m",
    "tuner_type": "full",
    "dataset": "rows.jsonl",
    "split_dataset_ratio": 0,
    "max_length": 4096,
    "output_dir": "out/run",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "use_hf": True,
}
RLHF = {**SFT, "rlhf_type": "dpo"}
CHECK = RecipeOptions(gpus=8, is_for_job=False, needs_micro=False)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def read(keys, *arguments, options=None):
    Path("recipe.yaml").write_text(json.dumps(keys))
    return read_recipe("recipe.yaml", arguments, options or RecipeOptions(gpus=8))


def draft(keys, *arguments):
    """The job of a recipe as nested values, parsed as a job, too."""
    recipe = read(keys, *arguments)
    job_of(recipe)
    return recipe.draft.job


def refusal(keys, *arguments, options=None):
    with pytest.raises(RecipeError) as raised:
        read(keys, *arguments, options=options)
    return str(raised.value)


def test_a_full_sft_becomes_a_job():
    job = draft(SFT)
    assert job["model"] == {"kind": "hf", "path": "org/m", "context": 4096}
    assert job["data"] == {"kind": "chat", "path": "rows.jsonl", "loss_on": "completions"}
    assert job["objective"] == {"kind": "sft"}
    assert job["batch"] == {"global": 64, "max_micro": 2}
    assert job["train"]["optimizer"] == {"kind": "adamw", "lr": 1e-5, "weight_decay": 0.1, "betas": [0.9, 0.95]}
    assert job["train"]["schedule"] == {"kind": "cosine", "warmup": "0%"}
    assert job["train"]["precision"] == "bf16"
    assert job["train"]["activation_checkpointing"] is True
    assert "eval" not in job


def test_adapters_and_their_defaults():
    lora = {key: its for key, its in SFT.items() if key != "tuner_type"} | {"attn_impl": "flash_attn"}
    job = draft(lora)
    assert job["model"]["lora"] == {"rank": 8, "alpha": 32, "dropout": 0.05}
    assert job["model"]["attention"] == "flash_attention_2"
    assert job["train"]["optimizer"]["lr"] == 1e-4
    named = draft({**lora, "lora_rank": 16, "target_modules": ["q_proj", "v_proj"]})
    assert named["model"]["lora"] == {"rank": 16, "alpha": 32, "dropout": 0.05, "targets": ["q_proj", "v_proj"]}
    assert draft({**lora, "quant_method": "bnb", "quant_bits": 4})["model"]["frozen"] == "nf4"
    assert "frozen" not in draft({**lora, "quant_method": "hqq", "quant_bits": 4})["model"]


@pytest.mark.parametrize(
    ("keys", "objective"),
    [
        ({}, {"kind": "dpo", "beta": 0.1}),
        ({"beta": 0.3, "label_smoothing": 0.2}, {"kind": "dpo", "beta": 0.3, "label_smoothing": 0.2}),
        ({"loss_type": "ipo"}, {"kind": "ipo", "beta": 0.1, "log_probs": "mean"}),
        ({"rlhf_type": "simpo", "cpo_alpha": 0}, {"kind": "simpo", "beta": 2.0, "gamma_beta_ratio": 0.5}),
        (
            {"rlhf_type": "kto", "desirable_weight": 2.0},
            {"kind": "kto", "beta": 0.1, "desirable_weight": 2.0, "undesirable_weight": 1.0},
        ),
    ],
)
def test_preference_losses(keys, objective):
    assert draft({**RLHF, **keys})["objective"] == objective


@pytest.mark.parametrize(
    ("keys", "why", "unit"),
    [
        ({"rlhf_type": "simpo"}, "with cpo_alpha", "pair"),
        ({"rlhf_type": "orpo"}, "a micro-batch's", "pair"),
        ({"rlhf_type": "cpo"}, "no objective for cpo", "pair"),
        ({"rlhf_type": "rm"}, "planner trains no reward models", "pair"),
        ({"rlhf_type": "ppo"}, "no objective for ppo", "example"),
        ({"rlhf_type": "grpo"}, "no objective for grpo", "completion"),
        ({"rlhf_type": "gkd"}, "no objective for gkd", "example"),
        ({"rpo_alpha": 0.1}, "with rpo_alpha", "pair"),
        ({"loss_type": "hinge"}, "dpo with loss_type", "pair"),
        ({"tuner_type": "adalora"}, "tuner_type adalora", "example"),
        ({"loss_scale": "react"}, "loss_scale react", "example"),
        ({"enable_dft_loss": True}, "enable_dft_loss", "example"),
    ],
)
def test_what_planner_has_not_is_named_and_its_batch_is_known(keys, why, unit):
    keys = {**(SFT if unit == "example" and "rlhf_type" not in keys else RLHF), **keys}
    recipe = read(keys)
    assert (recipe.global_batch, recipe.unit) == (64, unit)
    assert recipe.draft.job["objective"] == "own"
    assert why in recipe.draft.to_do[0].text
    assert read(keys, options=CHECK).foreign.outcome(4).batch == 32


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"system": None}, "system: found null, of which ms-swift makes the text None"),
        ({"cached_dataset": []}, "cached_dataset: found an empty list"),
        ({"truncation_strategy": {"a": 1}}, "truncation_strategy: found keys below it"),
        ({"fsdp": 2}, "fsdp: found 2 (a whole number). ms-swift refuses it as a number"),
        ({"fsdp": {"a": 1}, "deepspeed": "zero3"}, "fsdp: found keys below it. ms-swift refuses it beside deepspeed"),
        ({"rlhf_type": "word"}, 'rlhf_type: found "word"'),
    ],
)
def test_values_that_its_command_line_does_not_take_are_refused(keys, message):
    assert message in refusal({**SFT, **keys})


def test_every_key_is_told():
    keys = {"deepspeed": "zero3", "lazy_tokenize": True, "freeze_vit": True, "save_steps": 50, "system": "Be kind."}
    keys |= {"padding_free": True, "sequence_parallel_size": 2}
    report = read({**SFT, **keys, "attn_impl": "flash_attn"}).draft
    assert set(keys) <= {each.key for each in report.dropped}
    assert any("write it into the rows" in each.text for each in report.to_do)


def test_rows_are_held_out_and_evaluated_when_they_are_saved():
    job = draft({**SFT, "split_dataset_ratio": 0.01, "save_steps": 50})
    assert job["eval"] == {"samples": "1%", "every": "50 steps"}
    assert draft({**SFT, "split_dataset_ratio": 0.1})["eval"]["every"] == "500 steps"


def test_data_sets_in_its_syntax():
    named = ["org/a:main#500", "HF::org/b", "rows.jsonl"]
    recipe = read({**SFT, "dataset": named, "use_hf": False})
    paths = [each["path"] for each in recipe.draft.job["data"]["mixture"]]
    assert paths == ["data/a/", "org/b", "rows.jsonl"]  # the first one is of ModelScope
    assert any("org/a:main#500: ms-swift takes 500 rows" in each.text for each in recipe.draft.to_do)
    assert any("ModelScope" in each.text for each in recipe.draft.to_do)
    assert draft({**SFT, "dataset": "org/a:main"})["data"]["config"] == "main"


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"deepspeed_autotp_size": 2}, "deepspeed_autotp_size: found 2 (a whole number). Those GPUs share"),
        ({"use_ray": True}, "use_ray: found true"),
        ({"train_batch": 2}, "train_batch: ms-swift does not know this key"),
        ({"rlhf_type": "dop"}, "rlhf_type: found"),
        ({"sequence_parallel_size": 3}, "sequence_parallel_size: 3 does not divide 8 GPUs"),
        ({"max_length": None}, "max_length: found nothing"),
        ({"train_type": "lora"}, "train_type and tuner_type: both set the same value"),
        ({"gradient_accumulation_steps": 0.5}, "gradient_accumulation_steps: found 0.5"),
    ],
)
def test_what_makes_the_batch_or_the_job_unknown_is_refused(keys, text):
    assert text in refusal({**SFT, **keys})


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"packing": True}, "packing: found true (a boolean). ms-swift refuses it without flash attention"),
        ({"streaming": True}, "streaming: found true (a boolean). ms-swift refuses it without max_steps"),
        ({"lazy_tokenize": True, "streaming": True, "max_steps": 9}, "lazy_tokenize: found true (a boolean)."),
        ({"fsdp": "fsdp2", "deepspeed": "zero2"}, "fsdp: found"),
        ({"fsdp": "fsdp2", "deepspeed": {}}, "fsdp: found"),
        ({"fsdp": {}, "deepspeed": "zero2"}, "fsdp: found"),
        ({"fsdp": [1]}, "fsdp: found a list of 1"),
        ({"deepspeed_autotp_size": {"a": 1}}, "deepspeed_autotp_size: found keys below it"),
        ({"fsdp": "fsdp2", "save_only_model": True}, "save_only_model: found"),
        ({"warmup_ratio": 0.1, "warmup_steps": 10}, "warmup_ratio: found 0.1"),
        ({"warmup_ratio": 1}, "from 1 on: write warmup_steps"),
        ({"group_by_length": True, "train_dataloader_shuffle": False}, "without train_dataloader_shuffle"),
        ({"cached_dataset": "folder", "streaming": True, "max_steps": 9}, "cached_dataset: found"),
        ({"truncation_strategy": "split"}, "with split outside of swift pt"),
        ({"truncation_strategy": "split", "use_chat_template": False, "task_type": "seq_cls"}, "with split outside"),
        ({"truncation_strategy": "middle"}, "Write delete, left, right, split"),
        ({"dataset": None}, "dataset: found nothing, and ms-swift refuses that. Write --dataset VALUE"),
        ({"model": None}, "model: found nothing"),
        ({"max_steps": None}, "max_steps: found null, of which ms-swift makes the text None"),
        ({"max_steps": "1e1"}, "Write a whole number"),
        ({"split_dataset_ratio": [0.1]}, "Write a single value"),
        ({"rlhf_type": "kto", "gradient_accumulation_steps": None}, "gradient_accumulation_steps: "),
        ({"rlhf_type": "kto", "sequence_parallel_size": 2}, "ms-swift refuses it in kto"),
        ({"rlhf_type": "orpo", "padding_free": True, "attn_impl": "flash_attn"}, "ms-swift refuses it in orpo"),
        ({"rlhf_type": "grpo", "truncation_strategy": "right"}, "in GRPO: write left or delete"),
        ({"rlhf_type": "grpo", "use_vllm": True}, "use_vllm: found true (a boolean). ms-swift refuses it without"),
        ({"rlhf_type": "ppo", "num_mini_batches": 3}, "if it does not divide m x A, 8"),
        ({"rlhf_type": "ppo", "num_mini_batches": 8}, "in the middle of a micro-batch"),
        ({"rlhf_type": "gkd", "generation_batch_size": 64}, "write steps_per_generation"),
        ({"deepspeed_autotp_size": 0}, "deepspeed_autotp_size: found 0"),
    ],
)
def test_what_ms_swift_refuses_is_refused(keys, text):
    assert text in refusal({**SFT, **keys}, options=CHECK)


def test_kto_without_accumulation_fails_in_ms_swift_but_with_a_loss_without_kl():
    keys = {name: its for name, its in SFT.items() if name != "gradient_accumulation_steps"} | {"rlhf_type": "kto"}
    assert "ms-swift's KTO fails without it (a TypeError)" in refusal(keys, options=CHECK)
    assert read({**keys, "loss_type": "apo_zero_unpaired"}, options=CHECK).global_batch == 16


@pytest.mark.parametrize("key", ["num_mini_batches", "whiten_rewards"])
def test_ppo_cuts_no_batch_whose_accumulation_is_derived(key):
    keys = {name: its for name, its in SFT.items() if name != "gradient_accumulation_steps"} | {"rlhf_type": "ppo"}
    text = f"{key}: found {'2' if key == 'num_mini_batches' else 'true'}"
    assert text in refusal({**keys, key: 2 if key == "num_mini_batches" else True}, options=CHECK)


@pytest.mark.parametrize(("options", "is_said"), [("", False), ("--fsdp fsdp2", True)])
def test_accumulation_takes_memory_only_if_the_command_shards(options, is_said):
    start = f"NPROC_PER_NODE=4 swift sft --model org/m --dataset rows.jsonl --gradient_accumulation_steps 4 {options}"
    traps = read_recipe(start, (), RecipeOptions(is_for_job=False)).traps(CheckOptions(counts=[4]))
    assert ("memory" in {trap.name for trap in traps}) == is_said


@pytest.mark.parametrize(("visible", "is_said"), [("0,1", False), ("0,1,2,3", True), ("", False)])
def test_a_process_that_sees_several_gpus_spreads_its_model(visible, is_said):
    start = f"CUDA_VISIBLE_DEVICES={visible} NPROC_PER_NODE=2 swift sft --model org/m --dataset rows.jsonl"
    traps = read_recipe(start, (), RecipeOptions(is_for_job=False)).traps(CheckOptions(counts=[2]))
    assert ("several GPUs per process" in {trap.name for trap in traps}) == is_said


@pytest.mark.parametrize(
    ("strategy", "said"), [("delete", "leaves them out"), ("left", "cuts their beginning"), ("right", "")]
)
def test_what_becomes_of_long_rows(strategy, said):
    asked = [each.text for each in read({**SFT, "truncation_strategy": strategy}).draft.to_do]
    found = [text for text in asked if text.startswith("rows longer than model.context")]
    assert bool(found) == bool(said)
    assert all(said in text for text in found)


@pytest.mark.parametrize("command", ["sft", "pt"])
def test_options_of_swift_rlhf_are_refused_by_the_others(command):
    start = f"NPROC_PER_NODE=4 swift {command} --model org/m --dataset rows.jsonl --num_generations 8"
    with pytest.raises(RecipeError, match=f"num_generations: .* swift {command} refuses it"):
        read_recipe(start, (), RecipeOptions(is_for_job=False))


def test_a_file_with_options_of_rlhf_is_dpo_by_default():
    assert read({**SFT, "rpo_alpha": 0.1}, options=CHECK).method == "dpo"


def test_text_in_quotes_is_a_number():
    assert read({**SFT, "per_device_train_batch_size": "2", "warmup_ratio": "0.1"}).global_batch == 64


@pytest.mark.parametrize(("method", "batches"), [("sft", [64, 32]), ("dpo", [64, 32]), ("kto", [8, 8])])
def test_split_batches_is_read_by_accelerate_alone(method, batches):
    """ms-swift's own loader makes the batches of sft and dpo, and does not ask accelerate."""
    its = {} if method == "sft" else {"rlhf_type": method}
    keys = {**SFT, **its, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    recipe = read({**keys, "accelerator_config": {"split_batches": True}}, options=CHECK)
    assert [recipe.foreign.outcome(count).batch for count in (8, 4)] == batches
    names = {trap.name for trap in recipe.traps(CheckOptions(counts=[8]))}
    assert ("split_batches" in names) == (method != "kto")


def test_older_names_are_read_and_said():
    keys = {name: its for name, its in SFT.items() if name != "tuner_type"}
    recipe = read({**keys, "train_type": "full"})
    assert recipe.draft.job["train"]["optimizer"]["lr"] == 1e-5
    traps = {trap.name: trap.text for trap in recipe.traps(CheckOptions(counts=[8]))}
    assert traps["does not load"] == "ms-swift 4 refuses train_type. The recipe needs ms-swift 3."


def test_megatron_is_another_system():
    with pytest.raises(RecipeError, match="ms-swift with Megatron"):
        read_recipe("megatron sft --model m --micro_batch_size 1 --global_batch_size 16", (), CHECK)


def test_a_recipe_of_llamafactory_with_its_keys_stays_one():
    """lora_rank, dataset and template are keys of both."""
    theirs = {
        "model_name_or_path": "m",
        "stage": "sft",
        "do_train": True,
        "dataset": "d",
        "template": "t",
        "lora_rank": 8,
    }
    assert read(theirs, options=CHECK).system == "llamafactory"
    assert (
        read(
            {"model": "m", "dataset": "d", "template": "t", "lora_rank": 8, "tuner_type": "lora", "attn_impl": "sdpa"},
            options=CHECK,
        ).system
        == "swift"
    )


# -- the batch

M = "--model m --dataset d.jsonl"
ONE = RecipeOptions(is_for_job=False, needs_micro=False)
# (a command with the sizes of an example of ms-swift's, its processes, m, A or None, GPUs of a row, how it fails or "")
COMMANDS = {
    "full/train": (
        (
            f"CUDA_VISIBLE_DEVICES=0 swift sft {M} --train_type full --per_device_train_batch_size 1 "
            "--gradient_accumulation_steps 16"
        ),
        1,
        1,
        16,
        1,
        "",
    ),
    "multi-gpu/ddp": (
        (
            f"nproc_per_node=2\nNPROC_PER_NODE=$nproc_per_node swift sft {M} --per_device_train_batch_size 1 "
            "--gradient_accumulation_steps $(expr 16 / $nproc_per_node)"
        ),
        2,
        1,
        8,
        1,
        "",
    ),
    "multi-gpu/ddp_device_map": (
        (
            f"CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=2 swift sft {M} "
            "--per_device_train_batch_size 1 --gradient_accumulation_steps 8"
        ),
        2,
        1,
        8,
        1,
        "",
    ),
    "multi-gpu/device_map": (
        (
            f"CUDA_VISIBLE_DEVICES=0,1 MAX_PIXELS=1003520 swift sft {M} --per_device_train_batch_size "
            "1 --gradient_accumulation_steps 16"
        ),
        1,
        1,
        16,
        1,
        "",
    ),
    "multi-gpu/deepspeed/zero3": (
        f"NPROC_PER_NODE=2 swift sft {M} --gradient_accumulation_steps 8 --deepspeed zero3",
        2,
        1,
        8,
        1,
        "",
    ),
    "multi-gpu/fsdp2_lora": (
        (f"accelerate launch --num_processes 2 swift/cli/sft.py {M} --train_type lora --gradient_accumulation_steps 8"),
        2,
        1,
        8,
        1,
        "",
    ),
    "multi-node/torchrun": (
        (
            f"torchrun --nproc_per_node=4 --nnodes=2 swift/cli/sft.py {M} --train_type lora "
            "--gradient_accumulation_steps 16"
        ),
        8,
        1,
        16,
        1,
        "",
    ),
    "multi-node/swift": (
        f"NNODES=2 NODE_RANK=0 NPROC_PER_NODE=4 swift sft {M} --gradient_accumulation_steps 4",
        8,
        1,
        4,
        1,
        "",
    ),
    "base_to_chat/full": (
        (
            f"NPROC_PER_NODE=2 swift sft {M} d#500 --per_device_train_batch_size 1 "
            "--gradient_accumulation_steps 8 --deepspeed zero2"
        ),
        2,
        1,
        8,
        1,
        "",
    ),
    "qlora/bnb": (f"swift sft {M} --quant_method bnb --quant_bits 4 --gradient_accumulation_steps 16", 1, 1, 16, 1, ""),
    "pretrain": (
        (
            f"NPROC_PER_NODE=4 swift pt {M} --streaming true --packing true --attn_impl flash_attn "
            "--gradient_accumulation_steps 16 --max_steps 10000"
        ),
        4,
        1,
        16,
        1,
        "",
    ),
    "rlhf/dpo/full": (
        (
            f"NPROC_PER_NODE=4 swift rlhf --rlhf_type dpo {M} --per_device_train_batch_size 4 "
            "--gradient_accumulation_steps 1 --deepspeed zero3 --attn_impl flash_attn --padding_free true "
            "--rpo_alpha 0.1"
        ),
        4,
        4,
        1,
        1,
        "",
    ),
    "rlhf/orpo": (f"NPROC_PER_NODE=2 swift rlhf --rlhf_type orpo {M} --gradient_accumulation_steps 8", 2, 1, 8, 1, ""),
    "rlhf/rm": (f"NPROC_PER_NODE=2 swift rlhf --rlhf_type rm {M} --gradient_accumulation_steps 8", 2, 1, 8, 1, ""),
    "rlhf/kto": (f"NPROC_PER_NODE=2 swift rlhf --rlhf_type kto {M} --gradient_accumulation_steps 8", 2, 1, 8, 1, ""),
    "rlhf/ppo/full": (
        (
            f"NPROC_PER_NODE=8 swift rlhf --rlhf_type ppo {M} --per_device_train_batch_size 1 "
            "--gradient_accumulation_steps 2 --deepspeed zero3"
        ),
        8,
        1,
        2,
        1,
        "",
    ),
    "sequence_parallel": (
        (
            f"NPROC_PER_NODE=8 swift sft {M} --per_device_train_batch_size 4 --attn_impl flash_attn "
            "--gradient_accumulation_steps 8 --sequence_parallel_size 8 --padding_free true"
        ),
        8,
        4,
        8,
        8,
        "",
    ),
    "sequence_parallel_dpo": (
        (
            f"NPROC_PER_NODE=4 swift rlhf --rlhf_type dpo {M} --gradient_accumulation_steps 8 "
            "--sequence_parallel_size 4 --deepspeed zero3"
        ),
        4,
        1,
        8,
        4,
        "",
    ),
    "sequence_parallel 2": (f"NPROC_PER_NODE=8 swift sft {M} --sequence_parallel_size 2", 8, 1, None, 2, ""),
    "no accumulation": (f"NPROC_PER_NODE=8 swift sft {M} --per_device_train_batch_size 3", 8, 3, None, 1, ""),
    "nothing": (f"swift sft {M}", 1, 1, None, 1, ""),
}


def expected(micro, steps, row, fails, processes):
    """The batch as ms-swift 4.6.0 makes it, None if it does not start.

    trainers/arguments.py: A by default. trainers/mixin.py: each process takes m rows, and with sequence parallelism
    each group of `row` processes (SequenceParallelSampler over the mesh's data dimension).
    """
    if fails or processes % row:
        return None
    if steps is None:
        steps = max(1, ceil(16 / micro / processes))
    return sum(micro for group in range(0, processes, row) for step in range(steps))


@pytest.mark.parametrize("name", COMMANDS)
def test_each_count_trains_the_batch_that_ms_swift_computes(name):
    command, tuned, micro, steps, row, fails = COMMANDS[name]
    recipe = read_recipe(command, (), ONE)
    assert (recipe.system, recipe.gpus) == ("swift", tuned)
    for processes in range(1, 9):
        outcome = recipe.foreign.outcome(processes)
        assert outcome.batch == expected(micro, steps, row, fails, processes), processes
        assert outcome.text.startswith(fails)
    if not fails:
        assert recipe.global_batch == expected(micro, steps, row, fails, tuned)


def test_there_are_enough_commands():
    assert len(COMMANDS) >= 15


def test_grpo_counts_completions_and_refuses_counts_that_cut_a_group():
    """Its A is 1 by default, and it accumulates longer if GPUs share a row."""
    start = f"NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo {M} --per_device_train_batch_size 4 --num_generations 8"
    facts = read_recipe(start, (), ONE).foreign
    assert [facts.outcome(count).batch for count in range(1, 9)] == [None, 8, None, 16, None, 24, None, 32]
    shared = f"{start} --sequence_parallel_size 4 --gradient_accumulation_steps 2 --num_generations 8"
    assert read_recipe(shared, (), ONE).global_batch == 4 * 2 * 8


def test_a_batch_of_one_is_refused_for_kto():
    facts = read_recipe(
        f"NPROC_PER_NODE=2 swift rlhf --rlhf_type kto {M} --gradient_accumulation_steps 1", (), ONE
    ).foreign
    assert [facts.outcome(count).batch for count in (1, 2, 3)] == [None, 2, 3]


def test_the_batch_of_kto_is_counted_before_num_steps_replaces_a():
    keys = {**SFT, "rlhf_type": "kto", "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    keys["accelerator_config"] = {"gradient_accumulation_kwargs": {"num_steps": 4}}
    facts = read(keys, options=CHECK).foreign
    assert [facts.outcome(count).batch for count in (1, 2, 3)] == [None, 8, 12]


@pytest.mark.parametrize("key", ["val_dataset", "eval_dataset"])
@pytest.mark.parametrize("value", ["", 0, False, "rows", ["rows"]])
def test_what_it_evaluates_has_any_name(key, value):
    """Its GRPO then wants whole groups in an evaluation, too. It evaluates as it saves."""
    keys = {**RLHF, "rlhf_type": "grpo", "num_generations": 8, "per_device_eval_batch_size": 2, key: value}
    assert read(keys, options=CHECK).foreign.outcome(2).verdict == "error"
    assert read({**keys, "per_device_eval_batch_size": 4}, options=CHECK).foreign.outcome(2).batch == 16
    for never in ("eval_strategy", "save_strategy"):
        assert read({**keys, never: "no"}, options=CHECK).foreign.outcome(2).batch == 16


@pytest.mark.parametrize(
    ("keys", "section"),
    [
        ({}, {"samples": "10%", "every": "500 steps"}),
        ({"eval_strategy": "no"}, None),
        ({"save_strategy": "no"}, None),
        ({"streaming": True, "max_steps": 9}, None),
        ({"val_dataset": "test.jsonl"}, {"data": {"path": "test.jsonl"}, "samples": 0, "every": "500 steps"}),
        ({"eval_dataset": "gsm8k", "split_dataset_ratio": 0}, {"samples": 0, "every": "500 steps"}),
    ],
)
def test_rows_are_held_out_only_if_they_are_evaluated(keys, section):
    """Named rows come before a part, and no part is taken from a stream."""
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    Path("test.jsonl").write_text(json.dumps(row))
    assert read({**SFT, "split_dataset_ratio": 0.1, **keys}).draft.job.get("eval") == section


@pytest.mark.parametrize(("config", "is_new"), [("swift sft c.yaml", True), ("swift sft --config c.yaml", False)])
def test_a_command_takes_its_file(config, is_new):
    """Options behind it win. Its section ENV starts the processes, too."""
    Path("c.yaml").write_text(json.dumps({**SFT, "ENV": {"NPROC_PER_NODE": 4}}))
    recipe = read_recipe(f"{config} --per_device_train_batch_size 3", (), RecipeOptions())
    assert (recipe.gpus, recipe.global_batch, recipe.config) == (4, 3 * 4 * 4, "c.yaml")
    assert ("does not load" in {trap.name for trap in recipe.foreign.own_traps}) != is_new


@pytest.mark.parametrize("file", ["c.yaml", "--config c.yaml"])
def test_its_programs_read_no_file(file):
    Path("c.yaml").write_text(json.dumps(SFT))
    with pytest.raises(RecipeError, match=r"swift/cli/sft.py reads no file\. .* start swift sft c.yaml"):
        read_recipe(f"torchrun --nproc_per_node 4 swift/cli/sft.py {file}", (), ONE)


def test_a_name_that_no_file_can_have_is_a_name():
    assert "data/a-b/" in draft({**SFT, "dataset": "a\0b"})["data"]["path"]


def test_a_key_twice_counts_as_the_last_one():
    text = "model: m\ndataset: d\nper-device-train-batch-size: 2\ntuner_type: full\nmodel: n\n"
    Path("twice.yaml").write_text(text)
    recipe = read_recipe("twice.yaml", (), CHECK)
    assert (recipe.global_batch, recipe.draft.job["model"]["path"]) == (16, "n")
    assert recipe.repeats == ("model: twice, on lines 1 and 5. The last one counts (n)",)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"split_dataset_ratio": -0.1}, "split_dataset_ratio: found -0.1 .*at least 0"),
        ({"split_dataset_ratio": 1}, "split_dataset_ratio: found 1 .*no row is left to train on"),
        ({"split_dataset_ratio": 2.0}, "split_dataset_ratio: found 2.0 .*no row is left to train on"),
        ({"split_dataset_ratio": 2, "eval_strategy": "no"}, ""),
        ({"split_dataset_ratio": 2, "val_dataset": "test.jsonl"}, ""),
        ({"val_dataset": "test.jsonl", "save_strategy": "best"}, "save_strategy: .*as best if eval_strategy follows"),
        ({"val_dataset": "test.jsonl", "save_strategy": "best", "eval_strategy": "steps"}, ""),
        ({"save_strategy": "best"}, ""),
        ({"cached_val_dataset": "c", "streaming": True, "max_steps": 9}, "cached_val_dataset: .*beside streaming"),
        ({"cached_val_dataset": "c", "rlhf_type": "grpo"}, "cached_val_dataset: .*in GRPO"),
    ],
)
def test_rows_that_it_cannot_evaluate_are_refused(keys, said):
    if said:
        assert re.search(said, refusal({**SFT, **keys}, options=CHECK))
    else:
        assert read({**SFT, **keys}, options=CHECK).foreign.outcome(8).verdict != "error"


@pytest.mark.parametrize(
    ("variables", "options", "said"),
    [
        ("NPROC_PER_NODE=2", "--deepspeed zero2", "deepspeed: .*where a process sees several GPUs"),
        ("", "--deepspeed zero3", "deepspeed: .*write NPROC_PER_NODE=4"),
        ("NPROC_PER_NODE=2", "--fsdp fsdp2", "fsdp: .*where a process sees several GPUs"),
        ("NPROC_PER_NODE=2", "--use_liger_kernel true", "use_liger_kernel: .*where a process sees several GPUs"),
        ("NPROC_PER_NODE=3", "", "found 4 GPUs for 3 processes"),
        ("NPROC_PER_NODE=8", "", "found 4 GPUs for 8 processes"),
        ("NPROC_PER_NODE=4", "--deepspeed zero2", ""),
        ("NPROC_PER_NODE=2", "", ""),
        ("NPROC_PER_NODE=2 SWIFT_SINGLE_DEVICE_MODE=1", "--deepspeed zero2", ""),
    ],
)
def test_processes_that_see_several_gpus_are_refused_what_needs_one(variables, options, said):
    command = f"CUDA_VISIBLE_DEVICES=0,1,2,3 {variables} swift sft {M} {options}"
    if said:
        with pytest.raises(RecipeError, match=said):
            read_recipe(command, (), ONE)
    else:
        assert read_recipe(command, (), ONE).global_batch


def test_digits_that_are_no_numbers_are_no_count():
    with pytest.raises(RecipeError, match="NPROC_PER_NODE: found ²"):
        read_recipe(f"NPROC_PER_NODE=² swift sft {M}", (), RecipeOptions(is_for_job=False, needs_micro=False))


def test_a_file_has_no_command_with_an_accelerate_file():
    """`swift sft` reads its file, and no accelerate file. accelerate starts its program, which reads no file."""
    Path("accelerate.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\n")
    recipe = read(SFT, options=RecipeOptions(accelerate="accelerate.yaml"))
    with pytest.raises(NoExactSplit, match="Leave out --accelerate"):
        rewrite(recipe, "swift", 4)


def test_a_file_of_rows_is_no_configuration():
    Path("rows.json").write_text("[]")
    assert read_recipe("swift sft --dataset rows.json --model m", (), ONE).global_batch == 16


def test_another_split_of_its_batch():
    """Other systems take it from there (--to), with an A of their own and without GPUs that share a row."""
    derived = read_recipe(f"swift sft {M}", (), ONE).foreign
    assert derived.takes(4, 2, 2)
    assert not derived.takes(4, 1, 1)
    shared = read_recipe(f"NPROC_PER_NODE=8 swift sft {M} --sequence_parallel_size 8", (), ONE)
    assert shared.global_batch == 2
    assert shared.foreign.takes(2, 1, 1)


def test_a_variable_without_a_value_is_asked_for():
    command = f"NPROC_PER_NODE=$GPUS swift sft {M} --gradient_accumulation_steps 2"
    with pytest.raises(RecipeError, match=r"--env GPUS=VALUE"):
        read_recipe(command, (), ONE)
    options = RecipeOptions(is_for_job=False, needs_micro=False, env={"GPUS": "4"})
    assert read_recipe(command, (), options).global_batch == 8


def test_a_command_without_processes_starts_one():
    command = f"CUDA_VISIBLE_DEVICES=0,1 swift sft {M} --gradient_accumulation_steps 16"
    traps = {trap.name: trap.text for trap in read_recipe(command, (), ONE).traps(CheckOptions(counts=[1, 2]))}
    assert "starts one process" in traps["one process"]
    with pytest.raises(RecipeError, match="the process count without NPROC_PER_NODE is 1"):
        read_recipe(command, (), CHECK)


def test_traps_say_what_a_table_does_not():
    recipe = read_recipe(f"NPROC_PER_NODE=8 swift sft {M} --per_device_train_batch_size 3", (), ONE)
    traps = {trap.name: trap.text for trap in recipe.traps(CheckOptions(counts=[3, 8], rows=100))}
    assert "18 at 3 GPUs, and 24 at 8" in traps["derived accumulation"]
    assert "4 of 100 rows are left out in an epoch (at 8 GPUs)" in traps["rows left out"]
    assert "no global batch" not in traps
    assert "repeated rows" not in traps


VALUES = (None, True, "x", "", [1, "a"], {"a": 1}, -1, 0, 1.5, "$X", "1e400")


@pytest.mark.parametrize("base", [SFT, {**RLHF, "rlhf_type": "grpo"}], ids=["sft", "grpo"])
def test_no_value_of_a_key_ends_in_another_error(base):
    """Each key with each kind of value: a recipe, or a refusal."""
    names = sorted(RULES.names | {"swanlab_project", "vllm_mode", "unknown_key"})
    assert len(names) > 300
    made = 0
    for name in names:
        for value in VALUES:
            try:
                recipe = read({**base, name: value})
                recipe.traps(CheckOptions(counts=[1, 2, 7]))
                assert recipe.foreign.outcome(7).batch is None or recipe.foreign.outcome(7).batch > 0
                made += 1
            except RecipeError:
                pass
    assert made > 1000


def test_one_layer_gets_adapters():
    """ms-swift gives peft a list, so one name is no pattern."""
    keys = {name: value for name, value in SFT.items() if name != "tuner_type"}
    assert draft({**keys, "target_modules": ["q_proj"]})["model"]["lora"]["targets"] == ["q_proj"]
    assert "adapters of an earlier run" not in "".join(
        map(str, read({**keys, "quant_method": "bnb", "quant_bits": 4}).draft.to_do)
    )


def test_a_size_that_is_no_number_is_refused_once():
    """Two rooms read it."""
    with pytest.raises(RecipeError) as error:
        read({**SFT, "per_device_train_batch_size": "four"})
    assert str(error.value).count("per_device_train_batch_size: found") == 1


def test_the_variables_that_count_the_gpus_are_named():
    """They are no file of accelerate's, which has num_processes."""
    command = "NPROC_PER_NODE=4 NNODES=2 swift sft --model org/m --dataset a/b --max_length 64 --output_dir o"
    notes = [note.text for note in read_recipe(command, (), RecipeOptions()).draft.derived]
    assert "tuned for 8 GPUs: NPROC_PER_NODE x NNODES" in notes


def test_a_mixture_of_all_linear_and_a_name_is_refused_in_a_job():
    """ms-swift finds the linear layers and adds the name. A job would take all-linear for a layer's name."""
    keys = {name: value for name, value in SFT.items() if name != "tuner_type"}
    assert "targets" not in draft({**keys, "target_modules": ["all-linear"]})["model"]["lora"]
    with pytest.raises(RecipeError, match=r"target_modules: .*write all-linear alone"):
        read({**keys, "target_modules": ["all-linear", "lm_head"]})

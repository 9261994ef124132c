"""LLaMA-Factory's recipes: the job that convert makes of one, its commands, and what is refused."""

import json
from pathlib import Path

import pytest

from planner.errors import RecipeError
from planner.recipes import CheckOptions, RecipeOptions, job_of, read_recipe

SFT = {
    "model_name_or_path": "org/m",
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "full",
    "dataset": "mine",
    "template": "qwen3",
    "cutoff_len": 4096,
    "output_dir": "saves/run",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "learning_rate": 1e-5,
    "bf16": True,
}
DPO = {**SFT, "stage": "dpo"}
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


def told(keys):
    return [each.text for each in read(keys).draft.to_do]


def test_a_full_sft_becomes_a_job():
    job = draft(SFT)
    assert job["model"] == {"kind": "hf", "path": "org/m", "context": 4096}
    assert job["data"] == {"kind": "chat", "path": "data/mine/", "loss_on": "completions"}
    assert job["objective"] == {"kind": "sft"}
    assert job["batch"] == {"global": 64, "max_micro": 2}
    assert job["train"]["epochs"] == 3
    assert job["train"]["precision"] == "bf16"
    assert job["train"]["optimizer"] == {"kind": "adamw", "lr": 1e-5}
    # LLaMA-Factory checkpoints activations unless it is told not to, whatever the Trainer's own key says.
    assert job["train"]["activation_checkpointing"] is True
    assert "activation_checkpointing" not in draft({**SFT, "disable_gradient_checkpointing": True})["train"]


def test_its_defaults_are_not_those_of_trl():
    bare = {name: SFT[name] for name in ("model_name_or_path", "stage", "do_train", "dataset", "template")}
    job = draft(bare)
    assert job["model"]["context"] == 2048
    assert job["model"]["lora"] == {"rank": 8, "alpha": 16, "dropout": 0.0}
    assert job["train"]["optimizer"]["lr"] == 5e-5
    assert job["train"]["precision"] == "fp32"
    assert job["batch"]["global"] == 64  # 8 per GPU


def test_adapters_and_their_targets():
    lora = {**SFT, "finetuning_type": "lora", "lora_rank": 16, "lora_target": "q_proj, v_proj", "lora_dropout": 0.1}
    assert draft(lora)["model"]["lora"] == {
        "rank": 16, "alpha": 32, "dropout": 0.1, "targets": ["q_proj", "v_proj"]
    }  # fmt: skip
    assert draft({**lora, "lora_alpha": 8})["model"]["lora"]["alpha"] == 8
    assert draft({**lora, "quantization_bit": 4})["model"]["frozen"] == "nf4"


@pytest.mark.parametrize(
    ("keys", "objective"),
    [
        ({}, {"kind": "dpo", "beta": 0.1}),
        ({"pref_beta": 0.3, "dpo_label_smoothing": 0.2}, {"kind": "dpo", "beta": 0.3, "label_smoothing": 0.2}),
        ({"pref_loss": "ipo"}, {"kind": "ipo", "beta": 0.1, "log_probs": "mean"}),
        (
            {"pref_loss": "simpo", "pref_beta": 2.0, "simpo_gamma": 1.0},
            {"kind": "simpo", "beta": 2.0, "gamma_beta_ratio": 0.5},
        ),
        ({"dpo_beta": 0.4, "dpo_loss": "sigmoid"}, {"kind": "dpo", "beta": 0.4}),
    ],
)
def test_preference_losses(keys, objective):
    job = draft({**DPO, **keys})
    assert job["objective"] == objective
    assert job["data"]["kind"] == "pairs"


def test_kto():
    keys = {**SFT, "stage": "kto", "kto_chosen_weight": 2.0}
    job = draft(keys)
    assert job["objective"] == {"kind": "kto", "beta": 0.1, "desirable_weight": 2.0, "undesirable_weight": 1.0}
    traps = {trap.name: trap.text for trap in read(keys).traps(CheckOptions(counts=[1, 8]))}
    assert "LLaMA-Factory averages the KL over a micro-batch of all GPUs" in traps["depends on the split"]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"stage": "rm"}, "planner trains no reward models"),
        ({"stage": "ppo", "reward_model": "r"}, "no objective for ppo"),
        ({"stage": "dpo", "pref_loss": "orpo"}, "each pair's"),
        ({"stage": "dpo", "pref_loss": "hinge"}, "no objective for pref_loss hinge"),
        ({"stage": "dpo", "pref_ftx": 0.5}, "with pref_ftx"),
        ({"mask_history": True}, "with mask_history"),
        ({"finetuning_type": "freeze"}, "with finetuning_type freeze"),
    ],
)
def test_what_planner_has_not_is_named_and_its_batch_is_known(keys, why):
    recipe = read({**SFT, **keys})
    assert recipe.global_batch == 64
    assert recipe.draft.job["objective"] == "own"
    assert why in recipe.draft.to_do[0].text
    assert read({**SFT, **keys}, options=CHECK).foreign.outcome(4).batch == 32


def test_packing_makes_packed_rows():
    assert draft({**SFT, "packing": True})["data"]["packing"] is True
    assert read({**SFT, "neat_packing": True}).unit == "packed row"
    assert any("without neat_packing" in text for text in told({**SFT, "packing": True}))
    assert not any("without neat_packing" in text for text in told({**SFT, "neat_packing": True}))


def test_data_sets_come_from_dataset_info():
    Path("data").mkdir()
    info = {
        "mine": {"hf_hub_url": "org/rows", "subset": "main", "split": "train_sft"},
        "local": {"file_name": "rows.jsonl"},
    }
    Path("data/dataset_info.json").write_text(json.dumps(info))
    assert "org/rows (main, train_sft)" in str(read({**SFT, "dataset": "mine"}).draft.derived)
    assert "data/rows.jsonl" in str(read({**SFT, "dataset": "mine, local"}).draft.derived)
    assert "org/rows" in str(read({**SFT, "dataset": "org/rows", "dataset_dir": "ONLINE"}).draft.derived)


def test_rows_to_evaluate_are_held_out():
    keys = {**SFT, "val_size": 0.05, "eval_strategy": "steps", "eval_steps": 50}
    assert draft(keys)["eval"] == {"samples": "5%", "every": "50 steps"}


def test_every_written_key_is_told_of():
    keys = {**SFT, "plot_loss": True, "save_steps": 500, "preprocessing_num_workers": 16, "ddp_timeout": 180_000_000}
    dropped = {note.key: note.text for note in read(keys).draft.dropped}
    assert dropped["plot_loss"] == "planner records and tracks every step"
    assert dropped["preprocessing_num_workers"] == "planner reads the data once"
    assert {"save_steps", "ddp_timeout", "template"} <= dropped.keys()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"cutoff_length": 1}, r"cutoff_length: LLaMA-Factory does not know this key.*Did you mean cutoff_len\?"),
        ({"cutoff_len": 0.5}, r"cutoff_len: found 0.5.*whole number"),
        ({"stage": "sftt"}, 'stage: found "sftt"'),
        ({"do_train": False}, "do_train: found false.*trains nothing"),
        ({"use_galore": True}, "use_galore"),
        ({"finetuning_type": "lora", "lora_rank": "x"}, "lora_rank: found"),
        ({"pref_beta": 0.1, "dpo_beta": 0.2}, "both set the same value"),
    ],
)
def test_mistakes_name_the_recipes_own_keys(keys, message):
    with pytest.raises(RecipeError, match=message):
        read({**SFT, **keys})


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        ("FORCE_TORCHRUN=1 NPROC_PER_NODE=4 llamafactory-cli train recipe.yaml", 4),
        ("FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=4 llamafactory-cli train recipe.yaml", 8),
        ("CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train recipe.yaml", 2),
        ("torchrun --nproc_per_node 4 --nnodes 2 src/train.py recipe.yaml", 8),
        ("accelerate launch --num_processes 2 src/train.py recipe.yaml", 2),
    ],
)
def test_a_command_says_the_gpu_count(command, gpus):
    Path("recipe.yaml").write_text(json.dumps(SFT))
    recipe = read_recipe(f"{command} gradient_accumulation_steps=3")
    assert (recipe.system, recipe.gpus, recipe.global_batch) == ("llamafactory", gpus, 2 * 3 * gpus)


def test_options_without_a_file():
    options = " ".join(f"--{name} {value}" for name, value in SFT.items())
    recipe = read_recipe(f"deepspeed --num_gpus 4 src/train.py {options}")
    assert (recipe.system, recipe.global_batch) == ("llamafactory", 32)


@pytest.mark.parametrize("variable", ["USE_V1", "USE_MCA"])
def test_its_other_trainers_are_refused(variable):
    Path("recipe.yaml").write_text(json.dumps(SFT))
    with pytest.raises(RecipeError, match=r"v1|Megatron"):
        read_recipe(f"{variable}=1 llamafactory-cli train recipe.yaml", (), CHECK)


REFUSED = {
    "use_galore": ({"finetuning_type": "lora", "use_galore": True}, "use_galore.*with finetuning_type lora"),
    "two optimizers": ({"use_galore": True, "use_apollo": True}, "use_apollo.*beside use_galore"),
    "dora": ({"use_dora": True}, "use_dora.*with finetuning_type full: write lora"),
    "adapters": ({"adapter_name_or_path": "saves/a"}, "adapter_name_or_path.*with finetuning_type full"),
    "4 bits": ({"quantization_bit": 4}, "quantization_bit.*with finetuning_type full: write lora or oft"),
    "pissa": ({"stage": "kto", "finetuning_type": "lora", "pissa_init": True}, "pissa_init.*in stage kto"),
    "llama pro": ({"use_llama_pro": True}, "use_llama_pro.*finetuning_type full"),
    "ppo": ({"stage": "ppo"}, "stage.*without reward_model"),
    "smoothing": (
        {"stage": "dpo", "pref_loss": "ipo", "dpo_label_smoothing": 0.1},
        "dpo_label_smoothing.*with pref_loss ipo",
    ),
    "no rows to evaluate": ({"eval_strategy": "steps"}, "eval_strategy.*without rows to evaluate"),
    "both": ({"val_size": 0.1, "eval_dataset": "other"}, "val_size.*beside eval_dataset"),
    "endless": ({"streaming": True}, "streaming.*without max_steps"),
    "masks": ({"stage": "dpo", "mask_history": True}, "mask_history.*in stage dpo"),
    "interleaved": ({"interleave_probs": "0.5,0.5"}, "interleave_probs.*with mix_strategy concat"),
    "uneven": (
        {"mix_strategy": "interleave_under", "interleave_probs": "0.5,0.5"},
        "interleave_probs.*with 1 names in dataset",
    ),
    "a number as text": ({"val_size": "3"}, "val_size.*as a text"),
    "no saves": ({"save_strategy": False}, "save_strategy: found false.*no in quotes"),
    "no data": ({"dataset": None}, "dataset: found nothing. Write dataset=VALUE"),
    "no model": ({"model_name_or_path": None}, "model_name_or_path: found nothing"),
    "null": ({"stage": None}, "stage: found nothing.*does not train with null"),
    "a text": ({"packing": "false"}, "packing.*without quotes"),
    "yaml's no": ({"eval_strategy": False}, "eval_strategy: found false.*no in quotes"),
    "a section": ({"use_muon": {"lr": 1}}, "use_muon: found keys below it, which LLaMA-Factory"),
    "zero3": (
        {"pure_bf16": True, "deepspeed": {"zero_optimization": {"stage": 3}}},
        "pure_bf16.*with DeepSpeed's ZeRO-3",
    ),
    "another batch": ({"use_hyper_parallel": True}, "use_hyper_parallel.*share a micro-batch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_llamafactory_refuses_has_no_verdict(name):
    """hparams/*.py of 0.9.5. A batch that never trains is no answer, so a check refuses, too."""
    keys, message = REFUSED[name]
    with pytest.raises(RecipeError, match=message):
        read({**SFT, **keys}, options=CHECK)


def test_overrides_are_read_as_omegaconf_reads_them():
    """`no` is false, which is no strategy, and `0x2` is 2."""
    with pytest.raises(RecipeError, match=r"eval_strategy: found false.*no in quotes"):
        read(SFT, "eval_strategy=no", options=CHECK)
    assert read(SFT, "packing=no", "deepspeed=", "gradient_accumulation_steps=0x2", options=CHECK).global_batch == 32
    assert read({**SFT, "do_train": "true"}, options=CHECK).global_batch == 64


@pytest.mark.parametrize("argument", ["--stage=dpo", "++stage=dpo", "accelerator_config={}"])
def test_only_key_and_value_stand_behind_a_file(argument):
    Path("recipe.yaml").write_text(json.dumps(SFT))
    with pytest.raises(RecipeError, match=r"takes only key=value|merges"):
        read_recipe(f"llamafactory-cli train recipe.yaml {argument}", (), CHECK)


def test_unknown_keys_pass_with_allow_extra_args():
    Path("recipe.yaml").write_text(json.dumps({**SFT, "my_key": 1}))
    recipe = read_recipe("ALLOW_EXTRA_ARGS=1 llamafactory-cli train recipe.yaml", (), RecipeOptions(gpus=4))
    assert recipe.global_batch == 32
    assert "my_key" in {note.key for note in recipe.draft.dropped}


@pytest.mark.parametrize(
    ("keys", "command", "batches"),
    [
        ({}, "python src/train.py recipe.yaml", {1: 8, 2: None}),
        ({}, "USE_KT=1 llamafactory-cli train recipe.yaml", {1: 8, 2: None}),
        ({"ray_num_workers": 4}, "USE_RAY=1 llamafactory-cli train recipe.yaml", {3: None, 4: 32, 8: 32}),
        (
            {"ray_num_workers": 4, "accelerator_config": {"split_batches": True}, "per_device_train_batch_size": 4},
            "USE_RAY=1 llamafactory-cli train recipe.yaml",
            {4: 16, 8: 16},
        ),
        ({"deepspeed": {}}, "llamafactory-cli train recipe.yaml", {1: 8, 2: 16}),
        ({"deepspeed": {"bf16": {"enabled": "auto"}}}, "llamafactory-cli train recipe.yaml", {1: None, 2: 4}),
        (
            {"deepspeed": {"bf16": {"enabled": "auto"}}},
            "FORCE_TORCHRUN=1 llamafactory-cli train recipe.yaml",
            {1: 2, 2: 4},
        ),
        ({"use_badam": True}, "llamafactory-cli train recipe.yaml", {1: 8, 2: None}),
        ({"use_badam": True}, "FORCE_TORCHRUN=1 llamafactory-cli train recipe.yaml", {1: None, 2: None}),
    ],
)
def test_how_it_starts_decides_which_counts_train(keys, command, batches):
    if keys.get("deepspeed"):  # some versions of accelerate take 1 step where the file names none
        keys = {**keys, "gradient_accumulation_steps": 1}
    Path("recipe.yaml").write_text(json.dumps({**SFT, **keys}))
    gpus = None if "USE_RAY" in command else 1
    foreign = read_recipe(command, (), RecipeOptions(gpus=gpus, is_for_job=False, needs_micro=False)).foreign
    assert {count: foreign.outcome(count).batch for count in batches} == batches


def traps(keys):
    return {trap.name: trap.text for trap in read(keys, options=CHECK).traps(CheckOptions(counts=[1, 8]))}


@pytest.mark.parametrize(
    ("keys", "name"), [({"stage": "dpo", "dpo_beta": 0.1}, "dpo_beta"), ({"stage": "orpo"}, "stage orpo")]
)
def test_a_name_of_an_older_version_is_a_trap(keys, name):
    expected = f"LLaMA-Factory 0.9.5 refuses {name}. The recipe needs an older version."
    assert traps({**SFT, **keys})["does not load"] == expected
    assert "does not load" not in traps(SFT)


def test_a_model_with_a_processor_averages_micro_batches():
    keys = {**SFT, "image_max_pixels": 262144}
    assert "mean of each micro-batch's mean" in traps(keys)["depends on the split"]
    assert "as in LLaMA-Factory" not in str(read(keys).draft.derived)
    assert any("image_max_pixels" in text and "text alone" in text for text in told(keys))


def test_pure_bf16_computes_in_bf16():
    keys = {**SFT, "pure_bf16": True}
    del keys["bf16"]
    assert draft(keys)["train"]["precision"] == "bf16"


def test_evaluation_without_steps_is_every_500():
    """logging_steps, whose default is not TRL's."""
    assert draft({**SFT, "val_size": 100, "eval_strategy": "steps"})["eval"]["every"] == "500 steps"


def test_one_target_is_a_name_and_no_pattern():
    keys = {**SFT, "finetuning_type": "lora", "lora_target": "q_proj"}
    assert draft(keys)["model"]["lora"]["targets"] == ["q_proj"]


def test_notes_name_the_recipes_keys_and_no_other_system():
    lora = {"finetuning_type": "lora", "quantization_bit": 4, "weight_decay": 0.1}
    recipe = read({**SFT, **lora})
    texts = [each.text for each in (*recipe.draft.derived, *recipe.draft.dropped, *recipe.draft.to_do)]
    assert not [text for text in texts if "TRL" in text or "folder of adapters" in text]
    assert any("unless disable_gradient_checkpointing" in text for text in texts)
    unread = {note.key: note.text for note in read({**SFT, "gradient_checkpointing": False}).draft.dropped}
    assert unread["gradient_checkpointing"] == "disable_gradient_checkpointing decides it"


def test_settings_of_another_method_are_dropped():
    keys = {**SFT, "lora_rank": 8, "lora_target": "all", "pref_loss": "sigmoid"}
    dropped = {note.key: note.text for note in read(keys).draft.dropped}
    assert dropped["lora_rank"] == dropped["lora_target"] == "only LoRA reads it"
    assert dropped["pref_loss"] == "only stage dpo reads it"
    assert "stages pt and sft" in {n.key: n.text for n in read({**DPO, "packing": True}).draft.dropped}["packing"]


def test_a_reward_model_learns_from_pairs():
    assert '"chosen"' in " ".join(told({**SFT, "stage": "rm"}))


def test_data_sets_that_nothing_describes_are_to_do():
    assert any("found no dataset_info.json in data" in text for text in told(SFT))
    Path("data").mkdir()
    Path("data/dataset_info.json").write_text(json.dumps({"other": {"file_name": "rows.json"}}))
    assert any(text.startswith("dataset mine: not in dataset_info.json") for text in told(SFT))
    assert not any("dataset_info.json" in text for text in told({**SFT, "dataset": "other"}))


def test_two_warmups_are_no_job():
    keys = {**SFT, "warmup_ratio": 0.1, "warmup_steps": 10}
    with pytest.raises(RecipeError, match="transformers 5 takes warmup_ratio"):
        read(keys)
    assert read(keys, options=CHECK).global_batch == 64


def test_a_count_of_workers_and_another_count_contradict():
    Path("recipe.yaml").write_text(json.dumps({**SFT, "ray_num_workers": 4}))
    with pytest.raises(RecipeError, match="--gpus 8: ray_num_workers is 4"):
        read_recipe("USE_RAY=1 llamafactory-cli train recipe.yaml", (), RecipeOptions(gpus=8))


def test_older_scripts_are_read():
    """src/train_bash.py, which had other names for some keys."""
    options = (
        "--stage sft --do_train --model_name_or_path m --dataset a --template t --finetuning_type lora "
        "--lora_target q_proj,v_proj --output_dir o --overwrite_cache --per_device_train_batch_size 4 "
        "--gradient_accumulation_steps 4 --evaluation_strategy steps --val_size 0.1 --plot_loss --fp16"
    )
    recipe = read_recipe(f"deepspeed --num_gpus 8 --master_port=9901 src/train_bash.py --deepspeed ds.json {options}")
    assert (recipe.system, recipe.global_batch) == ("llamafactory", 128)
    assert recipe.draft.job["model"]["lora"]["targets"] == ["q_proj", "v_proj"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [({"train_dataset": "x"}, "its trainer v1"), ({"tensor_model_parallel_size": 2}, "Megatron's trainer")],
)
def test_a_file_of_its_other_trainers_is_named_in_one_line(keys, message):
    with pytest.raises(RecipeError, match=message) as found:
        read({**SFT, **keys, "another_key": 1}, options=CHECK)
    assert "another_key" not in str(found.value)


def test_a_file_in_a_variable_needs_the_variable():
    Path("recipe.yaml").write_text(json.dumps(SFT))
    with pytest.raises(RecipeError, match=r"found \$FILE, a shell variable that is not set. Write --env FILE=VALUE"):
        read_recipe("llamafactory-cli train $FILE", (), CHECK)


def test_elastic_nodes_are_no_count():
    Path("recipe.yaml").write_text(json.dumps(SFT))
    command = "RDZV_ID=1 MIN_NNODES=1 MAX_NNODES=2 FORCE_TORCHRUN=1 NPROC_PER_NODE=4 llamafactory-cli train recipe.yaml"
    with pytest.raises(RecipeError, match="the GPU count"):
        read_recipe(command, (), RecipeOptions())
    assert read_recipe(command, (), RecipeOptions(gpus=8)).global_batch == 64


@pytest.mark.parametrize(
    ("variables", "processes"),
    [
        ("FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=0 CUDA_VISIBLE_DEVICES=0,1,2,3", 8),
        ("FORCE_TORCHRUN=1 CUDA_VISIBLE_DEVICES=0,1,2,3", 4),
        ("FORCE_TORCHRUN=1 NNODES=2 CUDA_VISIBLE_DEVICES=0", 2),
        ("FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=3 CUDA_VISIBLE_DEVICES=0,1,2,3", 6),
        ("FORCE_TORCHRUN=Y NPROC_PER_NODE=3 CUDA_VISIBLE_DEVICES=0", 3),
        ("FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=3", 6),
        ("FORCE_TORCHRUN=1 NNODES=2", None),
        ("FORCE_TORCHRUN=1", None),
        ("NNODES=2 CUDA_VISIBLE_DEVICES=0,1", 4),
        ("NNODES=2 NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=0,1", 8),
        ("NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=0,1", 4),
        # One device and no FORCE_TORCHRUN: the process trains alone.
        ("NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=0", 1),
        ("NNODES=2 NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=0", 1),
        ("NNODES=2 CUDA_VISIBLE_DEVICES=0", 1),
        ("FORCE_TORCHRUN=yes NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=0", 1),
        ("FORCE_TORCHRUN=0 NNODES=2 NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=0", 1),
        ("RDZV_ID=1 MIN_NNODES=1 MAX_NNODES=2 CUDA_VISIBLE_DEVICES=0", 1),
        ("NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=", 1),
        ("NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=-1", 1),
        ("NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=0,0", 1),
        # No one knows how many devices the machine has.
        ("NPROC_PER_NODE=4", 4),
        ("NNODES=2 NPROC_PER_NODE=4", 8),
        ("NNODES=2", None),
        ("", None),
        ("CUDA_VISIBLE_DEVICES=GPU-1a2b,GPU-3c4d", None),
        ("NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=GPU-1a2b", 4),
        # Values that torchrun, or int() before it, reads in its own way or refuses.
        ("NPROC_PER_NODE=gpu CUDA_VISIBLE_DEVICES=0,1", 2),
        ("NPROC_PER_NODE=² CUDA_VISIBLE_DEVICES=0,1", None),
        ("FORCE_TORCHRUN=1 NPROC_PER_NODE=0", None),
        ("NNODES=1:2 CUDA_VISIBLE_DEVICES=0,1", None),
        ("NNODES=² CUDA_VISIBLE_DEVICES=0,1", None),
        # A number of machines that may change, and one that may not.
        ("RDZV_ID=1 MIN_NNODES=1 MAX_NNODES=2 CUDA_VISIBLE_DEVICES=0,1", None),
        ("RDZV_ID=1 MIN_NNODES=2 MAX_NNODES=2 CUDA_VISIBLE_DEVICES=0,1", 4),
        ("RDZV_ID=1 MAX_NNODES=4 NNODES=2 CUDA_VISIBLE_DEVICES=0,1", 4),
        ("MIN_NNODES=1 MAX_NNODES=4 NNODES=2 CUDA_VISIBLE_DEVICES=0,1", 4),
        # KTransformers has one process, which sees all devices.
        ("USE_KT=1 NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=0,1", 1),
        ("USE_KT=1 FORCE_TORCHRUN=1 NPROC_PER_NODE=4", 4),
        ("USE_RAY=1 NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=0,1", 1),
    ],
)
def test_variables_say_how_many_processes_start(variables, processes):
    """launcher.py of 0.9.5. None: planner asks for the count."""
    Path("recipe.yaml").write_text(json.dumps(SFT))
    command = f"{variables} llamafactory-cli train recipe.yaml".strip()
    if processes is None:
        with pytest.raises(RecipeError, match="the GPU count"):
            read_recipe(command, (), RecipeOptions())
    recipe = read_recipe(command, (), RecipeOptions(gpus=processes or 8))
    assert (recipe.gpus, recipe.global_batch) == (processes or 8, 8 * (processes or 8))


# -- the rows of dataset_info.json

MESSAGES = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
OUR_TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
IN_FILE = {"file_name": "rows.jsonl"}
ON_HUB = {"hf_hub_url": "org/rows"}


def described(info, row, **keys):
    """(draft, the to-dos that name `mine`) of a recipe beside a dataset_info.json and a file of one row."""
    Path("data").mkdir()
    Path("data/dataset_info.json").write_text(json.dumps({"mine": info}))
    Path("data/rows.jsonl").write_text(json.dumps(row) + "\n")
    recipe = read({**SFT, **keys})
    job_of(recipe)
    return recipe.draft, [each.text for each in recipe.draft.to_do if "dataset mine: " in each.text]


@pytest.mark.parametrize(
    ("stage", "info", "row", "columns"),
    [
        (
            "dpo",
            {"ranking": True, "columns": {"prompt": "prompt", "chosen": "rejected", "rejected": "chosen"}},
            {"prompt": "p", "chosen": "bad", "rejected": "good"},
            {"prompt": "prompt", "chosen": "rejected", "rejected": "chosen"},
        ),
        (
            "sft",
            {"columns": {"prompt": "q", "response": "a"}},
            {"q": "1", "a": "2", **MESSAGES},
            {"prompt": "q", "completion": "a"},
        ),
        (
            "kto",
            {"columns": {"prompt": "q", "response": "a", "kto_tag": "good"}},
            {"q": "1", "a": "2", "good": True},
            {"prompt": "q", "completion": "a", "label": "good"},
        ),
        (
            "sft",
            {"formatting": "sharegpt", "columns": {"messages": "talk"}, "tags": OUR_TAGS},
            {"talk": MESSAGES["messages"]},
            {"messages": "talk"},
        ),
        (
            "sft",
            {"formatting": "openai", "columns": {"messages": "messages"}, "tags": {**OUR_TAGS, "system_tag": "system"}},
            MESSAGES,
            {"messages": "messages"},
        ),
    ],
)
@pytest.mark.parametrize("place", [IN_FILE, ON_HUB])
def test_columns_that_planner_reads_are_carried(place, stage, info, row, columns):
    """data/parser.py, join, and data/converter.py of 0.9.5."""
    draft, to_do = described({**place, **info}, row, stage=stage)
    assert draft.job["data"]["columns"] == columns
    assert draft.job["data"]["path"] == place.get("hf_hub_url", "data/rows.jsonl")
    assert len(to_do) == 1
    assert ("into its template" if "prompt" in columns else "user and assistant take turns") in to_do[0]


NOT_CARRIED = {
    "query": ("sft", {"columns": {"prompt": "q", "query": "more", "response": "a"}}, "columns {prompt: q, query: more"),
    "history": ("sft", {"columns": {"prompt": "q", "response": "a", "history": "h"}}, "history: h"),
    "system": ("sft", {"columns": {"prompt": "q", "response": "a", "system": "s"}}, "system: s"),
    "tools": (
        "sft",
        {"formatting": "sharegpt", "columns": {"messages": "messages", "tools": "tools"}, "tags": OUR_TAGS},
        "formatting sharegpt, columns {messages: messages, tools: tools}, tags {role_tag: role",
    ),
    "images": (
        "sft",
        {"formatting": "openai", "columns": {"messages": "messages", "images": "i"}, "tags": OUR_TAGS},
        "images: i",
    ),
    "kto_tag": ("sft", {"columns": {"prompt": "q", "response": "a", "kto_tag": "l"}}, "kto_tag: l"),
    "sharegpt": ("sft", {"formatting": "sharegpt"}, "formatting sharegpt: planner does not read such rows"),
    "tags": (
        "sft",
        {"formatting": "sharegpt", "columns": {"messages": "messages"}, "tags": {**OUR_TAGS, "user_tag": "me"}},
        "user_tag: me",
    ),
    "calls": (
        "sft",
        {"formatting": "sharegpt", "columns": {"messages": "messages"}, "tags": {**OUR_TAGS, "function_tag": "call"}},
        "function_tag: call",
    ),
    "pairs of messages": (
        "dpo",
        {"formatting": "sharegpt", "ranking": True, "columns": {"messages": "m", "chosen": "c", "rejected": "r"}},
        "formatting sharegpt, columns {messages: m, chosen: c, rejected: r}",
    ),
    "kto of messages": (
        "kto",
        {"formatting": "sharegpt", "columns": {"messages": "m", "kto_tag": "l"}, "tags": OUR_TAGS},
        "kto_tag: l",
    ),
    "rows of another stage": ("sft", {"ranking": True}, "ranking true: LLaMA-Factory refuses it"),
    "rows of no pairs": ("dpo", {}, "ranking false: LLaMA-Factory refuses it"),
    "some rows": ("sft", {"num_samples": 5}, "num_samples 5: LLaMA-Factory takes 5 random rows, the draft all"),
}


@pytest.mark.parametrize("name", NOT_CARRIED)
@pytest.mark.parametrize("place", [IN_FILE, ON_HUB])
def test_rows_that_a_job_cannot_say_are_to_do(place, name):
    stage, info, text = NOT_CARRIED[name]
    draft, to_do = described({**place, **info}, {"q": "1", "a": "2", **MESSAGES}, stage=stage)
    assert "columns" not in draft.job["data"]
    assert len(to_do) == 1
    assert text in to_do[0]


def test_columns_of_a_file_that_must_be_saved_first_are_to_do():
    """Whoever writes the rows anew in planner's form must not find their columns exchanged."""
    info = {"file_name": "none.csv", "columns": {"prompt": "q", "response": "a"}}
    draft, to_do = described(info, MESSAGES)
    assert "columns" not in draft.job["data"]
    assert any("columns {prompt: q, response: a}: planner reads the columns" in text for text in to_do)


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"formatting": "alpaca", "ranking": False, "split": "train", "num_samples": None},
        {"subset": "only", "folder": "the hub has these"},
    ],
)
@pytest.mark.parametrize("row", [MESSAGES, {"instruction": "1", "input": "2", "output": "3"}])
def test_defaults_are_no_to_do(info, row):
    draft, to_do = described({**IN_FILE, **info}, row)
    assert draft.job["data"] == {"kind": "chat", "path": "data/rows.jsonl", "loss_on": "completions"}
    assert not to_do


def test_a_part_of_a_file_is_saved_first():
    draft, _ = described({**IN_FILE, "split": "train[:10%]"}, MESSAGES)
    assert draft.job["data"]["path"] == "data/rows/"
    assert any("split='train[:10%]'" in command for each in draft.to_do for command in each.commands)


@pytest.mark.parametrize(
    ("info", "text"),
    [
        ({**IN_FILE, "split": "train+train"}, "split train+train: the draft takes all rows"),
        ({"file_name": "none.jsonl", "split": "train[:10%]"}, "split train[:10%]: the draft takes all rows"),
        ({"script_url": "s.py", **IN_FILE, "split": "dev"}, "script_url s.py, split dev: planner does not load it"),
        ({"cloud_file_name": "s3://a", **IN_FILE}, "cloud_file_name s3://a: planner does not load it"),
        ({"ms_hub_url": "org/ms", **IN_FILE, "subset": "en"}, "ms_hub_url org/ms, subset en: planner does not load"),
        ({"file_name": "."}, "file_name .: LLaMA-Factory takes all files of this folder"),
    ],
)
def test_other_places_of_rows_are_to_do(info, text):
    draft, to_do = described(info, MESSAGES)
    assert draft.job["data"]["path"] != "data/rows.jsonl" or "split" in info
    assert [each for each in to_do if text in each]


@pytest.mark.parametrize("place", [IN_FILE, ON_HUB])
def test_rows_to_evaluate_are_described_too(place):
    info = {"num_samples": 5, "columns": {"prompt": "q", "response": "a"}, **place}
    row = {"q": "1", "a": "2", **MESSAGES}
    test = {"eval_dataset": "mine", "eval_strategy": "epoch", "dataset": "mine"}
    draft, _ = described(info, row, **test)
    assert draft.job["eval"]["data"]["columns"] == {"prompt": "q", "completion": "a"}
    asked = [each.text for each in draft.to_do]
    for key in ("dataset", "eval_dataset"):
        assert any(text.startswith(f"{key} mine: num_samples 5: ") for text in asked)
        assert any(text.startswith(f"{key} mine: columns {{prompt: q, response: a}}: ") for text in asked)


def test_streaming_takes_all_rows():
    """data/loader.py: num_samples is for data sets that are not streamed."""
    _, to_do = described({**IN_FILE, "num_samples": 5}, MESSAGES, streaming=True, max_steps=3)
    assert not to_do

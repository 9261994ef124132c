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
        ({"stage": "ppo"}, "no objective for ppo"),
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

"""axolotl's recipes: the job that convert makes of one, its commands, and what is refused."""

import json
from pathlib import Path

import pytest

from planner.errors import RecipeError
from planner.recipes import CheckOptions, RecipeOptions, job_of, read_recipe

DATASETS = [{"path": "org/rows", "type": "chat_template"}]
SFT = {
    "base_model": "org/m",
    "datasets": DATASETS,
    "sequence_len": 4096,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "learning_rate": 1e-5,
    "output_dir": "out/run",
}
LORA = {**SFT, "adapter": "lora", "lora_r": 16, "lora_alpha": 32, "lora_target_linear": True}
DPO = {**SFT, "rl": "dpo", "datasets": [{"path": "org/rows", "type": "chatml.ultra"}]}
KTO = {**SFT, "rl": "kto", "remove_unused_columns": False}
CHECK = RecipeOptions(gpus=8, is_for_job=False, needs_micro=False)
UNSAID = RecipeOptions(is_for_job=False, needs_micro=False)


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


def traps(keys):
    return {trap.name: trap.text for trap in read(keys, options=CHECK).traps(CheckOptions(counts=[1, 8]))}


def told(keys):
    return " ".join(each.text for each in read(keys).draft.to_do)


def batches(keys, counts, options=CHECK):
    """The batch at each count, None where axolotl does not start."""
    foreign = read(keys, options=options).foreign
    return [foreign.outcome(count).batch for count in counts]


@pytest.mark.parametrize(
    ("keys", "started"),
    [({"dp_shard_size": 1}, [1]), ({"dp_replicate_size": 0}, [1]), ({"dp_replicate_size": 1}, [1, 2, 4])],
)
def test_axes_that_are_named_and_not_above_one_need_one_gpu(keys, started):
    made = batches({**SFT, **keys}, [1, 2, 4], options=RecipeOptions(gpus=1, is_for_job=False, needs_micro=False))
    assert [count for count, batch in zip([1, 2, 4], made, strict=True) if batch] == started


def test_a_full_sft_becomes_a_job():
    job = draft(SFT)
    assert job["model"] == {"kind": "hf", "path": "org/m", "context": 4096}
    assert job["data"] == {"kind": "chat", "path": "org/rows", "split": "train", "loss_on": "completions"}
    assert job["objective"] == {"kind": "sft"}
    assert job["batch"] == {"global": 64, "max_micro": 2}
    assert job["name"] == "run"
    assert job["train"]["epochs"] == 1
    assert job["train"]["precision"] == "bf16"
    assert job["train"]["optimizer"] == {"kind": "adamw", "lr": 1e-5}
    assert job["train"]["schedule"] == {"kind": "cosine", "warmup": "3%"}
    assert "activation_checkpointing" not in job["train"]


@pytest.mark.parametrize(("keys", "asks"), [({}, True), ({"warmup_ratio": 0.1}, False), ({"warmup_steps": 0}, False)])
def test_the_cap_of_its_own_warmup_is_left_to_do(keys, asks):
    """It takes 3 % of the steps, but at most 100."""
    assert any("at most 100" in to_do.text for to_do in read({**SFT, **keys}).draft.to_do) == asks


def test_its_defaults_are_not_those_of_the_trainer():
    keys = {name: SFT[name] for name in ("base_model", "datasets", "learning_rate")}
    job = draft({**keys, "val_set_size": 0.1})
    assert job["batch"]["global"] == 8  # 1 per GPU
    assert job["model"]["context"] == 512
    assert job["eval"] == {"samples": "10%", "every": "1 epoch"}


def test_adapters_and_their_targets():
    assert draft(LORA)["model"]["lora"] == {"rank": 16, "alpha": 32, "dropout": 0.0}
    named = {**LORA, "lora_target_linear": None, "lora_target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.1}
    assert draft(named)["model"]["lora"]["targets"] == ["q_proj", "v_proj"]
    assert draft({**LORA, "adapter": "qlora", "load_in_4bit": True})["model"]["frozen"] == "nf4"
    assert draft({**LORA, "peft_use_rslora": True})["model"]["lora"]["alpha"] == 128


@pytest.mark.parametrize(
    ("keys", "objective"),
    [
        ({}, {"kind": "dpo", "beta": 0.1}),
        ({"rl_beta": 0.3, "dpo_label_smoothing": 0.2}, {"kind": "dpo", "beta": 0.3, "label_smoothing": 0.2}),
        ({"dpo_beta": 0.4}, {"kind": "dpo", "beta": 0.4}),
        ({"rl_beta": 0.3, "trl": {"beta": 0.7}}, {"kind": "dpo", "beta": 0.7}),
        ({"dpo_loss_type": ["ipo"]}, {"kind": "ipo", "beta": 0.1, "log_probs": "mean"}),
        ({"rl": "ipo"}, {"kind": "ipo", "beta": 0.1, "log_probs": "mean"}),
        ({"precompute_ref_log_probs": True}, {"kind": "dpo", "beta": 0.1, "reference": "cached"}),
        (
            {"rl": "simpo", "rl_beta": 2.0, "simpo_gamma": 1.0, "cpo_alpha": 0},
            {"kind": "simpo", "beta": 2.0, "gamma_beta_ratio": 0.5},
        ),
    ],
)
def test_preference_losses(keys, objective):
    job = draft({**DPO, **keys})
    assert job["objective"] == objective
    assert job["data"]["kind"] == "pairs"


def test_kto():
    keys = {**KTO, "kto_desirable_weight": 2.0, "kto_undesirable_weight": 0}
    assert draft(keys)["objective"] == {
        "kind": "kto", "beta": 0.1, "desirable_weight": 2.0, "undesirable_weight": 1.0
    }  # fmt: skip
    assert "axolotl pairs completions within micro-batches" in traps(KTO)["depends on the split"]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"reward_model": True}, "planner trains no reward models"),
        ({"rl": "orpo"}, "over a micro-batch's"),
        ({"rl": "ebft"}, "no objective for ebft"),
        ({"rl": "simpo", "simpo_gamma": 0.5}, "with cpo_alpha, which is 1 by default"),
        ({"rl": "dpo", "dpo_loss_type": ["hinge"]}, "no objective for dpo_loss_type"),
        ({"neftune_noise_alpha": 5}, "with neftune_noise_alpha"),
        ({"unfrozen_parameters": ["lm_head"]}, "with unfrozen_parameters"),
    ],
)
def test_what_planner_has_not_is_named_and_its_batch_is_known(keys, why):
    recipe = read({**SFT, **keys})
    assert recipe.global_batch == 64
    assert recipe.draft.job["objective"] == "own"
    assert why in recipe.draft.to_do[0].text
    assert batches({**SFT, **keys}, [4]) == [32]


def test_packing_makes_packed_rows():
    keys = {**SFT, "sample_packing": True, "attn_implementation": "flash_attention_2"}
    assert draft(keys)["data"]["packing"] is True
    assert draft(keys)["model"]["attention"] == "flash_attention_2"
    assert read(keys).unit == "packed row"
    assert "first-fit" in told(keys)
    assert "repeated rows" in traps(SFT)
    assert "repeated rows" not in traps(keys)  # its sampler drops the last packs


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [8, 16, 32]),
        ({"micro_batch_size": "3", "gradient_accumulation_steps": 2.0}, [6, 12, 24]),
        ({"gradient_accumulation_steps": None, "batch_size": 7}, [6, 12, 24]),
        ({"accelerator_config": {"split_batches": True}}, [8, 8, None]),
        ({"rl": "dpo", "auto_find_batch_size": True}, [8, 16, 32]),
    ],
)
def test_the_batch_at_1_2_and_4_gpus(keys, expected):
    assert batches({**SFT, **keys}, [1, 2, 4], replace_gpus(2)) == expected


def replace_gpus(gpus):
    return RecipeOptions(gpus=gpus, is_for_job=False, needs_micro=False)


@pytest.mark.parametrize(
    ("keys", "gpus", "batch"),
    [
        ({"tensor_parallel_size": 2}, 2, 8),
        ({"sequence_parallel_degree": 4, "flash_attention": True}, 4, 8),
        ({"dp_replicate_size": 2}, 2, 16),
        ({"dp_replicate_size": 2, "context_parallel_size": 1, "sequence_parallel_degree": 4}, 2, 16),
        ({"dp_shard_size": 4, "tensor_parallel_size": 2, "fsdp_config": {"offload_params": False}}, 8, 32),
        ({"use_ray": True, "ray_num_workers": 4}, 4, 32),
    ],
)
def test_a_recipe_that_says_its_gpu_count(keys, gpus, batch):
    recipe = read({**SFT, **keys}, options=UNSAID)
    assert (recipe.gpus, recipe.global_batch) == (gpus, batch)
    assert [recipe.foreign.outcome(count).batch for count in (gpus - 1, gpus)] == [None, batch]
    with pytest.raises(RecipeError, match=f"says num_processes {gpus}"):
        read({**SFT, **keys}, options=replace_gpus(gpus + 1))


def test_what_axolotl_does_silently_is_a_trap():
    assert "the run ends after 2/16 of them" in traps(
        {**{key: its for key, its in SFT.items() if key != "gradient_accumulation_steps"}, "batch_size": 16}
    )["batch_size"]  # fmt: skip
    keys = {**SFT, "ddp": False, "per_device_train_batch_size": 8, "beta": 0.5, "evals_per_epoch": 1}
    found = traps({**keys, "val_set_size": 0.1})
    assert "axolotl does not know per_device_train_batch_size, beta" in found["ignored keys"]
    assert {"ddp", "evals_per_epoch", "seed"} <= found.keys()
    assert {"ddp", "evals_per_epoch", "seed", "ignored keys"}.isdisjoint(traps({**SFT, "seed": 1}))
    assert "means of micro-batches" in traps(SFT)["depends on the split"]


def test_rows_to_evaluate_are_held_out():
    keys = {**SFT, "val_set_size": 0.05, "evals_per_epoch": 4, "num_epochs": 2}
    assert draft(keys)["eval"] == {"samples": "5%", "every": "12.5%"}
    assert draft({**SFT, "val_set_size": 100, "eval_steps": 50})["eval"] == {"samples": 100, "every": "50 steps"}
    assert "eval" not in draft({**SFT, "evals_per_epoch": 4})


CHAT_ROW = json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})
EVALUATED = {**SFT, "evals_per_epoch": 2}


def evaluated(dataset, **keys):
    """`eval.data` of a recipe that evaluates a data set."""
    return draft({**EVALUATED, "test_datasets": [dataset], **keys})["eval"].get("data")


def test_rows_to_evaluate_are_the_test_split_of_a_set_and_all_rows_of_a_file():
    """axolotl takes `test` where the recipe names no split (utils/data/sft.py)."""
    for rows in ("rows.jsonl", "fold/test.jsonl"):
        Path(rows).parent.mkdir(exist_ok=True)
        Path(rows).write_text(CHAT_ROW + "\n")
    form = {"type": "chat_template"}
    assert evaluated({"path": "org/set", **form}) == {"path": "org/set", "split": "test"}
    assert evaluated({"path": "org/set", "split": "held", **form}) == {"path": "org/set", "split": "held"}
    assert evaluated({"path": "fold", **form}) == {"path": "fold", "split": "test"}
    assert evaluated({"path": "rows.jsonl", **form}) == {"path": "rows.jsonl"}
    missing = {**EVALUATED, "test_datasets": [{"path": "elsewhere.jsonl", **form}]}
    assert "The recipe evaluates elsewhere.jsonl (train), which planner does not find" in told(missing)
    files = {"path": "org/set", "data_files": ["x.jsonl"], **form}
    assert "data_files have train alone" in told({**EVALUATED, "test_datasets": [files]})
    assert "train alone" not in told({**EVALUATED, "test_datasets": [{**files, "split": "train"}]})
    pairs = {**DPO, "evals_per_epoch": 2, "test_datasets": [{"path": "org/set", "type": "chatml.ultra"}]}
    assert "eval.data org/set: without split, axolotl evaluates all splits of a data set in rl dpo" in told(pairs)
    pairs["test_datasets"][0]["split"] = "test"
    assert "all splits" not in told(pairs)


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        ({"field_messages": "conversations"}, 'chat_template with field_messages "conversations"'),
        ({"shards": 10, "shards_idx": 3}, "with shards 10 (a whole number), shards_idx 3 (a"),
        ({"type": "alpaca"}, "type alpaca"),
        ({"message_field_training_detail": "d"}, 'with message_field_training_detail "d"'),
        ({"split_thinking": True}, "with split_thinking true"),
        (
            {"template_thinking_key": "t", "field_thinking": "f"},
            'with field_thinking "f" (text), template_thinking_key "t"',
        ),
        ({"chat_template_jinja": "x"}, 'with chat_template_jinja "x"'),
        ({"field_tools": "t", "data_dir": "d"}, "axolotl ignores field_tools, data_dir of a data set"),
        ({"split_thinking": False, "drop_system_message": False, "trust_remote_code": True}, ""),
    ],
)
def test_each_key_that_decides_the_rows_or_the_loss_is_said_of_both(dataset, says):
    """Of the data sets to train on, and of those to evaluate."""
    dataset = {"path": "org/rows", "type": "chat_template", **dataset}
    for keys, place in (({"datasets": [dataset]}, "data.path"), ({"test_datasets": [dataset]}, "eval.data")):
        text = told({**EVALUATED, **keys})
        assert (says in text) if says else f"{place} org/rows" not in text
        assert not says or f"{place} org/rows: axolotl" in text
    assert "eval.data" not in told({**SFT, "test_datasets": [dataset]})  # it evaluates nothing


def test_swapped_columns_of_pairs_to_evaluate_are_said():
    rows = {"path": "org/p", "split": "test", "type": "chat_template.default", "field_chosen": "rejected", "shards": 2}
    text = told({**DPO, "evals_per_epoch": 2, "test_datasets": [rows]})
    assert (
        'eval.data org/p: axolotl reads type chat_template.default with field_chosen "rejected" (text). Write' in text
    )
    assert "eval.data org/p: axolotl drops shards of a data set in rl dpo" in text
    assert "drops roles" not in told(
        {**DPO, "evals_per_epoch": 2, "test_datasets": [{**rows, "roles": {"user": ["human"]}}]}
    )


def test_files_beside_a_folder_are_paths_of_their_own():
    """axolotl hands them to the loader of their form, which looks in the working folder (utils/data/shared.py)."""
    Path("data/fold").mkdir(parents=True)
    for name in ("a", "b"):
        Path(f"data/fold/{name}.jsonl").write_text(CHAT_ROW + "\n")
    dataset = {"path": "data/fold", "type": "chat_template", "data_files": ["data/fold/a.jsonl", "data/fold/b.jsonl"]}
    paths = [each["path"] for each in draft({**SFT, "datasets": [dataset]})["data"]["mixture"]]
    assert paths == dataset["data_files"]
    one = {**dataset, "data_files": "data/fold/a.jsonl"}
    assert draft({**SFT, "datasets": [one]})["data"]["path"] == "data/fold/a.jsonl"
    part = read({**SFT, "datasets": [{**one, "split": "train[:10%]"}]}).draft.to_do
    commands = " ".join(command for each in part for command in each.commands)
    assert "load_dataset('json', data_files='data/fold/a.jsonl', split='train[:10%]')" in commands
    hub = read({**SFT, "datasets": [{**one, "path": "org/rows"}]}).draft.to_do
    assert any("load_dataset('org/rows', data_files=" in command for each in hub for command in each.commands)


def test_trackers():
    keys = {"wandb_project": "mine", "wandb_entity": "us", "use_mlflow": True, "mlflow_experiment_name": "e"}
    assert draft({**SFT, **keys})["tracking"] == [
        {"kind": "wandb", "project": "mine", "entity": "us"}, {"kind": "mlflow", "experiment": "e"}
    ]  # fmt: skip
    assert "tracking" not in draft({**SFT, "wandb_project": None})


def test_every_written_key_is_told_of():
    keys = {
        **LORA, "sample_packing": True, "eval_sample_packing": False, "saves_per_epoch": 2, "tf32": True, "fsdp": None,
        "special_tokens": {"pad_token": "<pad>"}, "chat_template": "chatml", "flash_attention": True, "typo_of": 1,
        "dataset_prepared_path": "p", "wandb_watch": "all", "trl": {"use_vllm": True}, "seed": 7, "warmup_ratio": 0.1,
    }  # fmt: skip
    made = read(keys).draft
    dropped = {note.key: note.text for note in made.dropped}
    said = f"{dropped} {made.carried} {made.derived} {made.to_do}"
    # A note on data, model.lora or batch.global tells of these.
    derived = {"datasets", "adapter", "lora_r", "lora_alpha", "lora_target_linear"}
    derived |= {"micro_batch_size", "gradient_accumulation_steps"}
    assert {key for key in keys if key not in said and keys[key] is not None} == derived
    assert dropped["typo_of"].startswith("axolotl ignores it")
    assert "datasets" not in dropped
    assert dropped["special_tokens.pad_token"] == dropped["chat_template"] == "see to do"


def test_what_a_data_set_loses_in_preferences_is_said():
    sets = [{"path": "org/rows", "type": "chat_template.default", "name": "en", "field_messages": "turns"}]
    assert "axolotl drops name of a data set in rl dpo" in told({**DPO, "datasets": sets})
    assert 'with field_messages "turns"' in told({**SFT, "datasets": sets})
    text = told({**KTO, "datasets": [{"path": "org/rows", "type": "x", "field_messages": "m", "shards": 2}]})
    assert "drops field_messages, shards of a data set in rl kto" in text


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"learning_rate": None}, "learning_rate: found nothing"),
        ({"micro_batch_size": 2.5}, r"micro_batch_size: found 2\.5"),
        ({"micro_batch_size": None}, "micro_batch_size: found null"),
        ({"micro_batch_size": 0}, "micro_batch_size: found 0"),
        ({"batch_size": 16}, "batch_size: axolotl refuses it beside gradient_accumulation_steps"),
        ({"gradient_accumulation_steps": 0, "batch_size": 1}, "gradient_accumulation_steps: found 0"),
        ({"gradient_accumulation_steps": None}, "gradient_accumulation_steps: found null"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size: found true.*micro_batch_size"),
        ({"dp_shard_size": 2}, "dp_shard_size: .*axolotl refuses.*no fsdp_config"),
        ({"context_parallel_size": 2}, "needs attn_implementation flash_attention_2"),
        ({"rl": ["dpo"]}, "rl: found a list of 1.*write a text"),
        ({"micro_batch_size": {"a": 1}}, "micro_batch_size: found keys below it"),
        ({"rl": "ppo"}, "rl: .*axolotl refuses"),
        ({"rl": "dpo", "sample_packing": True}, "rl: axolotl refuses it beside sample_packing"),
        ({"rl": "kto"}, "remove_unused_columns: .*axolotl refuses"),
        ({"load_in_4bit": True}, "load_in_4bit: axolotl refuses"),
        ({"adapter": "qlora", "lora_r": 8}, "qlora needs load_in_4bit true"),
        ({"warmup_steps": 0.1}, "warmup_steps: .*axolotl refuses"),
        ({"tokens": {"a": "b"}}, "tokens: found keys below it, which axolotl does not take. Write a list"),
        ({"fsdp": {"a": 1}}, "fsdp: found keys below it, which axolotl does not take. Write a list"),
        ({"tokens": "b"}, "tokens: .*axolotl refuses it: write a list"),
        ({"early_stopping_patience": {"a": 1}}, "early_stopping_patience: found keys below it, which axolotl"),
        ({"early_stopping_patience": {}}, "early_stopping_patience: found an empty section. axolotl refuses it"),
        ({"rope_scaling": {"a": 1}}, "rope_scaling.a: found 1 .*axolotl removed it"),
        ({"rpo_alpha": 0.0}, "rpo_alpha: found 0.0 .*axolotl removed it"),
        ({"datasets": [{"path": "x", "type": "sharegpt"}]}, "sharegpt was replaced"),
        ({"datasets": [1]}, "datasets: .*no list of sections"),
        ({"pretraining_dataset": "org/x", "max_steps": 3}, "pretraining_dataset: .*no list of sections"),
        ({"use_ray": None}, "use_ray: .*it is null"),
        ({"qat": {"group_size": 2}, **LORA, "load_in_8bit": True}, "load_in_8bit: axolotl refuses it beside qat"),
        ({"fsdp_version": 2, **LORA, "rl": "dpo", "load_in_8bit": True}, "fsdp_version: .*no quantized weights"),
        (
            {"context_parallel_size": 2, "use_glm_dsa_kernels": True},
            "needs attn_implementation flash_attention_2",
        ),
        ({"streaming": True}, "streaming: axolotl refuses it without max_steps"),
        ({"rl": "grpo", "trl": {"num_generations": 3}}, "8 completions .* no whole groups of 3"),
    ],
)
def test_what_axolotl_refuses_is_refused(keys, message):
    with pytest.raises(RecipeError, match=message):
        read({**SFT, **keys}, options=CHECK)


def test_what_axolotl_takes_is_not_refused():
    """QAT beside adapters, truths as numbers, and the DSA kernels' own context parallelism."""
    assert batches({**LORA, "qat": {"group_size": 2}, "group_by_length": 0}, [1]) == [8]
    assert batches({**SFT, "kd_word": {"a": 1}, "generation_kwargs": {}}, [1]) == [8]  # no keys of its schema
    kernels = {"use_glm_dsa_kernels": True, "plugins": ["axolotl.integrations.kernels.KernelsPlugin"]}
    assert batches({**SFT, **kernels, "context_parallel_size": 2}, [1, 2], UNSAID) == [None, 8]


def test_counts_that_axolotl_refuses():
    groups = {**SFT, "rl": "grpo", "trl": {"num_generations": 4}}
    assert batches(groups, [1, 2, 3], replace_gpus(1)) == [8, 16, None]
    kernels = {**LORA, "lora_qkv_kernel": True, "fsdp_config": {"offload_params": False}}
    assert batches(kernels, [1, 2], replace_gpus(1)) == [8, None]
    packed = {**SFT, "sample_packing": True, "flash_attention": True, "accelerator_config": {"split_batches": True}}
    assert batches(packed, [1, 2], replace_gpus(1)) == [8, None]


@pytest.mark.parametrize(
    ("command", "gpus", "batch"),
    [
        ("axolotl train recipe.yaml --num-processes 4", 4, 32),
        ("axolotl train recipe.yaml --micro-batch-size 4 --num_processes=2 --no-sample-packing", 2, 32),
        ("axolotl train recipe.yaml --gradient-accumulation-steps=1 -- --num_processes 4", 4, 8),
        ("axolotl train recipe.yaml --launcher torchrun -- --nproc_per_node=4 --nnodes 2", 8, 64),
        ("CUDA_VISIBLE_DEVICES=0,1 axolotl train recipe.yaml", 2, 16),
        ("accelerate launch --num_processes 8 -m axolotl.cli.train recipe.yaml --micro_batch_size 1", 8, 32),
        ("torchrun --nproc_per_node 4 -m axolotl.cli.train --config=recipe.yaml --micro-batch-size=1", 4, 16),
        ("python -m axolotl.cli.train recipe.yaml", 1, 8),
        ("axolotl train recipe.yaml --launcher python", 1, 8),
    ],
)
def test_a_command_says_the_gpu_count(command, gpus, batch):
    Path("recipe.yaml").write_text(json.dumps(SFT))
    recipe = read_recipe(command, (), UNSAID)
    assert (recipe.system, recipe.gpus, recipe.global_batch) == ("axolotl", gpus, batch)


@pytest.mark.parametrize(
    "options",
    [
        "--debug --debug-num-examples 3 --prompter x --no-shard",
        "--wandb-watch all --no-comet-online --no-ddp --trl.use-vllm --no-eval-sample-packing",
        "--mixed-precision bf16 --fp8-backend te --multi_gpu",
    ],
)
def test_options_that_axolotl_or_the_launcher_knows_are_taken(options):
    Path("recipe.yaml").write_text(json.dumps(SFT))
    recipe = read_recipe(f"axolotl train recipe.yaml {options} --num-processes 4", (), UNSAID)
    assert (recipe.gpus, recipe.global_batch) == (4, 32)
    assert ("ddp" in {trap.name for trap in recipe.traps(CheckOptions(counts=[4]))}) == ("--no-ddp" in options)


def test_a_launcher_takes_options_that_another_refuses():
    """torchrun takes the beginning of a name, too. One Python process drops all that axolotl does not know."""
    Path("recipe.yaml").write_text(json.dumps(SFT))
    command = "axolotl train recipe.yaml --launcher torchrun --nnode 1 --rdzv-endpoint h:1 -- --nproc_per_node 4"
    assert read_recipe(command, (), UNSAID).gpus == 4
    assert read_recipe("axolotl train recipe.yaml --no-accelerate --launcher python", (), UNSAID).gpus == 1


@pytest.mark.parametrize(("keys", "batch"), [({"use_ray": True, "ray_num_workers": 2}, None), ({}, 8)])
def test_a_limit_of_processes_is_of_those_that_start(keys, batch):
    """Two workers of Ray have it at each count. One process of Python has it at none."""
    keys = {**LORA, "lora_qkv_kernel": True, "fsdp_config": {"offload_params": False}, **keys}
    Path("recipe.yaml").write_text(json.dumps(keys))
    foreign = read_recipe(
        "recipe.yaml" if batch is None else "python -m axolotl.cli.train recipe.yaml", (), UNSAID
    ).foreign
    assert [foreign.outcome(count).batch for count in (1, 2, 4)] == [batch] * 3


def test_arguments_that_a_strict_file_lacks_are_dropped_with_their_values():
    Path("recipe.yaml").write_text(json.dumps({**SFT, "strict": True}))
    command = "axolotl train recipe.yaml --rl dpo --micro-batch-size 4 --num-processes 2"
    assert read_recipe(command, (), UNSAID).global_batch == 32


def test_one_python_process_spreads_the_model_over_all_gpus():
    Path("recipe.yaml").write_text(json.dumps(SFT))
    recipe = read_recipe("python -m axolotl.cli.train recipe.yaml", (), UNSAID)
    assert [recipe.foreign.outcome(count).batch for count in (1, 8)] == [8, 8]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("axolotl train --num-processes 4 recipe.yaml", "axolotl: found --num-processes"),
        (
            "axolotl train recipe.yaml --micro_batch_size=4",
            "--micro_batch_size: axolotl train hands it to the launcher",
        ),
        ("axolotl train recipe.yaml --sample-packing false", "takes it without a value"),
        ("axolotl train recipe.yaml --sweep s.yaml", "--sweep: planner reads one run"),
        (
            "axolotl train recipe.yaml --no-accelerate -- --num_processes 4",
            "--no-accelerate: axolotl train does not know it, and hands it to accelerate.* Write --launcher python",
        ),
        ("axolotl train recipe.yaml --colour red --num-processes 4", "--colour: .*hands it to accelerate.* Remove it"),
        (
            "axolotl train recipe.yaml --num-processes 4 --launcher torchrun -- --nproc_per_node 4",
            "--num-processes: .*hands it to torchrun",
        ),
    ],
)
def test_a_command_that_axolotl_does_not_take(command, message):
    Path("recipe.yaml").write_text(json.dumps(SFT))
    with pytest.raises(RecipeError, match=message):
        read_recipe(command, (), CHECK)


def test_strict_recipes_ignore_keys_that_they_do_not_have():
    command = "accelerate launch --num_processes 4 -m axolotl.cli.train recipe.yaml --batch_size=3 --micro_batch_size=1"
    Path("recipe.yaml").write_text(json.dumps({**SFT, "strict": True}))
    assert read_recipe(command, (), UNSAID).global_batch == 16


@pytest.mark.parametrize("command", ["axolotl preprocess recipe.yaml", "axolotl inference recipe.yaml"])
def test_other_commands_train_nothing(command):
    Path("recipe.yaml").write_text(json.dumps(SFT))
    with pytest.raises(RecipeError, match="no training command"):
        read_recipe(command, (), CHECK)


def test_a_file_needs_two_of_its_keys():
    assert read(SFT).system == "axolotl"
    with pytest.raises(RecipeError, match="no recipe that planner knows"):
        read({"base_model": "m", "merge_method": "linear"})


@pytest.mark.parametrize("value", ["1e1", "x", "2.5", True, [2], {}])
def test_a_size_of_another_type_is_refused(value):
    with pytest.raises(RecipeError, match="micro_batch_size: found"):
        read({**SFT, "micro_batch_size": value}, options=CHECK)


def as_yaml(**values):
    """The recipe SFT with these values as YAML has them."""
    lines = [f"{name}: {json.dumps(its)}" for name, its in SFT.items() if name not in values]
    Path("recipe.yaml").write_text("\n".join([*lines, *(f"{name}: {its}" for name, its in values.items())]))


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("gradient_accumulation_steps", "1e1", "Write 10"),
        ("micro_batch_size", "1e0", "Write 1"),
        ("max_steps", "1e3", "Write 1000"),
        ("max_steps", "1.0e3", "Write 1000"),
        ("max_steps", "5e-1", "Write a whole number"),
        ("sequence_len", "4e3", "Write 4000"),
        ("lora_alpha", "1e1", "Write 10"),
    ],
)
def test_a_number_that_is_a_text_for_pyyaml_is_no_whole_number(name, value, fix):
    """`1e1` has no dot, and `1.0e3` no sign. pydantic makes a number of such a text, but no whole one."""
    as_yaml(**{name: value})
    with pytest.raises(RecipeError, match=f"{name}: found {value}, which is a text in YAML.*{fix}"):
        read_recipe("recipe.yaml", (), CHECK)
    with pytest.raises(RecipeError, match=f"{name}: found {value}"):
        read_recipe("axolotl train recipe.yaml --num-processes 2", (), UNSAID)
    assert read_recipe("recipe.yaml", (f"{name}=1",), CHECK).system == "axolotl"
    as_yaml(**{name: f'"{value}"'})
    with pytest.raises(RecipeError, match=f"{name}: found"):
        read_recipe("recipe.yaml", (), CHECK)


@pytest.mark.parametrize("value", ["2", "2.0", "2.", "2.0e+0", "02", '"2"', "+2", "0x2"])
def test_other_ways_to_write_a_whole_number_stay(value):
    as_yaml(micro_batch_size=value, max_steps=value, learning_rate="1e-5", num_epochs="1e0", weight_decay="1e-2")
    recipe = read_recipe("recipe.yaml", (), RecipeOptions(gpus=8))
    assert recipe.global_batch == 64
    assert recipe.draft.job["train"]["optimizer"] == {"kind": "adamw", "lr": 1e-5, "weight_decay": 0.01}
    assert recipe.draft.job["train"]["steps"] == 2


def test_a_mistyped_key_is_a_trap_and_a_note_with_the_key_that_it_resembles():
    """axolotl takes the default of the key that is meant, so the batch is another one than its author thinks."""
    keys = {name: value for name, value in SFT.items() if name != "micro_batch_size"} | {"micro_batchsize": 2}
    text = traps(keys)["ignored keys"]
    assert text.endswith("Did you mean micro_batch_size for micro_batchsize?")
    assert {note.key: note.text for note in read(keys).draft.dropped}["micro_batchsize"].endswith(
        "Did you mean micro_batch_size?"
    )
    assert "Did you mean" not in traps({**SFT, "colour": 1})["ignored keys"]


def test_a_mistyped_option_is_refused_with_the_option_that_it_resembles():
    """axolotl train hands it to the launcher, and the batch would be another one."""
    Path("recipe.yaml").write_text(json.dumps(SFT))
    command = "axolotl train recipe.yaml --micro-batchsize 4 --launcher torchrun -- --nproc_per_node 8"
    with pytest.raises(RecipeError, match=r"--micro-batchsize: .* Did you mean --micro-batch-size[?]"):
        read_recipe(command, (), CHECK)
    known = "axolotl train recipe.yaml --fsdp_state_dict_type X --num-processes 8 --mixed_precision bf16"
    assert read_recipe(known, (), UNSAID).gpus == 8


@pytest.mark.parametrize("recipe", ["twice.yaml", "axolotl train twice.yaml"])
def test_a_key_twice_counts_as_the_last_one(recipe):
    text = "base_model: m\nmicro_batch_size: 2\ndatasets: [{path: org/a, type: chat_template}]\n"
    Path("twice.yaml").write_text(f"{text}learning_rate: 1e-5\nsequence_len: 9\nmicro_batch_size: 4\n")
    found = read_recipe(recipe, (), CHECK)
    assert found.global_batch == 4 * 8
    assert found.repeats == ("micro_batch_size: twice, on lines 2 and 6. The last one counts (4)",)

"""torchtune's configurations and commands: the job that convert makes of one, its verdicts, and what is refused."""

import json
from pathlib import Path

import pytest

from planner.errors import NoExactSplit, RecipeError
from planner.recipes import CheckOptions, RecipeOptions, job_of, read_recipe, rewrite
from planner.recipes.torchtune.keys import RECIPES, RULES, UNREAD
from planner.recipes.torchtune.read import _keys

SFT = {
    "output_dir": "/tmp/run",
    "model": {"_component_": "torchtune.models.qwen2.qwen2_0_5b"},
    "tokenizer": {"_component_": "torchtune.models.qwen2.qwen2_tokenizer", "path": "m/vocab.json", "max_seq_len": 512},
    "checkpointer": {"_component_": "torchtune.training.FullModelHFCheckpointer", "checkpoint_dir": "/models/m"},
    "resume_from_checkpoint": False,
    "dataset": {"_component_": "torchtune.datasets.instruct_dataset", "source": "org/rows", "packed": False},
    "seed": 7,
    "shuffle": True,
    "batch_size": 2,
    "optimizer": {"_component_": "torch.optim.AdamW", "lr": 2e-5, "fused": True},
    "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
    "epochs": 3,
    "max_steps_per_epoch": None,
    "gradient_accumulation_steps": 4,
    "compile": False,
    "metric_logger": {"_component_": "torchtune.training.metric_logging.DiskLogger", "log_dir": "${output_dir}/logs"},
    "device": "cuda",
    "dtype": "bf16",
}
LORA_KEYS = {
    "_component_": "torchtune.models.qwen2.lora_qwen2_0_5b",
    "lora_attn_modules": ["q_proj", "output_proj"],
    "apply_lora_to_mlp": True,
    "lora_rank": 4,
    "lora_alpha": 8,
}
COSINE = {
    "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
    "num_warmup_steps": 10,
}
LORA = {**SFT, "model": LORA_KEYS, "lr_scheduler": COSINE}
PAIRS = {"_component_": "torchtune.datasets.preference_dataset", "source": "org/pairs"}
DPO_LOSS = {"_component_": "torchtune.rlhf.loss.DPOLoss", "beta": 0.2, "label_smoothing": 0.1}
DPO = {**LORA, "loss": DPO_LOSS, "dataset": PAIRS, "enable_activation_checkpointing": True}
KD = {
    **LORA,
    "teacher_model": {"_component_": "torchtune.models.qwen2.qwen2_1_5b"},
    "teacher_checkpointer": {"_component_": "torchtune.training.FullModelHFCheckpointer"},
    "kd_loss": {"_component_": "torchtune.modules.loss.ForwardKLWithChunkedOutputLoss"},
    "enable_activation_checkpointing": True,
}
QAT = {**SFT, "quantizer": {"_component_": "torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer"}}
PPO = {
    **{name: its for name, its in SFT.items() if name not in {"model", "epochs", "max_steps_per_epoch"}},
    "policy_model": {"_component_": "torchtune.models.qwen2.qwen2_0_5b"},
    "loss": {"_component_": "torchtune.rlhf.loss.PPOLoss"},
    "batch_size": 32,
    "ppo_batch_size": 16,
    "ppo_epochs": 2,
    "forward_batch_size": 8,
    "num_steps": 100,
    "optimizer_in_bwd": False,
    "enable_activation_checkpointing": True,
}
FULL, LORA_NAME = "full_finetune_distributed", "lora_finetune_distributed"
CHECK = RecipeOptions(is_for_job=False, needs_micro=False)
EIGHT = RecipeOptions(gpus=8, is_for_job=False, needs_micro=False)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def read(keys, *arguments, recipe=FULL, launch="--nproc_per_node 8", options=None):
    """The recipe of a command with these keys in its file."""
    Path("my.yaml").write_text(json.dumps(keys))
    words = ["tune run", launch, recipe, "--config my.yaml", *arguments]
    return read_recipe(" ".join(filter(None, words)), (), options or RecipeOptions())


def draft(keys, *arguments, recipe=FULL, launch="--nproc_per_node 8"):
    """The job of a recipe as nested values, parsed as a job, too."""
    found = read(keys, *arguments, recipe=recipe, launch=launch)
    job_of(found)
    return found.draft


def job(keys, *arguments, **command):
    return draft(keys, *arguments, **command).job


def to_do(keys, *arguments, **command):
    return " | ".join(each.text for each in draft(keys, *arguments, **command).to_do)


def refused(keys, *arguments, says, **command):
    with pytest.raises(RecipeError, match=says):
        read(keys, *arguments, **command)


def verdict(keys, *arguments, count=8, **command):
    """The batch at a count, or the error."""
    found = read(keys, *arguments, options=CHECK, **command).foreign.outcome(count)
    return found.text if found.verdict == "error" else found.batch


def traps(keys, *arguments, rows=None, **command):
    found = read(keys, *arguments, options=CHECK, **command)
    return {trap.name: trap.text for trap in found.traps(CheckOptions(counts=[1, 8], rows=rows))}


# -- the job


def test_a_full_sft_becomes_a_job():
    made = job(SFT)
    assert made["name"] == "run"
    assert made["model"] == {"kind": "hf", "path": "/models/m", "context": 512}
    assert made["data"] == {"kind": "chat", "path": "org/rows", "split": "train", "loss_on": "completions"}
    assert made["objective"] == {"kind": "sft"}
    assert made["batch"] == {"global": 64, "max_micro": 2}
    train = made["train"]
    # torch's AdamW decays weights unless it is told not to, and torchtune clips nothing.
    assert train["optimizer"] == {"kind": "adamw", "lr": 2e-5, "weight_decay": 0.01}
    assert (train["epochs"], train["seed"], train["clip_norm"], train["precision"]) == (3, 7, None, "bf16")
    assert train["schedule"] == {"kind": "constant"}
    assert "tracking" not in made


def test_adapters_are_named_as_transformers_names_the_layers():
    layers = ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    lora = {"rank": 4, "alpha": 8.0, "dropout": 0.0, "targets": layers}
    assert job(LORA, recipe=LORA_NAME)["model"]["lora"] == lora
    head = job(LORA, "model.apply_lora_to_output=True", "model.apply_lora_to_mlp=False", recipe=LORA_NAME)
    assert head["model"]["lora"]["targets"] == ["q_proj", "o_proj", "lm_head"]
    assert "frozen" not in head["model"]
    phi = job(LORA, "model=torchtune.models.phi3.lora_phi3_mini", recipe=LORA_NAME)["model"]["lora"]
    assert phi["targets"] == ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]


@pytest.mark.parametrize("override", ["model=torchtune.models.qwen2.qlora_qwen2_0_5b", "model.quantize_base=True"])
def test_qlora_freezes_four_bit_weights(override):
    """They are not compiled."""
    made = draft(LORA, override, "compile=True", recipe=LORA_NAME)
    assert made.job["model"]["frozen"] == "nf4"
    assert "compile" not in made.job["train"]
    assert "compile" in {note.key for note in made.dropped}


def test_dora_is_refused_for_a_job_alone():
    refused(LORA, "model.use_dora=True", recipe=LORA_NAME, says="model.use_dora: found true.*only plain low-rank")
    assert verdict(LORA, "model.use_dora=True", recipe=LORA_NAME) == 64


def test_dpo_becomes_a_job_of_pairs():
    made = job(DPO, recipe="lora_dpo_distributed")
    assert made["objective"] == {"kind": "dpo", "beta": 0.2, "label_smoothing": 0.1}
    assert made["data"]["kind"] == "pairs"
    assert made["train"]["schedule"] == {"kind": "cosine", "warmup": "10 steps"}
    assert made["train"]["activation_checkpointing"] is True


@pytest.mark.parametrize(("folder", "reference"), [("/models/m/", None), ("/models/sft", "/models/sft")])
def test_a_full_dpo_has_a_reference_of_its_own_if_its_folder_differs(folder, reference):
    other = {"_component_": "torchtune.training.FullModelHFCheckpointer", "checkpoint_dir": folder}
    full = {**DPO, "model": SFT["model"], "ref_checkpointer": other}
    assert job(full, recipe="full_dpo_distributed")["objective"].get("reference_model") == reference


def test_a_lora_dpo_ignores_clipping_that_other_recipes_do():
    made = draft(DPO, "clip_grad_norm=1.0", recipe="lora_dpo_distributed")
    assert made.job["train"]["clip_norm"] is None
    assert "clip_grad_norm" not in {note.key for note in made.carried}
    assert {note.key: note.text for note in made.dropped}["clip_grad_norm"] == "its recipe does not read it"
    assert job(SFT, "clip_grad_norm=0.5")["train"]["clip_norm"] == 0.5


@pytest.mark.parametrize(
    ("keys", "recipe", "why"),
    [
        (KD, "knowledge_distillation_distributed", "knowledge distillation"),
        (QAT, "qat_distributed", "fake-quantized"),
        ({**DPO, "loss": {"_component_": "torchtune.rlhf.loss.RSOLoss"}}, "lora_dpo_distributed", "RSOLoss"),
        (
            {**LORA, "model": {**LORA_KEYS, "_component_": "torchtune.models.llama3_2_vision.lora_x"}},
            LORA_NAME,
            "image",
        ),
    ],
)
def test_what_planner_has_no_objective_for_is_a_loop_of_ones_own(keys, recipe, why):
    made = draft(keys, recipe=recipe)
    assert made.job["objective"] == "own"
    assert made.job["batch"] == {"global": 64, "max_micro": 2}
    assert why in made.to_do[0].text


def test_ppo_counts_rollouts():
    """100 rollouts are 3 rounds of 32, with 2 steps of 16 in each of 2 passes."""
    found = read(PPO, recipe="ppo_full_finetune_single_device", launch="")
    assert (found.global_batch, found.micro, found.unit, found.gpus) == (16, 4, "rollout", 1)
    assert found.draft.job["train"]["steps"] == 12


def test_the_models_name_is_in_the_comment_that_downloads_it():
    text = json.dumps(SFT).replace("/models/m", "/tmp/m/")
    comment = "# tune download org/model-7B --output-dir /tmp/m --ignore-patterns x\n"
    Path("my.yaml").write_text(comment + text)
    command = f"tune run --nproc_per_node 2 {FULL} --config my.yaml"
    assert read_recipe(command, ()).draft.job["model"]["path"] == "org/model-7B"
    assert "config.json" in to_do(SFT)


@pytest.mark.parametrize(
    ("dataset", "data", "says"),
    [
        (
            {"_component_": "torchtune.datasets.alpaca_dataset"},
            {"path": "tatsu-lab/alpaca", "loss_on": "all"},
            "Alpaca's",
        ),
        (
            {"_component_": "torchtune.datasets.alpaca_cleaned_dataset", "train_on_input": False},
            {"path": "yahma/alpaca-cleaned", "loss_on": "completions"},
            "Alpaca's",
        ),
        (
            {
                "_component_": "torchtune.datasets.chat_dataset",
                "source": "org/turns",
                "conversation_column": "dialog",
                "conversation_style": "openai",
            },
            {"path": "org/turns", "columns": {"messages": "dialog"}, "loss_on": "completions"},
            "",
        ),
        (
            {"_component_": "torchtune.datasets.chat_dataset", "source": "org/t", "conversation_style": "sharegpt"},
            {"path": "org/t"},
            "sharegpt's form",
        ),
        (
            {"_component_": "torchtune.datasets.text_completion_dataset", "source": "org/t", "column": "body"},
            {"path": "org/t", "columns": {"text": "body"}, "loss_on": "all"},
            "",
        ),
        ({"_component_": "mine.rows", "source": "org/t"}, {"path": "data/t/"}, "write org/t into data/t/"),
    ],
)
def test_the_rows_of_each_builder(dataset, data, says):
    keys = {**SFT, "dataset": dataset}
    made = job(keys)["data"]
    assert {name: made.get(name) for name in data} == data
    assert says in to_do(keys)


def test_columns_of_pairs_keep_their_names():
    dataset = {**PAIRS, "column_map": {"chosen": "good", "rejected": "bad"}, "split": "train[:10%]"}
    made = job({**DPO, "dataset": dataset}, recipe="lora_dpo_distributed")["data"]
    assert made["columns"] == {"chosen": "good", "rejected": "bad"}
    assert made["split"] == "train[:10%]"


def test_a_list_of_data_sets_is_a_mixture():
    other = {"_component_": "torchtune.datasets.samsum_dataset"}
    keys = {**SFT, "dataset": [SFT["dataset"], other]}
    assert [each["path"] for each in job(keys)["data"]["mixture"]] == ["org/rows", "Samsung/samsum"]
    refused({**SFT, "dataset": [SFT["dataset"], {**other, "train_on_input": True}]}, says="train_on_input alike")


def test_each_set_of_a_list_keeps_its_columns_and_names_what_changes_its_rows():
    turns = {"_component_": "torchtune.datasets.chat_dataset", "source": "org/turns", "conversation_column": "dialog",
             "conversation_style": "openai", "new_system_prompt": "Be kind."}  # fmt: skip
    other = {**SFT["dataset"], "column_map": {"input": "q"}, "filter_fn": "mine.keep", "revision": "v2"}
    text = {"_component_": "torchtune.datasets.text_completion_dataset", "source": "org/t", "column": "body"}
    made = draft({**SFT, "dataset": [turns, other]})
    assert [each.get("columns") for each in made.job["data"]["mixture"]] == [{"messages": "dialog"}, None]
    said = " | ".join(each.text for each in made.to_do)
    assert "dataset[0].new_system_prompt Be kind. (org/turns): change the rows beforehand" in said
    assert "dataset[1].filter_fn mine.keep (org/rows): change the rows beforehand" in said
    assert "dataset[1].column_map {input: q} (org/rows): change" in said
    assert "dataset[1].revision" in {note.key for note in made.dropped}
    assert job({**SFT, "dataset": [turns]})["data"]["columns"] == {"messages": "dialog"}
    both = [{**text, "column": "a"}, text]
    assert [each["columns"] for each in job({**SFT, "dataset": both})["data"]["mixture"]] == [
        {"text": "a"}, {"text": "body"}
    ]  # fmt: skip


def test_each_set_of_a_list_of_pairs_keeps_its_columns():
    """A loader of files is a set for each file."""
    names = {"chosen": "good", "rejected": "bad"}
    files = {**PAIRS, "source": "json", "data_files": ["a.jsonl", "b.jsonl"], "column_map": names}
    made = draft({**DPO, "dataset": [files, {**PAIRS, "train_on_input": True}]}, recipe="lora_dpo_distributed")
    found = {each["path"]: each.get("columns") for each in made.job["data"]["mixture"]}
    assert found == {"a.jsonl": names, "b.jsonl": names, "org/pairs": None}
    assert "dataset[1].train_on_input" in {note.key for note in made.dropped}
    alone = job({**DPO, "dataset": files}, recipe="lora_dpo_distributed")["data"]["mixture"]
    assert [each["columns"] for each in alone] == [names, names]


def test_a_set_of_the_multi_dataset_recipe_names_its_transform():
    """It takes `name` for its log, so that is no configuration of the set."""
    transform = {"_component_": "torchtune.datasets.multimodal.the_cauldron_transform"}
    sets = [{"source": f"org/{name}", "name": name, "weight": 0.5, "transform": transform} for name in "ab"]
    keys = {name: its for name, its in {**LORA, "datasets": sets, "shuffle": True}.items() if name != "dataset"}
    keys["dataloader"] = {"shuffle": True, "collate_fn": "torchtune.data.padded_collate_sft"}
    made = draft(keys, recipe="dev/lora_finetune_distributed_multi_dataset")
    parts = [{"path": f"org/{name}", "split": "train", "weight": 0.5} for name in "ab"]
    assert made.job["data"]["mixture"] == parts
    text = " | ".join(each.text for each in made.to_do)
    assert all(f"datasets[{at}].transform" in text and f"(org/{name})" in text for at, name in enumerate("ab"))


def test_packed_rows_are_the_unit():
    found = read(SFT, "dataset.packed=True")
    assert found.unit == "packed row"
    assert found.draft.job["data"]["packing"] is True
    assert "packing" in traps(SFT, "dataset.packed=True")


def test_steps_of_each_epoch_add_up():
    made = draft(SFT, "max_steps_per_epoch=50")
    assert made.job["train"]["steps"] == 150
    assert "epochs" not in made.job["train"]
    assert "fewer than 50 steps" in " ".join(each.text for each in made.to_do)


@pytest.mark.parametrize(
    ("component", "optimizer"),
    [
        ("torch.optim.AdamW", {"kind": "adamw", "weight_decay": 0.01}),
        ("torch.optim.Adam", {"kind": "adamw", "weight_decay": 0.0}),
        ("bitsandbytes.optim.PagedAdamW8bit", {"kind": "adamw", "weight_decay": 0.01}),
        ("torch.optim.SGD", {"kind": "sgd", "weight_decay": 0.0}),
    ],
)
def test_an_optimizer_has_its_own_defaults(component, optimizer):
    found = job(SFT, f"optimizer={component}", "~optimizer.fused")["train"]["optimizer"]
    assert found == {**optimizer, "lr": 2e-5}


def test_an_optimizer_that_planner_has_not_is_refused():
    refused(SFT, "optimizer=torch.optim.Adagrad", says="optimizer._component_: .*planner has adamw, rmsprop and sgd")
    refused(SFT, "optimizer=torch.optim.Adam", "optimizer.weight_decay=0.1", says="Adam adds it to the gradient")
    refused(SFT, "optimizer.amsgrad=True", says="adamw has no such setting")


def test_trackers_are_carried():
    logger = {"_component_": "torchtune.training.metric_logging.WandBLogger", "group": "g"}
    tracking = job({**SFT, "metric_logger": logger})["tracking"]
    assert tracking == {"kind": "wandb", "project": "torchtune", "group": "g"}
    logger = {"_component_": "torchtune.training.metric_logging.TensorBoardLogger", "log_dir": "${output_dir}/tb"}
    assert job({**SFT, "metric_logger": logger})["tracking"] == {"kind": "tensorboard", "folder": "/tmp/run/tb"}


def test_what_a_job_cannot_say_is_left_to_the_user():
    told = to_do(SFT, "resume_from_checkpoint=True", "tokenizer.prompt_template=mine.Template")
    assert "resumes an earlier run of torchtune" in told
    assert "prompt_template mine.Template" in told
    assert "resumes" not in to_do(SFT)


def test_a_length_without_a_limit_must_be_written():
    refused(SFT, "tokenizer.max_seq_len=None", says="tokenizer.max_seq_len: found null, which means no limit")
    assert verdict(SFT, "tokenizer.max_seq_len=None") == 64


@pytest.mark.parametrize(
    ("keys", "recipe"),
    [(SFT, FULL), (LORA, LORA_NAME), (DPO, "lora_dpo_distributed"), (KD, "knowledge_distillation_distributed")],
)
def test_no_key_is_silent(keys, recipe):
    """Each is carried, told of in another note, or dropped with a reason. A key that no recipe reads is dropped."""
    more = {"mine": 4, "train_on_input": False, "filter_fn": "f"}
    mine = {**keys, "mine": 3, "dataset": {**keys["dataset"], **more}}
    mine["optimizer"] = {**keys["optimizer"], "mine": 5, "betas": [0.9, 0.95], "eps": 1e-6, "foreach": False}
    if "lora" in recipe:
        mine["model"] = {**keys["model"], "use_dora": False, "quantize_base": False, "apply_lora_to_output": False}
    made = draft(mine, recipe=recipe)
    told = {note.key for note in (*made.carried, *made.dropped)} | made.told
    names = _keys(mine, "my.yaml", (), RecipeOptions()).entries
    assert {name for name, its in names.items() if its.value is not None} <= told
    dropped = {note.key: note.text for note in made.dropped}
    assert dropped["mine"] == "its recipe does not read it"
    assert {"dataset.mine", "optimizer.mine"} <= set(dropped)


# -- verdicts


def test_the_batch_grows_with_the_gpus():
    found = read(SFT, options=CHECK)
    assert (found.global_batch, found.gpus) == (64, 8)
    assert [found.foreign.outcome(count).batch for count in (1, 7, 8)] == [8, 56, 64]
    assert [found.foreign.outcome(count).verdict for count in (7, 8)] == ["other batch", "exact"]


def test_a_recipe_for_one_gpu():
    keys = {**SFT, "optimizer_in_bwd": False}
    single = "full_finetune_single_device"
    assert verdict(keys, recipe=single, launch="", count=1) == 8
    assert verdict(keys, recipe=single, launch="", count=2) == "a recipe for one GPU"
    refused(keys, recipe=single, launch="--nproc_per_node 1", says="refuses options of torchrun")
    refused(
        keys, recipe=single, launch="", options=EIGHT, says="--gpus 8: full_finetune_single_device trains on one GPU"
    )


TENSOR = ("tensor_parallel_dim=2", "optimizer.fused=False", "tensor_parallel_plan._component_=a.plan")


def test_gpus_of_a_tensor_parallel_group_share_their_samples():
    assert [verdict(SFT, *TENSOR, count=count) for count in (2, 8)] == [8, 32]
    assert verdict(SFT, *TENSOR, count=3) == "ValueError: world_size 3 % tensor_parallel_dim 2"
    assert verdict(SFT, TENSOR[0], TENSOR[2]).startswith("ValueError: fused optimizer")
    assert verdict(SFT, *TENSOR[:2]) == "ValueError: no tensor_parallel_plan"
    refused(SFT, *TENSOR, launch="--nproc_per_node 3", says="3 GPUs: no multiple of tensor_parallel_dim 2")
    refused(SFT, "tensor_parallel_dim=None", says="tensor_parallel_dim: found null")
    assert verdict(LORA, *TENSOR, recipe=LORA_NAME) == 64  # it ignores the key


def test_newer_ways_to_share_are_refused():
    refused(SFT, "context_parallel_dim=2", says="context_parallel_dim: found 2 .*torchtune 0.6.1 ignores it")
    assert verdict(SFT, "context_parallel_dim=1", "data_parallel_shard_dim=-1") == 64


REFUSED = [
    (SFT, FULL, "dtype=fp16", "ValueError: dtype fp16"),
    (SFT, FULL, "optimizer_in_bwd=True", "RuntimeError: optimizer_in_bwd with accumulation"),
    (SFT, FULL, "enable_activation_offloading=True", "RuntimeError: offloading without checkpointing"),
    (QAT, "qat_distributed", "compile=True", "ValueError: compile is not supported"),
    (DPO, "lora_dpo_distributed", "dataset.packed=True", "ValueError: packed pairs"),
    (SFT, FULL, "~seed", "ConfigAttributeError: no seed"),
    (LORA, LORA_NAME, "lr_scheduler=None", "ConfigAttributeError: no lr_scheduler._component_"),
]


@pytest.mark.parametrize(("keys", "recipe", "override", "says"), REFUSED)
def test_what_torchtune_refuses_is_an_error_at_every_count(keys, recipe, override, says):
    assert all(says in verdict(keys, override, recipe=recipe, count=count) for count in (1, 8))
    assert verdict(keys, recipe=recipe) == 64


def test_a_recipe_that_ignores_a_key_is_not_refused_for_it():
    assert verdict(LORA, "optimizer_in_bwd=True", recipe=LORA_NAME) == 64
    assert verdict(SFT, "optimizer_in_bwd=True", "gradient_accumulation_steps=1") == 16
    assert "clip_grad_norm" in verdict(
        SFT, "optimizer_in_bwd=True", "gradient_accumulation_steps=1", "clip_grad_norm=1"
    )
    assert verdict(SFT, "clip_grad_norm=1") == 64
    full_dpo = {**DPO, "ref_checkpointer": DPO["checkpointer"]}
    assert verdict({**full_dpo, "lr_scheduler": None}, recipe="full_dpo_distributed") == 64
    del full_dpo["lr_scheduler"]
    assert "no lr_scheduler" in verdict(full_dpo, recipe="full_dpo_distributed")


def test_packing_needs_a_length():
    packed = {**SFT["dataset"], "packed": True}
    assert verdict({**SFT, "dataset": packed}) == 64
    assert verdict({**SFT, "dataset": packed}, "tokenizer.max_seq_len=None").startswith("ValueError: packed needs")
    assert verdict({**SFT, "dataset": [packed, SFT["dataset"]]}).startswith("ValueError: some data sets are packed")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("forward_batch_size=5", "ValueError: 32 % 5 (forward) = 2"),
        ("ppo_batch_size=20", "ValueError: 32 % 20 = 12"),
        ("gradient_accumulation_steps=3", "ValueError: ppo 16 % 3 = 1"),
        ("num_steps=31", "ValueError: num_steps 31 < 32"),
    ],
)
def test_what_ppo_refuses(override, says):
    command = {"recipe": "ppo_full_finetune_single_device", "launch": "", "count": 1}
    assert verdict(PPO, **command) == 16
    assert verdict(PPO, override, **command) == says


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("batch_size=None", "batch_size: found nothing"),
        ("batch_size=2.0", "batch_size: found 2.0.*Write a whole number"),
        ("batch_size=0", "batch_size: found 0"),
        ("gradient_accumulation_steps=a", "gradient_accumulation_steps: found"),
        ("~gradient_accumulation_steps", "gradient_accumulation_steps: found nothing"),
        ("epochs=None", "epochs: found null"),
        ("max_steps_per_epoch=0", "max_steps_per_epoch: found 0"),
        ("batch_size=$B", "--env B=VALUE"),
        ("dtype=$D", "dtype: found"),
        ("optimizer_in_bwd={a: 1}", "optimizer_in_bwd: found a section"),
        ("dataset.packed=$P", "dataset.packed: found"),
        ("batch_size=${nowhere}", "batch_size: found"),
        ("seed=1=2", "one equals sign"),
        ("--seed 3", "takes key=value"),
        ("~nowhere.a", "found no such key to remove"),
        ("~model", "torchtune removes no component"),
        ("batch_size=[", "a value that YAML cannot read"),
    ],
)
def test_a_wrong_value_or_override_is_refused(override, says):
    Path("my.yaml").write_text(json.dumps(SFT))
    words = f"tune run --nproc_per_node 8 {FULL} --config my.yaml '{override}'"
    words = words if "$" not in override or "{" in override else words.replace("'", "")
    with pytest.raises(RecipeError, match=says):
        read_recipe(words, (), CHECK)


# -- commands and files


@pytest.mark.parametrize(
    ("launch", "gpus"),
    [
        ("--nproc_per_node 4", 4),
        ("--nproc-per-node=4", 4),
        ("--nnodes 2 --nproc_per_node 4", 8),
        ("--nnodes=2:2 --standalone --nproc_per_node=4", 8),
        ("--nnodes 2", 2),
        ("--rdzv_endpoint h:1 --nproc_per_node 3", 3),
    ],
)
def test_the_launcher_says_the_count(launch, gpus):
    assert read(SFT, launch=launch, options=CHECK).gpus == gpus


@pytest.mark.parametrize("launch", ["--nproc_per_node gpu", "--nnodes 1:4 --nproc_per_node 8", ""])
def test_without_a_count_it_is_asked_for(launch):
    refused(SFT, launch=launch, options=CHECK, says="the GPU count")
    assert read(SFT, launch=launch, options=EIGHT).global_batch == 64


def test_two_counts_contradict():
    refused(SFT, launch="--nproc_per_node 4", options=EIGHT, says="--gpus 8: the command starts 4 processes")


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        (f"torchrun --nproc_per_node 4 recipes/{FULL}.py --config my.yaml", 4),
        ("torchrun --nproc_per_node 4 recipes/dev/lora_finetune_distributed_multi_dataset.py --config my.yaml", 4),
        (f"HF_HOME=x uv run tune run --nproc_per_node 4 {FULL} --config my.yaml", 4),
        (f"set -e\ntune run --nproc_per_node 4 \\\n  {FULL} \\\n  --config my.yaml\n", 4),
        (f"tune run --nproc_per_node 4 {FULL} --config my.yaml\ntune run eleuther_eval --config eval.yaml", 4),
    ],
)
def test_ways_to_start_a_recipe(command, gpus):
    Path("my.yaml").write_text(json.dumps(SFT))
    assert read_recipe(command, (), CHECK).gpus == gpus
    Path("run.sh").write_text(f"#!/bin/bash\n{command}\n")
    assert read_recipe("run.sh", ("batch_size=1",), CHECK).global_batch == 16


def test_a_script_for_one_gpu_may_be_started_by_python():
    Path("my.yaml").write_text(json.dumps({**SFT, "optimizer_in_bwd": False}))
    command = "python recipes/full_finetune_single_device.py --config my.yaml"
    assert read_recipe(command, (), CHECK).global_batch == 8
    with pytest.raises(RecipeError, match="starts only with --nproc_per_node"):
        read_recipe(f"python recipes/{FULL}.py --config my.yaml", (), CHECK)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (f"tune run --nproc_per_node 2 {FULL} --config llama3/8B_full", "tune cp llama3/8B_full my.yaml"),
        (f"tune run --nproc_per_node 2 {FULL} --config none.yaml batch_size=2", "none.yaml: found no such file"),
        (f"tune run --nproc_per_node 2 {FULL} batch_size=2", "--config: found none"),
        ("tune run --nproc_per_node 2 recipes/mine.py --config my.yaml", "recipes/mine.py: no recipe of torchtune"),
        ("tune run eleuther_eval --config my.yaml", "found no training command"),
        (
            f"tune run --nproc_per_node 2 {FULL} --config a/b batch_size=2 gradient_accumulation_steps=1",
            "tensor_parallel_",
        ),
    ],
)
def test_commands_that_are_refused(command, says):
    Path("my.yaml").write_text(json.dumps(SFT))
    with pytest.raises(RecipeError, match=says):
        read_recipe(command, (), CHECK)


def test_a_command_with_its_sizes_needs_no_file():
    """What else the file says is not known, and a trap says so."""
    sizes = "batch_size=2 gradient_accumulation_steps=4"
    found = read_recipe(f"tune run --nproc_per_node 2 {LORA_NAME} --config llama3/8B_lora {sizes}", (), CHECK)
    assert found.global_batch == 16
    assert "not read" in {trap.name for trap in found.traps(CheckOptions(counts=[2]))}
    assert "not read" not in traps(LORA, recipe=LORA_NAME)


def test_a_shipped_configuration_is_read_from_a_checkout():
    Path("recipes/configs/llama3").mkdir(parents=True)
    Path("recipes/configs/llama3/8B_full.yaml").write_text(json.dumps(SFT))
    command = f"tune run --nproc_per_node 2 {FULL} --config llama3/8B_full"
    assert read_recipe(command, (), CHECK).global_batch == 16


def as_file(keys, comment="", name="mine.yaml", options=EIGHT):
    text = "".join(f"# {line}\n" for line in comment.splitlines())
    Path(name).write_text(text + json.dumps(keys))
    return read_recipe(name, (), options)


@pytest.mark.parametrize(
    ("keys", "recipe"),
    [
        (SFT, FULL),
        (LORA, LORA_NAME),
        (DPO, "lora_dpo_distributed"),
        ({**DPO, "model": SFT["model"]}, "full_dpo_distributed"),
        (KD, "knowledge_distillation_distributed"),
        (QAT, "qat_distributed"),
        ({**QAT, "model": LORA_KEYS}, "qat_lora_finetune_distributed"),
        (PPO, "ppo_full_finetune_single_device"),
    ],
)
def test_a_file_without_a_comment_is_told_by_its_keys(keys, recipe):
    """And a trap says so."""
    found = as_file(keys, options=CHECK if keys is PPO else EIGHT)
    assert found.script == recipe
    assert "Its keys fit" in {trap.name: trap.text for trap in found.traps(CheckOptions(counts=[1]))}["recipe"]
    assert "recipe" not in traps(SFT)


def test_a_file_for_one_gpu_is_told_by_its_name():
    assert as_file(LORA, name="my_lora_single_device.yaml", options=CHECK).script == "lora_finetune_single_device"


def test_the_comment_names_the_recipe_and_the_count():
    comment = f"tune run --nproc_per_node 4 {LORA_NAME} --config llama3/8B_lora\n"
    found = as_file(LORA, comment, options=CHECK)
    assert (found.script, found.gpus, found.global_batch) == (LORA_NAME, 4, 32)
    assert as_file(LORA, comment).global_batch == 64  # --tuned-for 8 wins
    single = "tune run lora_finetune_single_device --config llama3/8B_lora_single_device\n"
    assert as_file(LORA, single, options=CHECK).global_batch == 8


def test_of_several_comments_the_one_of_this_file_counts():
    """A comment of another method does not count, as that of a teacher in a file of knowledge distillation."""
    teacher = "tune run lora_finetune_single_device --config qwen2/1.5B_lora\n"
    own = "tune run --nproc_per_node 2 knowledge_distillation_distributed --config qwen2/kd\n"
    assert as_file(KD, teacher + own, options=CHECK).script == "knowledge_distillation_distributed"
    both = (
        f"tune run --nproc_per_node 2 {LORA_NAME} --config a/one\ntune run lora_finetune_single_device --config a/two\n"
    )
    Path("a").mkdir()
    assert as_file(LORA, both, name="a/two.yaml", options=CHECK).script == "lora_finetune_single_device"
    assert as_file(LORA, both, name="a/one.yaml", options=CHECK).script == LORA_NAME


def test_a_configuration_that_trains_nothing_is_refused():
    with pytest.raises(RecipeError, match="which trains nothing"):
        as_file({name: its for name, its in SFT.items() if name != "optimizer"})


# -- traps


def test_left_over_micro_batches_make_a_larger_step():
    """9 batches on each GPU: after two steps of 4 one is left, and the next epoch's first step has 5 x 2 x 8 rows."""
    text = traps(SFT, rows=144)["left-over micro-batches"]
    assert "(1 on each GPU)" in text
    assert "80 examples instead of 64" in text
    assert "up to 112 examples" in traps(SFT)["left-over micro-batches"]
    assert "are not used" in traps(SFT, "epochs=1", rows=144)["left-over micro-batches"]
    assert "left-over micro-batches" not in traps(SFT, rows=128)
    assert "left-over micro-batches" not in traps(SFT, "max_steps_per_epoch=2", rows=144)
    assert "left-over micro-batches" not in traps(SFT, "gradient_accumulation_steps=1")


def test_the_ends_of_an_epoch():
    """130 rows are 17 for each of 8 GPUs, so 6 come twice, and each GPU drops the last one."""
    found = traps(SFT, rows=130)
    assert "The last 1 examples of an epoch on each GPU" in found["epoch ends"]
    assert found["repeated rows"].startswith("6 of 130")
    assert not {"epoch ends", "repeated rows", "no step"} & set(traps(SFT, rows=128))
    assert "saves the first weights" in traps(SFT, rows=48)["no step"]
    assert "epoch ends" not in traps(KD, recipe="knowledge_distillation_distributed")


def test_units():
    units = {each.key: each for each in read(LORA, "max_steps_per_epoch=50", recipe=LORA_NAME).foreign.units()}
    assert units["batch_size"].there == "2 x 4 x 8 GPUs: 64 examples"
    assert units["max_steps_per_epoch"].there == "optimizer steps of each epoch, 150 in all"
    assert units["num_warmup_steps"].there == "optimizer steps, of 64 examples: 640"


# -- writing


def test_the_same_batch_at_another_count():
    found = read(SFT, "seed=3")
    made = rewrite(found, "torchtune", 4)
    sizes = "batch_size=2 gradient_accumulation_steps=8"
    assert made.command == f"tune run --nproc_per_node 4 {FULL} --config my.yaml {sizes} seed=3"
    assert read_recipe(made.command, (), CHECK).global_batch == 64
    with pytest.raises(NoExactSplit, match="64 % 7 = 1"):
        rewrite(found, "torchtune", 7)


def test_a_split_that_a_recipe_cannot_do_is_refused():
    single = read({**SFT, "optimizer_in_bwd": False}, recipe="full_finetune_single_device", launch="")
    assert "--nproc_per_node" not in rewrite(single, "torchtune", 1).command
    with pytest.raises(NoExactSplit, match="trains on one GPU"):
        rewrite(single, "torchtune", 2)
    with pytest.raises(NoExactSplit, match="tensor_parallel_dim"):
        rewrite(read(SFT, *TENSOR), "torchtune", 4)
    with pytest.raises(NoExactSplit, match="optimizer_in_bwd"):
        rewrite(read(SFT, "optimizer_in_bwd=True", "gradient_accumulation_steps=1"), "torchtune", 4)


def test_a_job_has_its_batch_alone_in_the_command():
    text = "name: a\nmodel: {kind: hf, path: m, context: 64}\ndata: {kind: chat, path: d}\nobjective: sft\n"
    text += "batch: {global: 64, max_micro: 4}\ntrain: {steps: 10, optimizer: {kind: adamw, lr: 0.001}}\n"
    Path("job.yaml").write_text(text)
    made = rewrite(read_recipe("job.yaml", ()), "torchtune", 4)
    sizes = "batch_size=4 gradient_accumulation_steps=4"
    assert made.command == f"tune run --nproc_per_node 4 YOUR_RECIPE --config YOUR_CONFIG.yaml {sizes}"
    assert "train.optimizer.lr 0.001" in str(made.unsaid[0])
    assert str(made.unsaid[0]).endswith("YOUR_CONFIG.yaml must set it")


def test_ppo_is_written_with_its_own_sizes():
    command = {"recipe": "ppo_full_finetune_single_device", "launch": ""}
    made = rewrite(read(PPO, "ppo_batch_size=8", **command), "torchtune", 1).command
    assert read_recipe(made, (), CHECK).global_batch == 8
    assert verdict(PPO, "ppo_batch_size=8", count=1, **command) == 8


def test_each_row_and_each_recipe_is_one_that_torchtune_has():
    assert {name for each in UNREAD.values() for name in each} <= set(RECIPES)
    assert set(UNREAD) <= {row.name for row in RULES} | {"lr_scheduler"}


def test_a_mistyped_key_is_a_trap_with_the_key_that_it_resembles():
    """torchtune reads the key that is meant from elsewhere or takes its default, without a message."""
    text = traps(SFT, "batch_sise=4", "optimizer.lrr=1")["mistyped keys"]
    assert text.endswith("Did you mean optimizer.lr for optimizer.lrr, batch_size for batch_sise?")
    assert "mistyped keys" not in traps(SFT, "colour=4")

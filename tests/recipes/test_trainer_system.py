"""`--system trainer`: any script of transformers' Trainer, its batch, its draft, and what is refused."""

import json
from pathlib import Path

import pytest

from planner.errors import RecipeError
from planner.recipes import CheckOptions, RecipeOptions, job_of, read_recipe, rewrite

SIZES = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
OPTIONS = "--per_device_train_batch_size 4 --gradient_accumulation_steps 2"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def read(what, *arguments, gpus=8, **options):
    return read_recipe(what, arguments, RecipeOptions(gpus=gpus, system="trainer", **options))


def read_keys(keys, *arguments, **options):
    Path("mine.yaml").write_text(json.dumps(keys))
    return read("mine.yaml", *arguments, **options)


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("accumulation", [1, 5])
def test_the_batch_is_m_times_a_times_the_gpus(micro, accumulation):
    keys = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation}
    foreign = read_keys(keys, is_for_job=False).foreign
    assert [foreign.outcome(gpus).batch for gpus in range(1, 17)] == [
        micro * accumulation * gpus for gpus in range(1, 17)
    ]


def test_a_size_that_is_missing_has_the_trainers_default():
    assert read_keys({"per_device_train_batch_size": 4}).global_batch == 32
    assert read_keys({"gradient_accumulation_steps": 2}).global_batch == 8 * 2 * 8


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        ("torchrun --nproc_per_node 4 mine.py {}", 4),
        ("torchrun --nnodes 2 --nproc_per_node 4 mine.py {}", 8),
        ("accelerate launch --num_processes 2 mine.py {}", 2),
        ("deepspeed --num_gpus 4 mine.py --deepspeed ds.json {}", 4),
        ("python -m torch.distributed.run --nproc_per_node 4 mine.py {}", 4),
        ("torchrun mine.py {}", 1),
        ("torchrun --nnodes 2 mine.py {}", 2),
        ("torchrun --nnodes 2:2 --nproc_per_node 4 mine.py {}", 8),
        ("python -m torch.distributed.launch mine.py {}", 1),
        ("uv run torchrun --standalone mine.py {}", 1),
        ("PET_NPROC_PER_NODE=4 torchrun mine.py {}", 4),
        ("PET_NNODES=2 PET_NPROC_PER_NODE=4 torchrun --nproc_per_node 2 mine.py {}", 4),
    ],
)
def test_a_command_says_the_gpu_count(command, gpus):
    recipe = read(command.format(OPTIONS), gpus=None)
    assert (recipe.system, recipe.gpus, recipe.global_batch) == ("trainer", gpus, 8 * gpus)


def test_torchrun_alone_starts_one_process_whatever_is_said():
    with pytest.raises(RecipeError, match="--gpus 8: torchrun's count without --nproc_per_node is 1"):
        read(f"torchrun mine.py {OPTIONS}")


@pytest.mark.parametrize("each", ["gpu", "auto", "cpu"])
def test_a_process_for_each_device_is_the_count_that_you_say(each):
    command = f"torchrun --nproc_per_node={each} mine.py {OPTIONS}"
    assert read(command).global_batch == 64
    with pytest.raises(RecipeError, match=f"found 1 x {each}. Write a count, or --gpus W"):
        read(command, gpus=None)
    nodes = command.replace("torchrun", "torchrun --nnodes {}")
    assert read(nodes.format("2")).global_batch == 64
    for wrong in ("3", "1:4"):
        with pytest.raises(RecipeError, match=f"found {wrong} x {each}. Write a count$"):
            read(nodes.format(wrong))


@pytest.mark.parametrize(
    "launcher",
    [
        "torchrun --nproc_per_node ²",
        "torchrun --nnodes ² --nproc_per_node 2",
        "accelerate launch --num_processes ²",
        "accelerate launch --num_processes 2 --num_machines ²",
        "deepspeed --num_gpus ²",
        "PARALLELISM_CONFIG_DP_SHARD_SIZE=² accelerate launch --num_processes 2",
        "accelerate launch --num_processes 2 --use_deepspeed --gradient_accumulation_steps ²",
        "WORLD_SIZE=² python",
    ],
)
def test_a_digit_that_is_no_number_is_refused(launcher):
    with pytest.raises(RecipeError, match=r"found (. x )?²"):
        read(f"{launcher} mine.py {OPTIONS}", gpus=None)


@pytest.mark.parametrize(
    "arguments",
    [
        "mine.yaml --per_device_train_batch_size 3",
        "--config mine.yaml --per_device_train_batch_size 3",
        "--per_device_train_batch_size 3 --config mine.yaml",
        "--per_device_train_batch_size=3 --config=mine.yaml",
    ],
)
def test_options_win_over_the_file_wherever_it_stands(arguments):
    Path("mine.yaml").write_text(json.dumps(SIZES))
    assert read(f"torchrun --nproc_per_node 4 mine.py {arguments}", gpus=None).global_batch == 3 * 2 * 4


def test_the_draft_is_a_job_with_a_loop_of_its_own():
    keys = {**SIZES, "learning_rate": 1e-5, "bf16": True, "max_steps": 100, "output_dir": "runs/mine", "my_key": 3}
    recipe = read_keys(keys)
    job_of(recipe)
    job = recipe.draft.job
    assert job["name"] == "mine"
    assert (job["model"], job["objective"]) == ({"kind": "own"}, "own")
    assert job["batch"] == {"global": 64, "max_micro": 4}
    assert job["train"]["steps"] == 100
    assert "planner does not know which model, data and loss" in recipe.draft.to_do[0].text
    assert {note.key: note.text for note in recipe.draft.dropped}["my_key"] == "your script reads it"
    assert any(text.text.startswith("my_key: only your script knows") for text in recipe.draft.to_do)


@pytest.mark.parametrize(("precision", "ours"), [("bf16", "bf16"), ("fp16", "bf16"), ("no", "fp32")])
def test_the_launcher_may_say_the_precision(precision, ours):
    command = f"accelerate launch --num_processes 8 --mixed_precision {precision} train.py {OPTIONS}"
    assert f"precision {ours}" in read(command).draft.to_do[1].text


def test_no_note_speaks_of_trl():
    recipe = read_keys({**SIZES, "weight_decay": 0.1, "eval_strategy": "steps"})
    texts = [each.text for each in (*recipe.draft.derived, *recipe.draft.dropped, *recipe.draft.to_do)]
    assert not [text for text in texts if "TRL" in text]
    assert "eval.every 500 steps" in " ".join(texts)
    alone = read(f"python mine.py {OPTIONS}", is_for_job=False).foreign.traps(CheckOptions(counts=[1, 2]))
    assert not [trap for trap in alone if "TRL" in trap.text]
    assert "DataParallel" in {trap.name for trap in alone}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"learning_rate": 1}, "found neither per_device_train_batch_size nor gradient_accumulation_steps"),
        ({**SIZES, "per_gpu_train_batch_size": 2}, "per_gpu_train_batch_size: some versions"),
        ({"gradient_accumulation_steps": 2, "per_device_train_batchsize": 2}, "Write per_device_train_batch_size"),
        ({"per_device_train_batch_size": 2, "gradient_acc": 2}, "Write gradient_accumulation_steps, or rename"),
        ({"per_device_train_batch_size": "4"}, "per_device_train_batch_size: found .4"),
        ({"per_device_train_batch_size": 4.0}, "which the Trainer does not take"),
        ({"per_device_train_batch_size": None}, "found null"),
        ({**SIZES, "per_device_train_batch_size": {"a": 1}}, "per_device_train_batch_size: found a section"),
        ({**SIZES, "auto_find_batch_size": True}, "auto_find_batch_size"),
        ({**SIZES, "parallelism_config": {"tp_size": 2}}, "from Python alone"),
        ({**SIZES, "deepspeed": {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}}, "has 2"),
    ],
)
def test_what_leaves_the_batch_unknown_is_refused(keys, message):
    with pytest.raises(RecipeError, match=message):
        read_keys(keys)


def test_the_gpu_count_is_needed():
    with pytest.raises(RecipeError, match="the GPU count: a Trainer recipe does not name it"):
        read_keys(SIZES, gpus=None)


def test_an_argument_without_a_key_is_no_override():
    with pytest.raises(RecipeError, match="foo: neither --key value nor key=value"):
        read_keys(SIZES, "foo")


def test_split_batches_without_a_launcher_is_refused():
    Path("a.json").write_text(json.dumps({"split_batches": True}))
    command = f"mine.py {OPTIONS} --accelerator_config a.json"
    with pytest.raises(RecipeError, match="Python alone"):
        read(f"python {command}")
    assert read(f"torchrun --nproc_per_node 2 {command}", gpus=None).global_batch == 8


def test_a_variable_that_is_not_set_is_a_trap():
    recipe = read(f"torchrun --nproc_per_node 2 mine.py $ARGS {OPTIONS} ", gpus=None, is_for_job=False)
    assert recipe.open_arguments == ("$ARGS",)


def test_trls_command_starts_your_script_where_it_is():
    """A name without a folder is one of the alignment-handbook's only in TRL's recipes."""
    command = "torchrun --nproc_per_node 4 my_train.py --per_device_train_batch_size 2"
    found = read_recipe(command, (), RecipeOptions(system="trainer"))
    assert " my_train.py --per_device_train_batch_size 2" in rewrite(found, "trl", 2).command

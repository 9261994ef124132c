"""The batch that planner reads in a TRL recipe is the one that TRL and transformers train, or planner refuses it.

The judge is `trainer_judge`: theirs are the parsers of the scripts and of `accelerate launch`, the Trainer's use of
accelerator_config and its total batch, accelerate's ParallelismConfig, BatchSamplerShard and DeepSpeedPlugin, and the
comparison with DeepSpeed's sizes. `make fuzz` takes 10,000 cases (tests/fuzz/fuzz_batches.py), this file 200.
"""

import json
import shlex
from dataclasses import replace

import pytest
import trainer_cases
import trainer_judge
from trainer_judge import Launch, Refused

from planner.errors import NoExactSplit, RecipeError
from planner.recipes import CheckOptions, RecipeOptions, read_recipe, rewrite

CASES = 200
PLAIN = ("--model_name_or_path", "org/model", "--dataset_name", "org/data", "--output_dir", "out")
SIZES = ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2")
ONLY_BATCH = RecipeOptions(is_for_job=False, needs_micro=False)


def test_planner_and_the_trainer_agree_on_random_commands(tmp_path):
    """Equal at each count, or refused. A plain command is not refused."""
    counts, wrong = trainer_cases.count(range(CASES), tmp_path)
    assert not wrong, "\n".join(wrong)
    assert counts["plain refused"] == 0
    assert counts["plain"] > CASES / 2
    assert counts["equal"] > 2 * counts["refused"]


def _command(*arguments, launcher=("accelerate", "launch"), method="sft", gpus=4, variables=()):
    begin = [*variables, *launcher, "--num_processes", str(gpus), f"trl/scripts/{method}.py"]
    return shlex.join([*begin, *PLAIN, *arguments])


def _planner(*arguments, gpus=4, **how):
    recipe = read_recipe(_command(*arguments, gpus=gpus, **how), (), ONLY_BATCH)
    outcome = recipe.foreign.outcome(gpus)
    return outcome.batch if outcome.verdict == "exact" else outcome.text


def _trainer(*arguments, options=(), variables=(), method="sft", gpus=4):
    launch = Launch(method=method, options=options, arguments=(*PLAIN, *arguments), variables=variables)
    return trainer_judge.batch_at(launch, gpus)


# -- the examples of the issue


def test_split_batches_as_json_on_the_command_line():
    """The micro-batch is that of all GPUs."""
    arguments = ("--accelerator_config", '{"split_batches":true}', "--per_device_train_batch_size", "8")
    assert _planner(*arguments) == _trainer(*arguments) == 8


@pytest.mark.parametrize("steps", ["4", '"4"'])
def test_num_steps_is_the_number_of_accumulation_steps(tmp_path, steps):
    """In the file as a section, on the command line as JSON, whose texts transformers makes numbers."""
    text = f'{{"gradient_accumulation_kwargs": {{"num_steps": {steps}}}}}'
    arguments = ("--per_device_train_batch_size", "4", "--accelerator_config", text)
    assert _planner(*arguments) == _trainer(*arguments) == 64
    file = tmp_path / "recipe.yaml"
    file.write_text(
        "model_name_or_path: m\nper_device_train_batch_size: 4\n"
        "accelerator_config: {gradient_accumulation_kwargs: {num_steps: 4}}\n"
    )
    assert read_recipe(str(file), (), RecipeOptions(gpus=4, method="sft", is_for_job=False)).global_batch == 64
    with pytest.raises(RecipeError, match="num_steps: 4, but gradient_accumulation_steps is 2"):
        read_recipe(str(file), ("gradient_accumulation_steps=2",), RecipeOptions(gpus=4, method="sft"))


@pytest.mark.parametrize("name", ["tp", "cp", "sp"])
def test_gpus_that_share_a_micro_batch_are_refused_on_the_command_line(name):
    """Two of four GPUs share one, so the Trainer's batch is half of the product."""
    fsdp = ("--use_fsdp", "--fsdp_version", "2", "--use_parallelism_config")
    options = (*fsdp, f"--parallelism_config_{name}_size", "2", "--parallelism_config_dp_shard_size", "2")
    assert _trainer(*SIZES, options=options) == 16
    with pytest.raises(RecipeError, match=rf"--parallelism_config_{name}_size: found 2\. Those GPUs share"):
        _planner(*SIZES, launcher=("accelerate", "launch", *options))
    variables = (("ACCELERATE_USE_PARALLELISM_CONFIG", "true"), (f"PARALLELISM_CONFIG_{name.upper()}_SIZE", "2"),
                 ("PARALLELISM_CONFIG_DP_SHARD_SIZE", "2"))  # fmt: skip
    assert _trainer(*SIZES, variables=variables) == 16
    with pytest.raises(RecipeError, match="share a micro-batch"):
        _planner(*SIZES, variables=[f"{name}={value}" for name, value in variables])


@pytest.mark.parametrize("form", ["file", "text", "launcher", "variable"])
def test_a_deepspeed_file_that_contradicts_is_an_error(tmp_path, form):
    """Its batch is 32 at 4 GPUs, and the recipe's 64 at 8."""
    file = tmp_path / "ds.json"
    sizes = {"train_batch_size": 32, "gradient_accumulation_steps": "auto", "zero_optimization": {"stage": 2}}
    file.write_text(json.dumps(sizes))
    own = {"file": ("--deepspeed", str(file)), "text": ("--deepspeed", json.dumps(sizes))}.get(form, ())
    options = ("--use_deepspeed", "--deepspeed_config_file", str(file)) if form == "launcher" else ()
    variables = (("ACCELERATE_USE_DEEPSPEED", "true"), ("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file)))
    given = variables if form == "variable" else ()
    how = {"launcher": ("accelerate", "launch", *options), "variables": [f"{name}={its}" for name, its in given]}
    assert _planner(*SIZES, *own, **how) == _trainer(*SIZES, *own, options=options, variables=given) == 32
    assert _planner(*SIZES, *own, gpus=8, **how) == "ValueError: DeepSpeed's batch=32, the recipe's batch=64"
    with pytest.raises(Refused, match="train_batch_size"):
        _trainer(*SIZES, *own, options=options, variables=given, gpus=8)


def test_a_deepspeed_file_that_is_elsewhere_is_named():
    """The batch is right if the Trainer starts at all, and the user must know what was not read."""
    recipe = read_recipe(_command(*SIZES, "--deepspeed", "elsewhere.json"), (), ONLY_BATCH)
    assert recipe.global_batch == 32
    traps = {trap.name: trap.text for trap in recipe.foreign.traps(CheckOptions(counts=[4]))}
    assert "planner did not read elsewhere.json" in traps["file not read"]
    recipe = read_recipe(_command(*SIZES, launcher=("accelerate", "launch", "--config_file", "a.yaml")), (), ONLY_BATCH)
    traps = {trap.name: trap.text for trap in recipe.foreign.traps(CheckOptions(counts=[4]))}
    assert "planner did not read a.yaml" in traps["file not read"]


@pytest.mark.parametrize("form", [("--auto_find_batch_size",), ("--auto_find_batch_size", "yes"), "yaml"])
def test_a_batch_that_the_trainer_searches_is_not_exact(tmp_path, form):
    if form == "yaml":
        file = tmp_path / "recipe.yaml"
        file.write_text("model_name_or_path: m\nper_device_train_batch_size: 4\nauto_find_batch_size: true\n")
        form = ("--config", str(file))
    with pytest.raises(RecipeError, match=r"auto_find_batch_size: found true.* so no global batch is fixed"):
        _planner(*form)
    assert _planner("--auto_find_batch_size", "false") == 32


def test_variables_of_accelerate_reach_deepspeed_alone():
    """The Trainer counts accumulation steps itself, so only DeepSpeed compares the variable with them."""
    steps = ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    assert _planner(*SIZES, variables=["=".join(steps)]) == _trainer(*SIZES, variables=(steps,)) == 32
    both = (("ACCELERATE_USE_DEEPSPEED", "true"), steps)
    assert "DeepSpeed's A=4, the recipe's A=2" in _planner(*SIZES, variables=[f"{name}={its}" for name, its in both])
    with pytest.raises(Refused, match="gradient_accumulation_steps=4"):
        _trainer(*SIZES, variables=both)
    fsdp = (("FSDP_VERSION", "2"), ("ACCELERATE_USE_FSDP", "true"))
    assert _planner(*SIZES, variables=[f"{name}={its}" for name, its in fsdp]) == _trainer(*SIZES, variables=fsdp) == 32


# -- more of the class


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"split_batch": true}', "does not know split_batch"),
        ('{"gradient_accumulation_kwargs": {"steps": 2}}', "does not know steps"),
        ('{"split_batches": 2}', "Write true or false"),
        ('{"split_batches"', "Write a JSON object"),
        ("nowhere.json", "No such file is here"),
    ],
)
def test_what_accelerator_config_does_not_take_is_refused(text, says):
    with pytest.raises(RecipeError, match=says):
        _planner("--accelerator_config", text)


def test_an_option_replaces_the_whole_section_of_the_file(tmp_path):
    """argparse has one value of accelerator_config, so split_batches of the file is lost."""
    file = tmp_path / "config.yaml"
    file.write_text("per_device_train_batch_size: 8\naccelerator_config: {split_batches: true}\n")
    arguments = ("--config", str(file), "--accelerator_config", '{"even_batches": false}')
    assert _planner(*arguments) == _trainer(*arguments) == 32
    assert _planner(*arguments[:2]) == _trainer(*arguments[:2]) == 8


def test_a_number_that_yaml_reads_as_octal(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("per_device_train_batch_size: 010\n")
    assert _planner("--config", str(file)) == _trainer("--config", str(file)) == 32


@pytest.mark.parametrize("written", ["8.0", "null", "8e0"])
def test_a_size_that_the_trainer_does_not_take_is_refused(tmp_path, written):
    file = tmp_path / "config.yaml"
    file.write_text(f"per_device_train_batch_size: {written}\n")
    with pytest.raises(Refused):
        _trainer("--config", str(file))
    with pytest.raises(RecipeError, match=r"per_device_train_batch_size: found .*Write a whole number"):
        _planner("--config", str(file))


def test_a_model_that_is_spread_over_gpus_is_refused():
    """Also DeepSpeed's tensor parallelism, and its own search for a batch."""
    with pytest.raises(RecipeError, match=r"tp_plan: found .* share a micro-batch"):
        _planner("--model_init_kwargs", '{"tp_plan": "auto"}')
    with pytest.raises(RecipeError, match="autotp_size: found 2"):
        _planner("--deepspeed", '{"tensor_parallel": {"autotp_size": 2}}')
    with pytest.raises(RecipeError, match="elasticity"):
        _planner("--deepspeed", '{"elasticity": {"enabled": true}}')
    with pytest.raises(RecipeError, match="Megatron"):
        _planner(launcher=("accelerate", "launch", "--use_megatron_lm", "--multi_gpu"))


@pytest.mark.parametrize("written", ["--num-processes", "--num_processes"])
def test_a_launchers_option_may_be_written_with_dashes(written):
    command = f"accelerate launch {written} 8 trl/scripts/sft.py {shlex.join([*PLAIN, *SIZES])}"
    assert read_recipe(command, (), ONLY_BATCH).global_batch == 64


def test_a_script_without_a_launcher_says_what_its_batch_is():
    command = f"python trl/scripts/sft.py {shlex.join([*PLAIN, *SIZES])}"
    recipe = read_recipe(command, (), replace(ONLY_BATCH, gpus=8))
    (text,) = [trap.text for trap in recipe.foreign.traps(CheckOptions(counts=[8])) if trap.name == "DataParallel"]
    assert "the batch is 8 at every count" in text
    with pytest.raises(RecipeError, match="start the script by accelerate launch"):
        read_recipe(f"{command} --accelerator_config.split_batches true", (), replace(ONLY_BATCH, gpus=8))


# -- the command that planner writes


def _written(command):
    """The command as the judge takes it."""
    words = shlex.split(command)
    at = next(index for index, word in enumerate(words) if word.endswith(".py"))
    method = words[at].rpartition("/")[2].removesuffix(".py")
    return Launch(method=method, options=None, arguments=tuple(words[at + 1 :]))


@pytest.mark.parametrize("first", range(0, 120, 10))
def test_a_rewritten_command_trains_the_same_batch(tmp_path, first):
    """By planner's reading and by the Trainer's, also if the recipe has split_batches or num_steps."""
    checked = 0
    for number in range(first, first + 10):
        case = trainer_cases.made(number, tmp_path / str(number), seed=2)
        try:
            recipe = read_recipe(case.command, (), ONLY_BATCH)
            made = rewrite(recipe, "trl", case.gpus)
        except (RecipeError, NoExactSplit):
            continue
        if any("write" in note and "there" in note for note in made.notes) or recipe.foreign.unread:
            continue  # the user must change a file first
        checked += 1
        assert read_recipe(made.command, (), ONLY_BATCH).global_batch == recipe.global_batch, made.command
        assert trainer_judge.batch_at(_written(made.command), case.gpus) == recipe.global_batch, made.command
    assert checked


def test_a_rewritten_command_keeps_what_does_not_change_the_batch():
    text = '{"split_batches": true, "even_batches": false, "gradient_accumulation_kwargs": {"num_steps": 2}}'
    recipe = read_recipe(_command("--accelerator_config", text, "--seed", "3"), (), ONLY_BATCH)
    made = rewrite(recipe, "trl", 2)
    assert made.command.endswith(
        "--seed 3 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 "
        """--accelerator_config '{"split_batches": false, "even_batches": false}'"""
    )
    assert made.command.count("accelerator_config") == 1
    assert trainer_judge.batch_at(_written(made.command), 2) == recipe.global_batch == 16

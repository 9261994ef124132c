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


def test_fsdp_without_gpus_to_shard_over_is_refused_also_beside_a_variable_for_deepspeed():
    """accelerate's check sees the option, whatever the variable says. The first 10,000 cases did not have both."""
    variables = (("ACCELERATE_USE_DEEPSPEED", "true"),)
    options = ("--use_fsdp", "--fsdp_version", "2", "--use_parallelism_config", "--parallelism_config_cp_size", "1")
    with pytest.raises(trainer_judge.Refused, match="no dimension for FSDP to shard across"):
        _trainer(*SIZES, options=options, variables=variables)
    with pytest.raises(RecipeError, match="dp_shard_size: found 1 with FSDP"):
        _planner(*SIZES, launcher=("ACCELERATE_USE_DEEPSPEED=true", "accelerate", "launch", *options))


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
        ("{split_batches: true}", "Write a JSON object"),
        ("true", "Write a JSON object"),
        ('{"gradient_accumulation_kwargs": 4}', "Write num_steps in it"),
        ("nowhere.json", "No such file is here"),
    ],
)
def test_what_accelerator_config_does_not_take_is_refused(text, says):
    with pytest.raises(RecipeError, match=says):
        _planner("--accelerator_config", text)


def test_an_accelerate_file_wins_over_a_variable(tmp_path):
    """The launcher sets the variable anew from its file."""
    file = tmp_path / "accelerate.yaml"
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_machines: 1\n"
    file.write_text(f"{text}num_processes: 4\ndeepspeed_config: {{zero_stage: 2, gradient_accumulation_steps: 2}}\n")
    options, steps = ("--config_file", str(file)), ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    how = {"launcher": ("accelerate", "launch", *options), "variables": ["=".join(steps)]}
    assert _planner(*SIZES, **how) == _trainer(*SIZES, options=options, variables=(steps,)) == 32


def test_a_variable_of_the_launcher_that_is_not_set_is_asked_for():
    """Also --env gives its value."""
    command = _command(*SIZES, variables=["ACCELERATE_USE_DEEPSPEED=$USE"]).replace("'", "")
    with pytest.raises(RecipeError, match=r"ACCELERATE_USE_DEEPSPEED: found \$USE.*--env USE=VALUE"):
        read_recipe(command, (), ONLY_BATCH)
    env = {"USE": "true", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}
    assert "A=4" in read_recipe(command, (), replace(ONLY_BATCH, env=env)).foreign.outcome(4).text


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("distributed_type: 'NO'\nnum_processes: 8\n", "with which accelerate starts one process"),
        ("distributed_type: MEGATRON_LM\nnum_processes: 8\n", "Megatron-LM has batch sizes of its own"),
        ("distributed_type: FSDP\nnum_processes: 8\nparallelism_config: {parallelism_config_tp_size: 2}\n", "share"),
        ("distributed_type: FSDP\nnum_processes: 8\nparallelism_config: {parallelism_config_tp_size: 1}\n", "to shard"),
        ("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: MULTI_GPU\nnum_processes: 8\n", "SageMaker"),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: a.json, zero_stage: 2}\n",
            "zero_stage: accelerate refuses it beside",
        ),
    ],
)
def test_an_accelerate_file_that_leaves_the_batch_unknown_is_refused(tmp_path, text, says):
    file = tmp_path / "accelerate.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError, match=says):
        _planner(*SIZES, gpus=8, launcher=("accelerate", "launch", "--config_file", str(file)))


def test_a_launcher_of_one_process_starts_one_at_every_count(tmp_path):
    """TRL ships such a file with num_processes 8 in it."""
    file = tmp_path / "accelerate.yaml"
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nmixed_precision: bf16\nnum_machines: 1\n"
    file.write_text(f"{text}num_processes: 1\n")
    command = f"accelerate launch --config_file {file} trl/scripts/sft.py {shlex.join([*PLAIN, *SIZES])}"
    recipe = read_recipe(command, (), ONLY_BATCH)
    assert recipe.global_batch == 8
    assert recipe.foreign.outcome(2).text == "accelerate starts 1 process (distributed_type NO)"
    assert not recipe.foreign.outcome(2).is_raised
    made = rewrite(recipe, "trl", 2)
    assert "--multi_gpu --num_processes 2" in made.command
    assert read_recipe(made.command, (), ONLY_BATCH).foreign.outcome(2).batch == 8
    assert "distributed_type: MULTI_GPU" in rewrite(recipe, "accelerate", 2).file
    with pytest.raises(RecipeError, match=r"--num_processes: found 8, but .* starts one process"):
        read_recipe(command.replace("trl/", "--num_processes 8 trl/", 1), (), ONLY_BATCH)
    trl_sft = f"trl sft --accelerate_config single_gpu {shlex.join([*PLAIN, *SIZES])}"
    assert read_recipe(trl_sft, (), ONLY_BATCH).global_batch == 8


def test_a_mesh_of_data_parallel_gpus_is_an_error_at_other_counts(tmp_path):
    file = tmp_path / "accelerate.yaml"
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 1\n"
    sizes = "parallelism_config: {parallelism_config_dp_replicate_size: 2, parallelism_config_dp_shard_size: 4}\n"
    file.write_text(f"{text}num_processes: 8\nfsdp_config: {{fsdp_version: 2}}\n{sizes}")
    options = ("--config_file", str(file))
    launcher = ("accelerate", "launch", *options)
    assert _planner(*SIZES, gpus=8, launcher=launcher) == _trainer(*SIZES, gpus=8, options=options) == 64
    recipe = read_recipe(_command(*SIZES, gpus=8, launcher=launcher), (), ONLY_BATCH)
    for target in ("trl", "accelerate"):
        note = f"parallelism_config is for 8 processes in {file}: write sizes for 4 there"
        assert note in rewrite(recipe, target, 4).notes
    assert _planner(*SIZES, gpus=4, launcher=launcher) == "ValueError: parallelism_config is for 8 processes"
    with pytest.raises(Refused, match=r"total_size \(8\) does not match num_processes \(4\)"):
        _trainer(*SIZES, gpus=4, options=options)


def test_processes_that_are_started_by_hand_are_counted():
    """torchrun sets WORLD_SIZE, so only a script that Python starts alone has the user's."""
    recipe = read_recipe(f"WORLD_SIZE=8 python trl/scripts/sft.py {shlex.join([*PLAIN, *SIZES])}", (), ONLY_BATCH)
    assert (recipe.gpus, recipe.global_batch) == (8, 64)


@pytest.mark.parametrize("name", ["ACCELERATE_USE_DEEPSPEED", "PARALLELISM_CONFIG_CP_SIZE", "WORLD_SIZE"])
def test_a_variable_that_the_launcher_reads_is_refused_in_the_recipes_own_section(tmp_path, name):
    """TRL sets it when the processes run already."""
    file = tmp_path / "config.yaml"
    file.write_text(f"per_device_train_batch_size: 4\nenv: {{{name}: 2, WANDB_MODE: offline}}\n")
    with pytest.raises(RecipeError, match=rf"env\.{name}: found 2.* before the script starts"):
        _planner("--config", str(file))


def test_a_step_count_of_the_launcher_that_is_no_number_is_refused():
    with pytest.raises(RecipeError, match="gradient_accumulation_steps of the launcher: found two"):
        _planner(launcher=("accelerate", "launch", "--use_deepspeed", "--gradient_accumulation_steps", "two"))


def test_what_a_checkpoint_brings_is_said():
    """transformers 4 takes the micro-batch from the checkpoint, transformers 5 does not."""
    recipe = read_recipe(_command(*SIZES, "--resume_from_checkpoint", "out/checkpoint-5"), (), ONLY_BATCH)
    for version, is_said in ((None, True), ("4.53.3", True), ("5.23.0", False)):
        traps = recipe.foreign.traps(CheckOptions(counts=[4], transformers=version))
        assert ("resume" in {trap.name for trap in traps}) is is_said


def test_num_steps_has_a_line_among_the_units():
    recipe = read_recipe(
        _command("--accelerator_config", '{"gradient_accumulation_kwargs": {"num_steps": 4}}'), (), ONLY_BATCH
    )
    assert ("num_steps", "4") in {(unit.key, unit.value) for unit in recipe.foreign.units()}


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


def test_sizes_in_a_deepspeed_file_are_named_when_they_must_change(tmp_path):
    """planner does not write into the user's file."""
    file = tmp_path / "ds.json"
    file.write_text('{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}')
    recipe = read_recipe(_command(*SIZES, "--deepspeed", str(file)), (), ONLY_BATCH)
    assert f"gradient_accumulation_steps is 2 in {file}: write 4 there" in rewrite(recipe, "trl", 2).notes


def test_a_rewritten_command_replaces_what_an_empty_option_replaced(tmp_path):
    """The recipe's option took split_batches of the file away."""
    file = tmp_path / "config.yaml"
    file.write_text("per_device_train_batch_size: 4\naccelerator_config: {split_batches: true}\n")
    recipe = read_recipe(_command("--config", str(file), "--accelerator_config={}"), (), ONLY_BATCH)
    made = rewrite(recipe, "trl", 2)
    assert trainer_judge.batch_at(_written(made.command), 2) == recipe.global_batch == 16


def test_steps_that_a_deepspeed_file_lacks_are_named_when_there_are_several():
    text = '{"zero_optimization": {"stage": 2}}'
    recipe = read_recipe(_command("--per_device_train_batch_size", "4", "--deepspeed", text), (), ONLY_BATCH)
    assert "gradient_accumulation_steps is not in the command line: write auto there" in rewrite(recipe, "trl", 1).notes
    with pytest.raises(RecipeError, match="has no gradient_accumulation_steps"):
        _planner(*SIZES, "--deepspeed", text)


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

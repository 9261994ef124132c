"""A value that the recipe's system does not take is refused, and so are keys below one that takes a single value.

What transformers, TRL and accelerate take is asked of the installed packages.
"""

import dataclasses
import enum
import types
import typing

import pytest
import trl
import yaml
from accelerate import ParallelismConfig
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.utils import ComputeEnvironment, DistributedType, PrecisionType
from transformers import TrainingArguments
from transformers.trainer_utils import HubStrategy, IntervalStrategy, SaveStrategy, SchedulerType
from transformers.training_args import OptimizerNames

from planner.errors import RecipeError
from planner.recipes import RecipeOptions, read_recipe
from planner.recipes.rule import NESTED
from planner.recipes.trainer.keys import TRAINING_ARGUMENTS
from planner.recipes.trainer.launch_keys import ACCELERATE_FILE
from planner.recipes.trl.keys import RULES

BASE = {
    "model_name_or_path": "m",
    "dataset_name": "org/a",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "eval_strategy": "steps",
}
LAUNCH = {"distributed_type": "MULTI_GPU", "num_processes": 4, "num_machines": 1, "mixed_precision": "bf16"}
SHELL = "torchrun --nproc_per_node 4 train.py --per_device_train_batch_size 2 --gradient_accumulation_steps 2"
LAUNCHED = "accelerate launch --num_processes 4 {} train.py --per_device_train_batch_size 2 --output_dir x"
DPO = "train.py model=pythia28 loss=dpo loss.beta=0.1 trainer=FSDPTrainer"
HALOS = "accelerate launch --num_processes 4 launch.py loss=kto model=llama ++model.name_or_path=m ++lr=1e-6"
ENUMS = {
    "eval_strategy": IntervalStrategy,
    "logging_strategy": IntervalStrategy,
    "save_strategy": SaveStrategy,
    "hub_strategy": HubStrategy,
    "lr_scheduler_type": SchedulerType,
    "optim": OptimizerNames,
}
# Rows with one of these take numbers, and only these do.
NUMBERS = {"whole", "number", "real", "norm"}
MAPPINGS = {dict, ParallelismConfig}
# Fields whose type says less than what they take.
LOOSE = {"optim_target_modules", "resume_from_checkpoint", "fsdp", "debug", "include_num_input_tokens_seen"}


def _fields():
    methods = (trl.SFTConfig, trl.DPOConfig, trl.KTOConfig, trl.GRPOConfig)
    for each in (TrainingArguments, trl.ScriptArguments, trl.ModelConfig, *methods):
        hints = typing.get_type_hints(each)
        for field in dataclasses.fields(each):
            if field.init and field.name not in LOOSE:
                yield pytest.param(field.name, hints[field.name], id=f"{each.__name__}-{field.name}")


def _kinds(hint):
    """The types in `int | None`, without None."""
    is_union = typing.get_origin(hint) in {typing.Union, types.UnionType}
    return {each for each in (typing.get_args(hint) if is_union else (hint,)) if each is not type(None)}


@pytest.mark.parametrize(("name", "hint"), list(_fields()))
def test_a_row_takes_what_the_field_takes(name, hint):
    row, kinds = RULES[name], _kinds(hint)
    if kinds == {bool}:
        assert row.value == "truth"
    elif kinds <= {int, float}:
        assert row.value in NUMBERS
    else:
        assert row.value not in NUMBERS | {"truth"} or name == "pad_to_multiple_of"
    assert (row.value in NESTED) == any((typing.get_origin(each) or each) in MAPPINGS for each in kinds)


@pytest.mark.parametrize("name", ENUMS)
def test_the_choices_are_those_of_the_enumeration(name):
    theirs = {each.value for each in ENUMS[name] if isinstance(each, enum.Enum)}
    assert theirs <= set(TRAINING_ARGUMENTS[name].choices)
    assert RULES[name].choices == TRAINING_ARGUMENTS[name].choices


@pytest.mark.parametrize("more", [{"optim": "word"}, {"lr_scheduler_type": "word"}, {"loss_type": "word"}])
def test_what_a_newer_version_may_have_leaves_the_batch_known(more, tmp_path):
    """convert refuses the optimizer and the schedule, or leaves the loss to the user's own loop."""
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({**BASE, **more}))
    options = RecipeOptions(gpus=4, method="dpo", is_for_job=False, needs_micro=False)
    assert read_recipe(str(file), (), options).global_batch == 16


def test_the_choices_of_an_accelerate_file_are_accelerates():
    theirs = {"distributed_type": DistributedType, "compute_environment": ComputeEnvironment}
    for name, each in {**theirs, "mixed_precision": PrecisionType}.items():
        assert {its.value for its in each} <= set(ACCELERATE_FILE[name].choices)
    assert {field.name for field in dataclasses.fields(ClusterConfig)} >= ACCELERATE_FILE.names


def _read(tmp_path, more, *, launch=None, method="dpo", is_for_job=False):
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({**BASE, **more}))
    accelerate = None
    if launch:
        accelerate = str(tmp_path / "a.yaml")
        (tmp_path / "a.yaml").write_text(yaml.safe_dump({**LAUNCH, **launch}))
    gpus = None if launch else 4
    options = RecipeOptions(gpus=gpus, method=method, accelerate=accelerate, is_for_job=is_for_job)
    return read_recipe(str(tmp_path / "r.yaml"), [], options)


@pytest.mark.parametrize("name", sorted(row.name for row in RULES if row.value in NUMBERS and "*" not in row.name))
@pytest.mark.parametrize("value", ["word", [1], True, {"a": 1}])
def test_what_is_no_number_is_refused(name, value, tmp_path):
    with pytest.raises(RecipeError, match=f"{name}: found"):
        _read(tmp_path, {name: value})


@pytest.mark.parametrize("name", sorted(row.name for row in RULES if row.value == "truth"))
@pytest.mark.parametrize("value", ["word", 7, [1], {"a": 1}])
def test_what_is_no_truth_is_refused(name, value, tmp_path):
    with pytest.raises(RecipeError, match=f"{name}: found"):
        _read(tmp_path, {name: value})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"eval_strategy": False}, 'Write "no", steps or epoch'),
        ({"eval_strategy": None}, 'Write "no", steps or epoch'),
        ({"save_strategy": "epochs"}, r"Did you mean epoch\?"),
        ({"lr_scheduler_type": "Cosine"}, r"Did you mean cosine\?"),
        ({"optim": "adamw_torchh"}, r"Did you mean adamw_torch\?"),
        ({"optim": ["word"]}, "Write another one, such as adamw_torch"),
        ({"hub_strategy": "word"}, "Write end, every_save, checkpoint or all_checkpoints"),
        ({"loss_type": "sigmoidd"}, r"Did you mean sigmoid\?"),
        ({"loss_type": ["sigmoid", "hinje"]}, r"Did you mean hinge\?"),
        ({"loss_type": [1]}, "Write the name of a loss"),
        ({"output_dir": ["a"]}, "Write a single value"),
        ({"model_init_kwargs": "word"}, "Write a JSON object"),
        ({"warmup_steps": None}, "warmup_steps: found null, with which TRL does not train"),
        ({"save_steps": None}, "save_steps: found null"),
        ({"eval_steps": 1.5}, "Write a whole number of steps"),
        ({"logging_steps": 2.5}, "Write a whole number of steps"),
    ],
)
def test_what_trl_refuses_is_refused_for_a_check_too(more, says, tmp_path):
    with pytest.raises(RecipeError, match=says):
        _read(tmp_path, more)


@pytest.mark.parametrize("value", ["word", [1], {"a": 1}])
def test_a_mixture_without_data_sets_makes_no_job(value, tmp_path):
    with pytest.raises(RecipeError, match="dataset_mixture: found no datasets in it"):
        _read(tmp_path, {"dataset_mixture": value}, is_for_job=True)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"distributed_type": "fsdp"}, r"Did you mean FSDP\?"),
        ({"distributed_type": None}, "distributed_type: found nothing"),
        ({"distributed_type": 7}, "such as MULTI_GPU, FSDP, DEEPSPEED, NO"),
        ({"mixed_precision": False}, 'Write bf16, fp16, fp8 or "no"'),
        ({"compute_environment": "word"}, "Write LOCAL_MACHINE or AMAZON_SAGEMAKER"),
        ({"fsdp_config": "word"}, "Write keys and values below it"),
        ({"num_processes": {"a": 4}}, "found keys below it"),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"gradient_clipping": "word"}}, "gradient_clipping"),
    ],
)
def test_what_accelerate_refuses_is_refused(more, says, tmp_path):
    with pytest.raises(RecipeError, match=says):
        _read(tmp_path, {}, launch=more)


@pytest.mark.parametrize("more", [{"mixed_precision": "BF16"}, {"mixed_precision": None}, {"num_processes": 4}])
def test_what_accelerate_takes_is_taken(more, tmp_path):
    assert _read(tmp_path, {}, launch=more).global_batch == 16


def test_accelerate_needs_a_type(tmp_path):
    (tmp_path / "a.yaml").write_text("num_processes: 4\nnum_machines: 1\n")
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(BASE))
    with pytest.raises(RecipeError, match="distributed_type: found nothing, and accelerate refuses the file"):
        read_recipe(str(tmp_path / "r.yaml"), [], RecipeOptions(method="sft", accelerate=str(tmp_path / "a.yaml")))


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (f"{SHELL} --optim adamw_torchh", "optim: found"),
        (f"{LAUNCHED.format('--num_machines word')}", "--num_machines: found word. Write a whole number above 0"),
        (f"{LAUNCHED.format('--num_machines 0')}", "--num_machines: found 0. Write a whole number above 0"),
        (f"{LAUNCHED.format('--zero_stage word')}", "--zero_stage: found word. Write a whole number of at least 0"),
        (f"{LAUNCHED.format('--gradient_clipping word')}", "--gradient_clipping: found word. Write a number"),
        (f"{LAUNCHED.format('--fsdp_version 3')}", "--fsdp_version: found 3. Write 1, 2"),
        (f"{SHELL} --torch_compile word", "torch_compile: found"),
        (f"{SHELL} --num_train_epochs word", "num_train_epochs: found"),
        (f"{DPO} debug=word", "debug: found .* Write true or false"),
        (f"{DPO} model.policy_dtype=word", "model.policy_dtype: found .* such as float32"),
        (f"{HALOS} ++humanline=word", "humanline: found .* Write true or false"),
        (f"{HALOS} ++humanline=2", "humanline: found .* Write true or false"),
        (f"{HALOS} ++humanline_iters=word", "humanline_iters: found .* Write a number"),
        (f"{HALOS} ++model.load_lora_from=true", "model.load_lora_from: found .* Write a text"),
        (f"{HALOS} ++eval_every=null", "eval_every: found null"),
        (f"{DPO} warmup_steps=null", "warmup_steps: found null"),
        (f"{SHELL} --logging_steps null", "logging_steps: found null"),
        (f"{HALOS} ++loss.sync_reference=7", "loss.sync_reference: found"),
    ],
)
def test_commands_are_read_by_the_same_rows(command, says):
    system = "trainer" if command.startswith(("torchrun", "accelerate launch --num_processes 4 --")) else None
    with pytest.raises(RecipeError, match=says):
        read_recipe(command, [], RecipeOptions(system=system))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('"bf16": "word"', "bf16: found .* Write keys and values"),
        ('"wall_clock_breakdown": "word"', "wall_clock_breakdown: found"),
        ('"train_micro_batch_size_per_gpu": {"a": 1}', "train_micro_batch_size_per_gpu: found keys below it"),
    ],
)
def test_a_deepspeed_file_is_read_by_its_rows(text, says, tmp_path):
    (tmp_path / "d.json").write_text(f'{{"train_batch_size": 16, {text}}}')
    with pytest.raises(RecipeError, match=says):
        read_recipe(str(tmp_path / "d.json"), [], RecipeOptions(gpus=4))


@pytest.mark.parametrize(("value", "is_taken"), [("word", False), ("BF16", False), ("bf16", True), ("$MP", True)])
def test_accelerates_own_option_has_choices(value, is_taken):
    script = "train.py --per_device_train_batch_size 2 --gradient_accumulation_steps 2"
    command = f"accelerate launch --num_processes 4 --mixed_precision {value} {script}"
    if is_taken:
        assert read_recipe(command, [], RecipeOptions(system="trainer")).global_batch == 16
        return
    with pytest.raises(RecipeError, match=r"--mixed_precision: found .* Write no, fp16, bf16, fp8"):
        read_recipe(command, [], RecipeOptions(system="trainer"))


def test_a_script_may_have_settings_of_grpo_for_itself():
    """Only TRL's GRPO reads them."""
    recipe = read_recipe(f"{SHELL} --generation_batch_size word", [], RecipeOptions(system="trainer"))
    assert recipe.global_batch == 16


def test_a_value_is_refused_once(tmp_path):
    with pytest.raises(RecipeError) as refused:
        _read(tmp_path, {"lr_scheduler_type": "word", "eval_steps": "word"}, is_for_job=True)
    assert str(refused.value).count("lr_scheduler_type:") == str(refused.value).count("eval_steps:") == 1


@pytest.mark.parametrize(
    "more",
    [
        {"per_device_train_batch_size": "2"},
        {"dataset_num_proc": "4", "save_steps": "0.5", "max_length": "512"},
        {"eval_strategy": "no", "eval_steps": -1},
        {"router_aux_loss_coef": "inf"},
    ],
)
def test_what_trl_takes_is_taken(more, tmp_path):
    """Its parser gives argparse the file's texts, which makes numbers of them."""
    assert _read(tmp_path, more).global_batch == 16


@pytest.mark.parametrize(
    "command",
    [
        f"{DPO} debug=1",
        f"{HALOS} ++humanline=0",
        f"{HALOS} ++load_reference_logprobs=false",
        f"{HALOS} ++log_epsilon_P=-inf",
    ],
)
def test_what_python_takes_for_a_truth_or_a_number_is_taken(command):
    options = RecipeOptions(gpus=4 if command.startswith(DPO) else None, is_for_job=False)
    assert read_recipe(command, [], options).global_batch


@pytest.mark.parametrize(("clip", "text"), [("0.5", "0.5"), ([], "an empty list")])
def test_accelerates_clipping_may_be_a_text(clip, text, tmp_path):
    launch = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"gradient_clipping": clip}}
    if isinstance(clip, list):
        with pytest.raises(RecipeError, match=f"gradient_clipping: found {text}"):
            _read(tmp_path, {}, launch=launch)
        return
    assert _read(tmp_path, {"max_grad_norm": 0.5}, launch=launch).global_batch == 16


def test_deepspeed_never_prints_if_steps_per_print_is_infinite(tmp_path):
    """accelerate sets it so, and Python writes it as Infinity."""
    (tmp_path / "d.json").write_text('{"train_batch_size": 16, "steps_per_print": Infinity}')
    assert read_recipe(str(tmp_path / "d.json"), [], RecipeOptions(gpus=4)).global_batch == 16


def test_a_data_set_without_a_name_is_none():
    options = RecipeOptions(gpus=4, is_for_job=False)
    for command in (f"{DPO} ++datasets=''", f"{HALOS} ++datasets=''"):
        recipe = read_recipe(command, [], options if command.startswith(DPO) else RecipeOptions(is_for_job=False))
        assert recipe.draft.job["data"]["path"] == "data/NAME/"

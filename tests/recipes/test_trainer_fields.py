"""Every field, option and variable of the installed packages has a row in the table of what reaches the batch.

Without the row a field that changes the batch would be ignored, and the batch would be wrong with exit code 0.
"""

import dataclasses
import re
from pathlib import Path

import accelerate
import pytest
import trl
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin, GradientAccumulationPlugin
from transformers import HfArgumentParser, TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

from planner.recipes.rule import Rules
from planner.recipes.trainer import keys, launch_keys
from planner.recipes.trainer.keys import effect_of
from planner.recipes.trl.keys import ALONE, RULES

ROWS = {
    "TrainingArguments": keys.TRAINING_ARGUMENTS,
    "AcceleratorConfig": keys.ACCELERATOR_CONFIG,
    "GradientAccumulationPlugin": keys.GRADIENT_ACCUMULATION,
    "ParallelismConfig": keys.PARALLELISM_CONFIG,
    "FullyShardedDataParallelPlugin": keys.FSDP_PLUGIN,
    "TRL": RULES,
    "accelerate launch": launch_keys.ACCELERATE_LAUNCH,
    "variables": launch_keys.VARIABLES,
}
_PACKAGE = Path(accelerate.__file__).parent
_VARIABLE = re.compile(
    r"\b(?:ACCELERATE_[A-Z0-9_]+|FSDP_[A-Z0-9_]+|PARALLELISM_CONFIG_[A-Z0-9_]+|[A-Z_]*DEEPSPEED[A-Z_]*)"
)


def _fields(*classes):
    return {each.name for its in classes for each in dataclasses.fields(its)}


def _variables():
    """What looks like a variable of accelerate in its source, without its own tests."""
    files = [file for file in _PACKAGE.rglob("*.py") if "test_utils" not in file.parts]
    return {name for file in files for name in _VARIABLE.findall(file.read_text())}


def _of_trl():
    """The fields of the scripts that planner reads, beyond TrainingArguments."""
    methods = (getattr(trl, f"{name}Config", None) for name in ("SFT", "DPO", "KTO", "GRPO", "ORPO"))
    others = (trl.ScriptArguments, trl.ModelConfig, trl.DatasetMixtureConfig)
    return _fields(*(each for each in methods if each), *others) - _fields(TrainingArguments)


THEIRS = {
    "TrainingArguments": _fields(TrainingArguments),
    "AcceleratorConfig": _fields(AcceleratorConfig),
    "GradientAccumulationPlugin": _fields(GradientAccumulationPlugin),
    "ParallelismConfig": _fields(accelerate.ParallelismConfig),
    "FullyShardedDataParallelPlugin": _fields(FullyShardedDataParallelPlugin),
    "TRL": _of_trl(),
    "accelerate launch": {action.dest for action in launch_command_parser()._actions},
    "variables": _variables(),
}


def missing(section, rows):
    """The names of the installed packages that have no row."""
    return sorted(THEIRS[section] - rows.names)


@pytest.mark.parametrize("section", THEIRS)
def test_every_field_has_a_row(section):
    assert missing(section, ROWS[section]) == []
    assert len(THEIRS[section]) > 3


@pytest.mark.parametrize("section", THEIRS)
def test_a_row_that_is_removed_is_missed(section):
    """So the test above can fail: for each name."""
    for name in sorted(THEIRS[section]):
        rows = Rules(tuple(row for row in ROWS[section] if row.name != name))
        assert missing(section, rows) == [name]


def test_options_without_a_value_are_known():
    """A variable behind one is no value of it, so it may hold the batch."""
    configs = (trl.SFTConfig, trl.DPOConfig, trl.KTOConfig, trl.GRPOConfig, trl.ScriptArguments, trl.ModelConfig)
    actions = [action for config in configs for action in HfArgumentParser([config])._actions]
    theirs = {action.dest for action in actions if action.nargs == "?"}
    assert "push_to_hub" in theirs
    assert theirs <= ALONE


# Options whose value another rule checks, and those of Megatron-LM, which is refused.
OTHERS = re.compile(r"megatron_lm_.*|parallelism_config_.*|num_processes|gradient_accumulation_steps")


def test_numbers_of_accelerates_launcher_are_numbers_here():
    theirs = {each.dest: each.type for each in launch_command_parser()._actions if each.type in (int, float)}
    theirs = {name: kind for name, kind in theirs.items() if not OTHERS.fullmatch(name)}
    ours = {row.name: row.value for row in launch_keys.ACCELERATE_LAUNCH if row.value != "any"}
    assert ours == {name: "whole" if kind is int else "number" for name, kind in theirs.items()}


def test_deepspeeds_sizes_are_those_that_transformers_compares():
    text = (Path(trl.__file__).parent.parent / "transformers/integrations/deepspeed.py").read_text()
    compared = set(re.findall(r'fill_match\(\s*"(\w*batch\w*|gradient_accumulation\w*)"', text))
    assert compared == {row.name for row in keys.DEEPSPEED if row.effect.planner == "reads"}


def test_a_key_is_found_in_its_section():
    """Also with the prefix that accelerate's own files repeat."""
    assert effect_of("accelerator_config.gradient_accumulation_kwargs.num_steps", RULES).planner == "reads"
    assert effect_of("accelerator_config.split_batches", RULES).planner == "reads"
    assert effect_of("parallelism_config.parallelism_config_tp_size", RULES).planner == "refuses"
    assert effect_of("generation_batch_size", RULES).planner == "reads"
    assert effect_of("learning_rate", RULES) is None

"""Facts that were taken from peft and transformers, held against the installed packages; nothing is imported."""

import ast
import importlib.util
from pathlib import Path

import pytest

from planner.recipes.peft_targets import _TARGETS
from planner.recipes.trl_keys import KNOWN, TRUE_BY_DEFAULT


def _tree(package, file):
    """A file of an installed package; the test is skipped where there is none."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return ast.parse((Path(next(iter(spec.submodule_search_locations))) / file).read_text())


def test_peft_puts_adapters_where_planner_says():
    """A family that peft has no default for would be refused there."""
    name = "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING"
    assigned = next(
        node.value
        for node in _tree("peft", "utils/constants.py").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    theirs = ast.literal_eval(assigned)
    assert {family: list(targets) for family, targets in _TARGETS.items()} == {
        family: theirs.get(family) for family in _TARGETS
    }


def test_transformers_negates_the_options_that_planner_takes():
    """Those that are true by default, and its parser makes --no_NAME for them."""
    tree = _tree("transformers", "training_args.py")
    (arguments,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments"]
    true = {
        node.target.id
        for node in arguments.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.value, ast.Call)
        and any(keyword.arg == "default" and ast.unparse(keyword.value) == "True" for keyword in node.value.keywords)
        and "bool" in ast.unparse(node.annotation)
    }
    assert true
    assert true <= TRUE_BY_DEFAULT & KNOWN
    assert 'f"--no_{field.name}"' in ast.unparse(_tree("transformers", "hf_argparser.py")).replace("'", '"')

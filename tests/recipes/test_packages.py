"""Compares planner's tables with the sources of the installed peft and transformers, without importing them."""

import ast
import importlib.util
from pathlib import Path

import pytest

from planner.recipes.trainer.peft_targets import _TARGETS
from planner.recipes.trainer.trackers import _DEFAULT_PROJECT, _SETTERS
from planner.recipes.trl.keys import KNOWN, TRUE_BY_DEFAULT


def _tree(package, file):
    """The syntax tree of a file in an installed package. The test is skipped if the package is missing."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return ast.parse((Path(next(iter(spec.submodule_search_locations))) / file).read_text())


def test_peft_puts_adapters_where_planner_says():
    """peft refuses a family without a default."""
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


def test_transformers_tracks_as_planner_reads_it():
    """The trackers that `report_to` names, the default project, and the default of `report_to` in transformers 5."""
    callbacks = _tree("transformers", "integrations/integration_utils.py")
    known = next(
        node.value
        for node in callbacks.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "INTEGRATION_TO_CALLBACK"
    )
    assert set(_SETTERS) <= {key.value for key in known.keys}
    text = ast.unparse(callbacks)
    assert f"os.getenv('WANDB_PROJECT', '{_DEFAULT_PROJECT}')" in text
    assert all(f"os.getenv('{name}'" in text for name in ("MLFLOW_TRACKING_URI", "TENSORBOARD_LOGGING_DIR"))
    arguments = ast.unparse(_tree("transformers", "training_args.py"))
    assert "report_to: None | str | list[str] = field(default='none'" in arguments
    assert f"project: str = field(default='{_DEFAULT_PROJECT}'" in arguments


def test_transformers_negates_the_options_that_planner_takes():
    """transformers makes --no_NAME for options that are true by default."""
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

"""What the trainer does to a gradient and what a dry run says of it come from one rule."""

import ast
from dataclasses import fields, replace

import pytest
from import_graph import modules

from planner.job.gradient import GradientRule, gradient_rule
from planner.report.dry_run_text import gradient_text

RULE = GradientRule(is_fixed_point=False, element_bytes=4, non_finite="stop", clip_norm=1.0)
OTHER = {"is_fixed_point": True, "element_bytes": 8, "non_finite": "skip", "clip_norm": None}


@pytest.mark.parametrize("name", [field.name for field in fields(GradientRule)])
def test_the_text_says_every_part_of_the_rule(name):
    """A part that it left out could change unseen. A new one needs a sentence."""
    other = replace(RULE, **{name: OTHER[name]})
    assert gradient_text(RULE, 9, is_own=False) != gradient_text(other, 9, is_own=False)


def test_the_trainer_asks_the_rule_and_not_the_job():
    """So what it does is what the text says."""
    found = {
        (module, ast.unparse(node))
        for module, file in modules().items()
        if module.startswith("planner.train")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"clip_norm", "non_finite", "element_bytes"}
    }
    assert found == {
        ("planner.train.lifecycle", "rule.element_bytes"),
        ("planner.train.step_update", "self._rule.clip_norm"),
        ("planner.train.step_update", "self._rule.non_finite"),
    }
    assert {f"{field.name}" for field in fields(GradientRule)} - {text.rpartition(".")[2] for _, text in found} == {
        "is_fixed_point"  # `make_sums` chooses the class of the sums by it
    }


def test_the_rule_is_that_of_the_job(tmp_path):
    """Its four parts, from the keys of the job file."""
    from planner.files import read_job

    file = tmp_path / "job.yaml"
    file.write_text(
        "name: tiny\nmodel: {kind: gpt, layers: 1, width: 16, heads: 2, context: 16}\n"
        "data: {kind: text, path: x}\nbatch: {global: 6, max_micro: 4}\n"
        "train: {steps: 4, optimizer: {kind: adamw, lr: 1e-3}}\n"
    )
    assert gradient_rule(read_job(str(file))) == RULE
    settings = ["batch.equality=bitwise", "train.non_finite=skip", "train.clip_norm=null"]
    assert gradient_rule(read_job(str(file), settings)) == GradientRule(**OTHER)

"""The picture of an optimizer step stands at the top of `train/loop.py` and in docs/architecture.md."""

import ast
import re
from textwrap import dedent

import pytest
from pages import ROOT

TRAIN = ROOT / "planner" / "train"
DOCSTRING = ast.get_docstring(ast.parse((TRAIN / "loop.py").read_text()), clean=True)
PICTURE = dedent("\n".join(line for line in DOCSTRING.splitlines() if line.startswith("    ")))
NAMES = [line.rsplit(None, 1)[1] for line in PICTURE.splitlines()]


def functions(name):
    """The functions and classes of this name, such as `control.Pending.wait`. Without a module, those of loop.py."""
    *path, last = name.split(".")
    modules = [part for part in path if part[0].islower()] + ([last] if not path else [])
    nodes = [ast.parse((TRAIN.joinpath(*modules or ["loop"]).with_suffix(".py")).read_text())]
    for part in [part for part in path if not part[0].islower()] + [last]:
        nodes = [
            child
            for node in nodes
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.name == part
        ]
    return nodes


def test_the_docs_have_the_picture_of_the_code():
    """A newcomer reads it on the web, and whoever changes the loop sees it in the file."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    blocks = re.findall(r"(?s)```text\n(.*?)\n```", page.partition("\n## A step\n")[2].partition("\n## ")[0])
    assert blocks == [PICTURE]


@pytest.mark.parametrize("name", NAMES)
def test_each_line_names_a_function_or_class(name):
    """So that a reader can jump there."""
    assert len(functions(name)) == 1


def test_a_name_that_is_not_there_is_noticed():
    """The test above does not pass for any name."""
    assert functions("control.Pending.send") == []
    assert len(NAMES) > 10

"""Records the recipes that tests hand to the readers, as blocks of a page of frozen answers.

    FROZEN_PAGE=mine PYTHONPATH=tests/recipes python -m pytest -p frozen_recorder tests/recipes/test_reading.py

This writes the page `frozen/mine.txt`: a case for each recipe whose answer no earlier case has. Its files are those
that were opened while planner read it.
"""

import os
import re
import sys
from pathlib import Path

import frozen_answers
import frozen_pages
from frozen_answers import Case

from planner import recipes
from planner.recipes import RecipeOptions

_ROOT = re.compile(r"/[^\s'\"]*/pytest-of-[^/]+/pytest-\d+/[^/\s'\"]+/|" + re.escape(f"{Path.cwd()}/"))
_ASKED = ("gpus", "max_micro", "accelerate", "halos_batch", "method", "env")
_MOST_LETTERS = 12_000
_read_recipe = recipes.read_recipe
_found: dict[str, Case] = {}
_opened: list[str] = []
_now = {"test": "", "reads": False}


def _note_open(event, arguments):
    if event == "open" and _now["reads"] and isinstance(arguments[0], str):
        _opened.append(str(Path(arguments[0]).absolute()))


def _recorded(path, arguments=(), options=None):
    """Reads a recipe and notes it, also if planner refuses it."""
    if _now["reads"]:
        return _read_recipe(path, arguments, options)
    _now["reads"] = True
    _opened.clear()
    try:
        return _read_recipe(path, arguments, options)
    finally:
        _now["reads"] = False
        _note(str(path), arguments, options or RecipeOptions())


def _note(path, arguments, options):
    name = f"{_now['test']} {len(_found) + 1}"
    texts = {}
    for file in dict.fromkeys(_opened):
        if not Path(file).is_file():  # a pipe would wait for its writer
            return
        try:
            texts[_relative(file)] = _relative(Path(file).read_text())
        except (OSError, ValueError):
            return
    said = {key: value for key in _ASKED if (value := getattr(options, key))}
    if any(Path(each).is_absolute() for each in texts) or sum(map(len, texts.values())) > _MOST_LETTERS:
        return
    _found[name] = Case(
        name=name,
        recipe=_relative(path),
        args=tuple(map(_relative, arguments)),
        options={key: _relative(value) if isinstance(value, str) else value for key, value in said.items()},
        files=texts,
    )


def _relative(text):
    return _ROOT.sub("", str(text))


# Tests import it from here, so it is replaced before they are collected.
recipes.read_recipe = _recorded
sys.addaudithook(_note_open)


def pytest_runtest_setup(item):
    """Note which test runs."""
    _now["test"] = item.originalname.removeprefix("test_").replace("_", " ")


def pytest_sessionfinish():
    """Write the page."""
    recipes.read_recipe = _read_recipe
    blocks, seen = {}, set()
    for case in _found.values():
        answer = tuple(frozen_answers.answer_of(case))
        if answer not in seen:
            seen.add(answer)
            blocks[case.name] = frozen_pages.Block(case=case, inputs=frozen_pages.case_inputs(case), lines=answer)
    frozen_pages.write(os.environ["FROZEN_PAGE"], blocks)

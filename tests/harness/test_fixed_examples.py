"""Every process takes the same examples, whatever is loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixed_examples import EXAMPLES, MANY, examples
from hypothesis import settings

pytestmark = pytest.mark.process
HERE = Path(__file__).parent
# They bring many literals.
MODULES = ["planner.errors", "planner.plan", "planner.recipes"]


def walked(*arguments, **environment):
    """The examples that a new process takes."""
    outside = {name: value for name, value in os.environ.items() if name != "CI"}
    command = [sys.executable, str(HERE / "walked.py"), *arguments]
    root = str(HERE.parents[1])
    done = subprocess.run(command, env={**outside, **environment}, cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_same_examples_with_further_modules_and_in_ci():
    """50 of them, and not all alike."""
    plain = walked()
    assert len(set(plain)) > EXAMPLES / 2
    assert walked(*MODULES) == plain
    assert walked(*MODULES, CI="true") == plain


def test_without_the_emptied_pool_examples_depend_on_what_is_loaded():
    """Else nothing would need to be emptied."""
    assert walked("--pool", *MODULES) != walked("--pool")


def test_every_test_has_this_profile():
    """It is loaded by the conftest, and `examples` keeps to its measure."""
    many = settings.get_profile("properties")
    assert (many.max_examples, many.derandomize) == (MANY, False)
    plain = settings.get_profile("planner")
    assert (plain.max_examples, plain.derandomize, plain.database, plain.deadline) == (EXAMPLES, True, None, None)
    assert settings.default in (plain, many)
    assert examples(25).max_examples == settings.default.max_examples // 2

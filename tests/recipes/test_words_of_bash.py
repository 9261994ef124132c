"""A command's words are those that bash makes of them, or planner refuses them or leaves them visibly open."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import shell_judge
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.process


@settings(max_examples=4)
@given(st.integers(0, 10**9))
def test_bash_makes_the_same_words_of_random_scripts(tmp_path_factory, seed):
    """Quotes, escapes, redirections, comments, continuations, variables, lists, functions, loops, shells in shells."""
    _, differences = shell_judge.judged(shell_judge.scripts(seed, 40), tmp_path_factory.mktemp("words"))
    assert not differences, "\n======\n".join(differences)


def test_most_random_scripts_are_read(tmp_path):
    """A lexer that refuses everything would agree with bash, too."""
    counts, differences = shell_judge.judged(shell_judge.scripts(0, 150), tmp_path)
    trainings = counts.equal + counts.unresolved + counts.refused
    assert not differences
    assert trainings > 100
    assert counts.refused < 0.05 * trainings, counts.reasons
    assert counts.equal > 0.5 * trainings


def test_bash_makes_the_same_words_of_trls_own_docstrings(tmp_path):
    """They quote `<|im_end|>`, behind which LoRA and evaluation were lost."""
    files = sorted(Path(find_spec("trl").origin).parent.rglob("*.py"))
    found = [re.findall(r"```(?:bash|shell)\n(.*?)```", file.read_text(), re.DOTALL) for file in files]
    blocks = [block for each in found for block in each if re.search(r"(?:sft|dpo|kto|grpo)\.py|trl sft", block)]
    counts, differences = shell_judge.judged(blocks, tmp_path)
    assert not differences
    assert counts.equal == len(blocks) > 3
    assert sum("'<|im_end|>'" in block for block in blocks) >= 2

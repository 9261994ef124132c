"""Answers of `planner check` and `planner convert` that must not change unseen (frozen/README.md)."""

from dataclasses import replace

import freeze
import frozen_pages
import pytest

MOST_BYTES, MOST_LINES = 900_000, 20_000
PLAIN = "model_name_or_path: m\ndataset_name: a/b\nper_device_train_batch_size: 2\nlearning_rate: 1e-6\n"


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A folder with one page of one case, which is written."""
    monkeypatch.setattr(frozen_pages, "FOLDER", tmp_path)
    case = frozen_pages.Case(
        name="plain", recipe="r.yaml", options={"gpus": 4, "method": "sft"}, files={"r.yaml": PLAIN}
    )
    like = frozen_pages.parse(
        frozen_pages.page_text([frozen_pages.Block(case=case, inputs=frozen_pages.case_inputs(case))])
        + "\n== + learning_rate: 3e-6\n"
    )
    frozen_pages.write("mine", frozen_pages.answered(like))
    return tmp_path / "mine.txt"


@pytest.mark.parametrize("name", frozen_pages.names())
def test_the_answers_are_those_of_the_page(name):
    """On a difference the message has the cases, their lines and the command that writes the page again."""
    found = freeze.differences(name)
    assert not found, freeze.message(name, found)


@pytest.mark.parametrize("name", frozen_pages.names())
def test_a_page_is_written_as_it_is_read(name):
    """So a page that was edited by hand has no other form than a written one."""
    text = (frozen_pages.FOLDER / f"{name}.txt").read_text()
    assert frozen_pages.page_text(frozen_pages.read(name).values()) == text


def test_the_pages_are_small():
    """They are read by people, and each change of an answer is in the history."""
    texts = [(frozen_pages.FOLDER / f"{name}.txt").read_bytes() for name in frozen_pages.names()]
    assert sum(map(len, texts)) <= MOST_BYTES
    assert sum(text.count(b"\n") for text in texts) <= MOST_LINES


@pytest.mark.parametrize("name", frozen_pages.names())
def test_an_answer_names_nothing_of_this_machine(name):
    """No temporary folder and no checkout."""
    texts = [text for block in frozen_pages.read(name).values() for _, text in block.lines]
    assert not [text for text in texts if "/tmp/" in text or str(frozen_pages.FOLDER.parents[2]) in text]


def test_another_answer_is_shown_with_the_command_that_writes_it(page, monkeypatch):
    """The case, both lines and what to type. After `--write` there is no difference."""
    assert freeze.differences("mine") == []
    told = freeze.frozen_pages.frozen_answers.recipe_text
    monkeypatch.setattr("frozen_answers.recipe_text", lambda recipe: told(recipe).replace("TRL", "TRL!"))
    (found,) = freeze.differences("mine")
    assert found.splitlines() == [
        "mine: plain",
        "  - is | TRL, sft, 8 examples per step, tuned for 4 GPUs",
        "  + is | TRL!, sft, 8 examples per step, tuned for 4 GPUs",
    ]
    assert "python tests/recipes/freeze.py --write mine" in freeze.message("mine", [found])
    assert freeze.main([]) == 1
    assert freeze.main(["--write", "mine"]) == 0
    assert freeze.main([]) == 0
    assert "is | TRL!, sft" in page.read_text()


def test_a_key_has_only_what_it_changes(page):
    """Its lines are the differences from the page's first case."""
    block = frozen_pages.read("mine")["+ learning_rate: 3e-6"]
    assert ("+job", "train.optimizer.lr: 3e-6") in block.lines
    assert all(word[0] in "+-" and "3e-6" in text for word, text in block.lines if word[0] == "+")
    assert page.read_text().count("file r.yaml") == 1


def test_a_refusal_has_its_whole_answer():
    """Also where the case is like another one, of which nothing is left."""
    case = frozen_pages.Case(name="wrong", recipe="r.yaml", options={"gpus": 4}, files={"r.yaml": f"{PLAIN}beta: x\n"})
    lines = frozen_pages.frozen_answers.answer_of(replace(case, options={}))
    assert [word for word, _ in lines] == ["refused"] * len(lines)
    assert lines

"""README is short, and what it shows is true."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from planner.base.version import VERSION
from planner.plan import BatchSizes, make_plan
from planner.provenance.audit import Audit, GenerationSteps
from planner.report.audits import phase_table, verdict

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUARANTEE = re.compile(r"\[`(test_\w+)`\]\((tests/[\w/]+\.py)\)")


def test_it_is_short():
    """150 lines at most, and 120 characters each."""
    lines = README.splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.process
def test_the_plan_is_what_the_command_prints():
    """All of it, to the letter."""
    shown = re.search(r"```console\n\$ planner (plan .*)\n(?s:(.*?))```", README)
    command = [sys.executable, "-m", "planner.cli", *shown[1].split()]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shown[2] == printed


def test_the_demos_end_is_what_a_report_prints():
    """The lines that a run of these four phases ends with, in the report's words of today."""
    sizes = BatchSizes(global_batch=64, max_micro=8)
    phases = [
        GenerationSteps(
            generation=number,
            world_size=workers,
            shares=make_plan(sizes, workers).shares,
            accumulation_steps=make_plan(sizes, workers).accumulation_steps,
            first_step=first,
            end_step=end,
            recomputed_before=0,
            from_memory=number > 1,
        )
        for number, (workers, first, end) in enumerate([(4, 0, 36), (3, 36, 84), (5, 84, 112), (4, 112, 160)], start=1)
    ]
    recorded = Audit(
        steps=160,
        samples=10240,
        lost=0,
        repeated=0,
        mismatched=0,
        recomputed=0,
        uncommitted=0,
        global_batches=(64,),
        phases=tuple(phases),
        total_steps=160,
        held_out=((0, 5.5428), (160, 2.5699)),
        weights="",
        findings=(),
    )
    shown = re.search(r"```text\n(generation  workers(?s:.*?))\n```", README)[1]
    assert shown.splitlines() == [*phase_table(recorded), "", *verdict(recorded)]


# A word of planner's -> the text that explains it.
EXPLAINED = {
    "worker": "at any number of workers. A worker is one training process",
    "FSDP2": "FSDP2 (PyTorch, each worker holds a part of the model)",
    "resize": "it *resizes*: it splits the batch again",
    "round": "*rounds* (forward and backward passes)",
    "micro-batch": "A *micro-batch* is what a worker computes in one round",
    "commit": "A *commit* is a whole checkpoint",
    "generation": "A *generation* lasts from one resize to the next",
    "held-out": "The *held-out* loss is of data that is not trained on",
    "ledger": "*ledger* (its log of steps)",
    "cursor": "cursor.** The place in the data, the *cursor*, is one integer",
}
UNEXPLAINED = ("manifest", "rehearsal", "accumulation", "shard", "W workers", "keeper")


@pytest.mark.parametrize("word", EXPLAINED)
def test_a_word_of_planners_is_explained_where_it_is_used_first(word):
    """In the prose. Output and commands may show a word shortly before the sentence about it."""
    prose = " ".join(re.sub(r"(?s)```.*?```|<picture>.*?</picture>|\(docs/\S*\)", "", README).split())
    explained_at = prose.index(EXPLAINED[word])
    used_at = re.search(rf"(?i)(?<![\w`/]){re.escape(word)}", prose).start()
    assert explained_at <= used_at < explained_at + len(EXPLAINED[word]), prose[max(0, used_at - 40) : used_at + 40]


def test_words_that_readme_does_not_explain_are_not_in_it():
    assert [word for word in UNEXPLAINED if word in README] == []


def test_five_guarantees_name_tests_that_are_there():
    """By file and function, so that no line number gets old."""
    section = README.partition("## Five guarantees")[2].partition("\n## ")[0]
    found = GUARANTEE.findall(section)
    assert len(found) == 5
    for name, file in found:
        tree = ast.parse((ROOT / file).read_text())
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, file


def test_the_picture_is_there_in_both_colours():
    """For light pages and dark ones, and in words for readers who see neither."""
    files = re.findall(r'(?:srcset|src)="(\S+)"', README)
    assert [Path(file).name for file in files] == ["demo-dark.svg", "demo-light.svg"]
    assert all("2 workers join" in (ROOT / file).read_text() for file in files)
    assert re.search(r'alt="[^"]{100,}"', README)


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [
        pytest.param(r"exact_batch_planner-(\d+\.\d+\.\d+)-py3", "docs/quickstart.md", id="wheel"),
        pytest.param(r"my-registry/planner:(\d+\.\d+\.\d+)", "docs", id="image"),
    ],
)
def test_versions_agree(pattern, folder):
    """Files that a user makes bear the version of `planner.base.version`."""
    place = ROOT / folder
    files = [place] if place.is_file() else [file for file in place.rglob("*.*") if file.suffix in {".md", ".yaml"}]
    found = {version for file in files for version in re.findall(pattern, file.read_text(encoding="utf-8"))}
    assert found == {VERSION}


def test_the_newest_release_in_the_changelog_is_this_version():
    """And releases stand newest first."""
    releases = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert releases[0] == VERSION
    assert releases == sorted(releases, key=lambda text: [int(part) for part in text.split(".")], reverse=True)

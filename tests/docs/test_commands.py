"""Every command in README and docs is run here, or its page says what it needs.

A block of commands is one whose language is `sh`, `bash` or `console`, or one without a language with a line that
begins with `$ ` or with a known program. Its commands are typed one after another, in a folder like a fresh checkout.
Commands that read a run are typed in a folder with finished runs. All must end with 0. Where a page shows the output of
`$ command`, the command must print it, except about runs. `...` on a line of its own stands for any lines.

- Commands that train (`_TRAINS`) are typed with `--dry-run`. The file beside each one tests the training.
- Commands of `_ELSEWHERE` are not typed. The file beside each one runs them.
- Everything else needs a comment in the line above its block, which says what is missing here:

      <!-- needs a cloud -->      <!-- needs a cluster -->      <!-- needs a network -->
      <!-- run by tests/dispatch/test_submit.py -->

  In a block that needs something, commands that train are not typed. Those that only read (`_READS`) are.
"""

import json
import re
from pathlib import Path

import pytest
import yaml
from pages import PAGES, ROOT, Block, blocks, name
from typed import Command, commands, fits

from planner.files import parse_job

_READS = re.compile(
    r"planner (plan|check|convert|schema|init|prepare|runs|show|watch|report|audit|fit|simulate|--version|--help)\b"
    r"|planner \S+ --help\b"
    r"|python (jobs/make_\w+|docs/verify_run)\.py|cat "
)
# How a command begins, the file that runs it, and the word that stands there.
_TRAINS = [
    ("planner run", "tests/dispatch/test_command_line.py", '"run"'),
    ("planner verify", "tests/cli/test_verify_command.py", "planner verify"),
    ("planner submit", "tests/dispatch/test_submit.py", "submit"),
    ("planner demo", "tests/cli/test_dry_run.py", '"demo"'),
]
_ELSEWHERE = [
    ("planner export", "tests/fsdp/test_hf_training.py", "export"),
    ("pip |python3? -m pip ", "tests/wheel/try.sh", "pip"),
    (r"(PYTHONPATH=\S+ )?python3? bench/gpu\.py", "tests/bench/test_gpu_bench.py", "gpu"),
]
# These only change the shell.
_SETS = re.compile(r"(export|source|cd|git clone)\b|\S+ -m venv")
_ON_A_CLUSTER = re.compile(r"planner run .*--address")
_PROGRAMS = re.compile(
    r"(planner|make|python3?|pip|ray|aws|gcloud|az|kubectl|helm|docker|umask|export|source|git) (?=\S)"
)
_NEEDS = re.compile(r"<!-- needs [^>]+ -->|needs an? (cloud|cluster)\b", re.IGNORECASE)
_RUN_BY = re.compile(r"<!-- run by ([\w./-]+) -->")


def holds_commands(block: Block) -> bool:
    """Whether the block shows commands to type."""
    lines = block.text.splitlines()
    return block.language in {"sh", "bash", "console"} or (
        not block.language and any(line.startswith("$ ") or _PROGRAMS.match(line) for line in lines)
    )


def kind_of(text: str) -> str:
    """What is done with a command: `read`, `train`, `make`, `nothing`, or `unknown`."""
    if _READS.match(text):
        return "read"
    if text.startswith(tuple(begins for begins, *_ in _TRAINS)) and not _ON_A_CLUSTER.match(text):
        return "train"
    if text.startswith("make "):
        return "make"
    is_known = _SETS.match(text) or any(re.match(begins, text) for begins, *_ in _ELSEWHERE)
    return "nothing" if is_known else "unknown"


def says_what_it_needs(block: Block) -> bool:
    """In a comment or in the paragraph above it."""
    return bool(_NEEDS.search(block.above) or _RUN_BY.search(block.above))


BLOCKS = [block for page in PAGES for block in blocks(page) if holds_commands(block)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_each_block_of_commands_can_be_run_or_says_what_it_needs(block):
    """Write `<!-- needs a cloud -->`, `a cluster` or `a network` above a block that fails here."""
    unknown = [command.text for command in commands(block.text) if kind_of(command.text) == "unknown"]
    assert unknown == [] or says_what_it_needs(block)


@pytest.mark.process
@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS}), ids=name)
def test_the_commands_of_a_page_do_what_it_says(page, reader):
    """Type them in order, in one folder."""
    typed = [(block, command) for block in BLOCKS if block.page == page for command in commands(block.text)]
    wrong = [problem for block, command in typed for problem in problems(reader, block, command)]
    assert not wrong, "\n".join(wrong)


def problems(reader, block: Block, command: Command) -> list[str]:
    """Type the command, if it can be typed here. It must succeed, and print what the page shows."""
    text, kind, shown = command.text, kind_of(command.text), command.shown
    if kind == "make" and text.split()[1] not in re.findall(r"(?m)^([\w./-]+):", (ROOT / "Makefile").read_text()):
        return [f"{block.place}: {text}: the Makefile does not have it"]
    if kind == "train" and not _NEEDS.search(block.above):
        text, shown = (text, shown) if "--dry-run" in text else (f"{text} --dry-run", "")
    elif kind != "read":
        return []
    answer = reader.type(text)
    printed = answer.out + answer.err
    # A refusal with its output may be what a page shows.
    is_right = fits(shown, printed) if shown and not command.looks_at_runs else answer.code == 0
    return [] if is_right else [f"{block.place}: {text}: ended with {answer.code}\n{printed}"]


@pytest.mark.parametrize(("begins", "file", "word"), [*_TRAINS, *_ELSEWHERE])
def test_what_is_not_typed_here_is_run_elsewhere(begins, file, word):
    """The file exists and has the word."""
    assert begins
    assert word in (ROOT / file).read_text()


def test_a_comment_names_a_file_that_runs_the_command():
    """`<!-- run by FILE -->`: the file exists and names a command of the block."""
    for block in BLOCKS:
        for file in _RUN_BY.findall(block.above):
            names = {Path(command.text.split()[1]).stem for command in commands(block.text)}
            assert any(each in (ROOT / file).read_text() for each in names), block.place


def test_commands_and_outputs_are_found():
    """The tests above have something to look at."""
    shown = [command for block in BLOCKS for command in commands(block.text) if command.shown]
    assert len(BLOCKS) > 15
    assert sum(kind_of(command.text) == "read" for command in shown) > 2


# -- what is not typed: jobs, Python, JSON

# Its blocks are files of packages. tests/job/test_extending_objective.py and others install them.
_RUN_AS_A_WHOLE = "docs/extending.md"
FILES = [
    block
    for page in PAGES
    for block in blocks(page)
    if block.language in {"yaml", "python", "json"} and name(page) != _RUN_AS_A_WHOLE
]


@pytest.mark.parametrize("block", FILES, ids=lambda block: block.place)
def test_a_file_that_a_page_shows_can_be_read(block):
    """Python compiles, JSON and YAML can be parsed, and planner reads whole jobs."""
    if block.language == "python":
        compile(block.text, block.place, "exec")
    elif block.language == "json":
        json.loads(block.text)
    elif {"model", "data", "batch", "train"} <= (yaml.safe_load(block.text) or {}).keys():
        parse_job(block.text)


# -- the reader of pages itself


def test_a_changed_output_is_noticed():
    """Words and their order count. Spaces and line breaks do not."""
    assert fits("GPUs  used\n...\n 8  8 x 8", "GPUs used\n 7  x\n 8   8 x 8\n")
    assert not fits("GPUs  used\n 8  8 x 8", "GPUs used\n 7  x\n 8   8 x 8\n")
    assert not fits("8 x 8", "8 x 9")


def test_comments_and_continued_lines_are_no_commands():
    """A shell reads them so."""
    text = "# all of it\nplanner plan \\\n  job.yaml  # a comment\nplanner run 'a # b'\n"
    assert [each.text for each in commands(text)] == ["planner plan job.yaml", "planner run 'a # b'"]

"""Commands as a page shows them, typed in a folder."""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from events import EVENT_S

import planner.cli

_SHELL = re.compile(r"[|<>;&$()]")
# Placeholders in pages, and what is typed instead.
_STAND_INS = {"JOB": "jobs/demo.yaml", "RECIPE": "recipe.sh", "RUN": "runs/demo", "FOLDER": "runs"}
_LOOKS_AT_RUNS = re.compile(r"planner (runs|show|watch|report|audit|fit|simulate --replay)\b|.*verify_run\.py")
# Rates of the demo, which a page has written before with `planner fit`, and a price list of the reader's.
_RATES = """\
format: 1
batch: {global: 64, max_micro: 8}
sample_tokens: {value: 96, source: measured}
terms: {sample_s: {value: 0.01, source: fitted}}
measured: [{world_size: 4, steps: 40, seconds: 0.2}]
"""
_PRICES = "gpus: {H100: {on_demand: 3.9, spot: 1.5}}\n"
_SMALL_JOBS = re.compile(r"planner (run|verify|demo|submit) jobs/(sft|dpo|ipo|simpo|kto)\.yaml")


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command of a block."""

    text: str
    """in one line, without its comment"""
    shown: str
    """the output that the page shows, or empty"""

    @property
    def looks_at_runs(self) -> bool:
        """Whether it prints about a run, whose times and losses differ each time."""
        return bool(_LOOKS_AT_RUNS.match(self.text))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Types what a page shows, in a folder that has the files which the page speaks of."""

    checkout: Path
    finished: Path
    """another checkout, where runs have finished"""
    words_data: Path
    """what `jobs/make_data.py` made"""

    def type(self, text: str) -> Answer:
        """Type a command. A job or a run of the page that is not there is made first, except `no-such-run`."""
        with own_modules():
            return self._typed(text)

    def _typed(self, text: str) -> Answer:
        text = re.sub(r"\b[A-Z]+\b", lambda found: _STAND_INS.get(found[0], found[0]), text)
        if _LOOKS_AT_RUNS.match(text):
            for run in re.findall(r"\bruns/(?!no-such)[\w-]+", text):
                _copy(self.finished / "runs" / "demo", self.finished / run)
            (self.finished / "rates.yaml").unlink(missing_ok=True)  # of another page
            return type_in(self.finished, text)
        for name, content in {"rates": _RATES, "prices": _PRICES}.items():
            if f"--{name} " in text:
                (self.checkout / f"{name}.yaml").write_text(content)
        if not text.startswith("planner init"):
            for file in re.findall(r"(?<!-o )(?<!> )(?<=\s)(?!no-such)[\w-]+\.yaml\b", text):
                _copy(self.checkout / "jobs" / "demo.yaml", self.checkout / file)
        if _SMALL_JOBS.match(text):
            _copy(self.words_data, self.checkout / "data" / "words")
        return type_in(self.checkout, text)


@contextmanager
def own_modules():
    """Loops are imported anew, and forgotten: each checkout has its own, and planner refuses two of one name."""
    for module in (names := ("own_loop", "my_loop")):
        sys.modules.pop(module, None)
    try:
        yield
    finally:
        for module in names:
            sys.modules.pop(module, None)


def _copy(there: Path, here: Path) -> None:
    if not here.exists():
        (shutil.copytree if there.is_dir() else shutil.copy)(there, here)


def commands(text: str) -> list[Command]:
    """The commands of a block: each line, or where lines begin with `$ `, those lines with their outputs."""
    text = re.sub(r"\\\n\s*", "", text)
    if not re.search(r"(?m)^\$ ", text):
        return [Command(text=line, shown="") for line in map(without_comment, text.splitlines()) if line]
    found = re.findall(r"(?ms)^\$ ([^\n]*)\n?(.*?)(?=^\$ |\Z)", text)
    return [Command(text=without_comment(line), shown=shown.strip()) for line, shown in found]


def without_comment(line: str) -> str:
    """The line up to a `#` that is outside quotes and follows a space."""
    quoted = r"\"(?:[^\"\\]|\\.)*\"|'[^']*'"
    return re.match(rf"(?:{quoted}|[^#\s]|\s(?!#)|(?<=\S)#)*", line.strip())[0].rstrip()


def type_in(folder, text: str) -> Answer:
    """Type a command. `planner` runs in this process, which saves the time of its imports. The rest runs in a shell."""
    if text.startswith("planner ") and not _SHELL.search(text):
        return planner_in(folder, shlex.split(text)[1:])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "200", "TERM": "dumb"}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        ["bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=EVENT_S
    )
    return Answer(code=done.returncode, out=done.stdout, err=done.stderr)


def planner_in(folder, words: list[str]) -> Answer:
    """The console script with these words, in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["planner", *words]),
        mock.patch.object(sys, "path", [*sys.path]),
        mock.patch.dict(os.environ, COLUMNS="200"),
    ):
        os.environ.pop("RAY_ADDRESS", None)
        try:
            planner.cli.main()
        except SystemExit as end:
            code = end.code or 0
    return Answer(code=code, out=out.getvalue(), err=err.getvalue())


def fits(shown: str, real: str) -> bool:
    """Whether both have the same words in the same order. A line `...` in `shown` stands for any lines."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in re.split(r"(?m)^\s*\.\.\.\s*$", shown)]
    return re.fullmatch(r"\s*" + r"\s*(?s:.*?)\s*".join(parts) + r"\s*", real) is not None

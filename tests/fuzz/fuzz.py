"""Fuzz: every reader of strangers' files gets files with odd values, bytes and links in them.

    python tests/fuzz/fuzz.py --minutes 60                          as `make fuzz` does
    python tests/fuzz/fuzz.py --reader recipe --case 17 --keep DIR  one case again, its files left in DIR

A case is a valid input with one to three changes, all by dice of the seed, the reader and the case's number. Half of
the cases of a run are changed inside, and every digest is made right again (`fuzz_seals`). A case runs in a process of
its own. Either the input is read, or it is refused by one PlannerError of at most 500 characters without control
characters; within 10 s of CPU time and 1 GiB. Neither a control character nor a traceback reaches the terminal.
Anything else is a failure.
"""

import argparse
import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SECONDS, MEMORY_BYTES, CHARS = 10, 2**30, 500
# Of the clock on the wall, for a case that waits and takes no CPU time.
HANG_S = 60
_HERE = Path(__file__).parent
# Room that is set aside and never used: thread stacks, allocators' arenas.
_SPARE_BYTES = 2**30
_KINDS = ("read", "refused", "failed")
_UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]|Traceback \(most recent call last\)| panicked at ")
# What readers say when a digest does not match: planner's, and docs/verify_run.py's.
SEALED_OFF = re.compile(
    r"digest does not match|the chain breaks|torn \(\d+ bytes|torn or altered|header is torn|the seal does not match"
    r"|not the one that the ledger records|was replaced: its digest|went on from another manifest"
    r"|not the one that this generation went on from|names another digest|was altered after it was prepared"
)


@dataclass(frozen=True)
class Case:
    """One input."""

    seed: int
    reader: str
    number: int

    @property
    def dice(self) -> random.Random:
        """The same ones each time."""
        return random.Random(f"{self.seed} {self.reader} {self.number}")

    @property
    def again(self) -> str:
        """What repeats it."""
        script = Path(__file__).relative_to(_HERE.parents[1])
        return f"python {script} --seed {self.seed} --reader {self.reader} --case {self.number} --keep /tmp/case"


@dataclass(frozen=True)
class Outcome:
    """What became of it."""

    kind: str
    """read, refused or failed"""
    text: str
    """the error, or what is wrong"""
    seconds: float
    memory_bytes: int
    is_sealed_off: bool = False
    """whether a reader said that a digest, a seal or a chain does not match"""


def build(case: Case, valid: Path, folder: Path) -> None:
    """Write the case's files. Of the cases with a run, half are changed behind its seals."""
    from fuzz_mutate import change, copy_of, plant_special
    from fuzz_readers import HAS_MODEL, RUN_READERS
    from fuzz_seals import change_behind_seals

    dice, is_run = case.dice, case.reader in RUN_READERS
    inputs = sorted((valid / ("run" if is_run else case.reader)).iterdir())
    copy_of(dice.choice([each for each in inputs if case.reader != "export" or each.name in HAS_MODEL]), folder)
    if not case.number:  # the first one of all is as it was
        return
    how = dice.random() if is_run else 1.0
    if how < 0.5:
        change_behind_seals(folder, dice)
    elif how < 0.6:
        plant_special(folder / "run", dice)
    else:
        change(folder, dice)


def _tried(case: Case, valid: Path, folder: Path) -> tuple[str, str]:
    """In a process of its own: build the case, and read it."""
    from fuzz_readers import READERS

    from planner.errors import PlannerError

    try:
        build(case, valid, folder)
    except Exception:  # noqa: BLE001  a mutator's fault is no reader's
        return "failed", f"the case cannot be built: {traceback.format_exc()[-1500:]}"
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        READERS[case.reader](folder)
    except PlannerError as error:
        return _judged(str(error))
    except BaseException:  # noqa: BLE001  whatever it is, a user would see it
        return "failed", traceback.format_exc()[-3000:]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "read", ""


def _judged(text: str) -> tuple[str, str]:
    if len(text) > CHARS:
        return "failed", f"a message of {len(text)} characters: {text[:300]!r}"
    if not text or not all(char.isprintable() or char == "\n" for char in text):
        return "failed", f"a message with control characters, or none: {text!r}"
    return "refused", text


def attempt(case: Case, valid: Path, scratch: Path) -> Outcome:
    """Run one case in a process of its own."""
    folder, said, found, base = (scratch / name for name in ("case", "said", "found.json", "base"))
    for place in (said, found, base):
        place.unlink(missing_ok=True)
    _remove(folder)
    began_s = time.monotonic()
    child = os.fork()
    if not child:
        base.write_text(str(_pages(1)))
        _run_child(case, valid, folder, said, found)
    _, status, usage = os.wait4(child, 0)
    seconds = time.monotonic() - began_s
    memory_bytes = max(usage.ru_maxrss * 1024 - int(base.read_text()), 0)
    kind, text = _verdict(status, found)
    output = said.read_bytes().decode(errors="replace")
    if kind != "failed" and memory_bytes > MEMORY_BYTES:
        kind, text = "failed", f"{memory_bytes >> 20} MiB of memory"
    if kind != "failed" and (wrong := _unfit_for_terminal(output)):
        kind, text = "failed", wrong
    is_sealed_off = bool(SEALED_OFF.search(f"{text}\n{output}"))
    return Outcome(kind=kind, text=text, seconds=seconds, memory_bytes=memory_bytes, is_sealed_off=is_sealed_off)


def _unfit_for_terminal(output: str) -> str:
    """What is wrong with a case's output: a control character, also one of the upper half, or a traceback."""
    found = _UNFIT.search(output)
    return f"on the terminal: {output[max(found.start() - 200, 0) :][:400]!r}" if found else ""


def _verdict(status: int, found: Path) -> tuple[str, str]:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        slow = {signal.SIGPROF: f"more than {SECONDS} s of CPU time", signal.SIGALRM: f"more than {HANG_S} s"}
        return "failed", slow.get(number) or f"ended by {signal.Signals(number).name}"
    try:
        kind, text = json.loads(found.read_text())
    except (OSError, ValueError):
        return "failed", f"ended with exit code {os.waitstatus_to_exitcode(status)}"
    return kind, text


def _run_child(case: Case, valid: Path, folder: Path, said: Path, found: Path) -> None:
    """Never returns."""
    code = 1
    try:
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        output = os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        most = _pages(0) + MEMORY_BYTES + _SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        os.environ["PLANNER_CACHE"] = str(folder.parent / "cache")
        found.write_text(json.dumps(_tried(case, valid, folder)))
        code = 0
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)


def _pages(column: int) -> int:
    """Bytes of this process's address space (0), or of its memory (1)."""
    return int(Path("/proc/self/statm").read_text().split()[column]) * resource.getpagesize()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def load() -> None:
    """Import everything once: each case is a copy of this process."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2", "TRANSFORMERS_VERBOSITY": "warning"}
    sys.path.insert(0, str(_HERE))
    import datasets  # noqa: F401
    import fuzz_mutate  # noqa: F401
    import fuzz_readers  # noqa: F401
    import fuzz_seals  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    from transformers.models.auto import modeling_auto, tokenization_auto  # noqa: F401
    from transformers.models.llama import modeling_llama  # noqa: F401

    import planner.pictures.run_pictures
    import planner.runner.start
    import planner.train.export
    import planner.train.generation  # noqa: F401


@contextlib.contextmanager
def prepared() -> Iterator[tuple[Path, Path]]:
    """The valid inputs, and a folder to work in. Made by another process: threads do not survive a fork."""
    scratch = Path(tempfile.mkdtemp(prefix="plf-"))
    try:
        subprocess.run([sys.executable, str(_HERE / "fuzz_inputs.py"), str(scratch / "valid")], check=True)
        (scratch / "work").mkdir()
        yield scratch / "valid", scratch / "work"
    finally:
        _remove(scratch)


def cases(seed: int, readers: list[str], count: int, until_s: float) -> Iterator[Case]:
    """One reader after the other, until there were `count` of each (fewer of slow ones), or the time has come."""
    from fuzz_readers import SLOW

    number = 0
    while number < count and time.monotonic() < until_s:
        yield from (Case(seed, reader, number) for reader in readers if number % SLOW.get(reader, 1) == 0)
        number += 1


def fuzz(seed: int, readers: list[str], count: int, minutes: float) -> list[dict[str, object]]:
    """Run the cases; a row per reader. Failures are printed as they are found."""
    counts: Counter[tuple[str, str]] = Counter()
    longest: Counter[str] = Counter()
    largest: Counter[str] = Counter()
    with prepared() as (valid, scratch):
        load()
        from fuzz_readers import RUN_READERS

        for case in cases(seed, readers, count, time.monotonic() + 60 * minutes):
            outcome = attempt(case, valid, scratch)
            counts[case.reader, outcome.kind] += 1
            counts[case.reader, "behind_seals"] += not outcome.is_sealed_off
            longest[case.reader] = max(longest[case.reader], round(1000 * outcome.seconds))
            largest[case.reader] = max(largest[case.reader], outcome.memory_bytes >> 20)
            if outcome.kind == "failed":
                print(f"FAILED {case.reader} case {case.number}: {outcome.text}\nagain: {case.again}\n", flush=True)
    return [
        {
            "reader": reader,
            "seed": seed,
            "cases": sum(counts[reader, kind] for kind in _KINDS),
            **{kind: counts[reader, kind] for kind in _KINDS},
            **({"behind_seals": counts[reader, "behind_seals"]} if reader in RUN_READERS else {}),
            "longest_ms": longest[reader],
            "most_mib": largest[reader],
        }
        for reader in readers
    ]


def repeat(case: Case, keep: Path) -> Outcome:
    """One case again; its files stay in `keep`."""
    with prepared() as (valid, scratch):
        load()
        outcome = attempt(case, valid, scratch)
        _remove(keep)
        shutil.move(str(scratch / "case"), keep)
        sys.stdout.write((scratch / "said").read_text(errors="replace"))
    return outcome


def main() -> None:
    """The command line."""
    sys.path.insert(0, str(_HERE))
    from fuzz_readers import READERS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", choices=READERS, action="append")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--cases", type=int, default=2**40, help="at most so many of each reader")
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--keep", type=Path, default=Path("/tmp/case"))
    parser.add_argument("--results", action="store_true", help="write bench/results/fuzz.json")
    arguments = parser.parse_args()
    if arguments.case is not None:
        outcome = repeat(Case(arguments.seed, arguments.reader[0], arguments.case), arguments.keep)
        print(f"{outcome.kind} in {outcome.seconds:.1f} s and {outcome.memory_bytes >> 20} MiB: {outcome.text}")
        raise SystemExit(outcome.kind == "failed")
    rows = fuzz(arguments.seed, arguments.reader or list(READERS), arguments.cases, arguments.minutes)
    if arguments.results:
        sys.path.insert(0, str(_HERE.parents[1] / "bench"))
        from _results import write

        write("fuzz", rows)
    else:
        for row in rows:
            print(json.dumps(row))
    raise SystemExit(any(row["failed"] for row in rows))


if __name__ == "__main__":
    main()

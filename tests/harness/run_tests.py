"""`make test`: the pure tests, then those that start processes, each in a pytest of its own.

A pure test says the same thing each time: one failure ends the run at once. A test that starts processes (marker
`process`) can fail because a machine is busy. If at most three of them fail, they are run once more, in a new pytest
process with new fixtures. A fixture that fails counts once, however many tests use it. What passes then is printed as
`FLAKY test: reason`, and kept in `flaky-tests.log`. It is a defect, and to be mended, but it refuses nobody's change.

With `--all` (`make test-all`), slow tests are run, too.

Ends with 0 if everything passed, and with 1 otherwise.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOG = ROOT / "flaky-tests.log"
MOST_AGAIN = 3
"""failed tests that are run once more"""
_PASSED, _SOME_FAILED, _NO_TESTS = 0, 1, 5  # pytest's exit codes. Any other is a crash or an interrupt

# The pytest plugin xdist would start a worker that crashed again, and go on.
_SHARED = ["--durations=15", "--max-worker-restart=0"]
PURE = ["--maxfail=1", *_SHARED]
# One worker of xdist runs all tests that share something (tests/conftest.py).
PROCESSES = ["--dist", "loadgroup", f"--most-failures={MOST_AGAIN}", *_SHARED]
AGAIN = ["-n", "0", "--last-failed", "--last-failed-no-failures=none", *_SHARED]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one pytest ended."""

    code: int
    passed: list[str]
    """test ids"""
    failed: dict[str, str]
    """test id -> the line of the exception"""
    num_causes: int
    """failures, of which a fixture's counts once"""
    uncollected: list[str]
    """files"""
    crashed: list[str]
    """test ids: a process of pytest died in them"""

    @property
    def can_be_repeated(self) -> bool:
        """Whether there are failures, all of them of tests, and few."""
        is_whole = self.code == _SOME_FAILED and not self.uncollected and not self.crashed
        return is_whole and 0 < self.num_causes <= MOST_AGAIN


def run_pytest(options: list[str], cache: Path) -> Outcome:
    """Run pytest with these options, and a cache of failed tests of its own."""
    with tempfile.TemporaryDirectory(prefix="planner-tests-") as folder:
        file = Path(folder) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", *options, "-o", f"cache_dir={cache}", "--outcomes", str(file)]
        print(shlex.join(command), flush=True)
        code = subprocess.run(command, check=False).returncode
        nothing = {"passed": [], "failed": {}, "num_causes": 0, "uncollected": [], "crashed": []}
        found = json.loads(file.read_text()) if file.exists() else nothing
    return Outcome(code=code, **found)


def run_all(paths: list[str], log: Path, *, slow: bool = False, num_workers: int = 2) -> int:
    """Both kinds of tests, in these paths. Returns the exit code."""
    workers = ["-n", str(num_workers)]
    pure_tests, process_tests = (
        ("not process", "process") if slow else ("not slow and not process", "not slow and process")
    )
    passed = {_PASSED, _NO_TESTS} if paths else {_PASSED}
    with tempfile.TemporaryDirectory(prefix="planner-cache-") as folder:
        pure = run_pytest([*workers, *PURE, "-m", pure_tests, *paths], Path(folder) / "pure")
        if pure.code not in passed:
            return _refuse(f"of the pure tests, {_told(pure)}")
        cache = Path(folder) / "process"
        first = run_pytest([*workers, *PROCESSES, "-m", process_tests, *paths], cache)
        if first.code in passed:
            return 0
        if not first.can_be_repeated:
            return _refuse(f"of the tests that start processes, {_told(first)}")
        print(f"{_told(first)}. Once more:", flush=True)
        second = run_pytest([*AGAIN, "-m", process_tests, *paths], cache)
    flaky = passed_again(first, second)
    _report(flaky, log)
    if len(flaky) == len(first.failed):
        return 0
    return _refuse(f"of the tests that were run again, {_told(second)}")


def passed_again(first: Outcome, second: Outcome) -> dict[str, str]:
    """The tests that passed when they were run again, with why they failed at first. None if pytest itself failed."""
    if second.code not in {_PASSED, _SOME_FAILED} or second.uncollected or second.crashed:
        return {}
    return {test: reason for test, reason in sorted(first.failed.items()) if test in second.passed}


def _report(flaky: dict[str, str], log: Path) -> None:
    lines = [f"FLAKY {test}: {reason}\n" for test, reason in flaky.items()]
    print(end="".join(lines), flush=True)
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    with log.open("a") as file:
        file.writelines(f"{now} {line}" for line in lines)


def _told(outcome: Outcome) -> str:
    if outcome.uncollected:
        return f"{len(outcome.uncollected)} could not be collected: {', '.join(outcome.uncollected)}"
    if outcome.crashed:
        return f"{len(outcome.crashed)} ended pytest: {', '.join(outcome.crashed)}"
    if outcome.failed:
        return f"{len(outcome.failed)} failed: {', '.join(outcome.failed)}"
    return f"none failed, but pytest ended with {outcome.code}"


def _refuse(reason: str) -> int:
    print(f"refused: {reason}", flush=True)
    return 1


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files and folders of tests; all by default")
    parser.add_argument("--all", action="store_true", help="also the slow tests")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest (2 by default)")
    parser.add_argument("--flaky-log", type=Path, default=LOG, help="where tests are kept that passed when run again")
    arguments = parser.parse_args()
    raise SystemExit(run_all(arguments.paths, arguments.flaky_log, slow=arguments.all, num_workers=arguments.workers))


if __name__ == "__main__":
    main()

"""How long a command takes to answer, now and at an older commit: their runs alternate.

Both run with this Python and its packages. Writes `bench/results/startup.json`: seconds, and new over old.
"""

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from statistics import median

from _results import write

ROOT = Path(__file__).parents[1]
# All commands were imported for each of them then.
OLD = "fb93453"
COMMANDS = (("plan", "jobs/dpo.yaml"), ("--help",))


def seconds_of(checkout: Path, words: tuple[str, ...]) -> float:
    """Of one run of the command by the sources of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, each run would compile planner again
    began_s = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "planner.cli", *words],
        cwd=checkout,
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - began_s


def unpack(commit: str, folder: Path) -> None:
    """Put the sources of a commit, and its jobs, into a folder."""
    archive = subprocess.run(
        ["git", "archive", commit, "planner", "jobs"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")


def compare(old: Path, words: tuple[str, ...], runs: int) -> dict[str, object]:
    """One row: medians and ranges of both, after one run of each that is not counted."""
    seconds: dict[Path, list[float]] = {old: [], ROOT: []}
    for number in range(runs + 1):
        for checkout in (old, ROOT) if number % 2 else (ROOT, old):
            taken_s = seconds_of(checkout, words)
            if number:
                seconds[checkout].append(taken_s)
    before, now = (sorted(seconds[checkout]) for checkout in (old, ROOT))
    return {
        "command": " ".join(("planner", *words)),
        "runs": runs,
        "old_s": round(median(before), 3),
        "old_range_s": [round(before[0], 3), round(before[-1], 3)],
        "new_s": round(median(now), 3),
        "new_range_s": [round(now[0], 3), round(now[-1], 3)],
        "ratio": round(median(now) / median(before), 3),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default=OLD, help="the older commit")
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        unpack(options.commit, Path(folder))
        write("startup", [compare(Path(folder), words, options.runs) for words in COMMANDS])


if __name__ == "__main__":
    main()

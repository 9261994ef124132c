"""Fault injection: which faults a run survives, and whether its weights equal an undisturbed run's bit for bit.

    python bench/chaos.py --minutes 20 --seeds 1 2 3        one storm after another (--at-once: side by side)

tests/chaos/storm.py injects the faults and judges the run. As root, each storm has a network and a disk of its own.

faults               how often each kind came
hit_a_write_in_flight  how often those `in a background write` met one. A killed worker left its file torn, and the
                     commit without a manifest. A disk was full before the commit had its manifest, and a frozen
                     one thawed before the worker's file was done
hit_the_memory       how often those of the keepers' memory met their aim. `both copies lost`: the next group resumed
                     from storage. `death during a hand-over`: what died stood in one (died_in_hand_overs: before the
                     copies were made, after it, or while the next group loads). `host memory short`: a keeper
                     refused room to a group that began
resumes              generations that resumed from the keepers' memory, and from a commit in storage
driver_ends          how `planner run` ended, and was started again
longest_pause_s      between two steps, an upper bound (nothing is observed while a node starts, which may take
                     90 s here, or fail), and the faults of that time
steps_done_again     since the commit or the step in memory that a later generation went on from. A step that was only
                     in memory, and was lost, is done again since the commit before it
steps_witnessed      steps whose reads the data set saw, rank by rank, and which are those of the ledger
findings             what is wrong. Must be empty
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _results import write

_STORM = Path(__file__).parents[1] / "tests" / "chaos" / "storm.py"


def begin(seed: int, minutes: float, found: Path) -> "subprocess.Popen[bytes]":
    """Start one storm. It writes its findings to the file `found`."""
    options = ["--minutes", str(minutes), "--seed", str(seed), "--json", str(found)]
    return subprocess.Popen([sys.executable, str(_STORM), *options], stdout=subprocess.DEVNULL)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--at-once", action="store_true", help="they share this machine's cores")
    arguments = parser.parse_args()
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[1]))
    with tempfile.TemporaryDirectory() as folder:
        running: list[subprocess.Popen[bytes]] = []
        for seed in arguments.seeds:
            running.append(begin(seed, arguments.minutes, Path(folder) / f"{seed}.json"))
            if not arguments.at_once:
                running[-1].wait()
        codes = [storm.wait() for storm in running]
        rows = [_found(seed, Path(folder) / f"{seed}.json") for seed in arguments.seeds]
    at_once = len(rows) if arguments.at_once else 1
    rows = [{"storms_at_once": at_once, **row} for row in rows]
    if any(codes):
        for row in rows:
            print(json.dumps(row))
        raise SystemExit("not all storms were survived, so bench/results/chaos.json was not changed")
    write("chaos", rows)


def _found(seed: int, path: Path) -> dict[str, Any]:
    """What a storm has written, or that it has not come so far."""
    if path.exists():
        return dict(json.loads(path.read_text()))
    return {"seed": seed, "findings": ["the storm ended before its time: see its output"]}


if __name__ == "__main__":
    main()

"""Fuzz: random commands of TRL's scripts have the batch that TRL and transformers compute, or planner refuses them.

    python tests/fuzz/fuzz_batches.py --cases 10000                 as `make fuzz` does
    python tests/fuzz/fuzz_batches.py --seed 1 --case 17            one case again

A case is a command with its files, by dice of the seed and the case's number, at up to three GPU counts. The judge is
tests/recipes/trainer_judge.py: their parsers and their arithmetic. It fails if planner names another batch than theirs,
or a batch where they refuse. bench/results/fuzz_batches.json keeps the counts.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_SHOWN = 20


def main() -> None:
    """The command line."""
    sys.path.insert(0, str(_ROOT / "tests/recipes"))
    import trainer_cases

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--results", action="store_true", help="write bench/results/fuzz_batches.json")
    arguments = parser.parse_args()
    numbers = range(arguments.cases) if arguments.case is None else [arguments.case]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts, wrong = trainer_cases.count(numbers, Path(folder), arguments.seed)
        if arguments.case is not None:
            case = trainer_cases.made(arguments.case, Path(folder) / "again", arguments.seed)
            print(case.command, *case.yaml, *trainer_cases.compared(case), sep="\n")
    for text in wrong[:_SHOWN]:
        print(f"FAILED {text}\n", flush=True)
    row = {
        "seed": arguments.seed,
        "cases": len(numbers),
        **counts,
        "wrong": len(wrong),
        "seconds": round(time.monotonic() - began),
    }
    if arguments.results:
        sys.path.insert(0, str(_ROOT / "bench"))
        from _results import write

        write("fuzz_batches", [row])
    print(json.dumps(row))
    raise SystemExit(bool(wrong or counts["plain refused"]))


if __name__ == "__main__":
    main()

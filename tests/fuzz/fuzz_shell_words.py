"""Random shell scripts: does planner make the same words of a training command as bash? The long run of a property.

    python tests/fuzz/fuzz_shell_words.py --cases 10000 --seed 1

Prints the counts, and each script of which planner makes other words. Fails if there is one.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

_BATCH = 500


def main() -> None:
    """Judge scripts in batches, each by one bash."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
    import shell_judge

    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    total, differences = shell_judge.Counts(), 0
    for batch in range(-(-asked.cases // _BATCH)):
        with tempfile.TemporaryDirectory() as place:
            counts, found = shell_judge.judged(shell_judge.scripts(f"{asked.seed}.{batch}", _BATCH), Path(place))
        total.add(counts)
        differences += len(found)
        for text in found:
            print(text, end="\n======\n", flush=True)
    print(json.dumps({"reader": "shell words", **asdict(total), "failed": differences}))
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()

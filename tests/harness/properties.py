"""`make properties`: the pure tests with new random examples, in random order, for so many minutes.

Pass after pass, each with the next seed and twenty times the examples of `make test`. A pass is not cut short, and the
first one that fails ends it. Its seed gives the same examples and the same order again. What was found becomes an
`@example` of its test.
"""

import argparse
import shlex
import subprocess
import sys
import time


def command(seed: int) -> list[str]:
    """One pass."""
    return [
        *(sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "not slow and not process"),
        *("--hypothesis-profile=properties", f"--hypothesis-seed={seed}"),
        *("-p", "randomly", f"--randomly-seed={seed}"),
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="no pass begins after so many")
    parser.add_argument("--seed", type=int, default=1, help="of the first pass")
    arguments = parser.parse_args()
    until_s, seed = time.monotonic() + 60 * arguments.minutes, arguments.seed
    while True:
        print(f"seed {seed}: {shlex.join(command(seed))}", flush=True)
        if subprocess.run(command(seed), check=False).returncode:
            raise SystemExit(f"seed {seed} found something. To see it again: make properties MINUTES=0 SEED={seed}")
        seed += 1
        if time.monotonic() >= until_s:
            print(f"{seed - arguments.seed} passes, seeds {arguments.seed} to {seed - 1}: nothing found")
            return


if __name__ == "__main__":
    main()

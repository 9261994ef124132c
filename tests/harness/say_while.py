"""`python tests/harness/say_while.py TEXT COMMAND ...`: runs the command, and says meanwhile how long TEXT has taken.

The Makefile uses it while pip installs. It exits with the command's code, and needs Python's standard library alone.
"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from planner.base.wait_reports import Activity


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def main(text: str, *command: str) -> int:
    """Run the command, and return its exit code."""
    say(text)
    with Activity(say, text):
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

"""Runs that earlier versions of planner made, with a ledger of an earlier format.

`earlier_runs/format-1.tar.xz` is by version 0.2.0 (commit b5a1bbb), `format-2.tar.xz` and `format-3.tar.xz` by the
commits before formats 3 and 4. Each has two generations of one worker, stopped at steps 2 and 4 of 6. The second has
another seed, which was accepted.
"""

import tarfile
from pathlib import Path

FORMATS = (1, 2, 3)


def unpack(number, folder):
    """Put the run of this ledger format and its data into a folder. Its jobs name the data relative to the folder."""
    with tarfile.open(Path(__file__).with_name("earlier_runs") / f"format-{number}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return Path(folder) / "run"

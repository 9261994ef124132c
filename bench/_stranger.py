"""Another program on another core, which hashes and writes bytes: what any neighbour costs a step, without its threads.

`bench/commit.py` holds a step beside planner's own background thread against a step beside this.
"""

import os
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import ctypes, hashlib, os, signal, sys
size, path, core = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its parent
os.sched_setaffinity(0, {core})
held = memoryview(bytearray(os.urandom(2**22)) * 64)  # 256 MB, more than any cache has
print("ready", flush=True)
while True:
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        for at in range(0, size, 2**22):
            piece = held[at % len(held) :][: min(2**22, size - at)]
            digest.update(piece)
            file.write(piece)
"""


class Stranger:
    """The program. It runs until `close`.

    Args:
        num_bytes: it hashes and writes so many, again and again.
        file: it writes there. `close` removes it.
        core: it runs on this core only.
    """

    def __init__(self, num_bytes: int, file: Path, core: int) -> None:
        self._file = file
        command = [sys.executable, "-c", _PROGRAM, str(num_bytes), str(file), str(core)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._file.unlink(missing_ok=True)

"""A keeper in a process of its own: for tests, benches and rehearsals on this machine. It ends with its parent."""

import json
import os
import select
import subprocess
import sys
from dataclasses import asdict

from planner.keeper.addresses import Address
from planner.keeper.errors import KeeperGone
from planner.keeper.server import Keeper

_START_S, _END_S = 60.0, 5.0
# Another child of the parent may hold the pipe open, so that its end is not seen.
_PARENT_POLL_S = 0.5


class KeeperProcess:
    """A keeper's process that runs. As a context manager it gives the keeper's address, and ends it at the end."""

    def __init__(self, process: "subprocess.Popen[bytes]", address: Address) -> None:
        self._process, self.address = process, address

    def __enter__(self) -> Address:
        return self.address

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of the keeper's process."""
        return self._process.pid

    def kill(self) -> None:
        """End it by SIGKILL, as a lost node would."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it. It may be called again, and after `kill`."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()


def started(node: str, secret: str, bound_bytes: int, *, host: str = "127.0.0.1") -> KeeperProcess:
    """Start a keeper's process, and wait until it listens.

    Raises:
        KeeperGone: it has ended at once, or does not listen within 60 s.
    """
    process = subprocess.Popen(
        # `-P`: a file in the current folder must not take the place of a module.
        [sys.executable, "-P", "-m", "planner.keeper.process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    setting = {"node": node, "secret": secret, "bound_bytes": bound_bytes, "host": host, "parent": os.getpid()}
    try:
        process.stdin.write(json.dumps(setting).encode() + b"\n")
        process.stdin.flush()
        is_ready, _, _ = select.select([process.stdout], [], [], _START_S)
        line = process.stdout.readline() if is_ready else b""
        address = Address(**json.loads(line))
    except (OSError, ValueError) as error:
        process.kill()
        process.wait()
        raise KeeperGone(f"The process of the keeper of node {node} did not start. See its error above.") from error
    return KeeperProcess(process, address)


def main() -> None:
    """Keep until the pipe to the parent ends, or the parent is gone."""
    setting = json.loads(sys.stdin.readline())
    with Keeper(bound_bytes=setting["bound_bytes"], secret=setting["secret"], host=setting["host"]) as keeper:
        sys.stdout.write(json.dumps(asdict(keeper.address_on(setting["node"]))) + "\n")
        sys.stdout.flush()
        while os.getppid() == setting["parent"]:
            is_readable, _, _ = select.select([sys.stdin], [], [], _PARENT_POLL_S)
            if is_readable:
                break


if __name__ == "__main__":
    main()

"""Where processes listen for TCP, as the kernel tells it."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

# 127.0.0.1 in IPv4, and the same mapped into IPv6, in the kernel's byte order.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}


def listening_addresses(pids: Iterable[int]) -> set[str]:
    """The addresses, as /proc/net has them, on which these processes listen."""
    sockets = {link for pid in pids for link in _open_files(pid)}
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1].rpartition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


def _open_files(pid: int) -> list[str]:
    links = []
    with contextlib.suppress(OSError):  # the process ended meanwhile
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # the file was closed meanwhile
                links.append(str(entry.readlink()))
    return links

"""Lines of JSON in one file, from several processes, in the order in which they were written."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(log: str, kind: str, **values: Any) -> None:
    """Append a line."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps({"kind": kind, **values}).encode() + b"\n")
    finally:
        os.close(descriptor)


def lines(log: Path, offset: int = 0) -> list[Mapping[str, Any]]:
    """All whole lines from this number on."""
    content = log.read_text() if log.exists() else ""
    return [json.loads(line) for line in content[: content.rfind("\n") + 1].splitlines()[offset:]]

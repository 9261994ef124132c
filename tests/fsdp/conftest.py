"""Eight worker processes for all FSDP tests: importing torch once each is most of what they cost."""

import json

import pytest

from planner.rehearsal.local_workers import LocalWorkers


@pytest.fixture(scope="session")
def workers():
    """Real processes on gloo."""
    with LocalWorkers(8) as local:
        yield local


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A jsonl file of 200 rows with very unequal lengths."""
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"{i} " + "abcdefghij " * (i % 7)}) + "\n" for i in range(200)))
    return str(path)

"""Eight worker processes for all FSDP tests, forked from one that has imported torch."""

import json
import multiprocessing

import pytest
from kept_workers import KeptWorkers
from mortal_workers import PRELOADED


@pytest.fixture(scope="session")
def workers():
    """Real processes on gloo."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with KeptWorkers(8, context) as kept:
        yield kept


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A jsonl file of 200 rows with very unequal lengths."""
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"{i} " + "abcdefghij " * (i % 7)}) + "\n" for i in range(200)))
    return str(path)

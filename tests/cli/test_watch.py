"""A driver whose run's folder hangs: it says so, and its end is not held up."""

import os
import time

from planner.cli import watch as watching
from planner.cli.options import console
from planner.cli.watch import Watch
from planner.report.view import RunView
from planner.store.run import Run
from planner.store.storage import Storage


def test_a_disk_that_hangs_is_named_and_left(tmp_path, monkeypatch, capsys):
    """A ledger that is a pipe without a writer: to open it takes for ever, as on a mount whose server is gone."""
    monkeypatch.setattr(watching, "_SLOW_DISK_S", 1.0)
    monkeypatch.setattr(watching, "_LAST_LOOK_S", 0.2)
    run = Run(Storage(str(tmp_path)))
    said = ""
    with Watch(run, console(), RunView()):
        (tmp_path / "ledger").mkdir()
        os.mkfifo(tmp_path / "ledger" / "000001.jsonl")
        run.storage.create("generations/000001.json", b"{}")
        deadline = time.monotonic() + 30
        while "has not answered" not in said and time.monotonic() < deadline:
            time.sleep(0.1)
            said += capsys.readouterr().out
    said += capsys.readouterr().out
    os.close(os.open(tmp_path / "ledger" / "000001.jsonl", os.O_RDWR | os.O_NONBLOCK))
    assert f"{tmp_path} has not answered for" in said
    assert "what it holds may be newer than this" in said

"""A driver whose run's folder hangs: it says so, and its end is not held up."""

import os
import time
from dataclasses import replace

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


def test_a_pause_between_steps_is_not_told_as_a_start(tmp_path, monkeypatch):
    """Nobody knows what the run is about: before the first step workers start, afterwards nothing is made up."""
    run = Run(Storage(str(tmp_path)))
    watch = Watch(run, console(), RunView())
    assert "workers start" in watch._silence()
    monkeypatch.setattr(watching, "fold", lambda view, _records: (replace(view, step=3), []))
    watch._look()
    assert watch._silence() == "no step for 0 s"
    watch.state = lambda: "waiting: room for 1"
    assert watch._silence() == "no step for 0 s: waiting: room for 1"

"""A driver whose run's folder hangs reports it, and its end is not delayed."""

import threading
from types import SimpleNamespace

from events import wait_for

from planner.cli import live_panel as watching
from planner.cli.live_panel import LivePanel
from planner.cli.options import console
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.story.run_story import StoryFold


def test_a_disk_that_hangs_is_named_and_left(tmp_path, monkeypatch, capsys):
    """A read that never returns, as on a mount without a server. Only the limits for it pass here."""
    monkeypatch.setattr(watching, "_SLOW_DISK_S", 1.0)
    monkeypatch.setattr(watching, "_LAST_LOOK_S", 0.2)
    run = RunFolder(Storage(str(tmp_path)))
    said, is_back = [], threading.Event()

    def is_named():
        said.append(capsys.readouterr().out)
        return "has not answered" in "".join(said)

    monkeypatch.setattr(Storage, "read_from", lambda *_: bytes(not is_back.wait()))
    with LivePanel(run, console(), StoryFold()):
        run.storage.create("generations/000001.json", b"{}")
        wait_for(is_named)
    said.append(capsys.readouterr().out)
    is_back.set()
    assert f"{tmp_path} has not answered for" in "".join(said)
    assert "its state may be newer than shown here" in "".join(said)


def test_a_pause_between_steps_is_not_told_as_a_start(tmp_path, monkeypatch):
    """Before the first step, workers are starting. After it, no reason is invented."""
    now_s = [100.0]
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    panel = LivePanel(RunFolder(Storage(str(tmp_path))), console(), StoryFold())
    assert "workers are starting" in panel._silence()
    panel._fold.step = 3
    panel._look()
    now_s[0] += 5.0
    assert panel._silence() == "no step for 5 s"
    panel.state = lambda: "waiting: room for 1"
    assert panel._silence() == "no step for 5 s: waiting: room for 1"
    panel.why = lambda: "waiting: about 3 s"  # newer than the state, which is published once
    assert panel._silence() == "no step for 5 s: waiting: about 3 s"


def test_a_held_step_is_asked_for_before_the_ledger_is_read(tmp_path):
    """Asked after it, the answer may be of a step that the story does not have yet, and would not be shown."""
    panel = LivePanel(RunFolder(Storage(str(tmp_path))), console(), StoryFold())
    panel._fold.step = 3

    def held():
        panel._fold.step = 4  # while it is asked, one more step is done and held
        return 4

    panel.held_step = held
    panel._look()
    assert panel.durable == "durable 0, held 4"

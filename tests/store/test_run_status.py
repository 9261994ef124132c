"""The live status in a run's folder: copied while the driver lives, and never in the way of anything."""

import threading

import pytest
from events import EVENT_S

from planner.errors import StoreError
from planner.store.records import canonical, seal
from planner.store.run_status import STATUS_FILE, NodeStatus, RunStatus, StatusWriter, WorkerStatus, read_status
from planner.store.storage import Storage
from planner.store.survey import survey_folder

STATUS = RunStatus(
    launch="l",
    time_s=1000.0,
    state="Warming",
    why="",
    next="2 -> 3 workers",
    next_s=1060.0,
    least=1,
    most=4,
    nodes=(NodeStatus(node="a", host="one", room=2), NodeStatus(node="b", host="two", room=0, has_notice=True)),
    workers=(WorkerStatus(rank=0, node="a", state="training"), WorkerStatus(rank=None, node="", state="warming")),
)


@pytest.fixture
def storage(tmp_path):
    return Storage(str(tmp_path / "run"))


class Published:
    """What the controller publishes; `heard` is set after it was asked for more often than `times`."""

    def __init__(self, *texts):
        self.texts, self.heard = list(texts), threading.Event()

    def __call__(self):
        if not self.texts:
            self.heard.set()
            return ""
        text = self.texts.pop(0)
        if isinstance(text, Exception):
            raise text
        return text


def test_it_is_copied_and_removed_at_the_end(storage):
    """As it was published; an end of the driver leaves no old state behind."""
    published = Published(canonical(STATUS))
    with StatusWriter(storage, published, every_s=0.001):
        assert published.heard.wait(EVENT_S)
        assert read_status(storage) == STATUS
    assert read_status(storage) is None
    assert not storage.exists(STATUS_FILE)


def test_no_failure_reaches_the_driver(storage, monkeypatch):
    """A cluster that does not answer, a text that is no status, and a disk that refuses."""

    def refuse(*_):
        raise StoreError("the disk is full")

    published = Published(RuntimeError("no cluster"), "{", "[]", canonical(STATUS))
    with StatusWriter(storage, published, every_s=0.001):
        assert published.heard.wait(EVENT_S)
        assert read_status(storage) == STATUS
    monkeypatch.setattr(storage, "write", refuse)
    monkeypatch.setattr(storage, "delete", refuse)
    published = Published(canonical(STATUS), canonical(STATUS))
    with StatusWriter(storage, published, every_s=0.001):
        assert published.heard.wait(EVENT_S)
    assert read_status(storage) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        seal(STATUS)[:-9],
        seal(STATUS).replace(b"Warming", b"Running"),
        seal(STATUS).replace(b": 1", b": 2"),
    ],
    ids=["empty", "torn", "a list", "cut", "altered", "another format"],
)
def test_an_unreadable_status_is_no_status(storage, content):
    """Nobody is refused because of it."""
    storage.write(STATUS_FILE, content)
    assert read_status(storage) is None


def test_a_folder_with_nothing_else_is_no_run(storage, tmp_path):
    """`planner runs` does not list it."""
    storage.write(STATUS_FILE, seal(STATUS))
    assert survey_folder(str(tmp_path)) == []

"""Surveys of runs: which runs exist, which driver runs them, and from which commit they can be resumed."""

import json

import pytest
from test_earlier import commit, step, write

from planner.errors import StoreError
from planner.store.lease import DriverLease
from planner.store.lease_record import lease_name, this_driver
from planner.store.ledger import segment_name
from planner.store.records import NO_HEAD, EventRecord, Manifest, TrainingIdentity, seal
from planner.store.run_folder import RunFolder, commit_name
from planner.store.run_status import STATUS_FILE, RunStatus
from planner.store.storage import Storage
from planner.store.survey import survey, survey_folder


def committed(storage, number, generation=1, total_steps=8):
    """Write a commit with one file."""
    run = RunFolder(storage)
    name = commit_name(number, generation)
    manifest = Manifest(
        run_id=run.ensure_identity().run_id,
        name=name,
        generation=generation,
        parent="",
        step=number,
        cursor=4 * number,
        total_steps=total_steps,
        identity=TrainingIdentity(
            global_batch=4, seed=0, data="0" * 64, model="0" * 64, optimizer="sgd", equality="balanced", recipe="0" * 64
        ),
        plan_digest="p",
        world_size=1,
        facts={},
        job_digest="0" * 64,
        ledger_head=NO_HEAD,
        files=({"name": "part", "size_bytes": 1, "sha256": "0" * 64},),
        tensors={},
        versions={},
        time_s=1_700_000_000.0,
    )
    storage.write(f"manifests/{name}.json", seal(manifest))
    storage.write(f"checkpoints/{name}/part", b"x")
    return name


def recorded(storage, number):
    """The ledger record of an existing commit."""
    return commit(number, sha256=RunFolder(storage).manifest_digest(commit_name(number, 1)))


def test_a_replaced_commit_is_a_problem(storage, url):
    """A run cannot be resumed from a commit that the ledger does not record."""
    committed(storage, 2)
    write(storage, 1, step(0), step(1), commit(2))
    assert "was replaced: its digest is" in survey(url).problem
    assert survey(url).newest is None


def test_a_new_folder_has_no_run(storage):
    """Neither does a missing one. Runs in it are found, and other folders are ignored."""
    with pytest.raises(StoreError, match="no such folder"):
        survey_folder(storage.url)
    storage.write("notes/readme.txt", b"x")
    storage.write("stray.txt", b"x")
    assert survey_folder(storage.url) == []
    committed(Storage(f"{storage.url}/one"), 2)
    (found,) = survey_folder(f"{storage.url}/")
    assert (found.url, found.problem, found.newest.step) == (f"{storage.url}/one", "", 2)
    assert [each.url for each in survey_folder(f"{storage.url}/one")] == [f"{storage.url}/one"]


def test_the_newest_commit_whose_files_are_there_counts(storage, url):
    """Commits that were pruned or lost a file are passed over."""
    first, second = committed(storage, 2), committed(storage, 4)
    write(storage, 1, step(0), step(1), recorded(storage, 2))
    assert (survey(url).newest.name, survey(url).kept) == (second, (first, second))
    storage.delete(f"checkpoints/{second}/part")
    assert (survey(url).newest.name, survey(url).problem) == (first, "")
    storage.delete(f"checkpoints/{first}/part")
    storage.write(f"checkpoints/{first}/other", b"x")
    assert "/part is missing). Restore the files" in survey(url).problem
    storage.delete("checkpoints")
    assert survey(url).newest is None
    assert survey(url).problem == "the files of all 2 commits are gone"


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda s: s.delete("run.json"), "run.json is gone, and 1 commits belong to the run that it named"),
        (lambda s: s.write("run.json", b"{"), "run.json: torn"),
        (
            lambda s: s.delete("manifests"),
            "and no manifest is left. Restore manifests/",
        ),
        (lambda s: s.write(f"manifests/{commit_name(2, 1)}.json", b"{"), "torn or not written by this version"),
        (
            lambda s: s.write(f"manifests/{commit_name(2, 1)}.json", json.dumps({"value": {"format": 9}}).encode()),
            "written by another version of planner (format 9, this one reads 1)",
        ),
    ],
)
def test_a_run_that_cannot_be_resumed_has_a_problem(storage, url, harm, says):
    """The problem is a text, and the list still has all runs."""
    committed(storage, 2)
    write(storage, 1, step(0), step(1), recorded(storage, 2))
    assert survey(url).problem == ""
    harm(storage)
    assert says in survey(url).problem


def test_a_folder_that_cannot_be_looked_into_is_a_line_of_the_list(storage, monkeypatch):
    """The other runs are surveyed."""
    for name in ("one", "shut"):
        committed(Storage(f"{storage.url}/{name}"), 2)
    names = Storage.names

    def refuse(self, folder):
        if self.url.endswith("shut"):
            raise StoreError("permission denied")
        return names(self, folder)

    monkeypatch.setattr(Storage, "names", refuse)
    found = [(each.problem, each.num_commits) for each in survey_folder(storage.url)]
    assert found == [("", 1), ("permission denied", 0)]


def test_a_lease_tells_whether_its_driver_lives(storage, url):
    """Alive while this process holds it, then ended. Unknown for a driver on another machine."""
    storage.write("run.json", b"{")
    assert survey(url).driver == "none"
    with DriverLease(storage, "launch", print):
        assert survey(url).driver == "alive"
    assert survey(url).driver == "ended"
    elsewhere = this_driver("other", beat_s=5.0).model_copy(update={"place": "another boot"})
    storage.write(lease_name(7), seal(elsewhere))
    assert (survey(url).driver, survey(url).lease) == ("unknown", elsewhere)
    storage.write(lease_name(8), b"torn")
    assert (survey(url).driver, survey(url).lease) == ("unknown", None)


def test_only_the_ends_of_the_newest_are_read(storage, url, monkeypatch):
    """A long run, or one of many generations, is surveyed as fast as a new one."""
    for generation in range(1, 11):
        write(storage, generation, step(0))
    write(storage, 11, *map(step, range(2000)))
    sizes = []
    for method in ("read_from", "read_first"):
        read_part = getattr(Storage, method)
        monkeypatch.setattr(Storage, method, lambda *at, r=read_part: sizes.append(len(r(*at))) or r(*at))
    found = survey(url, most_generations=3)
    assert [segment.generation for segment in found.segments] == [9, 10, 11]
    assert (found.num_generations, found.segments[-1].header.generation) == (11, 11)
    assert found.segments[-1].records[-1] == step(1999)
    assert len(sizes) == 7  # two of each segment, and failure.json
    assert max(sizes) == 2**16 < storage.size_bytes(segment_name(11))


def test_events_at_the_begin_of_a_long_generation_are_read(storage, url):
    """They say why it began. Those that the tail has too are there once."""
    lost = EventRecord(time_s=1_700_000_000.0, message="1 node lost")
    write(storage, 1, lost, *map(step, range(2000)))
    write(storage, 2, lost, *map(step, range(20)))
    long, short = survey(url, most_generations=2).segments
    for found in (long, short):
        assert found.records[:2] == (found.header, lost)
        assert found.records.count(lost) == 1


def test_the_live_status_is_of_the_driver_that_lives(storage, url):
    """Not of one before it, and nothing is live when it has ended."""
    committed(storage, 2)
    counts = {"least": 1, "most": 2, "held_step": 5}
    texts = {"launch": "launch", "state": "Running", "why": "", "next": ""}
    status = RunStatus(**texts, **counts, time_s=1.0, nodes=(), workers=())
    storage.write(STATUS_FILE, seal(status))
    assert survey(url).live is None
    with DriverLease(storage, "launch", print):
        assert survey(url).live == status
        storage.write(STATUS_FILE, seal(status.model_copy(update={"launch": "an older one"})))
        assert survey(url).live is None
    storage.write(STATUS_FILE, seal(status))
    assert survey(url).live is None

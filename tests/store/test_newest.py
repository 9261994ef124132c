"""The newest commit, in three degrees: named, readable, whole."""

import pytest
from test_earlier import commit, step, write
from test_survey import committed, recorded

from planner.base.disk import read_part
from planner.errors import ManifestMismatch, NewerFormat, StoreError, Unreachable
from planner.events.resuming import CommitNotUsed
from planner.store.newest import newest_commit, newest_named, newest_of, readable
from planner.store.run_folder import RunFolder, commit_name
from planner.store.survey import survey


@pytest.fixture
def run(storage):
    """Two commits, of which the ledger records the first."""
    committed(storage, 2)
    committed(storage, 4)
    write(storage, 1, step(0), step(1), recorded(storage, 2))
    return RunFolder(storage)


def test_a_run_without_commits_has_no_newest_one(storage):
    """In each of the three degrees."""
    assert newest_named(RunFolder(storage)) == ""
    assert newest_commit(RunFolder(storage)).manifest is None
    assert newest_of([], RunFolder(storage).manifest).manifest is None


def test_a_torn_manifest_is_named_and_not_readable(run):
    """The commit before is the newest readable one. Without one, the newest commit's error is raised."""
    first, second = run.commits()
    run.storage.write(f"manifests/{second}.json", b"{")
    assert newest_named(run) == second
    assert newest_commit(run).manifest.name == first
    run.storage.write(f"manifests/{first}.json", b"[")
    with pytest.raises(StoreError, match=f"manifests/{second}.json: torn"):
        newest_commit(run)


def test_a_commit_is_whole_if_its_reader_says_so(run):
    """A commit that the reader refuses is passed over with the reason. The first good commit ends the search."""
    names, asked = run.commits(), []

    def whole(name):
        asked.append(name)
        found = readable(run, name)
        if name == names[-1]:
            raise StoreError("a file is gone")
        return found

    newest = newest_of(["no such commit", *reversed(names)], whole)
    assert newest.manifest.name == names[0]
    assert [name for name, _ in newest.passed_over] == ["no such commit", names[1]]
    assert str(newest.passed_over[1][1]) == "a file is gone"
    assert newest_of(reversed(names), run.manifest).manifest.name == names[1]
    assert asked == ["no such commit", *reversed(names)]


def test_another_version_and_another_manifest_are_never_passed_over(run):
    """Resuming from the commit before would lose work, or hide a replaced file."""
    for error in (NewerFormat("of another version"), ManifestMismatch("not on record")):

        def read(name, error=error):
            if name == run.commits()[-1]:
                raise error
            return run.manifest(name)

        with pytest.raises(type(error)):
            newest_of(reversed(run.commits()), read)
    write(run.storage, 2, step(0), commit(2))
    run.storage.write("ledger/000001.jsonl", run.storage.read("ledger/000002.jsonl"))
    with pytest.raises(ManifestMismatch):
        readable(run, run.commits()[0])


def without_second(run, harm):
    """The newest commit, and what is said of the second one, which `harm` has harmed."""
    harm(run.storage, run.commits()[-1])
    newest = newest_commit(run)
    (event,) = newest.not_used
    assert survey(run.storage.url).not_used == (event,)
    assert survey(run.storage.url).newest == newest.manifest
    return newest.manifest.step, event


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda s, name: s.write(f"manifests/{name}.json", b""), "torn or not written by this version of planner"),
        (lambda s, name: s.write(f"manifests/{name}.json", b"\xff\x00{"), "torn or not written by this version"),
        (lambda s, name: s.delete(f"checkpoints/{name}"), f"checkpoints/{commit_name(4, 1)}/part is missing"),
        (lambda s, name: s.write(f"checkpoints/{name}/part", b"xx"), "part: torn (2 bytes instead of 1)"),
    ],
)
def test_what_is_lost_with_a_damaged_commit_is_told(run, harm, why):
    """Why, from which step a run resumes without it, and how many steps it does again. A survey says the same."""
    begin, event = without_second(run, harm)
    assert begin == event.resume_step == 2
    assert (event.commit, event.again) == (commit_name(4, 1), 2)
    assert why in event.reason


def test_a_commit_that_only_the_ledger_has_is_told(run):
    """Its manifest is gone."""
    run.storage.delete("ledger")
    write(run.storage, 1, step(0), step(1), recorded(run.storage, 2), step(2), step(3), recorded(run.storage, 4))
    _, event = without_second(run, lambda storage, name: storage.delete(f"manifests/{name}.json"))
    assert event == CommitNotUsed(commit=commit_name(4, 1), reason=None, resume_step=2, again=2)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")])
@pytest.mark.parametrize("what", ["manifests", "checkpoints"])
def test_a_commit_that_cannot_be_read_now_is_not_passed_over(run, monkeypatch, error, what):
    """It may be whole, so resuming from the commit before would lose its steps."""
    name, files = run.commits()[-1], run.storage.file_system

    def refusing(method):
        def call(path, *arguments, **settings):
            if f"{what}/{name}" in str(path):
                raise error
            return method(path, *arguments, **settings)

        return call

    for method in ("cat_file", "ls"):
        monkeypatch.setattr(files, method, refusing(getattr(files, method)))
    monkeypatch.setattr("planner.store.storage.read_part", refusing(read_part))
    says = f"cannot use {what}/{name}.*: {error.strerror}, and the commit of step 4 may be whole. Make it readable, or"
    with pytest.raises(Unreachable, match=says):
        newest_commit(run)
    assert error.strerror in survey(run.storage.url).problem


def test_a_commit_that_comes_meanwhile_counts(run, monkeypatch):
    """A running job writes it, and removes the files of the one that was the newest."""
    second = run.commits()[-1]
    run.storage.delete(f"checkpoints/{second}")
    manifest = run.manifest

    def read(_run, name):
        if name == second and len(run.commits()) == 2:
            committed(run.storage, 6)
        return manifest(name)

    monkeypatch.setattr(RunFolder, "manifest", read)
    newest = newest_commit(run)
    assert (newest.manifest.step, newest.not_used) == (6, [])

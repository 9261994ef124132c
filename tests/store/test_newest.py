"""The newest commit, in three degrees: named, readable, whole."""

import pytest
from test_earlier_generations import commit, step, write
from test_survey import committed, recorded

from planner.errors import ManifestMismatch, NewerFormat, StoreError
from planner.store.newest import newest_named, newest_of, newest_readable, readable
from planner.store.run_folder import RunFolder


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
    assert newest_readable(RunFolder(storage)) is None
    assert newest_of([], RunFolder(storage).manifest).manifest is None


def test_a_torn_manifest_is_named_and_not_readable(run):
    """The commit before is the newest readable one. Without one, the newest commit's error is raised."""
    first, second = run.commits()
    run.storage.write(f"manifests/{second}.json", b"{")
    assert newest_named(run) == second
    assert newest_readable(run).name == first
    run.storage.write(f"manifests/{first}.json", b"[")
    with pytest.raises(StoreError, match=f"manifests/{second}.json: torn"):
        newest_readable(run)


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

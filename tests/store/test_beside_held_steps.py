"""What is durable beside a step in memory, by the names and the manifests in the run's folder."""

import pytest
from test_earlier import commit, step, write
from test_survey import committed, recorded

from planner.errors import ManifestMismatch
from planner.store.commit_names import commit_name
from planner.store.run_folder import RunFolder
from planner.train.resume import _durable


@pytest.fixture
def run(storage):
    """Commits of steps 2 and 4 of the first generation, which the ledger records."""
    for number in (2, 4):
        committed(storage, number)
    write(storage, 1, step(0), step(1), recorded(storage, 2), step(2), step(3), recorded(storage, 4))
    return RunFolder(storage)


def test_a_commit_of_a_later_step_is_not_before_a_held_one(run):
    """Generation 2 passed it over, and resumed from step 2."""
    found = _durable(run, commit_name(3, 2))
    assert (found.newest, found.before) == (commit_name(4, 1), 2)
    assert _durable(run, commit_name(5, 2)).before == 4
    assert _durable(run, commit_name(1, 2)).before == 0
    assert found.manifest is None


def test_a_step_that_is_durable_has_its_manifest(run):
    """Only under its own name: the same step of another generation has other weights."""
    name = commit_name(4, 1)
    found = _durable(run, name)
    assert found.manifest.name == name
    assert found.sha256 == run.manifest_digest(name)
    assert _durable(run, commit_name(4, 2)).manifest is None


def test_memory_has_a_step_whose_manifest_is_torn(run):
    """The step counts as held then."""
    name = commit_name(4, 1)
    run.storage.write(f"manifests/{name}.json", b"{")
    found = _durable(run, name)
    assert (found.manifest, found.sha256, found.before) == (None, "", 2)


def test_a_manifest_that_was_replaced_is_refused(storage):
    """As when a run resumes from storage."""
    committed(storage, 4)
    write(storage, 1, step(0), step(1), step(2), step(3), commit(4))
    with pytest.raises(ManifestMismatch):
        _durable(RunFolder(storage), commit_name(4, 1))


def test_a_run_without_commits_has_nothing_durable(storage):
    found = _durable(RunFolder(storage), commit_name(3, 1))
    assert (found.newest, found.before, found.manifest) == ("", 0, None)

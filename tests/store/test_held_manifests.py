"""A step that a generation resumed from in memory has a sealed manifest in `held/`, with digests of shards."""

import json

import pytest
from pydantic import ValidationError

from planner.errors import NewerFormat, StaleGeneration, StoreError
from planner.store.records import FileDigest, HeldManifest, Manifest, TrainingIdentity, digest_of, seal, unseal
from planner.store.run_folder import RunFolder, commit_name

IDENTITY = TrainingIdentity(
    global_batch=4, seed=1, data="a" * 64, model="b" * 64, optimizer="adamw", recipe="c" * 64, equality="balanced"
)
SHARDS = {"0/model/w": "1" * 32, "1/model/w": "2" * 32}
FILE = FileDigest(name="f", size_bytes=1, sha256="f" * 64)


@pytest.fixture
def run(storage):
    """A run with two claimed generations."""
    made = RunFolder(storage)
    made.ensure_identity()
    assert [made.claim_generation({}), made.claim_generation({})] == [1, 2]
    return made


def step_of(run, step=3, generation=1, **changes):
    """The manifest of a held step, as training makes it."""
    fields = {
        "run_id": run.identity().run_id,
        "name": commit_name(step, generation),
        "generation": generation,
        "parent": "",
        "step": step,
        "cursor": 4 * step,
        "total_steps": 10,
        "identity": IDENTITY,
        "plan_digest": "p",
        "world_size": 2,
        "facts": {},
        "job_digest": "c" * 64,
        "ledger_head": "d" * 64,
        "files": (),
        "tensors": {},
        "shards": SHARDS,
        "versions": {"torch": "2.9"},
        "time_s": 1.0,
    }
    return Manifest(**{**fields, **changes})


def test_what_was_held_can_be_read_again(run):
    """It is no commit: nothing resumes from it after its copies are gone."""
    made = step_of(run)
    digest = run.put_held(made, writer=2)
    found = run.held(made.name)
    assert (found.shards, found.files, found.step, found.ledger_head) == (SHARDS, (), 3, "d" * 64)
    assert digest == digest_of(found) == run.held_digest(made.name)
    assert (run.is_held(made.name), run.held_steps(), run.commits()) == (True, [made.name], [])
    run.prune(1, 2)
    assert run.held_steps() == [made.name]


def test_a_commit_with_shards_of_memory_was_altered(run):
    """It would pass for a step without a certificate."""
    commit = step_of(run, generation=2)
    run.put_manifest(commit)
    with pytest.raises(StoreError, match="has shards of memory, which no commit has"):
        run.manifest(commit.name)


def test_a_step_may_have_both_manifests(run):
    """It was resumed from in memory, and became durable afterwards. A header says which one it means."""
    held_digest = run.put_held(step_of(run), writer=2)
    commit = step_of(run, shards={}, files=(FILE,))
    run.storage.write(f"manifests/{commit.name}.json", seal(commit))
    assert run.manifest(commit.name) == commit
    assert (run.is_held(commit.name), run.held_digest(commit.name)) == (True, held_digest)


@pytest.mark.parametrize("name", ["0/", "0", "model/w", "2/model/w", "-1/model/w", "0x1/w", "9" * 5000 + "/w"])
def test_a_shard_is_named_by_its_rank_and_its_tensor(run, name):
    """The rank is below the world size, which is 2."""
    with pytest.raises(ValidationError, match="a shard is named RANK/TENSOR"):
        run.put_held(step_of(run, shards={**SHARDS, name: "3" * 32}), writer=2)


def test_the_first_manifest_of_a_held_step_stays(run):
    """Two generations may resume from the same copies. The first one's header names the digest."""
    first = run.put_held(step_of(run), writer=2)
    assert run.put_held(step_of(run, time_s=9.0, versions={"torch": "3"}), writer=2) == first
    other = run.put_held(step_of(run, ledger_head="e" * 64), writer=2)
    assert other == run.held_digest(commit_name(3, 1)) != first


@pytest.mark.parametrize("content", [b"", b"{", b'{"sha256": "x", "value": {}}'])
def test_a_torn_manifest_is_written_again(run, content):
    """A driver may have been killed at it."""
    run.storage.write(f"held/{commit_name(3, 1)}.json", content)
    digest = run.put_held(step_of(run), writer=2)
    assert digest_of(run.held(commit_name(3, 1))) == digest


def test_only_the_newest_generation_writes_one(run):
    """As with commits."""
    run.claim_generation({})
    with pytest.raises(StaleGeneration, match="generation 3 has taken over this run from generation 2"):
        run.put_held(step_of(run), writer=2)
    with pytest.raises(AssertionError):
        run.put_held(step_of(run, generation=3), writer=3)
    assert run.held_steps() == []


@pytest.mark.parametrize("changes", [{"shards": {}}, {"files": (FILE,)}, {"tensors": {"model/w": "e" * 64}}])
def test_a_held_step_has_shards_and_nothing_else(run, changes):
    """With files it would be a commit."""
    with pytest.raises(ValidationError, match="a held step has shards"):
        run.put_held(step_of(run, **changes), writer=2)


@pytest.mark.parametrize("digest", ["", "1" * 31, "1" * 64, "G" * 32])
def test_a_shards_digest_has_32_hex_digits(run, digest):
    """XXH3-128."""
    with pytest.raises(ValidationError):
        step_of(run, shards={"0/model/w": digest})


def test_a_commits_manifest_in_its_place_is_refused(run):
    """It has no shards."""
    commit = step_of(run, shards={}, files=(FILE,))
    with pytest.raises(StoreError, match="torn or not written by"):
        unseal(seal(commit), HeldManifest, "here")


@pytest.mark.parametrize("damage", ["run", "name", "digest", "format", "gone"])
def test_a_damaged_one_is_refused(run, damage):
    """The message names the file."""
    name = commit_name(3, 1)
    run.put_held(step_of(run), writer=2)
    where = f"held/{name}.json"
    if damage == "gone":
        run.storage.delete(where)
    elif damage in {"run", "name"}:
        changes = {"run_id": "other"} if damage == "run" else {"name": commit_name(4, 1)}
        run.storage.write(where, seal(HeldManifest.of(step_of(run, **changes))))
    else:
        document = json.loads(run.storage.read(where))
        document["value"].update({"step": 4} if damage == "digest" else {"format": 2})
        run.storage.write(where, json.dumps(document).encode())
    message = {
        "run": "belongs to another run or another step",
        "name": "belongs to another run or another step",
        "digest": "altered since it was written",
        "format": "another version of planner",
        "gone": "cannot use",
    }[damage]
    with pytest.raises(NewerFormat if damage == "format" else StoreError, match=message) as caught:
        run.held(name)
    assert where in str(caught.value)


def test_a_number_in_a_held_steps_name_is_not_taken_again(run):
    """Its claim may be lost, and all else of its generation."""
    run.put_held(step_of(run), writer=2)
    run.storage.write(f"held/{commit_name(3, 7)}.json", b"{}")
    assert run.newest_generation() == 7
    assert run.claim_generation({}) == 8


def test_other_files_there_are_no_held_steps(run):
    """Names of another form."""
    for name in ("held/note.txt", "held/1-2.json", f"held/{commit_name(1, 1)}"):
        run.storage.write(name, b"")
    assert run.held_steps() == []

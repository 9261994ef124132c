"""A run's claims, commits and job files: one owner at a time, and altered files are refused."""

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import islice
from threading import Barrier

import pytest
from events import EVENT_S
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import NewerFormat, StaleGeneration, StoreError
from planner.job import Job
from planner.store.ledger import segment_name
from planner.store.records import (
    NO_HEAD,
    CommitRecord,
    FileDigest,
    Manifest,
    RunId,
    TrainingIdentity,
    canonical,
    canonical_json,
    chained,
    seal,
    unseal,
)
from planner.store.run_folder import RunFolder, commit_name, job_digest, job_file
from planner.store.storage import Storage

IDENTITY = TrainingIdentity(
    global_batch=4, seed=1, data="a" * 64, model="b" * 64, optimizer="adamw", recipe="c" * 64, equality="balanced"
)


def manifest(step=3, generation=1, run_id="run", files=(), **changes):
    fields = {
        "run_id": run_id,
        "name": commit_name(step, generation),
        "generation": generation,
        "parent": "",
        "step": step,
        "cursor": 4 * step,
        "total_steps": 10,
        "identity": IDENTITY,
        "plan_digest": "p",
        "world_size": 2,
        "facts": {"speeds": [1.5, None, "ü"], "caps": {"H200": 8}},
        "job_digest": "c" * 64,
        "ledger_head": "d" * 64,
        "files": files,
        "tensors": {},
        "versions": {"torch": "2.9"},
        "time_s": 1.0,
    }
    return Manifest(**{**fields, **changes})


@pytest.fixture
def run(storage):
    """A new run."""
    made = RunFolder(storage)
    made.ensure_identity()
    return made


@pytest.fixture
def run_here(tmp_path):
    """A new run on this machine, where threads may race."""
    made = RunFolder(Storage(str(tmp_path)))
    made.ensure_identity()
    return made


def commit(run, step, generation, content=b"tensors"):
    """A whole commit: a file, then the manifest that names it."""
    name = commit_name(step, generation)
    run.storage.write(f"checkpoints/{name}/__0_0.distcp", content)
    file = FileDigest(name="__0_0.distcp", size_bytes=len(content), sha256=sha256(content).hexdigest())
    made = manifest(step, generation, run.identity().run_id, (file,))
    run.storage.write(f"manifests/{name}.json", seal(made))
    return made


def record_commit(run, step, generation, digest="e" * 64):
    """Add a commit record to the ledger."""
    line = canonical(CommitRecord(step=step, name=commit_name(step, generation), sha256=digest, seconds=1.0))
    text = f'{{"head":"{chained(NO_HEAD, line)}","record":{line}}}\n'
    run.storage.append(segment_name(generation), text.encode())


def at_once(number, work):
    """Call `work(i)` on `number` threads at the same moment, and return the results."""
    barrier = Barrier(number, timeout=EVENT_S)

    def wait_and_work(i):
        barrier.wait()
        return work(i)

    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(wait_and_work, range(number)))


# -- identity


def test_a_run_keeps_its_name(storage):
    """Every later process reads the same name. Two runs have different names."""
    first = RunFolder(storage).ensure_identity()
    assert RunFolder(storage).ensure_identity() == first == RunFolder(storage).identity()
    assert len(first.run_id) == 32


def test_all_that_race_for_a_new_run_agree(tmp_path):
    """Sixteen threads get one name."""
    names = at_once(16, lambda _: RunFolder(Storage(str(tmp_path))).ensure_identity())
    assert len({name.run_id for name in names}) == 1


def test_a_folder_without_a_run_is_refused(storage):
    """The message says what to do."""
    with pytest.raises(StoreError, match=r"no run here \(no run\.json\). Check the path"):
        RunFolder(storage).identity()


def test_a_lost_name_is_not_replaced(run):
    """With a new name, every commit would belong to another run."""
    commit(run, 3, 1)
    run.storage.delete("run.json")
    with pytest.raises(StoreError, match=r"run\.json is gone, and 1 commits belong to the run .*Restore run\.json"):
        run.ensure_identity()
    assert not run.storage.exists("run.json")


def test_an_identity_without_a_format_is_refused(run):
    """Early versions of planner wrote no format number."""
    value = {"run_id": "x", "created_s": 1.5}
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    run.storage.write("run.json", json.dumps({"sha256": chained("", text), "value": value}).encode())
    with pytest.raises(NewerFormat, match=r"run\.json: written before formats had numbers, .* reads format 1. Use the"):
        run.identity()


# -- claims


def test_generations_count_from_one(run):
    """Their claims are kept, newest first."""
    assert run.generations() == []
    assert [run.claim_generation({"launch": str(i)}) for i in range(12)] == list(range(1, 13))
    assert run.generations() == list(range(1, 13))
    assert [claim["launch"] for claim in islice(run.claims(), 3)] == ["11", "10", "9"]
    assert len(list(run.claims())) == 12


def test_of_all_that_race_each_gets_its_own_generation(run_here):
    """Sixteen drivers at once: sixteen numbers, none twice, each with its own claim."""
    numbers = at_once(16, lambda i: run_here.claim_generation({"launch": str(i)}))
    assert sorted(numbers) == list(range(1, 17)) == run_here.generations()
    claims = list(run_here.claims())[::-1]
    assert [claims[number - 1]["launch"] for number in numbers] == [str(i) for i in range(16)]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000], ids=["empty", "torn", "list", "bytes", "deep"]
)
def test_a_torn_claim_is_left_out(run_here, content):
    """Its number stays taken, the other claims are read, and the run continues."""
    for launch in "abc":
        run_here.claim_generation({"launch": launch})
    run_here.storage.write("generations/000002.json", content)
    assert list(run_here.claims()) == [{"launch": "c"}, {"launch": "a"}]
    assert run_here.claim_generation({}) == 4


@pytest.mark.parametrize(
    "left",
    [
        "ledger/000007.jsonl",
        "manifests/000000000003-000007.json",
        "checkpoints/000000000003-000007/__0_0.distcp",
        "generations/000007.json",
    ],
)
def test_a_number_is_never_taken_twice(run, left):
    """Any file of generation 7 makes the next number 8, and older generations commit no more."""
    older = run.claim_generation({})
    run.storage.write(left, b"")
    with pytest.raises(StaleGeneration, match="generation 7 has taken over this run from generation 1"):
        run.require_current(older)
    assert run.claim_generation({}) == 8


def test_numbers_end(run):
    """A name has six digits. A seventh would break the sort order."""
    run.storage.write("generations/999999.json", b"{}")
    with pytest.raises(StoreError, match="generation 999999 is taken"):
        run.claim_generation({})


def test_other_files_among_the_claims_are_no_generations(run):
    """A person's note, for example."""
    run.claim_generation({})
    run.storage.write("generations/notes.json", b"")
    run.storage.write("generations/000007.txt~", b"")
    assert run.generations() == [1]


def test_a_stale_generation_may_not_commit(run):
    """The message names both generations, and nothing is written."""
    first, second = run.claim_generation({}), run.claim_generation({})
    run.require_current(second)
    with pytest.raises(StaleGeneration, match="generation 2 has taken over this run from generation 1"):
        run.require_current(first)
    with pytest.raises(StaleGeneration):
        run.put_manifest(manifest(3, first))
    assert run.commits() == []
    run.put_manifest(manifest(3, second, run.identity().run_id))
    assert run.commits() == [commit_name(3, second)]


# -- jobs

JOB = Job.model_validate(
    {
        "name": "job",
        "model": {"kind": "gpt", "layers": 1, "width": 8, "heads": 1, "context": 8},
        "data": {"kind": "text", "path": "daten/ü"},
        "batch": {"global": 4, "max_micro": 2},
        "train": {"steps": 3, "optimizer": {"kind": "adamw", "lr": 1e-3}},
    }
)


def test_a_job_is_kept_by_its_digest(run):
    """It is read back equal. Storing it twice stores one file."""
    name = run.keep_job(JOB)
    assert name == job_digest(JOB) == run.keep_job(JOB)
    assert run.job(name) == JOB
    assert run.storage.names("jobs") == [f"{name}.json"]


def test_a_torn_job_is_written_anew(run):
    """The caller has the whole job."""
    name = run.keep_job(JOB)
    content = run.storage.read(f"jobs/{name}.json")
    run.storage.write(f"jobs/{name}.json", content[:-9])
    assert run.keep_job(JOB) == name
    assert run.storage.read(f"jobs/{name}.json") == content


def test_a_setting_that_came_later_alters_no_job(run):
    """A job from before `checkpoint.keep` existed is still read, because the digest covers the stored bytes."""
    old = json.loads(job_file(JOB))
    del old["checkpoint"]["keep"]
    content = json.dumps(old, sort_keys=True, separators=(",", ":")).encode()
    name = sha256(content).hexdigest()
    assert name != job_digest(JOB)
    run.storage.write(f"jobs/{name}.json", content)
    assert run.job(name) == JOB


def test_a_job_with_a_resource_that_is_refused_today_is_still_read(run):
    """Such a run could train on a cluster before `workers.resources` refused the name. Its job cannot be changed."""
    old = json.loads(job_file(JOB))
    old["workers"]["resources"] = {"memory": 1e9}
    content = canonical_json(old).encode()
    name = sha256(content).hexdigest()
    run.storage.write(f"jobs/{name}.json", content)
    assert run.job(name).workers.resources == {"memory": 1e9}
    with pytest.raises(ValueError, match="planner reserves no memory"):
        Job.model_validate(run.job(name).model_dump(by_alias=True))


def test_a_job_that_is_gone_is_not_known(run):
    """An altered job raises instead."""
    name = run.keep_job(JOB)
    assert run.job_if_known(name) == JOB
    run.storage.write(f"jobs/{name}.json", b"{}")
    with pytest.raises(StoreError, match="altered"):
        run.job_if_known(name)
    run.storage.delete(f"jobs/{name}.json")
    assert run.job_if_known(name) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "torn", id="empty"),
        pytest.param(b"\xff", "torn", id="not UTF-8"),
        pytest.param(b"{}", "torn", id="no job"),
        pytest.param(b"[" * 100_000, "torn", id="nested too deeply"),
    ],
)
def test_an_invalid_job_is_refused(run, content, message):
    """A StoreError names the file."""
    name = run.keep_job(JOB)
    run.storage.write(f"jobs/{name}.json", content)
    with pytest.raises(StoreError, match=f"jobs/{name}.json: {message}"):
        run.job(name)


def test_an_altered_job_is_refused(run):
    """It is a valid job, but not the one of that digest. A missing file is refused, too."""
    name = run.keep_job(JOB)
    content = run.storage.read(f"jobs/{name}.json")
    run.storage.write(f"jobs/{name}.json", content.replace(b'"global":4', b'"global":5'))
    with pytest.raises(StoreError, match="altered"):
        run.job(name)
    with pytest.raises(StoreError, match="0000"):
        run.job("0" * 64)


# -- seals


def test_what_is_sealed_comes_back():
    """Equal, with floats to the last bit."""
    for value in [manifest(facts={"x": [0.1 + 0.2, 1e-300, 2**70]}), RunId(run_id="ü\0", created_s=1 / 3)]:
        assert unseal(seal(value), type(value), "here") == value


# Plain ASCII: a \u escape has the same meaning in capitals.
SEALED = seal(
    manifest(
        facts={"speeds": [1.5, None, -2], "caps": {"H200": 8}},
        files=(FileDigest(name=".metadata", size_bytes=7, sha256="e" * 64),),
    )
)


def require_refused_or_equal(content):
    """Require a StoreError, or an equal value if only white space changed."""
    with contextlib.suppress(StoreError):
        assert seal(unseal(content, Manifest, "here")) == SEALED


def test_every_altered_byte_of_a_seal_is_refused():
    """Each bit of each byte, except bytes of indentation, which may become other white space."""
    for where in range(len(SEALED)):
        for bit in range(8):
            altered = bytearray(SEALED)
            altered[where] ^= 1 << bit
            if SEALED[where : where + 1].isspace():
                require_refused_or_equal(bytes(altered))
            else:
                with pytest.raises(StoreError, match=r"^here: "):
                    unseal(bytes(altered), Manifest, "here")


@given(stop=st.integers(0, len(SEALED) - 1))
def test_a_torn_seal_is_refused(stop):
    """Cut anywhere."""
    with pytest.raises(StoreError, match="torn"):
        unseal(SEALED[:stop], Manifest, "here")


@given(start=st.integers(0, len(SEALED)), length=st.integers(0, 40), put=st.binary(max_size=40))
def test_any_other_edit_is_refused(start, length, put):
    """A piece replaced by arbitrary bytes."""
    require_refused_or_equal(SEALED[:start] + put + SEALED[start + length :])


@given(content=st.binary(max_size=200))
def test_arbitrary_bytes_are_no_manifest(content):
    """A StoreError, never another exception."""
    with pytest.raises(StoreError, match=r"^here: torn"):
        unseal(content, Manifest, "here")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=json_values, key=st.sampled_from([None, "value", "sha256", *Manifest.model_fields]))
def test_arbitrary_json_is_no_manifest(value, key):
    """As the document, as its value, or as one of its fields."""
    document = json.loads(SEALED)
    if key in document["value"]:
        if document["value"][key] == value:
            return
        document["value"][key] = value
    else:
        document = {**document, key: value} if key else value
    with pytest.raises(StoreError, match=r"^here: "):
        unseal(json.dumps(document).encode(), Manifest, "here")


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param("[" * 500 + "]" * 500, id="nested too deeply to serialise"),
        pytest.param("[" * 100_000 + "]" * 100_000, id="nested too deeply to parse"),
        pytest.param("NaN", id="NaN"),
        pytest.param("1e999", id="infinite"),
        pytest.param('"\\ud800"', id="lone surrogate"),
        pytest.param("1" * 5000, id="5000 digits"),
    ],
)
def test_a_manifest_with_odd_facts_is_refused(facts):
    """`facts` may hold any JSON, so values that a JSON parser cannot handle are refused."""
    content = SEALED.decode().replace('"caps": {', f'"odd": {facts}, "caps": {{')
    assert facts in content
    with pytest.raises(StoreError, match=r"^here: "):
        unseal(content.encode(), Manifest, "here")


def test_a_newer_format_is_told_apart():
    """It is not torn, whatever its other fields are, and must not be passed over."""
    value = {"format": 2, "weights": "elsewhere"}
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    content = json.dumps({"sha256": chained("", text), "value": value}).encode()
    for kind in (Manifest, RunId):
        with pytest.raises(NewerFormat, match=r"^here: .*another version of planner \(format 2, this one reads 1\)"):
            unseal(content, kind, "here")


def test_a_seal_of_another_kind_is_refused():
    """The content of run.json is no manifest."""
    with pytest.raises(StoreError):
        unseal(seal(RunId(run_id="x", created_s=0.0)), Manifest, "here")


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a b", "ü", "a\n"])
def test_a_manifest_names_no_file_elsewhere(name):
    """The name of a file is one plain component of a path."""
    with pytest.raises(ValueError, match="name"):
        FileDigest(name=name, size_bytes=1, sha256="e" * 64)


# -- commits


def test_a_manifest_copied_from_another_run_is_refused(run):
    """A manifest has the name of its run."""
    run.storage.write(f"manifests/{commit_name(3, 1)}.json", seal(manifest(3, 1, run_id="another")))
    with pytest.raises(StoreError, match="belongs to another run"):
        run.manifest(commit_name(3, 1))


def test_a_manifest_under_another_name_is_refused(run):
    """For example an old one copied over a newer one."""
    made = commit(run, 3, 1)
    run.storage.write(f"manifests/{commit_name(9, 1)}.json", run.storage.read(f"manifests/{made.name}.json"))
    assert run.manifest(made.name) == made
    with pytest.raises(StoreError, match="another commit"):
        run.manifest(commit_name(9, 1))


@pytest.mark.parametrize("name", ["gone", "000000000003-000001"])
def test_a_missing_manifest_is_named(run, name):
    """As a StoreError."""
    with pytest.raises(StoreError, match=name):
        run.manifest(name)


def test_commits_go_by_generation_and_then_by_step(run):
    """A later generation is newer, even with fewer steps."""
    for step, generation in [(30, 1), (4, 2), (200, 1), (100, 10), (5, 2), (7, 9)]:
        commit(run, step, generation)
    order = [(int(name[:12]), int(name[13:])) for name in run.commits()]
    assert order == [(30, 1), (200, 1), (4, 2), (5, 2), (7, 9), (100, 10)]


def test_other_files_among_the_manifests_are_no_commits(run):
    """A person's copy, for example."""
    made = commit(run, 3, 1)
    for name in ("zzz", f"{made.name} (copy)", f"{made.name}-000001", "3-1", made.name.replace("0", "\u0660")):
        run.storage.write(f"manifests/{name}.json", b"{}")
    assert run.commits() == [made.name]


def test_lost_commits_are_those_that_only_the_ledger_has(run):
    """All of them, or those newer than a commit. A torn line does not count."""
    for step, generation in [(9, 1), (3, 2), (4, 2), (1, 3)]:
        record_commit(run, step, generation)
    run.storage.append(segment_name(3), b'{"head":"0","record":{"kind":"commit","na')
    commit(run, 3, 2)
    assert run.lost_commits() == [commit_name(9, 1), commit_name(4, 2), commit_name(1, 3)]
    assert run.lost_commits(after=commit_name(3, 2)) == [commit_name(4, 2), commit_name(1, 3)]
    assert run.lost_commits(after=commit_name(1, 3)) == []


@given(
    commits=st.sets(st.tuples(st.integers(0, 10**12 - 1), st.integers(1, 10**6 - 1)), max_size=12),
)
def test_a_commits_name_sorts_as_its_numbers(commits):
    """Up to a trillion steps and a million generations."""
    names = [commit_name(step, generation) for step, generation in commits]
    by_name = sorted(names, key=lambda name: (name[13:], name[:12]))
    assert by_name == [commit_name(s, g) for s, g in sorted(commits, key=lambda c: (c[1], c[0]))]
    assert len(set(names)) == len(commits)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("gone", " is missing"),
        ("torn", r": torn \(6 bytes instead of 7\)"),
        ("altered", ": altered"),
        ("longer", ": torn"),
    ],
)
def test_a_damaged_file_is_named(run, harm, message):
    """The size is checked first, then the digest. An intact file passes."""
    made = commit(run, 3, 1)
    run.check_files(made.folder, made.files)
    path = f"checkpoints/{made.name}/__0_0.distcp"
    run.storage.delete(path)
    if harm != "gone":
        run.storage.write(path, {"torn": b"tensor", "altered": b"tensorz", "longer": b"tensors!"}[harm])
    with pytest.raises(StoreError, match=f"^{path}{message}"):
        run.check_files(made.folder, made.files)


# -- pruning


def folders(run):
    return run.storage.names("checkpoints")


def half_written(run, step, generation):
    """Shards without a manifest, from a crash or from a commit in progress."""
    run.storage.write(f"checkpoints/{commit_name(step, generation)}/__0_0.distcp", b"half")


@pytest.mark.parametrize("keep", [1, 2, 3, 99])
def test_pruning_keeps_the_newest(run, keep):
    """By generation, then by step. Every manifest stays, for the audit."""
    commits = [(9, 1), (10, 1), (3, 2), (4, 2)]
    for step, generation in commits:
        commit(run, step, generation)
    run.prune(keep, generation=2)
    assert folders(run) == sorted(commit_name(*c) for c in commits[-keep:])
    assert len(run.commits()) == 4


def test_pruning_removes_what_earlier_generations_left(run):
    """Folders of this generation or a newer one may be commits in progress, so they stay."""
    commit(run, 5, 2)
    for step, generation in [(4, 1), (6, 2), (7, 3), (8, 4), (8, 10)]:
        half_written(run, step, generation)
    run.prune(1, generation=3)
    assert folders(run) == [commit_name(5, 2), commit_name(7, 3), commit_name(8, 4), commit_name(8, 10)]


def test_a_stale_generation_prunes_nothing_of_the_newer(run):
    """Even if it does not know the newer one yet. Its own newest commit stays, too."""
    commit(run, 5, 2)
    half_written(run, 6, 2)
    commit(run, 6, 1)
    commit(run, 7, 1)
    run.prune(1, generation=1)
    assert folders(run) == [commit_name(5, 2), commit_name(6, 2), commit_name(7, 1)]


@pytest.mark.parametrize("stray", ["zzz", "000000000009-000001", "000000000001-000002"])
def test_a_manifest_that_cannot_be_read_keeps_nothing(run, stray):
    """It does not count among the newest two, so two good commits stay."""
    for step in (3, 4, 5):
        commit(run, step, 1)
    run.storage.write(f"manifests/{stray}.json", b"torn")
    run.prune(2, generation=1)
    assert folders(run) == [commit_name(4, 1), commit_name(5, 1)]


def test_pruning_keeps_the_files_of_a_lost_manifest(run):
    """The manifest may be restored. Files of commits that no ledger records are removed."""
    commit(run, 9, 2)
    for step in (5, 6):
        half_written(run, step, 1)
    record_commit(run, 5, 1)
    run.prune(1, generation=2)
    assert folders(run) == [commit_name(5, 1), commit_name(9, 2)]


def test_pruning_touches_no_folder_that_is_no_checkpoint(run):
    """A person's copy, for example."""
    commit(run, 9, 2)
    run.storage.write("checkpoints/keep-this/x", b"x")
    run.prune(1, generation=2)
    assert folders(run) == [commit_name(9, 2), "keep-this"]


@given(
    commits=st.sets(st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=8),
    halves=st.sets(st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=8),
    keep=st.integers(1, 4),
    generation=st.integers(1, 6),
)
def test_pruning_is_what_it_says(commits, halves, keep, generation):
    """The newest `keep` commits, the pruner's newest, and every unfinished folder from its generation on."""
    run = RunFolder(Storage("memory://pruning"))
    run.storage.delete("")
    run.storage.write("run.json", seal(RunId(run_id="run", created_s=0.0)))
    for step, of_generation in commits:
        commit(run, step, of_generation)
    for step, of_generation in halves - commits:
        half_written(run, step, of_generation)
    run.prune(keep, generation)
    kept = {
        *sorted(commits, key=lambda c: (c[1], c[0]))[-keep:],
        *sorted(c for c in commits if c[1] == generation)[-1:],
    }
    unfinished = [c for c in halves - commits if c[1] >= generation]
    assert folders(run) == sorted(commit_name(*c) for c in [*kept, *unfinished])
    assert len(run.commits()) == len(commits)
    run.storage.delete("")


def test_pruning_a_run_without_commits_removes_only_leftovers(run):
    """The very first commit may be in progress."""
    half_written(run, 1, 1)
    half_written(run, 1, 2)
    run.prune(2, generation=2)
    assert folders(run) == [commit_name(1, 2)]

"""One table of faults planted in a recorded run, with what each verifier must find.

Some only change files. Others are by somebody who knows every hash: chains and seals are made anew throughout.
The run is that of `made_up_runs.make_history`.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from planner.base import format_versions
from planner.plan import BatchSizes, make_plan
from planner.store.records import NO_HEAD, chained

Alter = Callable[[dict[str, Any]], object]


def compact(value: object) -> str:
    """JSON as digests are taken of it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def reseal(file: Path, alter: Alter) -> str:
    """Alter a sealed file, and seal it anew; its digest."""
    value = json.loads(file.read_text())["value"]
    alter(value)
    digest = chained("", compact(value))
    file.write_text(json.dumps({"sha256": digest, "value": value}))
    return digest


def forged(run: Path, alter_record: Alter = lambda _: None, alter_manifest: Alter = lambda _: None) -> Path:
    """Alter records and manifests, those of held steps included, and whatever has a digest of them."""
    heads: dict[str, str] = {}  # as it was -> as it is now
    ends, digests = {"": NO_HEAD}, {"": ""}

    def seal_anew(name: str, folder: str = "manifests") -> str:
        def alter(value: dict[str, Any]) -> None:
            value["ledger_head"] = heads[value["ledger_head"]]
            alter_manifest(value)
            ends[name] = value["ledger_head"]

        digests[name] = reseal(run / folder / f"{name}.json", alter)
        return digests[name]

    for segment in sorted((run / "ledger").iterdir()):
        values = [json.loads(line) for line in segment.read_text().splitlines()]
        parent = values[0]["record"]["parent"]
        if values[0]["record"].get("parent_is_held"):
            seal_anew(parent, "held")
        values[0]["record"]["parent_sha256"] = digests[parent]
        head, lines = ends[parent], []
        for value in values:
            record = value["record"]
            if record["kind"] == "commit":
                record["sha256"] = seal_anew(record["name"])
            alter_record(record)
            head = heads[value["head"]] = chained(head, compact(record))
            lines.append(f'{{"head":"{head}","record":{compact(record)}}}\n')
        segment.write_text("".join(lines))
    return run


def with_job(run: Path, change: Alter, also: Alter = lambda _: None) -> None:
    """Change the run's job, under its right digest, in every header and manifest. `also` changes more in those."""
    [file] = (run / "jobs").iterdir()
    job = json.loads(file.read_text())
    change(job)
    digest = sha256(compact(job).encode()).hexdigest()
    file.rename(file.with_name(f"{digest}.json")).write_text(compact(job))

    def alter(value: dict[str, Any]) -> None:
        if "job_digest" in value:
            value["job_digest"] = digest
            also(value)

    forged(run, alter, alter)


def set_format(found: object) -> Alter:
    """Give a value this format, or none."""

    def change(value: dict[str, Any]) -> None:
        value.pop("format", None)
        if found is not None:
            value["format"] = found

    return change


def in_header(change: Alter) -> Alter:
    """Change headers of ledgers alone."""
    return lambda record: record["kind"] == "generation" and change(record)


# -- how faults are planted

Plant = Callable[[Path], object]

MIDST, PARENT, NEWEST = "000000000002-000001", "000000000004-000001", "000000000012-000004"
"""commits: in the midst of a generation, where generation 3 begins, and the last one"""
HELD, LOST = "000000000008-000003", "000000000005-000001"
"""held steps: where generation 4 begins, and where generation 2 began, which is outside the lineage"""


def manifest(run: Path, name: str) -> Path:
    """The file of a commit's or of a held step's manifest."""
    return run / ("held" if name in {HELD, LOST} else "manifests") / f"{name}.json"


def rewritten(name: str, change: Callable[[bytes], bytes]) -> Plant:
    """A manifest's file with other bytes."""
    return lambda run: manifest(run, name).write_bytes(change(manifest(run, name).read_bytes()))


def resealed(name: str, **values: object) -> Plant:
    """A manifest with other values and their seal. No digest of it elsewhere is changed."""
    return lambda run: reseal(manifest(run, name), lambda value: value.update(values))


def removed(name: str) -> Plant:
    """A manifest is gone."""
    return lambda run: manifest(run, name).unlink()


def with_weights(change: Callable[[bytes], bytes]) -> Plant:
    """The file of the last commit has other bytes."""

    def plant(run: Path) -> None:
        [file] = (run / "checkpoints" / NEWEST).iterdir()
        file.write_bytes(change(file.read_bytes()))

    return plant


def with_lines(generation: int, change: Callable[[list[str]], object]) -> Plant:
    """A ledger whose list of lines was changed. Its last item is empty."""

    def plant(run: Path) -> None:
        segment = run / "ledger" / f"{generation:06d}.jsonl"
        lines = segment.read_bytes().decode().split("\n")
        change(lines)
        segment.write_bytes("\n".join(lines).encode(errors="surrogateescape"))

    return plant


def with_digit(kind: str, generation: int = 1, which: int = 0) -> Plant:
    """One digit of a ledger's record of this kind is another one."""

    def change(lines: list[str]) -> None:
        at = [number for number, line in enumerate(lines) if f'"kind":"{kind}"' in line][which]
        line = lines[at]
        digit = max(line.rfind(each) for each in "123456789")
        lines[at] = f"{line[:digit]}{int(line[digit]) % 9 + 1}{line[digit + 1 :]}"

    return with_lines(generation, change)


def replace_in_line(lines: list[str], at: int, old: str, new: str) -> None:
    """Replace a text that stands in a line."""
    assert old in lines[at]
    lines[at] = lines[at].replace(old, new, 1)


def with_job_text(change: Alter) -> Plant:
    """A job under its old digest."""

    def plant(run: Path) -> None:
        [file] = (run / "jobs").iterdir()
        job = json.loads(file.read_text())
        change(job)
        file.write_text(compact(job))

    return plant


def with_hashes(generation: int, alter: Alter) -> Plant:
    """A ledger with other values and its chain of hashes made anew. No manifest is changed."""

    def change(lines: list[str]) -> None:
        head = NO_HEAD
        for number, line in enumerate(lines[:-1]):
            record = json.loads(line)["record"]
            alter(record)
            head = chained(head, compact(record))
            lines[number] = f'{{"head":"{head}","record":{compact(record)}}}'

    return with_lines(generation, change)


def replace_parent(run: Path) -> None:
    """Generation 1's last commit is another one, as is its record. The header after it is not."""
    digest = reseal(manifest(run, PARENT), lambda value: value["versions"].update(torch="9.9"))
    with_hashes(1, lambda record: record.get("name") == PARENT and record.update(sha256=digest))(run)


def add_commit(run: Path) -> None:
    """A commit between two others, sealed, and on no record."""
    file = manifest(run, "000000000003-000001")
    shutil.copy(manifest(run, MIDST), file)
    reseal(file, lambda value: value.update(name=file.stem, step=3))


def with_text(change: Callable[[list[str]], object]) -> Plant:
    """The data has other lines."""

    def plant(run: Path) -> None:
        file = run.parent / "rows.jsonl"
        lines = file.read_text().splitlines(keepends=True)
        change(lines)
        file.write_text("".join(lines))

    return plant


def with_observed(step: int, alter: Alter) -> Plant:
    """What was observed at a step is something else."""

    def plant(run: Path) -> None:
        file = run / "observed.jsonl"
        values = [json.loads(line) for line in file.read_text().splitlines()]
        for value in values:
            if value["step"] == step:
                alter(value)
        file.write_text("".join(f"{json.dumps(value)}\n" for value in values))

    return plant


def rechained(alter_record: Alter = lambda _: None, alter_manifest: Alter = lambda _: None) -> Plant:
    """Other values, and every hash and seal made anew."""
    return lambda run: forged(run, alter_record, alter_manifest)


def step(number: int, **changes: Callable[[Any], object]) -> Alter:
    """Change fields of a step's record."""
    return _changed(lambda value: value.get("kind") == "step" and value["step"] == number, changes)


def evaluation(number: int, **changes: Callable[[Any], object]) -> Alter:
    """Change fields of the record of an evaluation."""
    return _changed(lambda value: value.get("kind") == "eval" and value["step"] == number, changes)


def _changed(is_meant: Callable[[dict[str, Any]], bool], changes: dict[str, Callable[[Any], object]]) -> Alter:
    return lambda value: is_meant(value) and value.update({key: change(value[key]) for key, change in changes.items()})


def header(generation: int, **values: object) -> Alter:
    """Give a generation's header other values."""
    return in_header(lambda value: value["generation"] == generation and value.update(values))


def named(name: str, **values: object) -> Alter:
    """Give a commit's or a held step's manifest other values."""
    return lambda value: value["name"] == name and value.update(values)


def with_key(**values: object) -> Alter:
    """Give other values to all headers and manifests that have such a key."""
    return lambda value: value.update({key: given for key, given in values.items() if key in value})


def identity(first_generation: int, **values: object) -> Alter:
    """Give other values to the identity in headers and manifests from a generation on."""

    def alter(value: dict[str, Any]) -> None:
        if "identity" in value and value["generation"] >= first_generation:
            value["identity"].update(values)

    return alter


def in_generation(number: int, alter: Alter) -> Alter:
    """Change the records of one generation alone."""
    found = [0]

    def change(record: dict[str, Any]) -> None:
        found[0] = record.get("generation", found[0])
        if found[0] == number:
            alter(record)

    return change


def of_kind(kind: str, **values: object) -> Alter:
    """Give all records of a kind other values."""
    return lambda record: record["kind"] == kind and record.update(values)


def add_record(run: Path, generation: int, at: int, record: dict[str, Any]) -> None:
    """A ledger with one record more, as if it had always been there."""
    with_lines(generation, lambda lines: lines.insert(at, _as_line(record)))(run)
    forged(run)


def _as_line(record: dict[str, Any]) -> str:
    return f'{{"head":"{sha256(compact(record).encode()).hexdigest()}","record":{compact(record)}}}'


def add_evaluation(run: Path) -> None:
    """An evaluation before step 7, where none was due."""
    lines = (run / "ledger" / "000003.jsonl").read_text().splitlines()
    [found] = [json.loads(line)["record"] for line in lines if '"kind":"eval"' in line]
    at = next(number for number, line in enumerate(lines) if '"kind":"step"' in line and '"step":7' in line)
    add_record(run, 3, at, {**found, "step": 7})


def add_second_evaluation(run: Path) -> None:
    """Another evaluation before step 6, with a better loss."""
    lines = (run / "ledger" / "000003.jsonl").read_text().splitlines()
    [at] = [number for number, line in enumerate(lines) if '"kind":"eval"' in line]
    add_record(run, 3, at, {**json.loads(lines[at])["record"], "loss": 1.0})


def add_held(run: Path) -> None:
    """The manifest of a held step that no header names, at another step."""
    file = run / "held" / "000000000007-000003.json"
    shutil.copy(manifest(run, HELD), file)
    reseal(file, lambda value: value.update(name=file.stem, step=7))


def add_header(run: Path) -> None:
    """A second header behind the first."""
    line = (run / "ledger" / "000001.jsonl").read_text().splitlines()[0]
    add_record(run, 1, 1, json.loads(line)["record"])


def repeat_one_rate(run: Path) -> None:
    """All steps but the first are on record as step 1, with its learning rate."""
    lines = (run / "ledger" / "000001.jsonl").read_text().splitlines()
    records = [json.loads(line)["record"] for line in lines]
    [rate] = [record["lr"] for record in records if record["kind"] == "step" and record["step"] == 1]
    forged(run, lambda record: record["kind"] == "step" and record["step"] and record.update(step=1, lr=rate))


def with_max_micro(most: int) -> Plant:
    """Headers and manifests with another max_micro and the plans that follow from it."""

    def alter(value: dict[str, Any]) -> None:
        if "plan_digest" in value:
            sizes = BatchSizes(global_batch=5, max_micro=most, equality="bitwise")
            value["plan_digest"] = make_plan(sizes, value["world_size"]).digest
            if "max_micro" in value:
                value["max_micro"] = most

    return rechained(alter, alter)


# -- what is no file of the run

NO_FILES: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a device without end": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path.name),
}
FILES = {
    "run.json": "run.json",
    "the newest manifest": f"manifests/{NEWEST}.json",
    "a manifest in the midst": f"manifests/{MIDST}.json",
    "a held step": f"held/{HELD}.json",
    "a ledger": "ledger/000001.jsonl",
    "a job": "jobs/*.json",
    "the weights": f"checkpoints/{NEWEST}/__0_0.distcp",
}


def in_place_of(name: str, make: Callable[[Path], object]) -> Plant:
    """Something else in the place of a file."""

    def plant(run: Path) -> None:
        [file] = run.glob(name)
        file.unlink()
        make(file)

    return plant


def moved_out(name: str) -> Plant:
    """A file beside the run's folder, and a link to it in its place."""

    def plant(run: Path) -> None:
        [file] = run.glob(name)
        file.symlink_to(file.rename(run.parent / "elsewhere"))

    return plant


def swap_steps(run: Path) -> None:
    """What step 2 used is on record as step 3's, and the other way round."""
    lines = (run / "ledger" / "000001.jsonl").read_text().splitlines()
    records = [json.loads(line)["record"] for line in lines]
    used = {
        record["step"]: {key: record[key] for key in ("tokens", "checksum")}
        for record in records
        if record["kind"] == "step"
    }

    def swap(record: dict[str, Any]) -> None:
        if record["kind"] == "step" and record["step"] in {2, 3}:
            record.update(used[5 - record["step"]])

    forged(run, swap)


def keep_only(*names: str) -> Plant:
    """All else in the run's folder is gone."""

    def plant(run: Path) -> None:
        for path in run.iterdir():
            if path.name not in names:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    return plant


def without(name: str) -> Plant:
    """A file or a folder of the run is gone."""
    return lambda run: shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()


# -- what must be found


@dataclass(frozen=True)
class Unseen:
    """The verifier cannot see the fault for this reason, and calls the run clean."""

    reason: str


Found = str | tuple[str, ...] | Unseen
"""a text of a finding, or several texts that must all be found, or why nothing is"""


@dataclass(frozen=True)
class Fault:
    """How a fault is planted in a run's folder, which has its data beside it, and what each verifier must find."""

    plant: Plant
    audit: Found
    verify_run: Found
    verify: Found | None = None
    """None: as `audit`, since both read the lineage by the same code"""

    def found_by(self, verifier: str) -> Found:
        """What this verifier finds."""
        found = getattr(self, verifier)
        return self.audit if found is None else found


TRUSTED = Unseen("losses, norms and what was computed are taken on trust: only training again shows them")
OUTSIDE = Unseen("verify has just trained both runs, and reads the generations of the lineage alone")
NO_JOB = Unseen("verify has the job in hand, and reads none that is on record")
NO_DATA = Unseen("verify compares records, and does not read the data")
SAME_STEPS = Unseen("verify compares steps and tensors, and they are the same")

_HELD_NO_GOOD = f"generation 4 resumed from memory at held step {HELD}, and its manifest is no good: "
_LOST_NO_GOOD = f"generation 2 resumed from memory at held step {LOST}, and its manifest is no good: "
_OTHER_MANIFEST = "its manifest is not the one that the ledger records"
_OTHER_PLACE = "is of another run, place, plan, length, machine or job than"
_OTHER_HEADER = "its plan, length, machine or run is not what its ledger's header names"
_ANOTHER = "belongs to another run or another"
_NOT_FED = "what entered the forward pass is not the samples at"
_OTHER_DATA = "is not what it was trained on"

_OUT = "leads out of the run's folder"
_UNREAD = {"a job": NO_JOB, "a manifest in the midst": OUTSIDE}
_NAMES = {
    "run.json": "run.json: ",
    "the newest manifest": f"commit {NEWEST}: ",
    "a manifest in the midst": f"commit {MIDST}: ",
    "a held step": "generation 4, resumed from memory: ",
    "a ledger": "ledger 000001: ",
    "a job": "generation 1: ",
    "the weights": "'__0_0.distcp': ",
}
_OTHER_HELD = "its manifest is not the one that this generation went on from"

_ONLY_TOLD = header(4, changed=["recipe: accepted by name"])


def _accepted(field: str = "recipe", before: str = "", now: str = "0" * 64) -> Alter:
    """Generation 4 records an accepted change, by default that of its own recipe to zeros."""

    def accept(value: dict[str, Any]) -> None:
        old = before or str(value["identity"]["recipe"])
        value["accepted"] = [{"field": field, "before": old, "now": now}]

    return in_header(lambda value: value["generation"] == 4 and accept(value))


_FACTS_UNREAD = Unseen("the script compares no devices: their names say nothing of the steps")
_NOT_SO = "generation 4: it records an accepted change of"
_NO_CHANGE = {
    "that was not made": _accepted(),
    "of an unknown field": _accepted("sead", "0", "1"),
    "of the seed from a seed to the same": _accepted("seed", "5", "5"),
    "of the device": _accepted("device", "a", "b"),
}

PLACES: dict[str, Callable[[Alter], Plant]] = {
    "run.json": lambda change: lambda run: reseal(run / "run.json", change),
    "jobs": lambda change: lambda run: with_job(run, change),
    "ledger": lambda change: rechained(in_header(change)),
    "manifests": lambda change: rechained(alter_manifest=lambda value: value["files"] and change(value)),
    "held": lambda change: rechained(alter_manifest=lambda value: value["name"] == HELD and change(value)),
}
"""What is stored -> a plant that changes it by its argument."""

FAULTS = {
    # The files of the last commit.
    "one byte of the weights": Fault(
        with_weights(lambda content: content[:-1] + bytes([content[-1] ^ 1])),
        "altered since it was written",
        "torn or altered",
    ),
    "weights cut short": Fault(with_weights(lambda content: content[:-1]), "torn (", "torn or altered"),
    "no weights": Fault(without("checkpoints"), "is missing", "FileNotFoundError"),
    "no weights named": Fault(
        rechained(alter_manifest=named(NEWEST, files=[])),
        f"commit {NEWEST}: it names no files, so there are no weights",
        "the newest commit names no files: there are no weights",
        SAME_STEPS,
    ),
    # Commits.
    "a manifest altered": Fault(
        rewritten(NEWEST, lambda content: content.replace(b'"step": 12', b'"step": 11')),
        f"manifests/{NEWEST}.json: altered since it was written",
        f"commit {NEWEST}: its manifest was altered: the seal does not match",
    ),
    "a manifest of garbage": Fault(
        rewritten(NEWEST, lambda _: b"\xff\xfe\x00\x80"),
        f"manifests/{NEWEST}.json: torn",
        f"commit {NEWEST}: missing, torn or garbage",
    ),
    "a manifest that is another commit's": Fault(
        lambda run: shutil.copy(manifest(run, MIDST), manifest(run, NEWEST)),
        f"manifests/{NEWEST}.json: belongs to another run or another commit",
        f"commit {NEWEST}: its manifest is another commit's",
    ),
    "a manifest of another format with nothing else": Fault(
        rewritten(NEWEST, lambda _: b'{"sha256": "?", "value": {"format": 2}}'),
        "format 2, this one reads 1",
        f"commit {NEWEST}: its manifest was altered: the seal does not match",
    ),
    "the newest manifest torn": Fault(
        rewritten(NEWEST, lambda content: content[:500]),
        f"manifests/{NEWEST}.json: torn",
        f"commit {NEWEST}: missing, torn or garbage",
    ),
    "the newest manifest gone": Fault(
        removed(NEWEST),
        f"commit {NEWEST} is on record, and its manifest is no good",
        f"commit {NEWEST}: missing",
        "samples: 12 steps against 10",
    ),
    "a parent's manifest torn": Fault(
        rewritten(PARENT, lambda _: b"{"),
        f"manifests/{PARENT}.json: torn",
        (f"commit {PARENT}: missing, torn or garbage", f"{PARENT!r}, has no good manifest"),
    ),
    "a parent's manifest gone": Fault(
        removed(PARENT),
        f"manifests/{PARENT}.json",
        (f"commit {PARENT}: missing", f"the step that it went on from, {PARENT!r}, has no good manifest"),
    ),
    "a manifest in the midst of a generation torn": Fault(
        rewritten(MIDST, lambda _: b"{"),
        f"commit {MIDST} is on record, and its manifest is no good",
        f"commit {MIDST}: missing, torn or garbage",
        OUTSIDE,
    ),
    "a manifest in the midst of a generation gone": Fault(
        removed(MIDST),
        f"commit {MIDST} is on record, and its manifest is no good",
        f"commit {MIDST}: missing",
        OUTSIDE,
    ),
    "no manifests": Fault(
        without("manifests"),
        "the ledger records 5 commits, and no manifest can be read",
        "no commit can be read here, so there are no weights to account for",
    ),
    "a commit on no record": Fault(
        add_commit,
        "commit 000000000003-000001: the ledger has no record of it, and its generation went on",
        "commit 000000000003-000001: the ledger has no record of it, and its generation went on",
        "commit 000000000003-000001: it says step 3 and sample 10, and its ledger step 2 and sample 10",
    ),
    "the newest manifest with another length": Fault(
        resealed(NEWEST, total_steps=13),
        (f"commit {NEWEST}: {_OTHER_MANIFEST}", f"commit {NEWEST}: {_OTHER_HEADER}"),
        (f"commit {NEWEST}: {_OTHER_MANIFEST}", f"{_OTHER_PLACE} commit {NEWEST}"),
        f"commit {NEWEST}: {_OTHER_HEADER}",
    ),
    "the newest manifest at another sample": Fault(
        resealed(NEWEST, cursor=61),
        f"commit {NEWEST}: it says step 12 and sample 61, and its ledger step 12 and sample 60",
        (
            f"commit {NEWEST}: {_OTHER_MANIFEST}",
            f"commit {NEWEST}: it says step 12 and sample 61, and its ledger step 12 and sample 60",
        ),
    ),
    "the newest manifest at another step": Fault(
        resealed(NEWEST, step=11),
        f"manifests/{NEWEST}.json: {_ANOTHER} commit",
        f"commit {NEWEST}: its manifest is another commit's",
    ),
    "a parent's manifest with another length": Fault(
        resealed(PARENT, total_steps=13),
        f"commit {PARENT}: {_OTHER_MANIFEST}",
        f"commit {PARENT}: {_OTHER_MANIFEST}",
        f"commit {PARENT}: its manifest is not the one that generation 3 went on from",
    ),
    "a manifest in the midst of a generation with another length": Fault(
        resealed(MIDST, total_steps=13),
        f"commit {MIDST}: {_OTHER_MANIFEST}",
        f"commit {MIDST}: {_OTHER_MANIFEST}",
        f"commit {MIDST}: {_OTHER_HEADER}",
    ),
    "a parent's manifest and its record replaced": Fault(
        replace_parent,
        f"commit {PARENT}: its manifest is not the one that generation 3 went on from",
        f"generation 3: went on from another manifest of commit {PARENT} than the one that is there",
    ),
    "a forged commit at another sample": Fault(
        rechained(alter_manifest=named(NEWEST, cursor=61)),
        f"commit {NEWEST}: it says step 12 and sample 61, and its ledger step 12 and sample 60",
        f"commit {NEWEST}: it says step 12 and sample 61, and its ledger step 12 and sample 60",
    ),
    "a forged commit of another run": Fault(
        rechained(alter_manifest=named(NEWEST, run_id="another")),
        f"manifests/{NEWEST}.json: {_ANOTHER}",
        f"commit {NEWEST}: its manifest is of another run",
    ),
    "a forged commit of another generation": Fault(
        rechained(alter_manifest=named(NEWEST, generation=3)),
        f"manifests/{NEWEST}.json: {_ANOTHER} commit",
        f"commit {NEWEST}: its manifest is another commit's",
    ),
    "a forged commit of another job": Fault(
        rechained(alter_manifest=named(NEWEST, job_digest="0" * 64)),
        f"commit {NEWEST}: its job is not the one that its ledger's header names",
        f"{_OTHER_PLACE} commit {NEWEST}",
    ),
    "a forged commit with shards of memory": Fault(
        rechained(alter_manifest=named(NEWEST, shards={"0/a": "0" * 32}, tensors={})),
        "it has shards of memory, which no commit has",
        "has shards of memory, which no commit has",
    ),
    "a forged commit without its certificate": Fault(
        rechained(alter_manifest=named(NEWEST, tensors={})),
        f"commit {NEWEST}: a finished bitwise run has a certificate, and this one has none",
        f"is finished and bitwise, and commit {NEWEST} has no certificate",
        "weights: differ at the end, first in model/w",
    ),
    # Held steps.
    "a held step gone": Fault(removed(HELD), _HELD_NO_GOOD, "generation 4, resumed from memory: missing, torn"),
    "a held step torn": Fault(
        rewritten(HELD, lambda content: content[:200]),
        _HELD_NO_GOOD,
        "generation 4, resumed from memory: missing, torn",
    ),
    "a held step altered": Fault(
        rewritten(HELD, lambda content: content.replace(b'"cursor": 40', b'"cursor": 41')),
        f"{_HELD_NO_GOOD}held/{HELD}.json: altered since it was written",
        "generation 4, resumed from memory: its manifest was altered: the seal does not match",
    ),
    "a held step of another run": Fault(
        resealed(HELD, run_id="x"),
        f"{_HELD_NO_GOOD}held/{HELD}.json: {_ANOTHER}",
        "generation 4, resumed from memory: its manifest is of another run",
    ),
    "a held step with files": Fault(
        resealed(HELD, files=[{"name": "f", "size_bytes": 1, "sha256": "a" * 64}]),
        f"{_HELD_NO_GOOD}held/{HELD}.json: torn or not written by this version",
        "its manifest is not that of a held step, which has shards and no files",
    ),
    "a held step sealed anew": Fault(
        resealed(HELD, time_s=1.0),
        f"held step {HELD}: its manifest is not the one that generation 4 went on from",
        f"held step {HELD}: {_OTHER_HELD}",
    ),
    "a held step of another step": Fault(
        resealed(HELD, step=7),
        f"{_HELD_NO_GOOD}held/{HELD}.json: {_ANOTHER} step",
        "generation 4, resumed from memory: its manifest is another commit's",
    ),
    "a held step outside the lineage gone": Fault(
        removed(LOST), _LOST_NO_GOOD, "generation 2, resumed from memory: missing, torn", OUTSIDE
    ),
    "a held step outside the lineage sealed anew": Fault(
        resealed(LOST, time_s=1.0),
        f"held step {LOST}: its manifest is not the one that generation 2 went on from",
        f"held step {LOST}: {_OTHER_HELD}",
        OUTSIDE,
    ),
    "a forged held step of another world size": Fault(
        rechained(alter_manifest=named(HELD, world_size=7)), f"held step {HELD}: {_OTHER_HEADER}", _OTHER_PLACE
    ),
    "a forged held step of another plan": Fault(
        rechained(alter_manifest=named(HELD, plan_digest="x")), f"held step {HELD}: {_OTHER_HEADER}", _OTHER_PLACE
    ),
    "a forged held step of another length": Fault(
        rechained(alter_manifest=named(HELD, total_steps=99)), f"held step {HELD}: {_OTHER_HEADER}", _OTHER_PLACE
    ),
    "a forged held step of another identity": Fault(
        rechained(alter_manifest=lambda value: value["name"] == HELD and value["identity"].update(seed=9)),
        f"held step {HELD}: {_OTHER_HEADER}",
        _OTHER_PLACE,
    ),
    "a forged held step at another sample": Fault(
        rechained(alter_manifest=named(HELD, cursor=41)),
        f"held step {HELD}: it says step 8 and sample 41, and its ledger step 8 and sample 40",
        f"held step {HELD}: it says step 8 and sample 41, and its ledger step 8 and sample 40",
        f"it begins at step 8, not where held step {HELD} ended",
    ),
    "a forged held step with another head": Fault(
        rechained(alter_manifest=named(HELD, ledger_head="a" * 64)),
        f"it does not reach the head that held step {HELD} names",
        f"does not reach the head that held step {HELD} names",
    ),
    "a forged header that begins later": Fault(
        rechained(header(4, step=9)), f"it begins at step 9, not where held step {HELD} ended", "does not begin where"
    ),
    "a forged header that calls its parent durable": Fault(
        rechained(header(4, parent_is_held=False)),
        "it says that it resumed from a durable step, and its parent is not durable but held",
        f"generation 4: says of held step {HELD}, where it began, that it was held, or was not",
    ),
    # Ledgers.
    **{
        f"a digit of a record of kind {kind}": Fault(
            with_digit(kind, generation),
            f"ledger/{generation:06d}.jsonl:{line}: the chain breaks here",
            f"generation {generation}: the chain breaks at line {line} of its ledger",
        )
        for kind, generation, line in [
            ("generation", 1, 1),
            ("eval", 1, 2),
            ("step", 1, 3),
            ("commit", 1, 5),
            ("event", 3, 2),
        ]
    },
    "a blank in a record": Fault(
        with_lines(1, lambda lines: replace_in_line(lines, 2, '"loss":', '"loss" :')),
        "ledger/000001.jsonl:3: not a ledger line",
        "generation 1: the chain breaks at line 3 of its ledger",
    ),
    "a digit of a step that was computed again": Fault(
        with_digit("step", generation=1, which=4),
        "after its last commit: ledger/000001.jsonl:9",
        "generation 1: after its last commit, the chain breaks at line 9",
    ),
    "a digit of a step outside the lineage": Fault(
        with_digit("step", generation=2),
        "ledger/000002.jsonl:2: the chain breaks here",
        "generation 2: the chain breaks at line 2",
        OUTSIDE,
    ),
    "a line removed": Fault(
        with_lines(1, lambda lines: lines.pop(2)),
        "ledger/000001.jsonl:3: the chain breaks here",
        "generation 1: the chain breaks at line 3 of its ledger",
    ),
    "a line of garbage": Fault(
        with_lines(1, lambda lines: lines.insert(2, "\udcff\udcfe\x00 garbage \udc80")),
        "ledger/000001.jsonl:3: not a ledger line",
        "generation 1: the chain breaks at line 3 of its ledger",
    ),
    "two lines swapped": Fault(
        with_lines(1, lambda lines: lines.insert(2, lines.pop(3))),
        "ledger/000001.jsonl:3: the chain breaks here",
        "generation 1: the chain breaks at line 3 of its ledger",
    ),
    "a ledger without its last lines": Fault(
        with_lines(4, lambda lines: lines.__delitem__(slice(3, None))),
        f"ledger of generation 4: it does not reach the head that commit {NEWEST} names",
        f"generation 4: its ledger does not reach the head that commit {NEWEST} names",
    ),
    "a ledger torn in a line": Fault(
        with_lines(3, lambda lines: lines.__setitem__(slice(3, None), [lines[3][:99]])),
        f"ledger of generation 3: it does not reach the head that held step {HELD} names",
        f"generation 3: its ledger does not reach the head that held step {HELD} names",
    ),
    "an empty ledger": Fault(
        with_lines(1, lambda lines: lines.clear()),
        f"ledger of generation 1: it does not reach the head that commit {PARENT} names",
        f"generation 1: its ledger does not reach the head that commit {PARENT} names",
    ),
    "a ledger gone": Fault(without("ledger/000003.jsonl"), "ledger/000003.jsonl", "generation 3: missing"),
    "a ledger with other hashes than its commit": Fault(
        with_hashes(1, step(2, samples=lambda number: number - 1)),
        f"ledger of generation 1: it does not reach the head that commit {PARENT} names",
        f"generation 1: its ledger does not reach the head that commit {PARENT} names",
    ),
    # Steps, with all hashes made anew.
    "a forged checksum": Fault(
        rechained(step(7, checksum=lambda _: "0123456789abcdef")),
        f"step 7: {_NOT_FED} [35, 40)",
        f"step 7: {_NOT_FED} [35, 40)",
        "samples: differ first at step 7",
    ),
    "a forged count of tokens": Fault(
        rechained(step(7, tokens=lambda number: number + 1)),
        f"step 7: {_NOT_FED} [35, 40)",
        f"step 7: {_NOT_FED} [35, 40)",
        "samples: differ first at step 7",
    ),
    "a forged count of samples": Fault(
        rechained(step(7, samples=lambda number: number - 1)),
        "step 7: computed 4 samples instead of 5",
        "step 7: computed 4 samples instead of 5",
        "samples: differ first at step 7",
    ),
    "a forged place in the order": Fault(
        rechained(step(6, cursor=lambda number: number + 5)),
        "step 6: it ends at sample 40 on record, and by its place in the ledger at sample 35",
        "generation 3: step 6: it ends at sample 40 on record, and by its place at 35",
    ),
    "a place in the order that is text": Fault(
        rechained(step(7, cursor=str)), "not a ledger record", "line 9 of its ledger is no record that planner writes"
    ),
    "two steps that change places": Fault(
        swap_steps,
        (f"step 2: {_NOT_FED} [10, 15)", f"step 3: {_NOT_FED} [15, 20)"),
        (f"generation 1: step 2: {_NOT_FED} [10, 15)", f"generation 1: step 3: {_NOT_FED} [15, 20)"),
        "samples: differ first at step 2",
    ),
    "a forged learning rate": Fault(
        rechained(step(7, lr=lambda rate: rate * (1 + 1e-9))),
        "step 7: its learning rate is 0.000",
        "step 7: its learning rate is 0.000",
        "learning rates: differ first at step 7",
    ),
    "a forged loss": Fault(
        rechained(step(7, loss=lambda loss: loss + 1e-9)), TRUSTED, TRUSTED, "losses: differ first at step 7"
    ),
    "a forged norm": Fault(
        rechained(step(7, grad_norm=lambda norm: norm + 1e-9)),
        TRUSTED,
        TRUSTED,
        "gradient norms: differ first at step 7",
    ),
    "a forged held-out loss": Fault(
        rechained(evaluation(6, loss=lambda loss: loss + 1e-9)),
        TRUSTED,
        TRUSTED,
        "held-out losses: differ first before step 6",
    ),
    "a step that is said to be skipped": Fault(
        rechained(step(7, skipped=lambda _: True)), TRUSTED, TRUSTED, "losses: differ first at step 7"
    ),
    **{
        f"a forged digest of {what}": Fault(
            rechained(
                alter_manifest=lambda value, name=name: (
                    value["name"] == NEWEST and value["tensors"].update({name: "0" * 64})
                )
            ),
            TRUSTED,
            TRUSTED,
            f"{what}: differ at the end, first in {name}",
        )
        for what, name in [("weights", "model/w"), ("optimizer", "optimizer/w"), ("sums' scales", "fixed_point/w")]
    },
    "another gradient observed": Fault(
        with_observed(7, lambda value: value["tensors"].update({"gradient/w": [0]})),
        TRUSTED,
        TRUSTED,
        "tensors by step: differ first at step 7, in gradient/w",
    ),
    "a forward pass less observed": Fault(
        with_observed(10, lambda value: value["forward_passes"].__setitem__(1, 1)),
        TRUSTED,
        TRUSTED,
        "forward passes: step 10, worker 1: 1, planned 2",
    ),
    # Numbers, with all hashes made anew.
    "a step on record as another": Fault(
        rechained(step(3, step=lambda _: 2)),
        "the record of a step says 2, and by its place in the ledger it is 3",
        "generation 1: the record of a step says 2, and by its place in the ledger it is 3",
    ),
    "all steps on record as step 1 with its rate": Fault(
        repeat_one_rate,
        ("the record of a step says 1, and by its place in the ledger it is 11", "step 3: its learning rate is 0.001"),
        ("the record of a step says 1, and by its place in the ledger it is 11", "step 11: its learning rate is 0.00"),
        "the record of a step says 1, and by its place in the ledger it is 8",
    ),
    "a step whose number is true": Fault(
        rechained(step(1, step=lambda _: True)), "not a ledger record", "line 4 of its ledger is no record"
    ),
    "a discarded step on record as another": Fault(
        rechained(in_generation(2, step(6, step=lambda _: 7))),
        "ledger of generation 2: the record of a step says 7, and by its place in the ledger it is 6",
        "generation 2: the record of a step says 7, and by its place in the ledger it is 6",
        OUTSIDE,
    ),
    "a step after the last commit on record as another": Fault(
        rechained(in_generation(1, step(4, step=lambda _: 5))),
        "ledger of generation 1: the record of a step says 5, and by its place in the ledger it is 4",
        "generation 1: the record of a step says 5, and by its place in the ledger it is 4",
    ),
    "an evaluation at another step": Fault(
        rechained(evaluation(6, step=lambda _: 12)),
        "ledger of generation 3: the record of an evaluation says 12, and by its place in the ledger it is 6",
        "generation 3: the record of an evaluation says 12, and by its place in the ledger it is 6",
    ),
    "an evaluation of other samples": Fault(
        rechained(evaluation(6, samples=lambda number: number - 1)),
        "the evaluation before step 6: it has 3 samples on record, and its job says 4",
        "the evaluation before step 6: it has 3 samples on record, and its job says 4",
        "held-out losses: differ first before step 6",
    ),
    "an evaluation of other tokens": Fault(
        rechained(evaluation(6, tokens=lambda number: number + 1)),
        "the evaluation before step 6: it has 29 tokens on record, and the held-out samples 28",
        "the evaluation before step 6: it has 29 tokens on record, and the held-out samples 28",
        "held-out losses: differ first before step 6",
    ),
    "an evaluation that was not due": Fault(
        add_evaluation,
        "the evaluation before step 7: none was due there",
        "the evaluation before step 7: none was due there",
        "held-out losses: ",
    ),
    "a commit on record at another step": Fault(
        rechained(lambda record: record.get("name") == MIDST and record.update(step=1)),
        f"ledger of generation 1: it records commit {MIDST} as that of step 1",
        f"generation 1: records commit '{MIDST}' as that of step 1",
    ),
    "two commits on record in another order": Fault(
        lambda run: (with_lines(1, lambda lines: lines.insert(7, lines.pop(4)))(run), forged(run)),
        f"ledger of generation 1: it records commit {MIDST} between steps 3 and 4",
        f"generation 1: records commit {MIDST} between steps 3 and 4",
    ),
    "a measurement of more steps": Fault(
        rechained(of_kind("measurement", num_steps=9)),
        "ledger of generation 4: a measurement says steps [1, 10), and by its place in the ledger they begin at 8",
        "generation 4: a measurement says steps [1, 10), and by its place in the ledger they begin at 8",
    ),
    "a manifest in the midst of a generation at another sample": Fault(
        rechained(alter_manifest=named(MIDST, cursor=11)),
        f"commit {MIDST}: it says step 2 and sample 11, and its ledger step 2 and sample 10",
        f"commit {MIDST}: it says step 2 and sample 11, and its ledger step 2 and sample 10",
    ),
    "a manifest in the midst of a generation with another head": Fault(
        rechained(alter_manifest=named(MIDST, ledger_head="a" * 64)),
        f"ledger of generation 1: it does not reach the head that commit {MIDST} names",
        f"generation 1: its ledger does not reach the head that commit {MIDST} names",
    ),
    "a manifest in the midst of a generation with another parent": Fault(
        rechained(alter_manifest=named(MIDST, parent=PARENT)),
        f"commit {MIDST}: {_OTHER_HEADER}",
        f"{_OTHER_PLACE} commit {MIDST}",
    ),
    "a forged held step outside the lineage": Fault(
        rechained(alter_manifest=named(LOST, cursor=26)),
        f"held step {LOST}: it says step 5 and sample 26, and its ledger step 5 and sample 25",
        f"held step {LOST}: it says step 5 and sample 26, and its ledger step 5 and sample 25",
    ),
    "a header of another generation": Fault(
        rechained(in_header(lambda value: value["generation"] == 3 and value.update(generation=2))),
        "ledger of generation 3: its header is that of generation 2",
        "generation 3: its header is that of generation 2",
    ),
    "two evaluations before one step": Fault(
        add_second_evaluation,
        "ledger of generation 3: it has two evaluations before step 6",
        "generation 3: its ledger has two evaluations before step 6",
    ),
    "a discarded ledger without its header": Fault(
        with_lines(2, lambda lines: lines.__setitem__(0, "garbage")),
        "ledger of generation 2: it does not begin with a header",
        "generation 2: missing, torn or garbage",
        OUTSIDE,
    ),
    "a certificate in the midst of a generation": Fault(
        rechained(alter_manifest=named(MIDST, tensors={"model/w": "0" * 64})),
        f"commit {MIDST}: it has a certificate, and only the last commit of a bitwise run has one",
        f"commit {MIDST}: it has a certificate, and only the last commit of a bitwise run has one",
        SAME_STEPS,
    ),
    "a held step on no record at another step": Fault(
        add_held,
        "held step 000000000007-000003: it says step 7 and sample 40, and its ledger step 8 and sample 40",
        "held step 000000000007-000003: it says step 7 and sample 40, and its ledger step 8 and sample 40",
    ),
    "a file's name that leads out of its folder": Fault(
        rechained(alter_manifest=named(NEWEST, files=[{"name": "..", "size_bytes": 0, "sha256": "0" * 64}])),
        f"manifests/{NEWEST}.json: torn or not written by this version",
        f"commit {NEWEST}: its manifest is none that planner writes",
    ),
    "a parent that is no step": Fault(
        rechained(header(4, parent="zzz")),
        f"commit {NEWEST}: {_OTHER_HEADER}",
        f"{_OTHER_PLACE} commit {NEWEST}",
        f"it begins at step 8, not where held step {HELD} ended",
    ),
    "a second header": Fault(
        add_header, "ledger of generation 1: it has a second header", "generation 1: its ledger has a second header"
    ),
    "a record of a kind that planner does not write": Fault(
        rechained(lambda record: record["kind"] == "event" and record.update(kind="remark")),
        "not a ledger record",
        "line 2 of its ledger is no record",
    ),
    "a record with a key that planner does not write": Fault(
        rechained(of_kind("event", remark="")), "not a ledger record", "line 2 of its ledger is no record"
    ),
    "a record without a key": Fault(
        rechained(lambda record: record.pop("grad_norm", None)),
        "not a ledger record",
        "line 3 of its ledger is no record",
    ),
    # Headers and the job.
    "another seed in the job": Fault(
        with_job_text(lambda job: job["train"].update(seed=6)),
        "altered since it was written",
        "its job was altered: the digest does not match",
        NO_JOB,
    ),
    "no job": Fault(without("jobs"), "jobs/", "FileNotFoundError", NO_JOB),
    "a forged seed": Fault(
        lambda run: with_job(
            run, lambda job: job["train"].update(seed=6), lambda value: value["identity"].update(seed=6)
        ),
        (f"step 0: {_NOT_FED} [0, 5)", f"step 11: {_NOT_FED} [55, 60)"),
        (f"step 0: {_NOT_FED} [0, 5)", f"step 11: {_NOT_FED} [55, 60)"),
        SAME_STEPS,
    ),
    "a forged recipe": Fault(
        rechained(identity(4, recipe="0" * 64), identity(4, recipe="0" * 64)),
        "generation 4: another recipe than before, and nobody accepted it",
        "generation 4: another 'recipe' than before, and nobody accepted it",
        SAME_STEPS,
    ),
    **{
        f"a forged {field} in all headers": Fault(
            rechained(identity(1, **{field: value}), identity(1, **{field: value})),
            f"generation 1: another {field} is on record than its job has",
            f"generation 1: another '{field}' is on record than its job has",
            SAME_STEPS,
        )
        for field, value in {
            "model": "0" * 64,
            "optimizer": "sgd",
            "recipe": "0" * 64,
            "seed": 6,
            "equality": "balanced",
        }.items()
    },
    "a job whose optimizer alone is one's own": Fault(
        lambda run: with_job(run, lambda job: job["train"].update(optimizer={"kind": "own"})),
        "not a job of this version of planner",
        "its job has kind own in some of model, data, objective and optimizer, and not in all",
        NO_JOB,
    ),
    "a forged recipe that only a text calls accepted": Fault(
        rechained(
            lambda record: (
                identity(4, recipe="0" * 64)(record),
                _ONLY_TOLD(record),
            ),
            identity(4, recipe="0" * 64),
        ),
        "generation 4: another recipe than before, and nobody accepted it",
        "generation 4: another 'recipe' than before, and nobody accepted it",
        SAME_STEPS,
    ),
    "a forged recipe that is accepted": Fault(
        rechained(
            lambda record: (
                _accepted()(record),
                identity(4, recipe="0" * 64)(record),
            ),
            identity(4, recipe="0" * 64),
        ),
        "generation 4: another recipe is on record than its job has",
        "generation 4: another 'recipe' is on record than its job has",
        SAME_STEPS,
    ),
    "a forged recipe that is accepted from another one": Fault(
        rechained(
            lambda record: (
                _accepted(before="1")(record),
                identity(4, recipe="0" * 64)(record),
            ),
            identity(4, recipe="0" * 64),
        ),
        f"{_NOT_SO} recipe that is none",
        f"{_NOT_SO} 'recipe' that is none",
        SAME_STEPS,
    ),
    **{
        f"an accepted change {which}": Fault(
            rechained(alter),
            _NOT_SO,
            _FACTS_UNREAD if which == "of the device" else _NOT_SO,
            SAME_STEPS,
        )
        for which, alter in _NO_CHANGE.items()
    },
    "a ledger of an older format than the one before": Fault(
        rechained(header(4, format=1)),
        "generation 4: its ledger has format 1, and that of generation 3 has format 4 already",
        # The script reads each generation by the format of its own header, which also says how checksums are taken.
        "generation 4: step 8: what entered the forward pass is not the samples at [40, 45)",
        SAME_STEPS,
    ),
    "a forged fingerprint of the data": Fault(
        rechained(identity(1, data="0" * 64), identity(1, data="0" * 64)), _OTHER_DATA, _OTHER_DATA, SAME_STEPS
    ),
    "a forged max_micro with its plans": Fault(
        with_max_micro(1),
        "generation 1: batch.max_micro is 1 on record, and its job says 2",
        "generation 1: batch.max_micro is 1 on record, and its job says 2",
        SAME_STEPS,
    ),
    "a forged max_tokens": Fault(
        rechained(header(1, max_tokens=64)),
        "generation 1: batch.max_tokens is 64 on record, and its job says None",
        "generation 1: batch.max_tokens is 64 on record, and its job says None",
        SAME_STEPS,
    ),
    "a forged length": Fault(
        rechained(with_key(total_steps=13), with_key(total_steps=13)),
        "generation 1: it was to end at step 13 on record, and its job says 12",
        "generation 1: was to end at step 13 on record, and its job says 12",
        SAME_STEPS,
    ),
    "forged steps behind the end": Fault(
        lambda run: with_job(run, lambda job: job["train"].update(steps=11), with_key(total_steps=11)),
        "generation 4: it went on to step 12, past its end at step 11",
        "generation 4: went on to step 12, behind its end at step 11",
        SAME_STEPS,
    ),
    "a forged length of an epoch": Fault(
        rechained(with_key(num_samples=35)),
        "generation 1: an epoch has 35 samples on record, and 36 in the data",
        "generation 1: has 35 samples in an epoch on record, and the data has another number",
        SAME_STEPS,
    ),
    "a forged plan": Fault(
        rechained(with_key(plan_digest="x"), with_key(plan_digest="x")),
        "generation 1: its plan is not what layout version 1 gives",
        "generation 1: its plan is not what layout version 1 gives",
        SAME_STEPS,
    ),
    "a layout that planner does not know": Fault(
        rechained(with_key(layout_version=3)),
        "layout version 3, and this version of planner knows 1",
        "generation 1: its plan has layout version 3, and this script knows 1 and 2",
        SAME_STEPS,
    ),
    "a forged header of another run": Fault(
        rechained(header(4, run_id="another")), f"{_OTHER_HEADER}", f"{_OTHER_PLACE} commit {NEWEST}"
    ),
    # The data.
    "one letter of the data": Fault(
        with_text(lambda lines: replace_in_line(lines, 7, "7 ", "7.")),
        _OTHER_DATA,
        (_OTHER_DATA, _NOT_FED),
        NO_DATA,
    ),
    "a row of the data less": Fault(with_text(lambda lines: lines.pop(7)), _OTHER_DATA, _OTHER_DATA, NO_DATA),
    "data of garbage": Fault(
        lambda run: (run.parent / "rows.jsonl").write_bytes(b"\xff\xfe\x80 not JSON\n"),
        "rows.jsonl",
        "the data at",
        NO_DATA,
    ),
    "no data": Fault(lambda run: (run.parent / "rows.jsonl").unlink(), "no file at", "no data at rows.jsonl", NO_DATA),
    # What is no file of the run.
    **{
        f"{what} in place of {name}": Fault(
            in_place_of(file, make), file.split("*")[0], _NAMES[name], _UNREAD.get(name)
        )
        for what, make in NO_FILES.items()
        for name, file in FILES.items()
    },
    **{
        f"a link out of the run in place of {name}": Fault(
            moved_out(file), "a symbolic link leads out of it", _OUT, _UNREAD.get(name)
        )
        for name, file in FILES.items()
    },
    # The run, and formats.
    "no run.json": Fault(without("run.json"), "no run here", "run.json: missing"),
    "a key more in run.json": Fault(
        lambda run: reseal(run / "run.json", lambda value: value.update(remark="")),
        "run.json: torn or not written by this version",
        "run.json: it is none that planner writes",
    ),
    "another run's run.json": Fault(
        lambda run: reseal(run / "run.json", lambda value: value.update(run_id="another")),
        _ANOTHER,
        f"commit {NEWEST}: its manifest is of another run",
    ),
    "an empty folder": Fault(keep_only(), "no run here", "no commit can be read here"),
    "a run that has only begun": Fault(
        keep_only("run.json"), "nothing was committed yet", "no commit can be read here"
    ),
    **{
        f"{place} of format {found!r}": Fault(
            plant(set_format(found)),
            f"format {found}, this one reads {reads['planner']}" if found else "written before formats had numbers",
            f"is of format {found!r}, and this script reads {reads['script']}",
            NO_JOB if place == "jobs" else None,
        )
        for place, plant in PLACES.items()
        for number in [format_versions.STORED[place]]
        for reads in [
            {"planner": "1, 2, 3 and 4", "script": "1 or 2 or 3 or 4"}
            if place == "ledger"
            else {"planner": str(number), "script": str(number)}
        ]
        for found in (number + 1, None, True, str(number))
    },
}

"""Which samples, in which steps, made these weights? Checked without trusting, or importing, any of planner's code.

    python docs/verify_run.py RUN [--data PATH] [--list]        exit code: 0 clean, 1 not clean, 2 wrong usage

Needs Python 3.11 or newer, nothing else, and memory for the data twice over (where that is `python-stdlib`, the very
Python that trained). Checked, each by what is written below:
1. The newest commit: its manifest's seal, size and SHA-256 of its files. No commit on record lacks its manifest.
2. The lineage back to the start: one chain of SHA-256 through its ledgers, from 64 zeros to the head that the newest
   manifest names. Generations begin at the commit that they name; what a run is changes only where that is said.
3. The steps: each takes exactly the next `global_batch` samples; none is lost, none repeated.
4. The samples: order, rows, tokens and checksums, anew from the job and your copy of the data, are those on record.
NOT checked: that anybody computed anything. Whoever has the data can make all of this up. To know, train again: with
`batch.equality: bitwise` that must come to the same weights (`planner verify` rehearses it). That the weights' hash is
the files': the workers took it from whole tensors, and torch's format is not read here. Losses; plans; what came after
the newest commit; whether later ones were removed without a trace: compare with a hash that you were told elsewhere.
"""

import argparse
import glob
import json
import math
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b, file_digest, sha256
from itertools import pairwise, takewhile
from pathlib import Path

NOT_SOURCE = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
CARRIED = (
    "run_id",
    "generation",
    "parent",
    "identity",
    "job_digest",
    "world_size",
    "plan_digest",
    "total_steps",
    "facts",
)
START = {"name": "", "step": 0, "cursor": 0, "ledger_head": "0" * 64, "identity": {}}
U64, GOLDEN = 2**64 - 1, 0x9E3779B97F4A7C15


class Wrong(Exception):
    """What is wrong, in words."""


@contextmanager
def noting(findings: list[str], where: object) -> Iterator[None]:
    """One line for whatever a missing, torn, altered or made-up file leads to; the other checks go on."""
    try:
        yield
    except BrokenPipeError:
        raise
    except Wrong as error:
        findings.append(f"{where}: {error}")
    except (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        findings.append(f"{where}: missing, torn or garbage ({type(error).__name__}: {str(error)[:160]})")


def mix(word: int) -> int:
    """The finaliser of splitmix64."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & U64
    word = (word ^ word >> 27) * 0x94D049BB133111EB & U64
    return word ^ word >> 31


def shuffled(index: int, size: int, *words: int) -> int:
    """Where the shuffle of [0, size) that the words key puts an index: a Feistel network on a grid of a * b cells."""
    root = math.isqrt(size - 1) + 1
    a = max(4, root + root % 2)
    b = max(4, -(-size // a))
    key = 0
    for word in words:
        key = mix(key ^ mix(word + GOLDEN & U64)) + GOLDEN & U64
    right, left = divmod(index, a)
    for i in range(8 + 64 // min(a, b)):
        round_key = mix(key + GOLDEN * (i + 1) & U64)
        if i % 2 == 0:
            left = (left + ((mix(right ^ round_key) >> 21) * a >> 43)) % a
        else:
            right = (right + ((mix(left ^ round_key) >> 21) * b >> 43)) % b
    cell = left + a * right
    return cell if cell < size else shuffled(cell, size, *words)


def row_at(position: int, num_rows: int, num_held_out: int, seed: int) -> int:
    """The data row at a position of the endless order: each epoch shuffles the rows that are not held out."""
    epoch, place = divmod(position, num_rows - num_held_out)
    index = shuffled(place, num_rows - num_held_out, seed, 1, epoch)
    return shuffled(index, num_rows, 0, 2, 0) if num_held_out else index


def read_tokens(path: str, context: int) -> tuple[list[bytes], str]:
    """The same of a file that `planner prepare` made; its SHA-256 is taken anew, and is part of the fingerprint."""
    content = Path(path).read_bytes()
    if not content.startswith(b"planner-tokens "):
        raise Wrong(f"the data at {path}: no token file")
    header = json.loads(content[80:4096])
    kind, dtype, size, count = header["kind"], header["dtype"], header["num_tokens"], header["num_rows"]
    if (header["format"], dtype, sha256(content[4096:]).hexdigest()) != (1, "uint8", header["sha256"]):
        raise Wrong(f"the data at {path}: torn, altered, or of another format than 1 or other tokens than bytes")
    facts = ("tokens", kind, dtype, size, count, header["sha256"], context)
    if kind == "stream":
        cuts = [(start, min(start + context + 1, size)) for start in range(0, size - 1, context)]
    else:
        table = content[4096 + -(-size // 8) * 8 :]
        starts = (int.from_bytes(table[8 * row : 8 * row + 8], "little") for row in range(count + 1))
        cuts = [(start, min(start + context + 1, stop)) for start, stop in pairwise(starts)]
    rows = [content[4096 + start : 4096 + stop] for start, stop in cuts]
    return rows, sha256(repr(facts).encode()).hexdigest()


@lru_cache(maxsize=1)
def read_data(path: str, field: str, context: int, kind: str = "") -> tuple[list[bytes], str]:
    """The tokens of every row, and a fingerprint of content and cut; a field is jsonl's, and text has none."""
    if kind == "tokens":
        return read_tokens(path, context)
    if path == "python-stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        found = [file for file in root.rglob("*.py") if not NOT_SOURCE.intersection(file.relative_to(root).parts)]
    elif Path(path).is_file():
        root, found = Path(path).parent, [Path(path)]
    elif Path(path).is_dir():
        root, found = Path(path), [*Path(path).rglob("*")]
    else:
        root = Path(*takewhile(lambda part: not glob.has_magic(part), Path(path).parts))
        found = [*root.glob(str(Path(path).relative_to(root)))] if glob.has_magic(path) else []
    files = sorted((file.relative_to(root).as_posix(), file.read_bytes()) for file in found if file.is_file())
    if not files:
        raise Wrong(f"no data at {path}: no file is there")
    digest = sha256(repr(("jsonl", field, context) if field else ("text", context)).encode())
    digest.update(b"".join(os.fsencode(f"{name} {len(content)}\n") for name, content in files))
    total_bytes = sum(len(content) for _, content in files)
    stride, block = (total_bytes // 4096, 4096) if total_bytes > 2**30 else (2**30, 2**30)  # blocks above 1 GiB
    for _, content in files:
        for start in range(0, len(content), stride):
            digest.update(content[start : start + block])
    if field:
        lines = (line for _, content in files for line in content.split(b"\n") if line.strip())
        try:
            rows = [(b"\0" + json.loads(line)[field].encode() + b"\0")[: context + 1] for line in lines]
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise Wrong(f"the data at {path}: a line is not a JSON object with a text under {field!r}") from error
    else:
        stream = b"".join(content + b"\0" for _, content in files)
        rows = [stream[start : start + context + 1] for start in range(0, len(stream) - 1, context)]
    return rows, digest.hexdigest()


def read_manifest(run: Path, name: str) -> dict:
    """A commit's manifest; its seal is the digest of its value as one line of JSON."""
    document = json.loads((run / "manifests" / f"{name}.json").read_bytes())
    value = document["value"]
    if document["sha256"] != sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest():
        raise Wrong("its manifest was altered: the seal does not match")
    if (value["format"], value["name"], f"{value['step']:012d}-{value['generation']:06d}") != (1, name, name):
        raise Wrong("its manifest is another commit's, or of another format than 1")
    return value


def read_segment(run: Path, end: dict, head: str) -> Iterator[dict]:
    """A generation's records, each chained to the one before, from its parent's head to that of the commit `end`."""
    lines = (run / "ledger" / f"{end['generation']:06d}.jsonl").read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], 1):
        found = re.fullmatch(rb'\{"head":"([0-9a-f]{64})","record":(.*)\}', line)
        head = sha256(head.encode() + found[2]).hexdigest() if found else ""
        if not found or found[1].decode() != head:
            raise Wrong(f"the chain breaks at line {number} of its ledger: one was altered, removed or added")
        yield json.loads(found[2])
        if head == end["ledger_head"]:
            return
    raise Wrong(f"its ledger does not reach the head that commit {end['name']} names: lines are missing")


def read_job(run: Path, digest: str) -> dict:
    """A job of the run; its name is the digest of its text."""
    text = (run / "jobs" / f"{digest}.json").read_bytes()
    if sha256(text).hexdigest() != digest:
        raise Wrong("its job was altered: the digest does not match")
    return json.loads(text)


def check_generation(run: Path, parent: dict, end: dict, data: str, *, listed: bool) -> Iterator[str]:
    """What is wrong with a generation, from the commit that it began at to the one that the lineage went on from."""
    if (end["parent"], end["run_id"]) != (parent["name"], parent.get("run_id", end["run_id"])):
        raise Wrong(f"the commit that it went on from, {end['parent']!r}, has no good manifest, or one of another run")
    header, *records = read_segment(run, end, parent["ledger_head"])
    identity = header["identity"]
    if (header["step"], header["cursor"]) != (parent["step"], parent["cursor"]):
        yield f"does not begin where {parent['name'] or 'nothing'} ended, at sample {parent['cursor']}"
    if any(header[key] != end[key] for key in CARRIED):
        yield f"is of another run, place, plan, length, machine or job than commit {end['name']}"
    if (identity["equality"], end["step"]) == ("bitwise", header["total_steps"]) and not end["tensors"]:
        yield f"is finished and bitwise, and commit {end['name']} has no certificate"
    job = read_job(run, header["job_digest"])
    for field, before in parent["identity"].items():
        if identity[field] != before and not any(words.startswith(f"{field}: ") for words in header["changed"]):
            yield f"another {field!r} than before, and nobody accepted it"
    if job["data"]["kind"] == "own":
        raise Wrong("its samples come from Python code, which this script does not run: planner audit --code does")
    path = data or job["data"]["path"]
    what = job["data"]
    rows, fingerprint = read_data(path, what.get("field", ""), job["model"]["context"], what["kind"])
    cut = f"{fingerprint} {len(rows)} rows, {job['eval']['samples']} held out"
    size, digest = job["batch"]["global"], sha256(cut.encode()).hexdigest()
    if (size, job["train"]["seed"], digest) != (identity["global_batch"], identity["seed"], identity["data"]):
        yield f"the data at {path!r} (its files' names count), or the job, is not what it was trained on"
    steps = [record for record in records if record["kind"] == "step"]
    yield from check_steps(steps, parent, end, job, rows, listed=listed)
    if (end["step"] - parent["step"], end["cursor"] - parent["cursor"]) != (len(steps), len(steps) * size):
        yield f"has {len(steps)} steps of {size} samples, and commit {end['name']} is not as far after its parent"


def check_steps(
    steps: list[dict], parent: dict, end: dict, job: dict, rows: list[bytes], *, listed: bool
) -> Iterator[str]:
    """What is wrong with the steps between two commits: their places, their counts, or the samples that they used."""
    size, held_out, at = job["batch"]["global"], job["eval"]["samples"], parent["cursor"]
    for number, step in enumerate(steps, parent["step"]):
        start, at = at, at + size
        if (step["step"], step["cursor"], step["samples"]) != (number, at, size):
            yield f"step {number}: not {size} samples up to {at} on record; samples or steps were lost or repeated"
        chosen = [row_at(position, len(rows), held_out, job["train"]["seed"]) for position in range(start, at)]
        fed = (row.to_bytes(8, "little") + rows[row][:-1] + rows[row][1:] for row in chosen)  # inputs, then labels
        total = sum(int.from_bytes(blake2b(sample, digest_size=8).digest(), "little") for sample in fed)
        if (step["tokens"], step["checksum"]) != (sum(len(rows[row]) - 1 for row in chosen), f"{total & U64:016x}"):
            yield f"step {number}: what entered the forward pass is not the samples at [{start}, {at})"
        if listed:
            skipped = " (left the weights alone)" if step["skipped"] else ""
            print(f"step {number}, generation {end['generation']}{skipped}: rows", *chosen)


def check(run: Path, data: str, findings: list[str], *, listed: bool) -> str:
    """Note all that is wrong with the newest commit and what led to it; say what should have."""
    ledgers = b"".join(ledger.read_bytes() for ledger in (run / "ledger").glob("*.jsonl"))
    recorded = re.findall(rb'"kind":"commit","name":"([0-9]{12}-[0-9]{6})","seconds":[^,]*,"sha256":"(\w*)"', ledgers)
    names = {file.stem for file in (run / "manifests").glob(f"{'[0-9]' * 12}-{'[0-9]' * 6}.json")}
    commits = {}
    sealed = {name.decode(): seal.decode() for name, seal in recorded}
    for name in sorted(names.union(sealed)):
        with noting(findings, f"commit {name}"):
            commits[name] = read_manifest(run, name)
            digest = json.loads((run / "manifests" / f"{name}.json").read_bytes())["sha256"]
            if sealed.get(name) not in {None, "", digest}:
                findings.append(f"commit {name}: its manifest is not the one that the ledger records")
    if not commits:
        raise Wrong("no commit can be read here, so there are no weights to account for")
    newest = end = commits.pop(max(commits, key=lambda name: (name[13:], name[:12])))
    print(f"run {newest['run_id']!r}, commit {newest['name']}: step {newest['step']} of {newest['total_steps']!r}")
    weights = {name: digest for name, digest in newest["tensors"].items() if name.startswith("model/")}
    joint = sha256(json.dumps(weights, sort_keys=True).encode()).hexdigest()
    what = f"SHA-256 {joint}, on record; not taken from the files here" if weights else "no SHA-256 is on record"
    print(f"weights {what}")
    if not newest["files"]:
        findings.append("the newest commit names no files: there are no weights")
    for file in newest["files"]:
        path = run / "checkpoints" / newest["name"] / file["name"]
        with noting(findings, repr(file["name"])), path.open("rb") as stream:
            if (path.stat().st_size, file_digest(stream, "sha256").hexdigest()) != (file["size_bytes"], file["sha256"]):
                raise Wrong("torn or altered: its size or its SHA-256 is not what the manifest says")
    lineage = []
    while end is not START:
        lineage.append((commits.pop(end["parent"], START), end))
        end = lineage[-1][0]
    for parent, end in reversed(lineage):
        where = f"generation {end['generation']}"
        with noting(findings, where):
            print(f"{where}: {end['world_size']!r} workers, steps [{parent['step']}, {end['step']})")
            findings.extend(f"{where}: {words}" for words in check_generation(run, parent, end, data, listed=listed))
    return f"{newest['step']} steps used positions [0, {newest['cursor']}) of the order, each exactly once"


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", type=Path, help="a run's folder on this machine")
    parser.add_argument("--data", metavar="PATH", default="", help="the data, if not where the job says")
    parser.add_argument("--list", action="store_true", help="print each step's data rows")
    arguments = parser.parse_args()
    if not arguments.run.is_dir():
        parser.error(f"{arguments.run} is no folder")
    sys.stdout.reconfigure(errors="backslashreplace")
    findings: list[str] = []
    with noting(findings, arguments.run):
        account = check(arguments.run, arguments.data, findings, listed=arguments.list)
    for finding in findings:
        print(f"WRONG {finding}")
    print("verify_run: NOT CLEAN" if findings else f"verify_run: clean. {account}; the chain is intact")
    return 1 if findings else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)

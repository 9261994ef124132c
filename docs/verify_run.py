"""Check which samples each step of a run used, without importing planner.

    python docs/verify_run.py RUN [--data PATH] [--list]

Exit codes: 0 clean, 1 not clean, 2 wrong usage, 3 clean as far as checked, but the samples (4) were not checked.
Needs Python 3.11 or newer, nothing else, and memory for twice the data. For data `python-stdlib` it needs the same
Python that trained. It checks:
1. The newest commit: the seal of its manifest, the size and SHA-256 of its files. Each commit on record has the
   manifest whose SHA-256 the ledger holds. Each commit that a generation continued from or went past is on record.
   Each step that a generation resumed from in memory has a sealed manifest with the SHA-256 that the ledger holds.
2. The lineage back to the start: one chain of SHA-256 through the run's ledgers, from 64 zeros to the head that the
   newest manifest names. Each generation begins at the commit, or at the held step, that it names. The run's identity
   changes only where the ledger says so.
3. The steps: each uses exactly the next `global_batch` samples. None is lost, none is repeated.
4. The samples: order, rows, tokens and checksums, recomputed from the job and your copy of the data, match the
   record. For models over bytes (`kind: gpt`) it recomputes `text`, `jsonl`, `tokens`, and `chat`, `pairs` and
   `feedback` in JSON files, except packed data, splits, and `bad_rows: skip`. It cannot recompute samples that need a
   tokenizer, a parquet file or Python code. Then the verdict says so. `planner audit` checks those.
5. The learning rates and the number of steps match the job's schedule and length (not for a training loop of your
   own). Where samples were not recomputed, it takes the number of samples in an epoch from the record.
It does NOT check that somebody computed anything: with the data, anyone can forge all of it. To check that, train
again. With `batch.equality: bitwise` the weights must come out the same (`planner verify` rehearses it). It does not
check either: that the weights' hash matches the files (workers compute it from whole tensors, and this script does not
read torch's format), what was in memory (nobody has it any more), losses and held-out losses, norms of gradients,
whether skipped steps had to be skipped, plans, work after the newest commit, and whether later commits were removed
without a trace. For the last, compare with a hash that you got from elsewhere.
"""

import argparse
import glob
import json
import math
import os
import re
import struct
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
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
START = {"called": "nothing", "name": "", "sha256": "", "step": 0, "cursor": 0, "ledger_head": "0" * 64, "identity": {}}
U64, GOLDEN = 2**64 - 1, 0x9E3779B97F4A7C15
SHOWN = 5
FORMAT = 1  # of manifests, held steps, jobs and token files
LEDGER_FORMAT = 2
RATE_TOLERANCE = 1e-12  # of the peak: a cosine's last bits differ from machine to machine
PAIRWISE = ("pairwise_feedback", "prompt output_A output_B label")  # a row's type in HALOs, and its keys
FORMS = {
    "chat": (
        ("sample", "prompt output"),
        PAIRWISE,
        ("", "messages"),
        ("", "prompt completion"),
        ("", "chosen rejected"),
        ("", "text"),
    ),
    "pairs": (PAIRWISE, ("", "chosen rejected")),
    "feedback": (
        ("binary_feedback", "prompt output label"),
        PAIRWISE,
        ("", "prompt completion label"),
        ("", "chosen rejected"),
    ),
}


class Wrong(Exception):
    """A check that failed. The message says what is wrong."""


class Unread(Exception):
    """Samples that this script cannot recompute. The message names what made them."""


def require_format(found: object, what: str, reads: int = FORMAT) -> None:
    """Raise Wrong unless `found` is the integer `reads`. In Python `True == 1`, so the type is checked too."""
    if type(found) is not int or found != reads:
        raise Wrong(f"{what} is of format {found!r}, and this script reads {reads}: use the one of planner's version")


@contextmanager
def noting(findings: list[str], where: object) -> Iterator[None]:
    """Turn any error from a missing, torn, altered or forged file into one finding, so that other checks continue."""
    try:
        yield
    except BrokenPipeError:
        raise
    except Wrong as error:
        findings.append(f"{where}: {error}")
    except (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        findings.append(f"{where}: missing, torn or garbage ({type(error).__name__}: {str(error)[:160]})")


def mix(word: int) -> int:
    """Return the finalizer of splitmix64."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & U64
    word = (word ^ word >> 27) * 0x94D049BB133111EB & U64
    return word ^ word >> 31


def shuffled(index: int, size: int, *words: int) -> int:
    """Return where the shuffle of [0, size), keyed by `words`, puts an index: a Feistel network on a grid of a * b."""
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
    """Return the data row at a position of the order. Each epoch shuffles the rows that are not held out."""
    epoch, place = divmod(position, num_rows - num_held_out)
    index = shuffled(place, num_rows - num_held_out, seed, 1, epoch)
    return shuffled(index, num_rows, 0, 2, 0) if num_held_out else index


def read_tokens(path: str, context: int) -> tuple[list[bytes], str]:
    """Return the tokens of every row of a token file, and its fingerprint, which includes its recomputed SHA-256."""
    content = Path(path).read_bytes()
    if not content.startswith(b"planner-tokens "):
        raise Wrong(f"the data at {path}: no token file")
    header = json.loads(content[80:4096])
    require_format(header.get("format"), f"the data at {path}")
    kind, dtype, size, count = header["kind"], header["dtype"], header["num_tokens"], header["num_rows"]
    if (dtype, sha256(content[4096:]).hexdigest()) != ("uint8", header["sha256"]):
        raise Wrong(f"the data at {path}: torn, altered, or of other tokens than bytes")
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
    """Return the tokens of every row, and a fingerprint of content and cut. `field` is empty except for jsonl."""
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


def spoken(messages: list[dict]) -> list[tuple[bytes, bool]]:
    """Return messages as a model over bytes reads them: pieces, each with whether it is the assistant's."""
    pieces = []
    for number, turn in enumerate(messages):
        is_answer = turn["role"] == "assistant"
        begin = "\n" * (number > 0) + f"{turn['role']}: "
        pieces += [(begin.encode(), False), (turn["content"].encode() + b"\0" * is_answer, is_answer)]
    return pieces


def as_prompt(words: str | list) -> bytes:
    """Return the bytes of a prompt, up to where the assistant continues."""
    text = words.encode() if isinstance(words, str) else b"".join(text for text, _ in spoken(words)) + b"\nassistant: "
    return b"\0" + text


def as_completion(words: str | list) -> bytes:
    """Return the bytes of a completion, to its end."""
    text = words.encode() if isinstance(words, str) else b"".join(text for text, _ in spoken(words))
    return text.removeprefix(b"assistant: " if isinstance(words, list) else b"").removesuffix(b"\0") + b"\0"


def pair_of(row: dict) -> tuple[object, list]:
    """Return a prompt, the chosen completion, and the rejected one."""
    if "chosen" not in row:
        pair = [row["output_A"], row["output_B"]]
        return row["prompt"], pair if row["label"] else pair[::-1]
    prompt, pair = row.get("prompt"), [row["chosen"], row["rejected"]]
    if isinstance(prompt, list) or isinstance(pair[0], str):
        return prompt, pair
    most = min(map(len, pair)) - 1
    size = next((i for i in range(most) if pair[0][i] != pair[1][i]), most)  # what both begin with is the prompt
    return pair[0][:size], [pair[0][size:], pair[1][size:]]


def examples(row: dict, kind: str) -> list[tuple]:
    """Return what a row of TRL or HALOs holds: prompt (None: no prompt), completions, whether it is good."""
    fits = (keys.split() for form, keys in FORMS[kind] if form in {"", row.get("type")})
    keys = next((keys for keys in fits if row.keys() >= {*keys}), None)
    if keys is None:
        raise Wrong(f"a row of the keys {sorted(row)[:8]!r} is none of data.kind {kind}")
    if "rejected" not in keys and "output_B" not in keys:
        is_alone = keys[0] != "prompt"
        return [(None if is_alone else row["prompt"], [row[keys[not is_alone]]], bool(row.get("label", True)))]
    prompt, pair = pair_of(row)
    if kind == "pairs":
        return [(prompt, pair, True)]
    return [(prompt, pair[:1], True), (prompt, pair[1:], False)][: 1 if kind == "chat" else 2]


def without_nulls(value: object) -> object:
    """Remove keys whose value is null: in columns of structs, every row has the keys of all rows."""
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return (
        {key: without_nulls(item) for key, item in value.items() if item is not None}
        if isinstance(value, dict)
        else value
    )


def read_json_rows(path: str) -> Iterator[dict]:
    """Yield the rows of JSON arrays and JSON lines, from files in the order of their names."""
    if Path(path).is_file():
        root, found = Path(path).parent, [Path(path)]
    else:
        root = Path(*takewhile(lambda part: not glob.has_magic(part), Path(path).parts))
        found = [*root.glob(str(Path(path).relative_to(root)))] if glob.has_magic(path) else []
        if root == Path(path) and root.is_dir():
            raise Unread("a data set folder")
    files = sorted((file.relative_to(root).as_posix(), file.read_bytes()) for file in found if file.is_file())
    if not files:
        raise Wrong(f"no data at {path}: no file is there")
    for _, content in files:
        if content.startswith(b"PAR1"):
            raise Unread("a parquet file")
        is_array = content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
        lines = (json.loads(line) for line in content.split(b"\n") if line.strip())
        for row in json.loads(content) if is_array else lines:
            if isinstance(row.get("split"), str):
                raise Unread("rows of several splits")
            yield without_nulls(row)


@lru_cache(maxsize=1)
def read_samples(path: str, kind: str, loss_on: str, most: int | None, side: str, context: int) -> tuple[list, str]:
    """Read rows of prompts and completions. Return `(texts, more)` of every sample, and the fingerprint of all samples.

    A text is its tokens, and for each token whether predicting it bears loss. `more` is what else the checksum covers.
    """
    samples, tokens, marks, ends = [], [], [], [0]
    for prompt, completions, is_good in (each for row in read_json_rows(path) for each in examples(row, kind)):
        if prompt is None:  # a text, or a conversation: its prompt ends where the assistant first speaks
            said = completions[0]
            pieces = [(said.encode() + b"\0", True)] if isinstance(said, str) else spoken(said)
            flags = b"\0" + b"".join(bytes([answers or loss_on == "all"]) * len(text) for text, answers in pieces)
            text = b"\0" + b"".join(text for text, _ in pieces)
            first = flags.index(1)
            begin, rest, flags = text[:first], [text[first:]], [flags[first:]]
        else:
            begin, rest = as_prompt(prompt), [as_completion(each) for each in completions]
            flags = [b"\1" * len(each) for each in rest]
        if most is not None and len(begin) > most and len(begin) + max(map(len, rest)) > context:
            begin = begin[:most] if side == "end" else begin[:1] + begin[len(begin) - most + 1 :]
        room = context - len(begin)
        before = bytes([kind == "chat" and prompt is not None and loss_on == "all"]) * len(begin)
        texts = [(begin + each[:room], before + flag[:room]) for each, flag in zip(rest, flags, strict=True)]
        samples.append((texts, [bytes([is_good])] if kind == "feedback" else []))
        for part in [texts[0][0]] if kind == "chat" else [begin, *(each[:room] for each in rest)]:
            tokens.append(part)
            ends.append(ends[-1] + len(part))
        marks.append(texts[0][1] if kind == "chat" else bytes([is_good]))
    digest = sha256(f"samples 1 {kind} <i4 {ends[-1]} ".encode())
    for part in tokens:
        digest.update(struct.pack(f"<{len(part)}i", *part))
    digest.update(f" <i8 {len(ends) - 1} ".encode() + struct.pack(f"<{len(ends) - 1}q", *ends[1:]))
    if kind != "pairs":
        digest.update(f" |b1 {sum(map(len, marks))} ".encode() + b"".join(marks))
    return samples, digest.hexdigest()


def read_any(job: dict, path: str) -> tuple[list, str]:
    """Return what the job trains on, and its fingerprint without the held-out rows."""
    what, model = job["data"], job["model"]
    if "own" in (what["kind"], model["kind"]):
        raise Unread("Python code, which this script does not run: planner audit --code does")
    if model["kind"] != "gpt":
        raise Unread("a tokenizer, which this script does not run")
    if what["kind"] in {"text", "jsonl", "tokens"}:
        return read_data(path, what.get("field", ""), model["context"], what["kind"])
    for key in ("packing", "split"):
        if what.get(key):
            raise Unread(f"rows with data.{key}, which this script does not read")
    if what["bad_rows"] != "refuse":
        raise Unread("rows of which some may have been left out (data.bad_rows)")
    settings = (what.get("loss_on", ""), what["max_prompt"], what["cut_prompt"])
    return read_samples(path, what["kind"], *settings, model["context"])


def fed(sample: bytes | tuple) -> tuple[int, bytes]:
    """Return how many tokens of a sample bear loss, and the bytes of its checksum: inputs, then labels."""
    if isinstance(sample, bytes):
        return len(sample) - 1, sample[:-1] + sample[1:]
    texts, more = sample
    parts = []
    for tokens, marks in texts:
        labels = [token if mark else -100 for token, mark in zip(tokens[1:], marks[1:], strict=True)]
        parts += [struct.pack(f"<{len(labels)}i", *tokens[:-1]), struct.pack(f"<{len(labels)}i", *labels)]
    whole = b"".join(len(part).to_bytes(8, "little") + part for part in (*parts, *more))
    return sum(sum(marks[1:]) for _, marks in texts), whole


def read_manifest(run: Path, name: str, folder: str = "manifests") -> dict:
    """Return a commit's or a held step's manifest. Its seal is the digest of its value as one line of JSON."""
    document = json.loads((run / folder / f"{name}.json").read_bytes())
    value = document["value"]
    if document["sha256"] != sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest():
        raise Wrong("its manifest was altered: the seal does not match")
    require_format(value.get("format"), "its manifest")
    if (value["name"], f"{value['step']:012d}-{value['generation']:06d}") != (name, name):
        raise Wrong("its manifest is another commit's")
    if folder == "held" and (value["files"] or not value["shards"]):
        raise Wrong("its manifest is not that of a held step, which has shards and no files")
    if folder == "manifests" and value.get("shards"):
        raise Wrong("its manifest has shards of memory, which no commit has")
    return {
        **value,
        "sha256": document["sha256"],
        "called": f"{'commit' if folder == 'manifests' else 'held step'} {name}",
    }


def read_segment(run: Path, end: dict, head: str) -> Iterator[dict]:
    """Return a generation's records, each chained to the one before, from its parent's head to the step `end`."""
    lines = (run / "ledger" / f"{end['generation']:06d}.jsonl").read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], 1):
        found = re.fullmatch(rb'\{"head":"([0-9a-f]{64})","record":(.*)\}', line)
        head = sha256(head.encode() + found[2]).hexdigest() if found else ""
        if not found or found[1].decode() != head:
            raise Wrong(f"the chain breaks at line {number} of its ledger: one was altered, removed or added")
        yield json.loads(found[2])
        if head == end["ledger_head"]:
            return
    raise Wrong(f"its ledger does not reach the head that {end['called']} names: lines are missing")


def read_job(run: Path, digest: str) -> dict:
    """Return a job of the run. Its name is the digest of its text."""
    text = (run / "jobs" / f"{digest}.json").read_bytes()
    if sha256(text).hexdigest() != digest:
        raise Wrong("its job was altered: the digest does not match")
    job = json.loads(text)
    require_format(job.get("format"), "its job")
    return job


def check_generation(
    run: Path, parent: dict, end: dict, data: str, unread: list[str], *, listed: bool
) -> Iterator[str]:
    """Yield what is wrong with a generation, from the step `parent` that it began at to the step `end`.

    If its samples cannot be recomputed, `unread` gets the reason.
    """
    if (end["parent"], end["run_id"]) != (parent["name"], parent.get("run_id", end["run_id"])):
        raise Wrong(f"the step that it went on from, {end['parent']!r}, has no good manifest, or one of another run")
    header, *records = read_segment(run, end, parent["ledger_head"])
    require_format(header.get("format"), "its ledger", LEDGER_FORMAT)
    if header["parent_sha256"] != parent["sha256"]:
        yield f"went on from another manifest of {parent['called']} than the one that is there"
    identity = header["identity"]
    if (header["step"], header["cursor"]) != (parent["step"], parent["cursor"]):
        yield f"does not begin where {parent['name'] or 'nothing'} ended, at sample {parent['cursor']}"
    if any(header[key] != end[key] for key in CARRIED):
        yield f"is of another run, place, plan, length, machine or job than {end['called']}"
    is_finished = end["step"] == header["total_steps"] and not end.get("shards")
    if identity["equality"] == "bitwise" and is_finished and not end["tensors"]:
        yield f"is finished and bitwise, and commit {end['name']} has no certificate"
    job = read_job(run, header["job_digest"])
    for field, before in parent["identity"].items():
        if current_name(identity[field]) != current_name(before) and not any(
            words.startswith(f"{field}: ") for words in header["changed"]
        ):
            yield f"another {field!r} than before, and nobody accepted it"
    steps = [record for record in records if record["kind"] == "step"]
    size = job["batch"]["global"]
    yield from check_samples(steps, parent, end, header, job, data, unread, listed=listed)
    yield from first_of(check_rates(steps, header, job))
    if (end["step"] - parent["step"], end["cursor"] - parent["cursor"]) != (len(steps), len(steps) * size):
        yield f"has {len(steps)} steps of {size} samples, and {end['called']} is not as far after its parent"


def current_name(value: object) -> object:
    """Return `balanced` for `batches`, the name of this `batch.equality` in early runs."""
    return "balanced" if value == "batches" else value


def steps_in(stretch: str, size: int, samples: int, total: int) -> int:
    """Return a length such as `10%` or `0.5 epochs` in steps, rounded to the nearest whole number."""
    number, unit = re.fullmatch(r"([0-9.]+) ?(step|example|epoch|%).*", stretch).groups()
    per = {
        "step": Fraction(1),
        "example": Fraction(1, size),
        "epoch": Fraction(samples, size),
        "%": Fraction(total, 100),
    }
    exact = Fraction(number) * per[unit]
    return max(int(exact + Fraction(1, 2)), 1 if exact else 0)


def total_of(train: dict, size: int, samples: int) -> int:
    """Return the number of steps of a job, for epochs of a given number of samples."""
    if train["steps"] is not None:
        return train["steps"]
    if train["examples"] is not None:
        return math.ceil(Fraction(train["examples"], size))
    return math.ceil(Fraction(repr(train["epochs"])) * samples / size)


def rate_of(train: dict, step: int, warmup: int, total: int) -> float:
    """Return the learning rate of a step."""
    schedule, peak = train["schedule"], train["optimizer"]["lr"]
    kind, final = schedule["kind"], schedule["final_fraction"]
    if step < warmup:
        return peak * (step + 1) / warmup
    past = (step - warmup) / max(total - 1 - warmup, 1)
    shapes = {
        "constant": 1.0,
        "linear": 1 - (1 - final) * past,
        "cosine": final + (1 - final) * (1 + math.cos(math.pi * past)) / 2,
    }
    return peak * shapes[kind]


def check_rates(steps: list[dict], header: dict, job: dict) -> Iterator[str]:
    """Yield what is wrong with the planned number of steps, or with learning rates."""
    train, size, samples = job["train"], job["batch"]["global"], header["num_samples"]
    total = total_of(train, size, samples)
    if total != header["total_steps"]:
        yield f"was to end at step {header['total_steps']!r} on record, and its job says {total}"
    if steps and steps[-1]["step"] >= total:
        yield f"went on to step {steps[-1]['step'] + 1}, behind its end at step {total}"
    if train["optimizer"]["kind"] == "own":
        return
    warmup = steps_in(train["schedule"]["warmup"], size, samples, total)
    for step in steps:
        rate = rate_of(train, step["step"], warmup, total)
        if not abs(step["lr"] - rate) <= RATE_TOLERANCE * train["optimizer"]["lr"]:
            yield f"step {step['step']}: its learning rate is {step['lr']!r} on record, and the schedule has {rate!r}"


def check_samples(
    steps: list[dict], parent: dict, end: dict, header: dict, job: dict, data: str, unread: list[str], *, listed: bool
) -> Iterator[str]:
    """Yield what is wrong with the data or with the steps."""
    path, identity = data or job["data"]["path"], end["identity"]
    rows, digest = None, identity["data"]
    try:
        rows, fingerprint = read_any(job, path)
        cut = f"{fingerprint} {len(rows)} rows, {job['eval']['samples']} held out"
        digest = sha256(cut.encode()).hexdigest()
    except Unread as error:
        unread.append(str(error))
    if rows is not None and header["num_samples"] != len(rows) - job["eval"]["samples"]:
        yield f"has {header['num_samples']!r} samples in an epoch on record, and the data has another number"
    wanted = (identity["global_batch"], identity["seed"], identity["data"])
    if (job["batch"]["global"], job["train"]["seed"], digest) != wanted:
        yield f"the data at {path!r} (its files' names count), or the job, is not what it was trained on"
    yield from first_of(check_steps(steps, parent, end, job, rows, listed=listed))


def first_of(found: Iterator[str]) -> Iterator[str]:
    """Yield the first few findings, and then how many more there are."""
    number = 0
    for number, words in enumerate(found, 1):
        if number <= SHOWN:
            yield words
    if number > SHOWN:
        yield f"... and {number - SHOWN} more of this kind"


def check_steps(
    steps: list[dict], parent: dict, end: dict, job: dict, rows: list | None, *, listed: bool
) -> Iterator[str]:
    """Yield what is wrong with the steps of a generation: their positions, their counts, or their samples.

    Without `rows` it does not check the samples.
    """
    size, held_out, at = job["batch"]["global"], job["eval"]["samples"], parent["cursor"]
    for number, step in enumerate(steps, parent["step"]):
        start, at = at, at + size
        if (step["step"], step["cursor"], step["samples"]) != (number, at, size):
            yield f"step {number}: not {size} samples up to {at} on record; samples or steps were lost or repeated"
        if rows is None:
            continue
        chosen = [row_at(position, len(rows), held_out, job["train"]["seed"]) for position in range(start, at)]
        used = [(fed(rows[row]), row.to_bytes(8, "little")) for row in chosen]
        sums = (blake2b(number + content, digest_size=8).digest() for (_, content), number in used)
        total = sum(int.from_bytes(each, "little") for each in sums)
        if (step["tokens"], step["checksum"]) != (sum(tokens for (tokens, _), _ in used), f"{total & U64:016x}"):
            yield f"step {number}: what entered the forward pass is not the samples at [{start}, {at})"
        if listed:
            skipped = " (left the weights alone)" if step["skipped"] else ""
            print(f"step {number}, generation {end['generation']}{skipped}: rows", *chosen)


def read_commits(run: Path, findings: list[str]) -> dict[str, dict]:
    """Return the readable manifests by name. Those that differ from the ledger's record become findings."""
    ledgers = b"".join(ledger.read_bytes() for ledger in (run / "ledger").glob("*.jsonl"))
    recorded = re.findall(rb'"kind":"commit","name":"([0-9]{12}-[0-9]{6})","seconds":[^,]*,"sha256":"(\w*)"', ledgers)
    names = {file.stem for file in (run / "manifests").glob(f"{'[0-9]' * 12}-{'[0-9]' * 6}.json")}
    commits = {}
    sealed = {name.decode(): seal.decode() for name, seal in reversed(recorded)}  # of two, the first counts
    for name in sorted(names.union(sealed)):
        with noting(findings, f"commit {name}"):
            commits[name] = read_manifest(run, name)
            if sealed.get(name, commits[name]["sha256"]) != commits[name]["sha256"]:
                findings.append(f"commit {name}: its manifest is not the one that the ledger records")
    for name, after in pairwise(sorted(commits, key=lambda name: (name[13:], name[:12]))):
        if name not in sealed and name[13:] == after[13:]:
            findings.append(f"commit {name}: the ledger has no record of it, and its generation went on")
    return commits


def read_held(run: Path, findings: list[str]) -> dict[int, dict]:
    """Return generation -> readable manifest of the held step that it resumed from in memory."""
    held = {}
    for ledger in sorted((run / "ledger").glob(f"{'[0-9]' * 6}.jsonl")):
        generation = int(ledger.stem)
        with noting(findings, f"generation {generation}, resumed from memory"), ledger.open("rb") as stream:
            line = stream.readline()
            if b'"parent_is_held":true' not in line:
                continue
            header = json.loads(line)["record"]
            manifest = read_manifest(run, header["parent"], "held")
            if manifest["sha256"] != header["parent_sha256"]:
                raise Wrong(f"{manifest['called']}: its manifest is not the one that this generation went on from")
            held[generation] = manifest
    return held


def check(run: Path, data: str, findings: list[str], unread: list[str], *, listed: bool) -> str:
    """Collect what is wrong with the newest commit and its lineage, and return a summary of the run."""
    commits, held = read_commits(run, findings), read_held(run, findings)
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
        known = held.pop(end["generation"], None) or commits.pop(end["parent"], START)
        lineage.append((known, end))
        end = known
    for parent, end in reversed(lineage):
        where = f"generation {end['generation']}"
        with noting(findings, where):
            origin = ", from memory" if parent.get("shards") else ""
            print(f"{where}: {end['world_size']!r} workers, steps [{parent['step']}, {end['step']}){origin}")
            wrong = check_generation(run, parent, end, data, unread, listed=listed)
            findings.extend(f"{where}: {words}" for words in wrong)
    return f"{newest['step']} steps used positions [0, {newest['cursor']}) of the order, each exactly once"


def main() -> int:
    """Run the command line, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", type=Path, help="a run's folder on this machine")
    parser.add_argument("--data", metavar="PATH", default="", help="the data, if not where the job says")
    parser.add_argument("--list", action="store_true", help="print each step's data rows")
    arguments = parser.parse_args()
    if not arguments.run.is_dir():
        parser.error(f"{arguments.run} is no folder")
    sys.stdout.reconfigure(errors="backslashreplace")
    findings: list[str] = []
    unread: list[str] = []
    with noting(findings, arguments.run):
        account = check(arguments.run, arguments.data, findings, unread, listed=arguments.list)
    for finding in findings:
        print(f"WRONG {finding}")
    for reason in dict.fromkeys(unread):
        print(f"samples NOT CHECKED: they were made by {reason}. Seal, files, chain and positions were checked")
    if findings:
        print("verify_run: NOT CLEAN")
        return 1
    print(f"verify_run: {'good but for the samples' if unread else 'clean'}. {account}; the chain is intact")
    return 3 if unread else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)

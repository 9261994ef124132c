"""Check which samples each step of a run used, without importing planner.

    python docs/verify_run.py RUN [--data PATH] [--eval-data PATH] [--list]

Exit codes: 0 clean, 1 not clean, 2 wrong usage or too little memory, 3 clean as far as checked, but the samples (4)
and their split over workers, the samples of evaluations on a data set of their own (`eval.data`), or the settings of an
objective that another package brings, were not checked.
Needs Python 3.11 or newer, nothing else, and memory for twice the data and seven times the largest ledger. For data
`python-stdlib` it needs the same Python that trained. A job may name any path as its data: for a stranger's run, say
where the data is with --data. Then it reads `eval.data` only where --eval-data says. It checks:
1. The files: each is a regular file inside the run's folder and of a bounded size. Manifests have their seal, records
   the form that planner writes. The files of the newest commit have their size and SHA-256. Each commit on record has
   the manifest whose SHA-256 the ledger holds. Each commit that a generation continued from or went past is on record.
   Each step that a generation resumed from in memory has a sealed manifest with the SHA-256 that the ledger holds.
2. The lineage back to the start: one chain of SHA-256 through the run's ledgers, from 64 zeros to the head that the
   newest manifest names. Each generation begins at the commit, or at the held step, that it names. The run's identity
   (batch, seed, data, model, optimizer, equality, recipe) is that of its job, and changes only where the ledger says
   so. The plan is that of the job and of the layout on record.
3. The numbers of all records, those of discarded generations included: steps, samples, evaluations, commits and
   measurements follow from their place in the ledger. Each step uses exactly the next `global_batch` samples. None is
   lost, none is repeated.
4. The samples: order, rows, tokens and checksums, recomputed from the job and your copy of the data, match the
   record. It recomputes `tokens`, and for models over bytes (`kind: gpt`) also `text`, `jsonl`, and `chat`, `pairs`
   and `feedback` in JSON files, except mixtures, packed data, splits, chosen columns, named loaders, `bad_rows: skip`
   and `tokenize: on_demand`. It cannot recompute samples that need a tokenizer, a parquet file, Python code or a
   package's kind of data. Then the verdict says so. `planner audit` checks those. With `batch.max_tokens`, the lengths
   of a step's samples decide which worker computes which of them in which round. It derives that anew wherever it
   recomputes the samples. That a token file's ids are those of some text, it does not check.
5. The learning rates and the number of steps match the job's schedule and length (not for a training loop of your
   own). Where samples were not recomputed, it takes the number of samples in an epoch from the record.
It does NOT check that somebody computed anything: with the data, anyone can forge all of it. To check that, train
again. With `batch.equality: bitwise` the weights must come out the same (`planner verify` rehearses it). It does not
check either: that the weights' hash matches the files (workers compute it from whole tensors, and this script does not
read torch's format), what was in memory (nobody has it any more), losses and held-out losses, norms of gradients,
whether skipped steps had to be skipped, times and world sizes, the samples of discarded steps, and whether later
commits were removed without a trace. For the last, compare with a hash that you got from elsewhere.
"""

import argparse
import glob
import json
import math
import os
import re
import stat
import struct
import sys
import sysconfig
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b, file_digest, sha256
from heapq import heapify, heappop, heappush
from itertools import pairwise, takewhile
from pathlib import Path
from typing import BinaryIO, NamedTuple

NOT_SOURCE = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
PROMISED = ("run_id", "parent", "identity", "job_digest", "world_size", "plan_digest", "total_steps", "facts")
START = {"called": "nothing", "name": "", "sha256": "", "step": 0, "cursor": 0, "ledger_head": "0" * 64}
U64, GOLDEN = 2**64 - 1, 0x9E3779B97F4A7C15
SHOWN = 5
FORMAT = 1  # of run.json, manifests, held steps and jobs
TOKEN_FORMATS = (1, 2)  # of token files
LEDGER_FORMATS = (1, 2, 3, 4)
IDS_OF_BYTES = 4  # the first format of a ledger whose checksums have bytes as ids. Before, as single bytes
ACCEPTED_AS_FIELDS = 3  # the first format of a ledger whose headers have `accepted`. Before, only texts say it
LAYOUTS = (1, 2)  # the versions of a plan's arithmetic that this script knows
BY_LENGTH = 2  # the version in which lengths of samples decide who computes which of a step
MOST_BYTES, MOST_LINE_BYTES = 2**30, 2**26  # of a manifest or a job, and of a ledger's line
MOST_GLOBAL_BATCH, MOST_WORKERS = 2**20, 65_536
MOST_OF_LIMIT = {"max_micro": 4096, "max_tokens": 2**24, "attention_at": 2**24}  # each is at least 1
SEQUENCES = {"text": 1, "jsonl": 1, "tokens": 1, "chat": 1, "pairs": 2, "feedback": 1}  # that a sample becomes
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


GARBAGE = (
    *(ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError),
    struct.error,
)


class Wrong(Exception):
    """A check that failed. The message says what is wrong."""


class Unread(Exception):
    """Samples that this script cannot recompute. The message names what made them."""


def require_format(found: object, what: str, reads: tuple[int, ...] = (FORMAT,)) -> None:
    """Raise Wrong unless `found` is an integer of `reads`. In Python `True == 1`, so the type is checked too."""
    if type(found) is not int or found not in reads:
        known = " or ".join(map(str, reads))
        raise Wrong(f"{what} is of format {found!r}, and this script reads {known}: use the one of planner's version")


@contextmanager
def noting(findings: list[str], where: object) -> Iterator[None]:
    """Turn any error from a missing, torn, altered or forged file into one finding, so that other checks continue."""
    try:
        yield
    except BrokenPipeError:
        raise
    except Wrong as error:
        findings.append(f"{where}: {error}")
    except GARBAGE as error:
        findings.append(f"{where}: missing, torn or garbage ({type(error).__name__}: {str(error)[:160]})")


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file. To open a FIFO would wait for a writer, and a device may have no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    stream = os.fdopen(descriptor, "rb") if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    if stream is None:
        os.close(descriptor)
        raise Wrong(f"{str(path)!r} is no regular file")
    return stream


def read_regular(path: Path | str) -> bytes:
    """Return the content of a regular file."""
    with open_regular(path) as stream:
        return stream.read()


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


class Documents:
    """The samples of a token file of documents: `(texts, more)` by their number, as `fed` takes them."""

    def __init__(
        self, content: bytes, item: str, cuts: list[tuple[int, int]], starts: list[int], *, mask: bool
    ) -> None:
        """`item` is struct's letter of a token. Each cut is the begin and the end of a sample in tokens."""
        self.content, self.item, self.cuts, self.starts, self.mask = content, item, cuts, starts, mask

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.cuts)

    def __getitem__(self, row: int) -> tuple:
        """Return a sample. Masked, a document's first token has no loss, and the checksum covers document numbers."""
        start, stop = self.cuts[row]
        offset = 4096 + start * struct.calcsize(self.item)
        tokens = struct.unpack_from(f"<{stop - start}{self.item}", self.content, offset)
        if not self.mask:
            return [(tokens, [True] * len(tokens))], []
        numbers = [bisect_right(self.starts, place) for place in range(start, stop)]
        marks = [True, *(one == other for one, other in pairwise(numbers))]
        inputs = [number - numbers[0] for number in numbers[:-1]]
        return [(tokens, marks)], [struct.pack(f"<{len(inputs)}i", *inputs)]


def read_tokens(path: str, context: int, documents: str = "") -> tuple[Sequence, str]:
    """Return the samples of a token file, and its fingerprint, which includes its recomputed SHA-256.

    Args:
        path: the file.
        context: most inputs of a sample.
        documents: how documents become samples. Empty: the file must hold bytes, and a sample is its bytes.
    """
    content = read_regular(path)
    if not content.startswith(b"planner-tokens "):
        raise Wrong(f"the data at {path}: no token file")
    header = json.loads(content[80:4096])
    require_format(header.get("format"), f"the data at {path}", TOKEN_FORMATS)
    kind, dtype, size, count = header["kind"], header["dtype"], header["num_tokens"], header["num_rows"]
    item = {"uint16": "H", "uint32": "I"}.get(dtype, "B") if documents else "B"
    if (dtype == "uint8") == bool(documents) or sha256(content[4096:]).hexdigest() != header["sha256"]:
        raise Wrong(f"the data at {path}: torn, altered, or of other tokens than the model reads")
    facts = ("tokens", kind, dtype, size, count, header["sha256"], context, *([documents] if documents else []))
    num_bytes = size * struct.calcsize(item)
    table = content[4096 + -(-num_bytes // 8) * 8 :]
    num_starts = 0 if kind == "stream" else count + 1
    kinds = {"documents"} if documents else {"stream", "rows"}
    if kind not in kinds or len(table) != 8 * num_starts or not 0 < num_bytes <= len(content) - 4096:
        raise Wrong(f"the data at {path}: its header does not fit its content")
    starts = [*struct.unpack(f"<{num_starts}Q", table)]
    if starts != sorted(starts) or (starts and starts[-1] > size):
        raise Wrong(f"the data at {path}: its table of rows was altered")
    if kind == "stream" or documents in {"join", "mask"}:
        cuts = [(start, min(start + context + 1, size)) for start in range(0, size - 1, context)]
    else:
        cuts = [(start, min(start + context + 1, stop)) for start, stop in pairwise(starts)]
    fingerprint = sha256(repr(facts).encode()).hexdigest()
    if documents:
        return Documents(content, item, cuts, starts, mask=documents == "mask"), fingerprint
    return [content[4096 + start : 4096 + stop] for start, stop in cuts], fingerprint


@lru_cache(maxsize=1)
def read_data(path: str, field: str, context: int, kind: str = "", documents: str = "") -> tuple[Sequence, str]:
    """Return the tokens of every row, and a fingerprint of content and cut. `field` is empty except for jsonl."""
    if kind == "tokens":
        return read_tokens(path, context, documents)
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
    files = sorted((file.relative_to(root).as_posix(), read_regular(file)) for file in found if file.is_file())
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
    files = sorted((file.relative_to(root).as_posix(), read_regular(file)) for file in found if file.is_file())
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


def require_plain_rows(what: dict) -> None:
    """Raise Unread unless this script makes the samples of such rows. `what` is the section of the data."""
    if what["kind"] not in {"chat", "pairs", "feedback"}:
        raise Unread(f"data of kind {what['kind']!r}, which another package brings")
    if what.get("tokenize") == "on_demand":
        raise Unread("rows with data.tokenize on_demand, whose fingerprint this script does not compute")
    for key in ("mixture", "packing", "split", "config", "columns", "loader", "folder"):
        if what.get(key):
            raise Unread(f"rows with data.{key}, which this script does not read")
    if what["bad_rows"] != "refuse":
        raise Unread("rows of which some may have been left out (data.bad_rows)")


def read_any(job: dict, path: str) -> tuple[Sequence, str]:
    """Return what the job trains on, and its fingerprint without the held-out rows."""
    if path.count("**") > 1:  # to look through the same folders again and again may take years
        raise Wrong(f"the data at {path!r}: this script reads patterns with one ** at most")
    what, model = job["data"], job["model"]
    if "own" in (what["kind"], model["kind"]):
        raise Unread("Python code, which this script does not run: planner audit --code does")
    if model["kind"] == "hf" and what["kind"] == "tokens":
        return read_data(path, "", model["context"], "tokens", what["documents"])
    if model["kind"] != "gpt":
        raise Unread("a tokenizer, which this script does not run")
    if what["kind"] in {"text", "jsonl", "tokens"}:
        return read_data(path, what.get("field", ""), model["context"], what["kind"])
    require_plain_rows(what)
    settings = (what.get("loss_on", ""), what["max_prompt"], what["cut_prompt"])
    return read_samples(path, what["kind"], *settings, model["context"])


def part_of(samples: object, num_rows: int) -> int:
    """Return how many of some rows `eval.samples` is: a number, or a part such as `5%`, rounded up."""
    if isinstance(samples, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,30})?%", samples):
        return math.ceil(Fraction(samples[:-1]) * num_rows / 100)
    if not is_count(samples):
        raise Wrong(f"its job has {str(samples)[:40]!r} as eval.samples")
    return samples


def withheld(job: dict, num_rows: int) -> int:
    """Return how many rows are held out of training: none if the job evaluates on a data set of its own."""
    return 0 if job["eval"].get("data") else part_of(job["eval"]["samples"], num_rows)


def evaluated(job: dict, num_rows: int) -> list[int]:
    """Return the rows that are evaluated, of the training data or of the data set of its own for evaluation."""
    number = part_of(job["eval"]["samples"], num_rows)
    if job["eval"].get("data") and number in {0, num_rows}:
        return list(range(num_rows))
    if number > num_rows:
        raise Wrong(f"its job evaluates {number} samples, and the data has {num_rows}")
    return [shuffled(index, num_rows, 0, 2, 0) for index in range(num_rows - number, num_rows)]


def fed(sample: bytes | tuple, ledger_format: int = IDS_OF_BYTES) -> tuple[int, bytes]:
    """Return how many tokens of a sample bear loss, and the bytes of its checksum: inputs, then labels."""
    if isinstance(sample, bytes) and ledger_format < IDS_OF_BYTES:
        return len(sample) - 1, sample[:-1] + sample[1:]
    texts, more = ([(sample, [True] * len(sample))], []) if isinstance(sample, bytes) else sample
    parts = []
    for tokens, marks in texts:
        labels = [token if mark else -100 for token, mark in zip(tokens[1:], marks[1:], strict=True)]
        parts += [struct.pack(f"<{len(labels)}i", *tokens[:-1]), struct.pack(f"<{len(labels)}i", *labels)]
    whole = b"".join(len(part).to_bytes(8, "little") + part for part in (*parts, *more))
    return sum(sum(marks[1:]) for _, marks in texts), whole


# -- what a run's folder holds


def open_file(run: Path, name: str) -> BinaryIO:
    """Open a regular file of the run. A link may lead anywhere inside the run's folder, and not out of it."""
    path = Path(os.path.realpath(run / name, strict=True))
    if not path.is_relative_to(os.path.realpath(run)):
        raise Wrong(f"{name!r} leads out of the run's folder")
    return open_regular(path)


def read_file(run: Path, name: str) -> bytes:
    """Return the content of a file of the run."""
    with open_file(run, name) as stream:
        if os.fstat(stream.fileno()).st_size > MOST_BYTES:
            raise Wrong(f"{name!r} has more than {MOST_BYTES} bytes, so planner did not write it")
        return stream.read()


def read_lines(run: Path, generation: int) -> Iterator[bytes]:
    """Yield the lines of a ledger. A torn last line, as a crash leaves it, does not count."""
    with open_file(run, f"ledger/{generation:06d}.jsonl") as stream:
        while (line := stream.readline(MOST_LINE_BYTES)).endswith(b"\n"):
            yield line[:-1]
        if len(line) == MOST_LINE_BYTES:
            raise Wrong(f"its ledger has a line of {MOST_LINE_BYTES} bytes, so planner did not write it")


def names_in(run: Path, folder: str, form: str) -> list[str]:
    """Return the names in a folder of the run that have a form, sorted, without the ending."""
    return sorted(file.stem for file in (run / folder).glob("*") if re.fullmatch(form, file.name))


def compact(value: object) -> bytes:
    """Return a value as one line of JSON, which digests are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def read_sealed(run: Path, name: str, what: str) -> tuple[dict, str]:
    """Return the value of a sealed file, and its digest."""
    document = json.loads(read_file(run, name))
    value = document["value"]
    if document["sha256"] != sha256(compact(value)).hexdigest():
        raise Wrong(f"{what} was altered: the seal does not match")
    require_format(value.get("format"), what)
    return value, document["sha256"]


def is_whole(value: object) -> bool:
    """Return whether it is an integer. In Python, True is one by `isinstance`."""
    return type(value) is int


def is_count(value: object) -> bool:
    """Return whether it is an integer from 0 that fits into 63 bits."""
    return type(value) is int and 0 <= value < 2**63


def is_number(value: object) -> bool:
    """Return whether it is a finite number."""
    return type(value) in {int, float} and math.isfinite(value)


def is_limit(value: object) -> bool:
    """Return whether it is an integer or null."""
    return value is None or is_whole(value)


def is_flag(value: object) -> bool:
    """Return whether it is true or false."""
    return type(value) is bool


def is_text(value: object) -> bool:
    """Return whether it is a text of whole characters."""
    return type(value) is str and not re.search("[\ud800-\udfff]", value)


def in_form(form: str) -> Callable[[object], bool]:
    """Return a test for texts of this form."""
    return lambda value: type(value) is str and re.fullmatch(form, value) is not None


def each_is(kind: type, test: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return a test for lists, or for objects, of such values."""
    if kind is dict:
        return lambda value: type(value) is dict and all(map(is_text, value)) and all(map(test, value.values()))
    return lambda value: type(value) is kind and all(map(test, value))


def has_keys(given: dict[str, Callable[[object], bool]], **optional: Callable[[object], bool]) -> Callable:
    """Return a test for objects with these keys, and no others, and values that pass their tests."""
    tests = given | optional

    def test(value: object) -> bool:
        if type(value) is not dict or not given.keys() <= value.keys() <= tests.keys():
            return False
        return all(tests[key](found) for key, found in value.items())

    return test


def keys(names: str, test: Callable[[object], bool]) -> dict[str, Callable[[object], bool]]:
    """Return the same test for each of these keys."""
    return dict.fromkeys(names.split(), test)


IS_DIGEST = in_form("[0-9a-f]{64}")
IS_IDENTITY = has_keys(
    keys("global_batch seed", is_whole) | keys("optimizer equality", is_text) | keys("data model recipe", IS_DIGEST)
)
IS_RUN = has_keys({"run_id": is_text, "created_s": is_number}, format=is_whole)
IS_FILE = has_keys({"name": in_form(r"\.?[A-Za-z0-9_-][A-Za-z0-9_.-]*"), "size_bytes": is_count, "sha256": IS_DIGEST})
OF_RUN = (
    keys("run_id parent plan_digest", is_text)
    | keys("generation world_size", is_whole)
    | keys("step cursor total_steps", is_count)
    | {"identity": IS_IDENTITY, "job_digest": IS_DIGEST, "facts": each_is(dict, lambda _: True), "time_s": is_number}
)
IS_MANIFEST = has_keys(
    OF_RUN
    | {"name": is_text, "ledger_head": IS_DIGEST, "files": each_is(list, IS_FILE), "tensors": each_is(dict, IS_DIGEST)}
    | {"versions": each_is(dict, is_text)},
    format=is_whole,
    shards=each_is(dict, in_form("[0-9a-f]{32}")),
)
IS_LOWERED = has_keys(keys("device place", is_text) | keys("was_micro was_tokens max_micro max_tokens", is_count))
IS_RECORD = {
    "generation": has_keys(
        OF_RUN
        | {"kind": is_text, "parent_sha256": in_form("([0-9a-f]{64})?"), "changed": each_is(list, is_text)}
        | {"max_micro": is_whole, "layout_version": is_whole, "num_samples": is_count},
        format=is_whole,
        parent_is_held=is_flag,
        max_tokens=is_limit,
        attention_at=is_limit,
        lowered=each_is(list, IS_LOWERED),
        launch_id=is_text,
        launched_s=is_number,
        accepted=each_is(list, has_keys(keys("field before now", is_text))),
    ),
    "step": has_keys(
        keys("step cursor samples tokens", is_count)
        | keys("loss grad_norm lr seconds", is_number)
        | {"kind": is_text, "checksum": in_form("[0-9a-f]{16}")},
        metrics=each_is(dict, is_number),
        skipped=is_flag,
        placement=in_form("[0-9a-f]{16}"),
    ),
    "eval": has_keys(
        keys("step samples tokens", is_count) | keys("loss seconds", is_number) | {"kind": is_text},
        metrics=each_is(dict, is_number),
    ),
    "commit": has_keys(
        {"step": is_count, "sha256": IS_DIGEST, "seconds": is_number} | keys("kind name", is_text), write_s=is_number
    ),
    "event": has_keys(
        keys("kind message", is_text) | {"time_s": is_number},
        event=is_text,
        facts=each_is(dict, lambda _: True),
        waited_s=lambda value: is_number(value) and value >= 0,
    ),
    "measurement": has_keys(
        keys("step num_steps input_tokens padded_tokens peak_memory_bytes", is_count)
        | keys("seconds flops peak_flops_per_s communication_s time_s", is_number)
        | keys("data_s forward_s backward_s update_s", is_number)
        | {"kind": is_text},
        **keys("cost round_cost num_rounds", is_count),
    ),
}


def require_record(record: object, where: str) -> None:
    """Raise Wrong unless planner writes such a record, in the format that this script reads."""
    if type(record) is dict and record.get("kind") == "generation":
        require_format(record.get("format"), "its ledger", LEDGER_FORMATS)
    test = IS_RECORD.get(record["kind"]) if type(record) is dict and is_text(record.get("kind")) else None
    if test is None or not test(record):
        raise Wrong(f"{where} is no record that planner writes")


def read_manifest(run: Path, name: str, run_id: str | None, folder: str = "manifests") -> dict:
    """Return a commit's or a held step's manifest."""
    value, digest = read_sealed(run, f"{folder}/{name}.json", "its manifest")
    if not IS_MANIFEST(value):
        raise Wrong("its manifest is none that planner writes")
    if (value["name"], f"{value['step']:012d}-{value['generation']:06d}") != (name, name):
        raise Wrong("its manifest is another commit's")
    if run_id not in {None, value["run_id"]}:
        raise Wrong("its manifest is of another run")
    shards = value.get("shards", {})
    if folder == "held" and (value["files"] or value["tensors"] or not shards):
        raise Wrong("its manifest is not that of a held step, which has shards and no files")
    if not all(is_shard(shard, value["world_size"]) for shard in shards):
        raise Wrong("its manifest names shards that no worker has")
    if folder == "manifests" and shards:
        raise Wrong("its manifest has shards of memory, which no commit has")
    return {**value, "sha256": digest, "called": f"{'commit' if folder == 'manifests' else 'held step'} {name}"}


def small(manifest: dict) -> dict:
    """Return a manifest without its lists, of which only those of the newest are checked. They may be long."""
    first = {key: dict(list(manifest.get(key, {}).items())[:1]) for key in ("tensors", "shards")}
    return {**manifest, **first, "files": []}


def is_shard(name: str, world_size: int) -> bool:
    """Return whether it is a name RANK/TENSOR with a rank below the world size."""
    rank, _, tensor = name.partition("/")
    return bool(tensor) and re.fullmatch("[0-9]{1,9}", rank) is not None and int(rank) < world_size


def read_links(run: Path, generation: int, head: str) -> tuple[list[tuple[str, dict]], str]:
    """Return a generation's records, each with the chain's head after it, and why the rest cannot be read.

    `head` is that of the step that it began at.
    """
    links: list[tuple[str, dict]] = []
    for number, line in enumerate(read_lines(run, generation), 1):
        found = re.fullmatch(rb'\{"head":"([0-9a-f]{64})","record":(.*)\}', line)
        head = sha256(head.encode() + found[2]).hexdigest() if found else ""
        if not found or found[1].decode() != head:
            return links, f"the chain breaks at line {number} of its ledger: one was altered, removed or added"
        try:
            record = json.loads(found[2])
            require_record(record, f"line {number} of its ledger")
            if compact(record) != found[2]:
                return links, f"line {number} of its ledger is not in the form that planner writes"
        except Wrong as error:
            return links, str(error)
        except GARBAGE as error:
            return links, f"line {number} of its ledger is garbage ({type(error).__name__})"
        links.append((head, record))
    return links, ""


def read_header(run: Path, generation: int) -> dict | None:
    """Return a generation's first record, which is not checked against the chain. None if it is torn."""
    line = next(read_lines(run, generation), None)
    if line is None:
        return None
    record = json.loads(line)["record"]
    require_record(record, "line 1 of its ledger")
    if record["kind"] != "generation":
        raise Wrong("its ledger does not begin with a header")
    return record


def read_job(run: Path, digest: str) -> dict:
    """Return a job of the run. Its name is the digest of its text."""
    text = read_file(run, f"jobs/{digest}.json")
    if sha256(text).hexdigest() != digest:
        raise Wrong("its job was altered: the digest does not match")
    job = json.loads(text)
    require_format(job.get("format"), "its job")
    if not 0 < job["batch"]["global"] <= MOST_GLOBAL_BATCH:
        raise Wrong(f"its job has a global batch of {job['batch']['global']!r} samples")
    kinds = [section["kind"] for section in (job["model"], job["data"], job["objective"], job["train"]["optimizer"])]
    if 0 < kinds.count("own") < len(kinds):
        raise Wrong("its job has kind own in some of model, data, objective and optimizer, and not in all")
    return job


# -- the settings of a job that make its identity

DEFAULTS = {
    "after.manifest": None,
    "batch.attention_at": None,
    "batch.max_tokens": None,
    "objective.kind": "lm",
    "objective.beta": 0.1,
    "objective.beta of simpo": 2.0,
    "objective.gamma_beta_ratio": 0.5,
    "objective.label_smoothing": 0.0,
    "objective.log_probs": "mean",
    "objective.mean_over": "tokens",
    "objective.desirable_weight": 1.0,
    "objective.undesirable_weight": 1.0,
    "objective.reference": "model",
    "objective.reference_model": None,
    "model.dropout": 0.0,
    "model.tied_embeddings": False,
    "model.revision": None,
    "model.weights": "pretrained",
    "model.attention": "auto",
    "model.chat_template": None,
    "model.frozen": "fp32",
    "model.lora": None,
    "model.lora.rank": 16,
    "model.lora.alpha": 32.0,
    "model.lora.dropout": 0.0,
    "model.lora.targets": None,
    "train.clip_norm": 1.0,
    "train.precision": "fp32",
    "train.activation_checkpointing": False,
    "train.schedule.kind": "constant",
    "train.schedule.warmup": "0 steps",
    "train.schedule.final_fraction": 0.0,
    "train.optimizer.alpha": 0.99,
    "train.optimizer.betas": [0.9, 0.999],
    "train.optimizer.eps": 1e-8,
    "train.optimizer.momentum": 0.0,
    "train.optimizer.weight_decay": 0.0,
    "workers.cpus": 1.0,
}
"""The settings that an identity leaves out where they have this value."""
NO_DEFAULT = {"model.kind", "model.layers", "model.width", "model.heads", "model.context", "model.path"} | {
    "train.optimizer.kind",
    "train.optimizer.lr",
    "batch.max_micro",
}
OBJECTIVES = {"lm", "sft", "dpo", "ipo", "simpo", "orpo", "kto", "own"}
RECIPE = ("objective.", "train.clip_norm", "train.optimizer.", "train.precision", "train.schedule.")
LIMITS = ("batch.attention_at", "batch.max_micro", "batch.max_tokens")
BITWISE_RECIPE = (*RECIPE, *LIMITS, "train.activation_checkpointing", "workers.cpus")


def settings_of(section: dict, objective: str, prefix: str = "") -> dict:
    """Return the settings of a job that are not at their defaults: `section.key` -> value."""
    found = {}
    for key, value in section.items():
        name = f"{prefix}{key}"
        default = DEFAULTS.get(f"{name} of {objective}", DEFAULTS.get(name, section))  # a section equals no value
        if isinstance(value, dict):
            inside = settings_of(value, objective, f"{name}.")
            found |= inside or ({name: {}} if name in DEFAULTS else {})
        elif compact(value) != compact(default):
            found[name] = value
    return found


def identity_of(job: dict, recorded: str) -> dict:
    """Return the identity that a job gives a run, without the data's. `recorded` is that of the model on record."""
    kind, equality = job["objective"]["kind"], current_name(job["batch"]["equality"])
    if kind not in OBJECTIVES:
        raise Unread(f"objective {kind!r}, which another package brings")
    settings = settings_of(job, kind)

    def digest(beginnings: tuple[str, ...]) -> str:
        chosen = {key: value for key, value in settings.items() if key.startswith(beginnings)}
        if unknown := sorted(key for key in chosen if key not in NO_DEFAULT and key not in DEFAULTS):
            raise Wrong(f"its job has settings that this script does not know: {', '.join(unknown)[:200]}")
        return sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()

    model = digest(("model.", "after.manifest"))
    if model != recorded and settings.get("model.attention") == "sdpa":  # its default in 0.2.0, and so left out
        del settings["model.attention"]
        model = digest(("model.", "after.manifest"))
    return {
        "global_batch": job["batch"]["global"],
        "seed": job["train"]["seed"],
        "model": model,
        "optimizer": job["train"]["optimizer"]["kind"],
        "equality": equality,
        "recipe": digest(BITWISE_RECIPE if equality == "bitwise" else RECIPE),
    }


def plan_digest(header: dict) -> str:
    """Return the digest of the plan that follows from a header: 16 hex digits."""
    size, workers, most = header["identity"]["global_batch"], header["world_size"], header["max_micro"]
    mode = "bitwise" if header["identity"]["equality"] == "bitwise" else "balanced"
    if header["layout_version"] == BY_LENGTH:
        numbers = (size, workers, most, header["max_tokens"], header.get("attention_at") or 0)
        return sha256(f"layout {BY_LENGTH} {mode} {numbers}".encode()).hexdigest()[:16]
    each = -(-size // most) if mode == "bitwise" else -(-size // min(workers, size))
    rounds = -(-each // workers) if mode == "bitwise" else -(-each // most)
    text = f"layout {header['layout_version']} {mode} {(size, workers, most, rounds)}"
    return sha256(text.encode()).hexdigest()[:16]


def current_name(value: object) -> object:
    """Return `balanced` for `batches`, the name of this `batch.equality` in early runs."""
    return "balanced" if value == "batches" else value


# -- micro-batches by length
#
# With `batch.max_tokens`, the lengths of a step's G samples decide which of W workers computes which sample in which
# round. The rules of layout version 2, in whole numbers alone:
#
# - A sample costs its tokens. With `attention_at` it costs tokens * attention_at + the sum of its documents' squared
#   lengths. A micro-batch has at most `max_micro` samples and `max_tokens` tokens.
# - balanced: a round has min(W, G) micro-batches, and a step the fewest rounds that the samples fit into. bitwise: a
#   step is one round of the fewest micro-batches that the samples fit into, and W plays no part. Bisection looks for
#   the fewest, between what the caps allow and what best fit needs.
# - Each sample, by falling cost, goes to the micro-batch with room that is farthest below its target. The targets of
#   all rounds are equal, or fall from round to round in one of two ways. The result of the least cost counts, of equal
#   ones the first. A step costs the sum over rounds of the most expensive micro-batch.
# - If no such result fits, samples go by falling tokens. If that does not fit either, best fit counts.
# - Then the micro-batches of a round exchange samples in pairs: the most expensive one with the cheapest one, the
#   second with the second cheapest, and so on, up to four times, as long as the round becomes cheaper.
# - Micro-batch n by falling cost is that of worker n % W in round n // W.
#
# Of equal samples, the one with the lower offset in the step is first. Of equal micro-batches, the earlier one.

Batches = list[list[int]]  # micro-batches: offsets in the step
MOST_WITH_TARGETS = 2**14  # samples of a step. In a larger one, all targets are equal
EXCHANGES = 4
MOST_ASIDE = 2**23  # ten seconds. Only lengths that somebody made up for it come near: training would wait as long


class Samples(NamedTuple):
    """A step's samples, by their offset in the step, and the caps of a micro-batch."""

    tokens: list[int]
    costs: list[int]
    max_micro: int
    max_tokens: int

    def fewest(self) -> int:
        """Return the fewest micro-batches that the caps allow. No two samples of over half of the tokens share one."""
        long = sum(2 * each > self.max_tokens for each in self.tokens)
        return max(-(-len(self.tokens) // self.max_micro), -(-sum(self.tokens) // self.max_tokens), long)

    def costs_of(self, batches: Batches) -> list[int]:
        """Return what each micro-batch costs."""
        return [sum(self.costs[offset] for offset in batch) for batch in batches]

    def tokens_of(self, batch: list[int]) -> int:
        """Return the tokens of a micro-batch."""
        return sum(self.tokens[offset] for offset in batch)


def falling(values: Sequence[int]) -> list[int]:
    """Return the places of values, from the largest to the least. Of equal ones, the first comes first."""
    return sorted(range(len(values)), key=lambda place: -values[place])


def micro_batches(samples: Samples, workers: int, *, is_bitwise: bool) -> Batches:
    """Return the micro-batches of a step in their order. Number n is that of worker n % W in round n // W."""
    unit = 1 if is_bitwise else min(workers, len(samples.tokens))
    batches = [sorted(batch) for batch in fewest_units(samples, unit, is_bitwise=is_bitwise) if batch]
    batches.sort()
    return [batches[place] for place in falling(samples.costs_of(batches))]


def fewest_units(samples: Samples, unit: int, *, is_bitwise: bool) -> Batches:
    """Return micro-batches of the fewest rounds of `unit` of them, or in a bitwise run the fewest of one round."""

    def packed(number: int) -> Batches | None:
        return pack(samples, number if is_bitwise else unit, 1 if is_bitwise else number)

    least = -(-samples.fewest() // unit)
    found = packed(least)
    if found is not None:
        return found
    rest = best_fit(samples)
    low, high = least + 1, -(-len(rest) // unit)
    while low < high:
        middle = (low + high) // 2
        tried = packed(middle)
        low, high, found = (middle + 1, high, found) if tried is None else (low, middle, tried)
    if found is None and high > least:
        found = packed(high)
    return exchanged(samples, rest, high if is_bitwise else unit) if found is None else found


def pack(samples: Samples, width: int, rounds: int) -> Batches | None:
    """Return micro-batches of some rounds of `width` each, after their exchanges. None if the samples do not fit."""
    by_cost = falling(samples.costs)
    found = [fill(samples, by_cost, width, [0] * rounds)]
    if len(by_cost) <= MOST_WITH_TARGETS:
        for targets in falling_targets(samples, width, rounds):
            # Targets that are too far from each other may leave too little room in the later rounds.
            closer = ([targets[0] - (targets[0] - each) * part // 4 for each in targets] for part in (4, 3, 2, 1))
            tries = (fill(samples, by_cost, width, each) for each in closer)
            found.append(next((batches for batches in tries if batches is not None), None))
    if found.count(None) == len(found):
        found = [fill(samples, falling(samples.tokens), width, [0] * rounds)]
    fitting = [batches for batches in found if batches is not None]
    if not fitting:
        return None
    return exchanged(samples, min(fitting, key=lambda each: step_cost(samples.costs_of(each), width)), width)


def step_cost(costs: list[int], width: int) -> int:
    """Return the sum over rounds of the most expensive micro-batch."""
    return sum(sorted(costs, reverse=True)[::width])


def falling_targets(samples: Samples, width: int, rounds: int) -> list[list[int]]:
    """Return what the micro-batches of each round should cost, in up to two ways, where it falls.

    The target of a round is an even part of what the rounds before it leave, or the largest sample that they leave, if
    their micro-batches have one of the largest samples each, or as many as they may have.
    """
    costs, ways = sorted(samples.costs, reverse=True), []
    for each in (1, samples.max_micro):
        left, targets = sum(costs), []
        for number in range(rounds):
            first = number * width * each
            target = max(-(-left // (width * (rounds - number))), costs[first] if first < len(costs) else 0)
            targets.append(target)
            left = max(0, left - width * target)
        if targets[0] > targets[-1] and targets not in ways:
            ways.append(targets)
    return ways


def fill(samples: Samples, order: list[int], width: int, targets: list[int]) -> Batches | None:
    """Return micro-batches to which samples went in this order. None if one of them finds no room.

    Raises Unread if far more micro-batches lack room, and have room again, than in any real step.
    """
    batches: Batches = [[] for _ in range(width * len(targets))]
    room = [samples.max_tokens] * len(batches)
    waiting = [(-targets[number // width], number) for number in range(len(batches))]  # (cost - target, micro-batch)
    heapify(waiting)
    aside: list[tuple[int, int, int]] = []  # those without room for an earlier sample: (-room, cost - target, number)
    num_aside = 0
    for offset in order:
        tokens = samples.tokens[offset]
        while aside and -aside[0][0] >= tokens:
            heappush(waiting, heappop(aside)[1:])
        while waiting and room[waiting[0][1]] < tokens:
            above, number = heappop(waiting)
            heappush(aside, (-room[number], above, number))
            num_aside += 1
        if num_aside > MOST_ASIDE:
            raise Unread("deriving it from the lengths of their samples takes too long")
        if not waiting:
            return None
        above, number = heappop(waiting)
        batches[number].append(offset)
        room[number] -= tokens
        if len(batches[number]) < samples.max_micro:
            heappush(waiting, (above + samples.costs[offset], number))
    return batches


def best_fit(samples: Samples) -> Batches:
    """Return micro-batches to which samples went by falling tokens: where the least room is left, or into a new one."""
    batches: Batches = []
    rooms: list[tuple[int, int]] = []  # (room, micro-batch) of those that may get more, from the least room on
    for offset in falling(samples.tokens):
        tokens = samples.tokens[offset]
        place = bisect_left(rooms, (tokens, 0))
        room, number = rooms.pop(place) if place < len(rooms) else (samples.max_tokens, len(batches))
        if number == len(batches):
            batches.append([])
        batches[number].append(offset)
        if len(batches[number]) < samples.max_micro:
            insort(rooms, (room - tokens, number))
    return batches


def exchanged(samples: Samples, batches: Batches, width: int) -> Batches:
    """Return the micro-batches by falling cost, after the exchanges inside each round of `width` of them."""
    ranked = [batches[number] for number in falling(samples.costs_of(batches))]
    for start in range(0, len(ranked), width):
        ranked[start : start + width] = exchange_in_round(samples, ranked[start : start + width])
    return ranked


def exchange_in_round(samples: Samples, batches: Batches) -> Batches:
    """Return the micro-batches of a round after all exchanges that made the most expensive one cheaper."""
    costs = samples.costs_of(batches)
    if max(costs) == -(-sum(costs) // len(costs)):  # none can be cheaper than the mean
        return batches
    for _ in range(EXCHANGES):
        rising = sorted(range(len(batches)), key=costs.__getitem__)
        tried = list(batches)
        for cheap, dear in zip(rising[: len(rising) // 2], rising[::-1], strict=False):
            tried[cheap], tried[dear] = exchange(samples, batches[cheap], batches[dear], costs[dear] - costs[cheap])
        tried_costs = samples.costs_of(tried)
        if max(tried_costs) >= max(costs):
            break
        batches, costs = tried, tried_costs
    return batches


def exchange(samples: Samples, cheap: list[int], dear: list[int], gap: int) -> tuple[list[int], list[int]]:
    """Return two micro-batches after the one move, or swap, that leaves the least gap between their costs.

    For each sample of the dearer one, two partners are looked at: those on both sides of the cost that leaves no gap.
    The offset -1 stands for no partner.
    """
    room = [samples.max_tokens - samples.tokens_of(each) for each in (cheap, dear)]
    partners = sorted((samples.costs[offset], samples.tokens[offset], offset) for offset in cheap)
    if len(cheap) < samples.max_micro:
        partners.insert(0, (0, 0, -1))
    best = gap, -1, -1
    for offset in dear if gap > 1 else ():
        place = bisect_left(partners, (samples.costs[offset] - gap // 2,))
        for cost, tokens, partner in partners[max(place - 1, 0) : place + 1]:
            left, more = abs(gap - 2 * (samples.costs[offset] - cost)), samples.tokens[offset] - tokens
            if left < best[0] and -room[1] <= more <= room[0]:
                best = left, offset, partner
    _, given, taken = best
    if given < 0:
        return cheap, dear
    kept = [offset for offset in cheap if offset != taken], [offset for offset in dear if offset != given]
    return [*kept[0], given], [*kept[1], *([taken] if taken >= 0 else [])]


def documents_of(sample: bytes | tuple) -> list[int]:
    """Return how many tokens enter the forward pass of each document of a sample. A text's last token is a label."""
    texts, more = ([(sample, ())], []) if isinstance(sample, bytes) else sample
    if more and len(more[0]) > 1:  # the document of each input, four bytes. Of feedback it is a label of one byte
        return [*Counter(struct.unpack(f"<{len(more[0]) // 4}i", more[0])).values()]
    return [len(tokens) - 1 for tokens, _ in texts]


def placement_of(chosen: list[int], rows: Sequence, header: dict) -> str:
    """Return what a step of these rows has as `placement`: a sum over micro-batches of a hash of who computes what."""
    documents = [documents_of(rows[row]) for row in chosen]
    tokens = costs = [sum(each) for each in documents]
    if min(tokens) < 1 or max(tokens) > header["max_tokens"]:
        least, most = min(tokens), max(tokens)
        raise Wrong(f"its samples have {least} to {most} tokens, and its plan takes 1 to {header['max_tokens']}")
    if header.get("attention_at") is not None:
        lengths = zip(tokens, documents, strict=True)
        costs = [size * header["attention_at"] + sum(each * each for each in parts) for size, parts in lengths]
    samples = Samples(tokens, costs, header["max_micro"], header["max_tokens"])
    workers, total = header["world_size"], 0
    batches = micro_batches(samples, workers, is_bitwise=header["identity"]["equality"] == "bitwise")
    for number, batch in enumerate(batches):
        words = " ".join(str(chosen[offset]) for offset in batch)
        text = f"worker {number % workers} round {number // workers} rows {words}"
        total += int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
    return f"{total & U64:016x}"


# -- one generation


def check_ledger(
    run: Path, generation: int, parent: dict, end: dict | None, described: list[dict]
) -> tuple[list[dict], list[dict], list[str]]:
    """Check a generation's beginning, chain and numbers. Returns its records up to `end`, the others, and findings.

    `parent` is the step that it began at, `described` are the manifests of its commits and held steps. `end` is that of
    the lineage. Without it, all records are up to the end.
    """
    links, torn = read_links(run, generation, parent["ledger_head"])
    heads = [head for head, _ in links]
    if end and end["ledger_head"] not in heads:
        raise Wrong(torn or f"its ledger does not reach the head that {end['called']} names: lines are missing")
    if not links or links[0][1]["kind"] != "generation":
        raise Wrong(torn or "its ledger does not begin with a header")
    length = heads.index(end["ledger_head"]) + 1 if end else len(links)
    header = links[0][1]
    found = [f"after its last commit, {torn}" if end else torn] if torn else []
    found += check_beginning(header, parent, generation)
    for each in described:
        if any(header[key] != each[key] for key in PROMISED):
            found.append(f"is of another run, place, plan, length, machine or job than {each['called']}")
    found += first_of(check_numbers(links, described, has_all=not torn))
    return [record for _, record in links[:length]], [record for _, record in links[length:]], found


def check_beginning(header: dict, parent: dict, generation: int) -> Iterator[str]:
    """Yield what is wrong with where a generation began."""
    if header["generation"] != generation:
        yield f"its header is that of generation {header['generation']}"
    if header["parent_sha256"] != parent["sha256"]:
        yield f"went on from another manifest of {parent['called']} than the one that is there"
    if header.get("parent_is_held", False) != bool(parent.get("shards")):
        yield f"says of {parent['called']}, where it began, that it was held, or was not"
    if (header["parent"], header["step"], header["cursor"]) != (parent["name"], parent["step"], parent["cursor"]):
        yield f"does not begin where {parent['name'] or 'nothing'} ended, at sample {parent['cursor']}"


def check_numbers(links: list[tuple[str, dict]], described: list[dict], *, has_all: bool) -> Iterator[str]:
    """Yield each number of a record, or of a manifest, that does not follow from its place in the ledger."""
    header = links[0][1]
    size, step, cursor = header["identity"]["global_batch"], header["step"], header["cursor"]
    placed = []  # each record, with the steps that are done before it
    places = {}  # head after a record -> step and sample there
    for head, record in links:
        placed.append((step, record))
        if record["kind"] == "step":
            step, cursor = step + 1, cursor + size
            if record["cursor"] != cursor:
                yield f"step {step - 1}: it ends at sample {record['cursor']} on record, and by its place at {cursor}"
            if record["samples"] != size:
                yield f"step {step - 1}: computed {record['samples']} samples instead of {size}"
        places[head] = step, cursor
    for step, record in placed:
        if record["kind"] in {"step", "eval"} and record["step"] != step:
            what = "a step" if record["kind"] == "step" else "an evaluation"
            yield f"the record of {what} says {record['step']}, and by its place in the ledger it is {step}"
    evaluated = [record["step"] for _, record in placed if record["kind"] == "eval"]
    for step in sorted(step for step in {*evaluated} if evaluated.count(step) > 1):
        yield f"its ledger has two evaluations before step {step}"
    if any(record["kind"] == "generation" for _, record in placed[1:]):
        yield "its ledger has a second header"
    yield from check_commit_numbers(header, placed)
    yield from check_measurements(header, placed)
    for each in described:
        yield from check_place(each, places.get(each["ledger_head"]), has_all=has_all)


def check_place(manifest: dict, place: tuple[int, int] | None, *, has_all: bool) -> Iterator[str]:
    """Yield what is wrong with a manifest's numbers. `place` is the step and the sample at the head that it names.

    `has_all` says whether the whole ledger could be read.
    """
    if place is None and has_all:
        yield f"its ledger does not reach the head that {manifest['called']} names"
    elif place not in {None, (manifest["step"], manifest["cursor"])}:
        said = f"step {manifest['step']} and sample {manifest['cursor']}"
        yield f"{manifest['called']}: it says {said}, and its ledger step {place[0]} and sample {place[1]}"


def check_commit_numbers(header: dict, placed: list[tuple[int, dict]]) -> Iterator[str]:
    """Yield what is wrong with the numbers of commits. One may be recorded after later steps, but in their order."""
    before = header["step"] - 1
    for step, record in placed:
        if record["kind"] != "commit":
            continue
        if record["name"] != f"{record['step']:012d}-{header['generation']:06d}":
            yield f"records commit {record['name'][:40]!r} as that of step {record['step']}"
        elif not before < record["step"] <= step:
            yield f"records commit {record['name']} between steps {step - 1} and {step}"
        before = max(before, record["step"])


def check_measurements(header: dict, placed: list[tuple[int, dict]]) -> Iterator[str]:
    """Yield each measurement that does not begin where the one before ended."""
    before = header["step"]
    for step, record in placed:
        if record["kind"] != "measurement":
            continue
        begin, end = record["step"] - record["num_steps"], record["step"]
        if not begin == before < end <= step:
            yield f"a measurement says steps [{begin}, {end}), and by its place in the ledger they begin at {before}"
        before = max(before, min(end, step))


def check_generation(
    run: Path,
    parent: dict,
    end: dict,
    described: list[dict],
    places: tuple[str, str],
    unread: list[tuple[str, str]],
    *,
    listed: bool,
) -> Iterator[str]:
    """Yield what is wrong with a generation of the lineage, from the step `parent` to the step `end`.

    If its samples or settings cannot be recomputed, `unread` gets what, and the reason. `places` are the paths of its
    data and of `eval.data`, or empty if they are where the job says.
    """
    records, tail, found = check_ledger(run, end["generation"], parent, end, described)
    yield from found
    header = records[0]
    identity = header["identity"]
    is_finished = end["step"] == header["total_steps"] and not end.get("shards")
    for each in described:
        is_certified = each["called"] == end["called"] and is_finished and identity["equality"] == "bitwise"
        if is_certified and not each["tensors"]:
            yield f"is finished and bitwise, and commit {each['name']} has no certificate"
        if each["tensors"] and not (identity["equality"] == "bitwise" and each["step"] == header["total_steps"]):
            yield f"{each['called']}: it has a certificate, and only the last commit of a bitwise run has one"
    job = read_job(run, header["job_digest"])
    yield from check_settings(header, parent.get("identity", identity), job, unread)
    rows = None
    try:
        if identity["global_batch"] == job["batch"]["global"]:
            rows, fingerprint = read_any(job, places[0] or job["data"]["path"])
    except Unread as error:
        unread.append(("samples", f"they were made by {error}"))
    if rows is not None:
        yield from check_data(header, job, places[0], fingerprint, len(rows))
    steps = [record for record in records if record["kind"] == "step"]
    yield from first_of(check_steps(steps, header, job, rows, listed=listed))
    yield from first_of(check_rates(steps, header, job))
    yield from first_of(check_placements(steps, header, job, rows, unread))
    evaluations = [record for record in (*records, *tail) if record["kind"] == "eval" and record["step"] <= end["step"]]
    if job["eval"].get("data"):
        rows, wrong = read_evaluated(header, job, places, unread)
        yield from wrong
    yield from first_of(check_evaluations(evaluations, header, job, rows))


def check_placements(
    steps: list[dict], header: dict, job: dict, rows: Sequence | None, unread: list[tuple[str, str]]
) -> Iterator[str]:
    """Yield each step whose record of who computed what is not that of its plan and of its samples' lengths.

    Without `rows`, or with a plan that no job can have, only whether there is such a record is checked.
    """
    is_by_length = header["layout_version"] == BY_LENGTH
    is_plan = 0 < header["world_size"] <= MOST_WORKERS and all(is_possible(header, name) for name in MOST_OF_LIMIT)
    is_derived = rows is not None and is_plan and header.get("max_tokens") is not None
    if is_by_length and rows is None:
        unread.append(("split over workers", "lengths of samples decide it, and the samples were not recomputed"))
    for number, step in enumerate(steps, header["step"]):
        if is_by_length != ("placement" in step):
            yield f"step {number}: it has {'no' if is_by_length else 'a'} placement on record"
        elif is_by_length and is_derived:
            try:
                yield from check_placement(number, step, header, chosen_rows(number, header, job, len(rows)), rows)
            except Unread as error:
                unread.append(("split over workers", f"from step {number} on, {error}"))
                is_derived = False


def check_placement(number: int, step: dict, header: dict, chosen: list[int], rows: Sequence) -> Iterator[str]:
    """Yield what is wrong with the placement of a step, which uses the chosen ones of all rows."""
    try:
        found = placement_of(chosen, rows, header)
    except Wrong as error:
        yield f"step {number}: {error}"
        return
    if found != step["placement"]:
        yield f"step {number}: who computed what is not what the lengths give"


def accepted_fields(header: dict) -> set[str]:
    """Return the fields of the identity whose change the user accepted. Earlier formats have texts alone."""
    if header["format"] >= ACCEPTED_AS_FIELDS:
        return {change["field"] for change in header.get("accepted", [])}
    return {words.partition(": ")[0] for words in header["changed"]}


def check_accepted(header: dict, before: dict) -> Iterator[str]:
    """Yield the changes that a header records as accepted, and that are none."""
    identity = header["identity"]
    for change in header.get("accepted", []):
        field, values = change["field"], [change["before"], change["now"]]
        is_fact = field in ("device", "model-files")  # not of the identity: the parent's are not read here
        was = [str(current_name(each[field])) for each in (before, identity) if field in each]
        if not is_fact and ([str(current_name(value)) for value in values] != was or was[0] == was[1]):
            yield f"it records an accepted change of {field[:40]!r} that is none"


def check_settings(header: dict, before: dict, job: dict, unread: list[tuple[str, str]]) -> Iterator[str]:
    """Yield what is wrong with a generation's identity or plan. `before` is the identity of its parent."""
    identity = header["identity"]
    accepted = accepted_fields(header)
    for field, value in before.items():
        if current_name(identity[field]) != current_name(value) and field not in accepted:
            yield f"another {field!r} than before, and nobody accepted it"
    yield from check_accepted(header, before)
    try:
        wanted = identity_of(job, identity["model"])
    except Unread as error:
        unread.append(("settings", f"the job has {error}"))
        wanted = {}
    for field, value in wanted.items():
        if current_name(identity[field]) != value:
            yield f"another {field!r} is on record than its job has"
    if header["facts"].get("after") != job.get("after"):
        yield "another earlier run is on record than its job has"
    yield from check_limits(header, job)
    is_by_length = header["layout_version"] == BY_LENGTH
    if header["layout_version"] not in LAYOUTS:
        known = " and ".join(map(str, LAYOUTS))
        yield f"its plan has layout version {header['layout_version']}, and this script knows {known}"
    elif is_by_length != (header.get("max_tokens") is not None):
        yield f"its plan has layout version {header['layout_version']}, which does not fit its max_tokens"
    elif not 0 < header["world_size"] <= MOST_WORKERS or plan_digest(header) != header["plan_digest"]:
        yield f"its plan is not what layout version {header['layout_version']} gives"


def most_of(job: dict, name: str) -> object:
    """Return a limit of a job's forward passes. With `auto`, the most that a group's devices can make of it."""
    batch, wanted = job["batch"], job["batch"].get(name)
    if wanted != "auto" or name == "attention_at":
        return wanted
    if name == "max_micro":
        return min(MOST_OF_LIMIT[name], batch["global"])
    # As many tokens as the most samples can have. Of another package's kind of data, any number.
    samples, sequences = most_of(job, "max_micro"), SEQUENCES.get(job["data"]["kind"])
    context = job["model"].get("context")
    if sequences is None or not is_whole(samples) or not is_whole(context):
        return MOST_OF_LIMIT[name]
    return min(MOST_OF_LIMIT[name], samples * sequences * context)


def check_lowered(lowered: list[dict], limits: tuple[object, object]) -> Iterator[str]:
    """Yield what is wrong with the limits that were lowered because workers ran out of memory, oldest first.

    `limits` are the job's, of samples and of tokens. Each lowering begins at no more than what was in force on that
    kind of device, and at least halves the samples.
    """
    job = tuple(value if is_whole(value) else 0 for value in limits)
    in_force: dict[str, tuple[int, ...]] = {}
    for each in lowered:
        was, now = ((each[f"{begin}_micro"], each[f"{begin}_tokens"]) for begin in ("was", "max"))
        before = in_force.get(each["device"], job)
        if was[0] > before[0] or was[1] > before[1] or (was[1] == 0) != (before[1] == 0):
            yield f"a limit was lowered from {was[0]} samples and {was[1]} tokens, which was not in force"
        if not 0 < now[0] <= was[0] // 2 or now[1] > was[1] or (now[1] == 0) != (was[1] == 0):
            yield f"a limit was lowered from {was[0]} samples and {was[1]} tokens to {now[0]} and {now[1]}"
        in_force[each["device"]] = now


def check_limits(header: dict, job: dict) -> Iterator[str]:
    """Yield what is wrong with the limits of a forward pass, by its job."""
    batch, lowered = job["batch"], header.get("lowered", [])
    if lowered and current_name(batch.get("equality")) == "bitwise":
        yield "a limit was lowered on record, and batch.equality: bitwise allows none"
    yield from check_lowered(lowered, (most_of(job, "max_micro"), most_of(job, "max_tokens")))
    for key in LIMITS:
        name = key.partition(".")[2]
        found, wanted = header.get(name), most_of(job, name)
        if is_whole(wanted) and name != "attention_at":
            wanted = min([wanted, *(each[name] for each in lowered)])
        if batch.get(name) == "auto" and is_whole(found) and is_whole(wanted):  # the group's devices decide it
            wanted = min(wanted, found)
        if found != wanted or type(found) is not type(wanted):  # no job has 40.0 or true
            yield f"{key} is {found} on record, and its job says {wanted!r}"
        if not is_possible(header, name):
            yield f"{key} is {found} on record, and no job has that"


def is_possible(header: dict, limit: str) -> bool:
    """Return whether a job can have this limit of a forward pass."""
    value = header.get(limit)
    return value is None or 1 <= value <= MOST_OF_LIMIT[limit]


def check_data(header: dict, job: dict, data: str, fingerprint: str, num_rows: int) -> Iterator[str]:
    """Yield what is wrong with the data, of which `data` is the path, or empty if it is where the job says."""
    held_out = withheld(job, num_rows)
    cut = f"{fingerprint} {num_rows} rows, {held_out} held out"
    if sha256(cut.encode()).hexdigest() != header["identity"]["data"]:
        path = data or job["data"]["path"]
        yield f"the data at {path!r} (its files' names count), or the job, is not what it was trained on"
    if header["num_samples"] != num_rows - held_out:
        yield f"has {header['num_samples']} samples in an epoch on record, and the data has another number"


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
    total, first = total_of(train, size, samples), header["step"]
    if total != header["total_steps"]:
        yield f"was to end at step {header['total_steps']} on record, and its job says {total}"
    if first + len(steps) > total:
        yield f"went on to step {first + len(steps)}, behind its end at step {total}"
    if train["optimizer"]["kind"] == "own":
        return
    warmup = steps_in(train["schedule"]["warmup"], size, samples, total)
    for number, step in enumerate(steps, first):
        rate = rate_of(train, number, warmup, total)
        if not abs(step["lr"] - rate) <= RATE_TOLERANCE * train["optimizer"]["lr"]:
            yield f"step {number}: its learning rate is {step['lr']!r} on record, and the schedule has {rate!r}"


def first_of(found: Iterator[str]) -> Iterator[str]:
    """Yield the first few findings, and then how many more there are."""
    number = 0
    for number, words in enumerate(found, 1):
        if number <= SHOWN:
            yield words
    if number > SHOWN:
        yield f"... and {number - SHOWN} more of this kind"


def chosen_rows(step: int, header: dict, job: dict, num_rows: int) -> list[int]:
    """Return the data rows of a step of a generation, in the order of their positions."""
    size, held_out = job["batch"]["global"], withheld(job, num_rows)
    start = header["cursor"] + (step - header["step"]) * size
    return [row_at(place, num_rows, held_out, job["train"]["seed"]) for place in range(start, start + size)]


def check_steps(steps: list[dict], header: dict, job: dict, rows: list | None, *, listed: bool) -> Iterator[str]:
    """Yield each step whose record is not that of its samples. Without `rows`, none."""
    size = job["batch"]["global"]
    for number, step in enumerate(steps, header["step"]) if rows is not None else ():
        start = header["cursor"] + (number - header["step"]) * size
        chosen = chosen_rows(number, header, job, len(rows))
        used = [(fed(rows[row], header["format"]), row.to_bytes(8, "little")) for row in chosen]
        sums = (blake2b(number + content, digest_size=8).digest() for (_, content), number in used)
        total = sum(int.from_bytes(each, "little") for each in sums)
        if (step["tokens"], step["checksum"]) != (sum(tokens for (tokens, _), _ in used), f"{total & U64:016x}"):
            yield f"step {number}: what entered the forward pass is not the samples at [{start}, {start + size})"
        if listed:
            skipped = " (left the weights alone)" if step.get("skipped") else ""
            print(f"step {number}, generation {header['generation']}{skipped}: rows", *chosen)


def check_evaluations(records: list[dict], header: dict, job: dict, rows: list | None) -> Iterator[str]:
    """Yield what is wrong with the samples, the tokens or the steps of evaluations.

    `rows` are those that the job evaluates some or all of. None if they cannot be recomputed.
    """
    if not records:
        return
    size, samples = job["batch"]["global"], header["num_samples"]
    total = total_of(job["train"], size, samples)
    every = steps_in(job["eval"]["every"], size, samples, total)
    number, tokens = part_of(job["eval"]["samples"], 0), None
    if rows is not None:
        chosen = evaluated(job, len(rows))
        number, tokens = len(chosen), sum(fed(rows[row])[0] for row in chosen)
    is_known = rows is not None or number or not (job["eval"].get("data") or job["eval"]["samples"])
    for record in records:
        where = f"the evaluation before step {record['step']}"
        if is_known and (not number or record["samples"] != number):
            yield f"{where}: it has {record['samples']} samples on record, and its job says {number}"
        if record["step"] % every and record["step"] != total:
            yield f"{where}: none was due there"
        if tokens is not None and record["tokens"] != tokens:
            yield f"{where}: it has {record['tokens']} tokens on record, and the held-out samples {tokens}"


def read_evaluated(
    header: dict, job: dict, places: tuple[str, str], unread: list[tuple[str, str]]
) -> tuple[list | None, list[str]]:
    """Return the rows of `eval.data`, and what is wrong with them. None if they cannot be recomputed."""
    data, path = places[0], places[1] or job["eval"]["data"]["path"]
    if data and not places[1]:
        unread.append(("samples of evaluations", "with --data, eval.data is read only where --eval-data says"))
        return None, []
    try:
        section = {**job["data"], **job["eval"]["data"], "tokenize": "ahead"}
        rows, fingerprint = read_any({**job, "data": section}, path)
        chosen = evaluated(job, len(rows))
    except Unread as error:
        unread.append(("samples of evaluations", f"they were made by {error}"))
        return None, []
    except Wrong as error:
        return None, [str(error)]
    text = f"{fingerprint} {len(chosen)} chosen ".encode() + struct.pack(f"<{len(chosen)}q", *chosen)
    if sha256(text).hexdigest() == header["facts"].get("evaluation", {}).get("fingerprint"):
        return rows, []
    return None, [f"the data at {path!r} is not what it was evaluated on"]


# -- the whole run


NAME = "[0-9]{12}-[0-9]{6}"


def read_commits(run: Path, run_id: str | None, findings: list[str]) -> dict[str, dict]:
    """Return the readable manifests by name, oldest first. Those that are not as the ledgers say become findings.

    A run may go on meanwhile. So the names are listed before the ledgers are read.
    """
    listed = names_in(run, "manifests", rf"{NAME}\.json")
    recorded: dict[str, str] = {}
    for ledger in names_in(run, "ledger", r"[0-9]{6}\.jsonl"):
        with noting(findings, f"ledger {ledger}"):
            for line in read_lines(run, int(ledger)):
                form = rb'"kind":"commit","name":"([0-9]{12}-%s)","seconds":[^,]*,"sha256":"([0-9a-f]*)"'
                if b'"kind":"commit"' in line and (found := re.search(form % ledger.encode(), line)):
                    recorded.setdefault(found[1].decode(), found[2].decode())  # of two, the first counts
    commits, unreadable = {}, {}
    for name in sorted({*listed, *recorded}, key=by_age):
        wrong: list[str] = []
        with noting(wrong, f"commit {name}"):
            commits[name] = small(read_manifest(run, name, run_id))
            if recorded.get(name, commits[name]["sha256"]) != commits[name]["sha256"]:
                findings.append(f"commit {name}: its manifest is not the one that the ledger records")
        if wrong:
            unreadable[name] = wrong[0]
    # A driver that died may have left a torn manifest, from which nothing went on.
    newest = max(map(by_age, commits), default=("", ""))
    findings += [words for name, words in unreadable.items() if name in recorded or by_age(name) > newest]
    for name, after in pairwise(name for name in commits if name in listed):
        if name not in recorded and name[13:] == after[13:]:
            findings.append(f"commit {name}: the ledger has no record of it, and its generation went on")
    return commits


def by_age(name: str) -> tuple[str, str]:
    """Return the key that sorts names of steps: by generation, then by step."""
    return name[13:], name[:12]


def read_headers(run: Path, run_id: str | None, commits: dict[str, dict], findings: list[str]) -> dict[int, dict]:
    """Return generation -> its header. `commits` gets those that headers name and that were not there before."""
    headers = {}
    for number in map(int, names_in(run, "ledger", r"[0-9]{6}\.jsonl")):
        with noting(findings, f"generation {number}"):
            if header := read_header(run, number):
                headers[number] = header
    # A generation that has just begun may name a commit that was not there when they were listed.
    late = {header["parent"] for header in headers.values() if not header.get("parent_is_held")} - {*commits}
    for name in sorted(name for name in late if re.fullmatch(NAME, name)):
        with noting([], name):  # its generation tells of a missing one
            commits[name] = small(read_manifest(run, name, run_id))
    return headers


def read_held(run: Path, run_id: str | None, headers: dict[int, dict], findings: list[str]) -> dict[str, dict]:
    """Return the readable manifests of held steps by name. Those that are not as headers say become findings."""
    held = {}
    named = {header["parent"]: generation for generation, header in headers.items() if header.get("parent_is_held")}
    for name in sorted({*names_in(run, "held", rf"{NAME}\.json"), *named}):
        with noting(findings if name in named else [], f"generation {named.get(name)}, resumed from memory"):
            if not re.fullmatch(NAME, name):
                raise Wrong("its parent has no name of a step")
            held[name] = small(read_manifest(run, name, run_id, "held"))
    for generation, header in headers.items():
        manifest = held.get(header["parent"]) if header.get("parent_is_held") else None
        if manifest is not None and manifest["sha256"] != header["parent_sha256"]:
            findings.append(
                f"generation {generation}, resumed from memory: {manifest['called']}: its manifest is not the one that "
                "this generation went on from"
            )
    return held


def check_files(run: Path, newest: dict, findings: list[str]) -> None:
    """Collect what is wrong with the files of the newest commit."""
    if not newest["files"]:
        findings.append("the newest commit names no files: there are no weights")
    for file in newest["files"]:
        name = f"checkpoints/{newest['name']}/{file['name']}"
        with noting(findings, repr(file["name"])), open_file(run, name) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size != file["size_bytes"] or file_digest(stream, "sha256").hexdigest() != file["sha256"]:
                raise Wrong("torn or altered: its size or its SHA-256 is not what the manifest says")


def check(
    run: Path, places: tuple[str, str], findings: list[str], unread: list[tuple[str, str]], *, listed: bool
) -> str:
    """Collect what is wrong with the run, and return a summary of it."""
    run_id = None
    with noting(findings, "run.json"):
        value, _ = read_sealed(run, "run.json", "the run's name")
        if not IS_RUN(value):
            raise Wrong("it is none that planner writes")
        run_id = value["run_id"]
    commits = read_commits(run, run_id, findings)
    headers = read_headers(run, run_id, commits, findings)
    held = read_held(run, run_id, headers, findings)
    if not commits:
        raise Wrong("no commit can be read here, so there are no weights to account for")
    end = commits[max(commits, key=by_age)]
    newest = read_manifest(run, end["name"], run_id)
    print(f"run {newest['run_id']!r}, commit {newest['name']}: step {newest['step']} of {newest['total_steps']}")
    weights = {name: digest for name, digest in newest["tensors"].items() if name.startswith("model/")}
    joint = sha256(json.dumps(weights, sort_keys=True).encode()).hexdigest()
    what = f"SHA-256 {joint}, on record; not taken from the files here" if weights else "no SHA-256 is on record"
    print(f"weights {what}")
    check_files(run, newest, findings)

    ends: dict[int, dict] = {}
    while end is not START and end["generation"] not in ends:
        ends[end["generation"]] = end
        end = parent_of(end["parent"], headers.get(end["generation"]), commits, held)
    for number in sorted({*headers, *ends}):
        with noting(findings, f"generation {number}"):
            end, name = ends.get(number), (ends.get(number) or headers[number])["parent"]
            parent = parent_of(name, headers.get(number), commits, held)
            described = [each for each in (*commits.values(), *held.values()) if each["generation"] == number]
            if end is not None:
                origin = ", from memory" if parent.get("shards") else ""
                steps = f"steps [{parent['step']}, {end['step']}){origin}"
                size = end["world_size"]
                print(f"generation {number}: {size} worker{'' if size == 1 else 's'}, {steps}")
            if name != parent["name"]:
                raise Wrong(f"the step that it went on from, {name!r}, has no good manifest, or one of another run")
            if end is None:
                found: Iterable[str] = check_ledger(run, number, parent, None, described)[2]
            else:
                found = check_generation(run, parent, end, described, places, unread, listed=listed)
            findings.extend(f"generation {number}: {words}" for words in found)
    return f"{newest['step']} steps used positions [0, {newest['cursor']}) of the order, each exactly once"


def parent_of(name: str, header: dict | None, commits: dict[str, dict], held: dict[str, dict]) -> dict:
    """Return the manifest of the step that a generation of this header began at. `START` if there is none."""
    is_held = header is not None and header.get("parent_is_held", False)
    found = held.get(name) if is_held or name not in commits else commits[name]
    return found or START


def printable(text: str) -> str:
    """Return a text with its control characters escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def main() -> int:
    """Run the command line, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", type=Path, help="a run's folder on this machine")
    parser.add_argument("--data", metavar="PATH", default="", help="the data, if not where the job says")
    parser.add_argument("--eval-data", metavar="PATH", default="", help="the data of eval.data, if not there either")
    parser.add_argument("--list", action="store_true", help="print each step's data rows")
    arguments = parser.parse_args()
    if not arguments.run.is_dir():
        parser.error(f"{arguments.run} is no folder")
    sys.stdout.reconfigure(errors="backslashreplace")
    findings: list[str] = []
    unread: list[tuple[str, str]] = []
    try:
        with noting(findings, arguments.run):
            places = arguments.data, arguments.eval_data
            account = check(arguments.run, places, findings, unread, listed=arguments.list)
    except MemoryError:
        print("verify_run: NOT CHECKED. There is too little memory here for this run")
        return 2
    for finding in findings:
        print(f"WRONG {printable(finding)}")
    for what, reason in dict.fromkeys(unread):
        print(printable(f"{what} NOT CHECKED: {reason}. Seal, files, chain and numbers were checked"))
    if findings:
        print("verify_run: NOT CLEAN")
        return 1
    unchecked = " and the ".join(dict.fromkeys(what for what, _ in unread))
    print(f"verify_run: {f'good but for the {unchecked}' if unread else 'clean'}. {account}; the chain is intact")
    return 3 if unread else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)

"""Changes inside a run that keep every digest right: first the change, then all that has a digest of it.

    job file, checkpoint file -> manifest -> record of the commit, next header -> chain -> later manifests

`Opened` is tolerant: a record may lack any key, be of any kind, or be no record. It recognises digests by their old
value wherever they stand, and replaces them.
"""

import json
import random
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from fuzz_pickles import change_archive, change_pickle
from fuzz_tokens import change_tokens, data_digest
from fuzz_values import at, change_bytes, change_value, change_word, odd_of_type, places

from planner.store.records import NO_HEAD, chained

Dice = random.Random

_LARGE = 10_000_000


def compact(value: object) -> str:
    """JSON as digests are taken of it. NaN and infinities are written as Python does."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _content(file: Path) -> bytes | None:
    """The bytes of a file of moderate size. None for anything else."""
    if file.is_symlink() or not file.is_file() or file.stat().st_size > _LARGE:
        return None
    return file.read_bytes()


def _digest(file: Path) -> str:
    content = _content(file)
    return "" if content is None else sha256(content).hexdigest()


@dataclass
class Line:
    """A place in a ledger."""

    head: str
    """of the chain, before any change"""
    bodies: list[Any]
    """the records here now: values, or texts that are written as they are"""


@dataclass
class Described:
    """A manifest, of a commit or of a held step."""

    folder: str
    """`manifests` or `held`"""
    name: str
    digest: str
    """before any change"""
    value: Any


class Opened:
    """A run's manifests and ledgers as values. `close` writes them back with new digests."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.ledgers: dict[str, list[Line]] = {}
        self.described: list[Described] = []
        self.replaced: dict[str, str] = {}
        """digest before -> after, of what is in neither a manifest nor a ledger. `close` adds jobs"""
        self._files = {file: _digest(file) for file in sorted((run / "checkpoints").rglob("*")) if file.is_file()}
        self._jobs = {file: _digest(file) for file in sorted((run / "jobs").iterdir())}
        for folder in ("manifests", "held"):
            for file in sorted((run / folder).glob("*.json")):
                document = json.loads(file.read_bytes())
                self.described.append(Described(folder, file.stem, document["sha256"], document["value"]))
                file.unlink()
        self._starts: dict[str, str] = {}
        heads = [NO_HEAD]
        for file in sorted((run / "ledger").glob("*.jsonl")):
            texts = file.read_text().splitlines()
            bodies = [text[text.index('"record":') + len('"record":') : -1] for text in texts]
            lines = [Line(json.loads(text)["head"], [json.loads(text)["record"]]) for text in texts]
            self.ledgers[file.stem] = lines
            self._starts[file.stem] = next(head for head in heads if chained(head, bodies[0]) == lines[0].head)
            heads += [line.head for line in lines]
            file.unlink()

    @property
    def lines(self) -> list[Line]:
        """All lines of all ledgers."""
        return [line for lines in self.ledgers.values() for line in lines]

    @property
    def trees(self) -> list[Any]:
        """All values of manifests and records."""
        return [each.value for each in self.described] + [body for line in self.lines for body in line.bodies]

    def rename_ledger(self, before: str, after: str) -> None:
        """A generation of another number."""
        self.ledgers = {after if name == before else name: lines for name, lines in self.ledgers.items()}
        self._starts[after] = self._starts.pop(before)

    def rename_files(self, before: str, after: str) -> None:
        """The files of a commit of another name."""
        folder = self.run / "checkpoints" / before
        if folder.is_dir() and not (there := folder.with_name(after)).exists():
            folder.rename(there)
            self._files = {
                there / file.name if file.parent == folder else file: digest for file, digest in self._files.items()
            }

    # -- back to files

    def close(self) -> None:
        """Write all files."""
        for file, before in self._jobs.items():
            if after := _digest(file):
                self.replaced[before] = after
                file.rename(file.with_name(f"{after}.json"))
        self._heads: dict[str, str] = {NO_HEAD: NO_HEAD}
        self._digests: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._open: set[str] = set()
        for segment in self.ledgers:
            self._write_ledger(segment)
        for each in self.described:
            self._seal(each)
        for segment, text in self._texts.items():
            (self.run / "ledger" / f"{segment}.jsonl").write_bytes(text.encode(errors="surrogatepass"))

    def _now(self, digest: str) -> str:
        """What a digest has become."""
        if digest in self.replaced:
            return self.replaced[digest]
        for each in self.described:
            if each.digest == digest:
                return self._seal(each)
        segment = next((s for s, lines in self.ledgers.items() if any(line.head == digest for line in lines)), None)
        # A manifest names a head of the ledger that is being written, and that was written already.
        if digest not in self._heads and segment is not None:
            self._write_ledger(segment)
        return self._heads.get(digest, digest)

    def _write_ledger(self, segment: str) -> None:
        if segment in self._texts or segment in self._open:
            return
        self._open.add(segment)
        head, written = self._now(self._starts[segment]), []
        for line in self.ledgers[segment]:
            for body in line.bodies:
                text = body if isinstance(body, str) else compact(self._renewed(body))
                head = sha256(f"{head}{text}".encode(errors="surrogatepass")).hexdigest()
                written.append(f'{{"head":"{head}","record":{text}}}\n')
            self._heads[line.head] = head
        self._texts[segment] = "".join(written)

    def _seal(self, each: Described) -> str:
        if each.digest not in self._digests and each.digest not in self._open:
            self._open.add(each.digest)
            value = self._renewed(self._with_files(each))
            digest = self._digests[each.digest] = sha256(compact(value).encode()).hexdigest()
            place = self.run / each.folder / f"{each.name}.json"
            place.parent.mkdir(exist_ok=True)
            place.write_text(json.dumps({"sha256": digest, "value": value}, default=str))
        return self._digests.get(each.digest, each.digest)

    def _with_files(self, each: Described) -> Any:
        """With size and digest of its files as they are now."""
        files = each.value.get("files") if isinstance(each.value, dict) else None
        for entry in files if isinstance(files, list) else ():
            for file, before in self._files.items():
                is_it = isinstance(entry, dict) and file.parent.name == each.name and entry.get("name") == file.name
                if is_it and entry.get("sha256") == before and (after := _digest(file)) not in {"", before}:
                    entry.update(sha256=after, size_bytes=file.stat().st_size)
        return each.value

    def _renewed(self, value: Any) -> Any:
        """The value with new digests in the place of old ones."""
        if isinstance(value, dict):
            return {key: self._renewed(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._renewed(item) for item in value]
        return self._now(value) if isinstance(value, str) and len(value) == 64 else value


# -- changes


def _holders(opened: Opened) -> list[tuple[Any, Callable[[Any], None]]]:
    """All trees, each with what puts another one in its place."""
    manifests = [(each.value, partial(setattr, each, "value")) for each in opened.described]
    records = [
        (body, partial(line.bodies.__setitem__, number))
        for line in opened.lines
        for number, body in enumerate(line.bodies)
    ]
    return [*manifests, *records]


def _changed(tree: Any, dice: Dice) -> Any:
    """A tree with another value in it. It has no part in common with `tree` or with itself."""
    try:
        return json.loads(compact(change_value(json.loads(compact(tree)), dice)))
    except (ValueError, RecursionError):  # a value was put into itself
        return None


def _change_values(opened: Opened, dice: Dice) -> None:
    """One to four values of manifests and records, manifests and headers more often than others."""
    for _ in range(dice.choice([1, 1, 2, 4])):
        holders = [(tree, put) for tree, put in _holders(opened) if not isinstance(tree, str)]
        first = [each for each in holders if isinstance(each[0], dict) and each[0].get("kind") in (None, "generation")]
        tree, put = dice.choice(first if first and dice.random() < 0.6 else holders)
        put(_changed(tree, dice))


def _change_everywhere(opened: Opened, dice: Dice) -> None:
    """Replace all values of one key by one and the same."""
    keys = [*places(opened.described[0].value)]
    headers = [lines[0].bodies[0] for lines in opened.ledgers.values() if lines and lines[0].bodies]
    keys += [path for header in headers if isinstance(header, dict) for path in places(header)]
    path = dice.choice(keys)
    key, odd = path[-1], None
    for tree in opened.trees:
        for found in list(places(tree)):
            if found[-1] == key and isinstance(key, str):
                parent = at(tree, found[:-1])
                odd = odd_of_type(parent[key], dice) if odd is None else odd
                parent[key] = odd


def _change_place(opened: Opened, dice: Dice) -> None:
    """Another number of a step or of a generation, also in the names of files, commits and parents."""
    which = dice.choice(opened.described)
    before, step, generation = which.name, int(which.name[:12]), int(which.name[13:])
    if dice.random() < 0.6:
        step = dice.choice([0, 1, step + 1, 10**12 - 1, 10**11])
    else:
        generation = dice.choice([0, generation + 1, 999_999])
        _renumber(opened, before[13:], generation)
    after = f"{step:012d}-{generation:06d}"
    for tree in opened.trees:
        for path in list(places(tree)):
            if at(tree, path) == before:
                at(tree, path[:-1])[path[-1]] = after
        # A manifest's parent is where its generation began, and the manifest is of a later step.
        is_of_step = isinstance(tree, dict) and after in (tree.get("name"), "kind" in tree and tree.get("parent"))
        if is_of_step and "step" in tree:
            tree["step"] = step
    which.value = {**which.value, "step": step, "generation": generation, "name": after}
    which.name = after
    opened.rename_files(before, after)


def _renumber(opened: Opened, before: str, generation: int) -> None:
    """Give a ledger another number, if no other has it."""
    after = f"{generation:06d}"
    if before in opened.ledgers and after not in opened.ledgers:
        opened.rename_ledger(before, after)
        for body in (body for line in opened.ledgers[after] for body in line.bodies if isinstance(body, dict)):
            if body.get("kind") == "generation":
                body["generation"] = generation


def _change_ledger(opened: Opened, dice: Dice) -> None:
    """Records doubled, moved, removed, of another kind, or of a text that no writer writes."""
    lines = opened.ledgers[dice.choice(sorted(opened.ledgers))]
    for _ in range(dice.choice([1, 1, 2, 3])):
        line, other = dice.choice(lines), dice.choice(opened.lines)
        kind = dice.randrange(8)
        if not line.bodies:
            line.bodies = [json.loads(compact(other.bodies[0]))] if other.bodies else []
        elif kind == 0:
            line.bodies *= dice.choice([2, 3, 200])
        elif kind == 1:
            line.bodies = []
        elif kind == 2:
            line.bodies, other.bodies = other.bodies, line.bodies
        elif kind == 3:
            line.bodies = [*line.bodies, *json.loads(compact(other.bodies))]
        elif kind == 4 and isinstance(line.bodies[0], dict):
            kinds = ["generation", "step", "eval", "commit", "event", "measurement", "x"]
            line.bodies[0]["kind"] = dice.choice(kinds)
        elif kind == 5:
            line.bodies[0] = _odd_text(line.bodies[0], dice)
        elif not isinstance(line.bodies[0], str):
            line.bodies[0] = _changed(line.bodies[0], dice)


def _odd_text(body: Any, dice: Dice) -> str:
    """A record's text that is no canonical JSON, and perhaps no JSON."""
    text = body if isinstance(body, str) else compact(body)
    kind = dice.randrange(6)
    if kind == 0:
        return change_word(text, dice).replace("\n", " ")
    if kind == 1:
        word = dice.choice(["9" * 5000, "1e999", "-0", "NaN", "Infinity", "1" + "0" * 400, "[" * 5000, "1.0", "1e400"])
        return text.replace(":1", f":{word}", 1).replace(":0", f":{word}", 1)
    if kind == 2:
        return text[:-1] + "," + text[1:]  # each key twice
    if kind == 3:
        return text[:-1] + ',"message":"a\u2028b\u0085c\rd\x0be"}'
    if kind == 4:
        return text.replace(",", dice.choice([" , ", ",\t", ",\r"]))
    return change_bytes(text.encode(), dice).decode(errors="replace").replace("\n", " ")


def _change_job(opened: Opened, dice: Dice) -> None:
    """The run's jobs. Their names, headers and manifests follow."""
    for file in sorted((opened.run / "jobs").iterdir()):
        job = json.loads(file.read_bytes())
        for _ in range(dice.choice([1, 1, 2])):
            leaves = [path for path in places(job) if isinstance(at(job, path), int | float | str)]
            if leaves and dice.random() < 0.7:
                path = dice.choice(leaves)
                at(job, path[:-1])[path[-1]] = odd_of_type(at(job, path), dice)
            else:
                job = _changed(job, dice)
        text = compact(job) if dice.random() < 0.9 else json.dumps(job, default=str, indent=1)
        file.write_text(text)


_SIZES = [
    (("batch", "global"), "global_batch"),
    (("train", "steps"), "total_steps"),
    (("train", "seed"), "seed"),
    (("eval", "samples"), "num_samples"),
    (("model", "context"), ""),
    (("batch", "max_micro"), "max_micro"),
    ((), "world_size"),
    ((), "num_samples"),
    ((), "cursor"),
]
"""a number in the job, and its key in headers and manifests"""


def _change_sizes(opened: Opened, dice: Dice) -> None:
    """A number of the job, and the same number in headers, manifests and identities: as one who can lie would."""
    path, key = dice.choice(_SIZES)
    size = dice.choice([0, 1, 2, 3, 7, 64, 10**5, 10**6, 10**9, 2**31 - 1, 2**31, 2**40, 2**53 + 1, 2**62, 2**63 - 1])
    if path:
        for file in sorted((opened.run / "jobs").iterdir()):
            job = json.loads(file.read_bytes())
            at(job, path[:-1])[path[-1]] = size
            file.write_text(compact(job))
    for tree in opened.trees:
        for found in list(places(tree)):
            if found[-1] == key:
                at(tree, found[:-1])[key] = size


def _newest_folder(opened: Opened, dice: Dice) -> Path:
    folders = sorted((opened.run / "checkpoints").iterdir(), key=lambda folder: (folder.name[13:], folder.name))
    return folders[-1] if dice.random() < 0.8 else dice.choice(folders)


def _change_metadata(opened: Opened, dice: Dice) -> None:
    """The metadata of a checkpoint, by its opcodes or by its bytes."""
    file = _newest_folder(opened, dice) / ".metadata"
    content = file.read_bytes()
    for _ in range(dice.choice([1, 1, 2, 4])):
        try:
            content = (change_pickle if dice.random() < 0.85 else change_bytes)(content, dice)
        except ValueError:  # no pickle any more
            content = change_bytes(content, dice)
    file.write_bytes(content)


def _change_shards(opened: Opened, dice: Dice) -> None:
    """The tensors of a checkpoint: their bytes, or the pickle in one of the archives."""
    folder = _newest_folder(opened, dice)
    file = dice.choice(sorted(folder.glob("*.distcp")))
    if dice.random() < 0.5:
        file.write_bytes(change_bytes(file.read_bytes(), dice))
        return
    try:
        change_archive(file, folder / ".metadata", dice)
    except (OSError, ValueError, zipfile.BadZipFile):  # no archive, perhaps by an earlier change
        file.write_bytes(change_bytes(file.read_bytes(), dice))


def _change_data(opened: Opened, dice: Dice) -> None:
    """The token file of the run, with its digests made anew, and then the run's digest of its data."""
    file = opened.run.parent / "file.tokens"
    if not file.is_file():
        _change_everywhere(opened, dice)
        return
    [job_file, *_] = sorted((opened.run / "jobs").iterdir())
    job = json.loads(job_file.read_bytes())
    before = data_digest(file.read_bytes(), job)
    file.write_bytes(change_tokens(file.read_bytes(), dice))
    if before and (after := data_digest(file.read_bytes(), job)):
        opened.replaced[before] = after


CHANGES: dict[str, tuple[int, Callable[[Opened, Dice], None]]] = {
    "values": (5, _change_values),
    "everywhere": (5, _change_everywhere),
    "place": (2, _change_place),
    "ledger": (5, _change_ledger),
    "job": (3, _change_job),
    "sizes": (3, _change_sizes),
    "metadata": (5, _change_metadata),
    "shards": (3, _change_shards),
    "data": (2, _change_data),
}
"""name -> how often it is chosen, and what it does"""


def change_behind_seals(folder: Path, dice: Dice, kinds: Sequence[str] = ()) -> None:
    """One or two changes inside the run of a case's folder, by dice or of these kinds. All digests are right after."""
    names = [name for name, (weight, _) in CHANGES.items() for _ in range(weight)]
    opened = Opened(folder / "run")
    for number, kind in enumerate(kinds or [dice.choice(names) for _ in range(dice.choice([1, 1, 1, 2]))]):
        try:
            CHANGES[kind][1](opened, dice)
        except Exception:
            if not number:
                raise
            # else it met what the change before it has left
    opened.close()


def reseal(run: Path) -> None:
    """Make all digests of a run right, as they are if nothing was changed."""
    Opened(run).close()

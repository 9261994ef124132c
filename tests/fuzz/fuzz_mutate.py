"""Valid files made odd: values, keys, bytes and whole files replaced. All by the dice that are handed in."""

import json
import os
import random
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from fuzz_tokens import change_tokens
from fuzz_values import change_bytes, change_tree, change_word

from planner.store.records import chained

Dice = random.Random

_LARGE = 10_000_000


def _json(tree: Any) -> str:
    return json.dumps(tree, default=str)


# -- bombs


def merge_bomb() -> str:
    """Some hundred bytes that stand for 10**9 keys."""
    lines = ["a: &a {x: 1}"]
    for before, key in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{key}: &{key} {{<<: [{', '.join(['*' + before] * 10)}]}}")
    return "\n".join(lines) + "\n"


def alias_bomb() -> str:
    """The same by lists."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for before, key in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{key}: &{key} [{', '.join(['*' + before] * 10)}]")
    return "\n".join(lines) + "\n"


def interpolation_bomb() -> str:
    """The same by Hydra's interpolations."""
    names = [f"${{k{number}}}" for number in range(14)]
    return "".join(f"k{number}: '{names[number + 1] * 4}'\n" for number in range(13)) + "k13: x\n"


BOMBS: list[Callable[[], str]] = [
    merge_bomb,
    alias_bomb,
    interpolation_bomb,
    lambda: "z: &z [*z]\n",
    lambda: "z: " + "[" * 5000 + "\n",
    lambda: "".join(f"{' ' * n}k:\n" for n in range(300)),
    lambda: "z: " + ":".join(["59"] * 50_000) + "\n",
    lambda: "z: " + "9" * 200_000 + "\n",
    lambda: "z: [" + "1," * 200_000 + "]\n",
    lambda: "".join(f"? [{n}]\n: {n}\n" for n in range(500)),
    lambda: '"' + "\\ud800" * 100 + '": 1\n',
    lambda: "{" * 100_000,
]


# -- whole files


def special(file: Path, dice: Dice) -> None:
    """Something else in the place of a file."""
    kind = dice.randrange(9)
    file.unlink()
    if kind == 0:
        os.mkfifo(file)
    elif kind == 1:
        file.symlink_to("/dev/zero")
    elif kind == 2:
        file.symlink_to(dice.choice(["/proc/kmsg", "/proc/self/maps", "/proc/self/mem", "/dev/tty", "/dev/random"]))
    elif kind == 3:
        file.symlink_to("/etc/passwd")
    elif kind == 4:
        file.mkdir()
    elif kind == 5:
        file.symlink_to(file.name)
    elif kind == 6:
        with file.open("wb") as stream:
            stream.truncate(2**33)
    elif kind == 7:
        with socket.socket(socket.AF_UNIX) as listener:
            here = Path.cwd()
            os.chdir(file.parent)
            listener.bind(file.name)
            os.chdir(here)
    # else it is gone


def plant_special(folder: Path, dice: Dice) -> None:
    """Something else in the place of one file: first the folder is chosen, so that each of a run's gets its share."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    parent = dice.choice(sorted({file.relative_to(folder).parts[0] for file in files}))
    special(dice.choice([file for file in files if file.relative_to(folder).parts[0] == parent]), dice)


# -- by format


def change_file(file: Path, dice: Dice) -> None:
    """One change of a file, most often one that leaves its format whole."""
    # Not what an earlier change has put there.
    if file.is_symlink() or not file.is_file() or file.stat().st_size > _LARGE:
        return
    chance = dice.random()
    if chance < 0.04:
        special(file, dice)
        return
    content = file.read_bytes()
    if chance < 0.2 or not (change := _change_of(file)):
        file.write_bytes(change_bytes(content, dice))
        return
    try:
        file.write_bytes(change(content, dice))
    except Exception:  # noqa: BLE001  a file that an earlier change has broken
        file.write_bytes(change_bytes(content, dice))


def _change_of(file: Path) -> Callable[[bytes, Dice], bytes] | None:
    if file.suffix == ".json" and file.parent.name in {"run", "manifests", "held", "drivers"}:
        return _change_sealed
    if file.suffix == ".jsonl" and file.parent.name == "ledger":
        return _change_ledger
    return _CHANGES.get(file.suffix)


def _change_text(content: bytes, dice: Dice) -> bytes:
    return change_word(content.decode(), dice).encode(errors="surrogatepass")


def _change_json(content: bytes, dice: Dice) -> bytes:
    return _json(change_tree(json.loads(content), dice)).encode()


def _change_yaml(content: bytes, dice: Dice) -> bytes:
    text = content.decode()
    kind = dice.random()
    if kind < 0.06:
        bomb = dice.choice(BOMBS)()
        return (bomb + text if dice.random() < 0.5 else text + bomb).encode()
    if kind < 0.3:
        return change_word(text, dice).encode(errors="surrogatepass")
    if len(content) > 100_000 or "&a" in text:  # not a bomb of ours
        return change_bytes(content, dice)
    documents = list(yaml.safe_load_all(text))
    number = dice.randrange(len(documents))
    documents[number] = change_tree(documents[number], dice)
    if dice.random() < 0.1:
        return _json(documents[number]).encode()
    return yaml.safe_dump_all(documents, sort_keys=False).encode(errors="surrogatepass")


def _change_lines(content: bytes, dice: Dice) -> bytes:
    lines = content.splitlines()
    number = dice.randrange(len(lines))
    lines[number] = _json(change_tree(json.loads(lines[number]), dice)).encode()
    return b"\n".join(lines) + b"\n"


def _change_sealed(content: bytes, dice: Dice) -> bytes:
    """A value of a run's file, most often sealed again, so that it is believed."""
    document = json.loads(content)
    if dice.random() < 0.2:
        return _json(change_tree(document, dice)).encode()
    value = change_tree(document["value"], dice)
    digest = chained("", json.dumps(value, sort_keys=True, separators=(",", ":")))
    return json.dumps({"sha256": digest, "value": value}).encode()


def _change_ledger(content: bytes, dice: Dice) -> bytes:
    """A record of a ledger, most often with the chain made whole again behind it."""
    lines = content.decode().splitlines()
    number = dice.randrange(len(lines))
    record = change_tree(json.loads(lines[number])["record"], dice)
    body = json.dumps(record, separators=(",", ":"))
    rechains = dice.random() < 0.7
    head = json.loads(lines[number - 1])["head"] if number else "0" * 64
    for place in range(number, len(lines)):
        if place > number:
            body = lines[place][lines[place].index('"record":') + 9 : -1]
        head = chained(head, body) if rechains else json.loads(lines[place])["head"]
        lines[place] = f'{{"head":"{head}","record":{body}}}'
    return ("\n".join(lines) + "\n").encode()


def _change_safetensors(content: bytes, dice: Dice) -> bytes:
    length = int.from_bytes(content[:8], "little")
    if dice.random() < 0.2:
        return struct.pack("<Q", dice.choice([0, 1, length + 1, 2**26, 2**40, 2**64 - 1])) + content[8:]
    header = _json(change_tree(json.loads(content[8 : 8 + length]), dice)).encode()
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def _change_parquet(content: bytes, dice: Dice) -> bytes:
    """The rows with another column, or with one of another type."""
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(pa.BufferReader(content))
    name, column = dice.choice(_odd_columns(table.num_rows))
    where = dice.choice([*table.column_names, "another"])
    if where in table.column_names:
        table = table.drop_columns([where])
    table = table.append_column(pa.field(where, column.type, metadata=name), column)
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression=dice.choice(["none", "snappy", "zstd", "gzip"]))
    return bytes(sink.getvalue())


def _odd_columns(rows: int) -> list[tuple[dict[bytes, bytes] | None, Any]]:
    import pyarrow as pa

    whole = pa.array([2**62] * rows)
    small = pa.array([2**30] * rows, pa.int32())
    times = [whole.cast(pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")]
    zoned = [whole.cast(pa.timestamp("us", tz)) for tz in ("UTC", "Mars/Olympus", "+99:99", "../../etc/passwd")]
    of_time = [*times[1:], *zoned, small.cast(pa.date32()), small.cast(pa.time32("ms")), whole.cast(pa.duration("ms"))]
    nested = [pa.StructArray.from_arrays([each, pa.array(["x"] * rows)], ["content", "role"]) for each in of_time[:5]]
    lists = [pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), each) for each in nested]
    binary = pa.array([b"\xff\xfe"] * rows)
    broken = pa.Array.from_buffers(pa.string(), rows, binary.buffers())
    others = [
        pa.array([None] * rows),
        pa.array([float("nan")] * rows),
        pa.array(["x" * 1_000_000] + ["y"] * (rows - 1)),
        pa.array([[]] * rows, pa.list_(pa.string())),
        pa.array([{"a": 1}] * rows),
        pa.array(["a"] * rows).dictionary_encode(),
        pa.array([[("k", 1)]] * rows, pa.map_(pa.string(), pa.int64())),
        pa.array([True] * rows),
    ]
    plain = [(None, column) for column in (*of_time, *nested, *lists, binary, broken, *others)]
    names = [
        b"ray.data.arrow_tensor",
        b"ray.data.arrow_tensor_v2",
        b"ray.data.arrow_pickled_object",
        b"arrow.json",
        b"x",
    ]
    extended = [
        ({b"ARROW:extension:name": name, b"ARROW:extension:metadata": metadata}, column)
        for name in names
        for metadata in (b"", b"[1]", b"\x80\x04.")
        for column in (whole, others[3])
    ]
    return [*plain, *extended]


_CHANGES: dict[str, Callable[[bytes, Dice], bytes]] = {
    ".yaml": _change_yaml,
    ".json": _change_json,
    ".jsonl": _change_lines,
    ".safetensors": _change_safetensors,
    ".tokens": change_tokens,
    ".parquet": _change_parquet,
    **dict.fromkeys((".sh", ".txt", ".jinja", ".toml"), _change_text),
}


def change(folder: Path, dice: Dice) -> None:
    """One to three changes of the files in a folder."""
    # Not what a case needs to be one at all.
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.parent.name != "sound")
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        change_file(dice.choice(files), dice)


def copy_of(valid: Path, folder: Path) -> None:
    """A valid input, to be changed."""
    shutil.copytree(valid, folder, symlinks=True)

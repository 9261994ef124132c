"""Valid files made odd: values, keys, bytes and whole files replaced. All by the dice that are handed in."""

import json
import os
import random
import re
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from planner.store.records import chained

Dice = random.Random

LONG = "x" * 100_000
_LARGE = 10_000_000
ODD = [
    *(None, True, False, 0, -1, 1, 2, 7, 255, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, -(10**30), 0.5, -0.0),
    *(float("nan"), float("inf"), float("-inf"), 1e308, 5e-324, 1e-9),
    *("", " ", "x", "1", "-1", "1e999", "nan", "abc", "true", "null", "auto", "none", "???", "no", "010", "1_000"),
    *(
        "\0",
        "a\0b",
        "\x1b[31mred\x1b[0m",
        "\x07",
        "\r\n",
        "\u202e",
        "\ufeff",
        "\ud800",
        "\udcff",
        "\U0001f600",
        "１",  # noqa: RUF001  the digit of another width is the point
        "ß" * 300,
    ),
    *("../../etc/passwd", "/etc/passwd", "/dev/zero", "~nobody/x", "~/x", ".", "..", "a/b", "-", "--x", "%s%n", "{x}"),
    *("${a}", "${a.b}", "${oc.env:HOME}", "$HOME", "`id`", "{{ 1/0 }}", "{% for %}", "!!python/name:os.system"),
    *("2024-99-99", "2001-01-01", "1:30:00", "0x1F", "0b1", "1.", ".5", "+1", "1e3", "٣", "<<", "*a", "&a"),
    *([], {}, [[]], [{}], {"": ""}, {"a": None}, [None], [0] * 3, ["a", "a"], [float("nan")], {"a": {"b": [1]}}),
    LONG,
    [1] * 2000,
    {f"k{number}": number for number in range(300)},
]


def deep(levels: int) -> Any:
    """Lists and mappings in each other."""
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def odd_value(dice: Dice) -> Any:
    """A value that nobody expects."""
    if dice.random() < 0.04:
        return deep(dice.choice([15, 25, 60, 200]))
    return dice.choice(ODD)


# -- trees of JSON and YAML


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a tree."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    """The value at a path."""
    for key in path:
        tree = tree[key]
    return tree


def change_tree(tree: Any, dice: Dice) -> Any:
    """One value, key or subtree becomes another."""
    found = list(places(tree))
    if not found or dice.random() < 0.02:
        return odd_value(dice)
    path = dice.choice(found)
    parent, key = at(tree, path[:-1]), path[-1]
    kind = dice.random()
    if kind < 0.7:
        parent[key] = odd_value(dice)
    elif kind < 0.8:
        del parent[key]
    elif kind < 0.9 and isinstance(parent, dict):
        parent[str(odd_value(dice))[:200_000]] = parent.pop(key)
    elif isinstance(parent, dict):
        parent[str(dice.choice(found)[-1])] = at(tree, dice.choice(found))
    else:
        parent *= 3
    return tree


def _json(tree: Any) -> str:
    return json.dumps(tree, default=str)


# -- bytes and lines


def change_bytes(content: bytes, dice: Dice) -> bytes:
    """Flipped, cut off, doubled, or with something in between."""
    if not content:
        return dice.choice([b"\0", b"\xff", b"{", b"x"])
    start = dice.randrange(len(content))
    stop = min(start + dice.choice([1, 2, 8, 100, 4096]), len(content))
    part = content[start:stop]
    kind = dice.randrange(7)
    if kind == 0:
        part = bytes([part[0] ^ (1 << dice.randrange(8))]) + part[1:]
    elif kind == 1:
        return content[:start]
    elif kind == 2:
        part *= dice.choice([2, 3, 200])
    elif kind == 3:
        part = b""
    elif kind == 4:
        part = dice.choice([b"\xff", b"\0", b"\x1b[31m", b"\xed\xa0\x80", b"\r", b"\n", b"\t", b"%", b"\xef\xbb\xbf"])
    elif kind == 5:
        part = bytes(dice.randrange(256) for _ in part)
    else:
        part = (
            dice.choice([b"[", b"{", b'"', b"'", b": ", b"- ", b"${a}", b"#", b"999999999999999999999", b"nan"]) + part
        )
    return content[:start] + part + content[stop:]


def change_word(text: str, dice: Dice) -> str:
    """One word of a text becomes an odd one, in the text's own notation."""
    words = list(re.finditer(r"[^\s:,=\[\]{}\"']+", text))
    if not words:
        return text + str(odd_value(dice))[:1000]
    word = dice.choice(words)
    odd = odd_value(dice)
    shown = odd if isinstance(odd, str) else _yaml_word(odd)
    return text[: word.start()] + shown + text[word.end() :]


def _yaml_word(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**9).removesuffix("\n...\n").rstrip("\n")


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
    if file.suffix == ".json" and file.parent.name in {"run", "manifests", "drivers"}:
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


def _change_tokens(content: bytes, dice: Dice) -> bytes:
    """The header of a token file, sealed again."""
    header, body = content[:4096], content[4096:]
    magic = b"planner-tokens "
    text = _json(change_tree(json.loads(header[len(magic) + 64 :]), dice)).encode()
    rest = b" " + text.ljust(4096 - len(magic) - 64 - 2) + b"\n"
    if dice.random() < 0.3:
        body = change_bytes(body, dice)
    return magic + sha256(rest).hexdigest().encode() + rest + body


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
    ".tokens": _change_tokens,
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

"""Pickles with odd pieces in them: of a checkpoint's metadata, and of the tensors in its archives."""

import io
import pickle
import pickletools
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

from fuzz_values import odd_int

Dice = random.Random

_INTS = {"BININT", "BININT1", "BININT2", "LONG1"}
_TEXTS = {"SHORT_BINUNICODE", "BINUNICODE"}
_MEMO = {"BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT"}
_ODD_TEXTS = ["", "..", "../x", "/dev/zero", "\x1b[31m", "a\0b", "x" * 100_000, ".metadata", "__0_0.distcp", "model/"]

Pieces = list[tuple[str, object, bytes]]
"""an operation's name, its argument, and its bytes"""


def pieces_of(content: bytes) -> Pieces:
    """The operations of a pickle, so written that a change of one leaves the others right.

    That is without frames, which have lengths, and with the numbers of memos, which MEMOIZE counts.
    """
    found = list(pickletools.genops(content))
    ends = [place or 0 for _, _, place in found[1:]] + [len(content)]
    pieces, memos = [], 0
    for (operation, argument, place), end in zip(found, ends, strict=True):
        if operation.name == "MEMOIZE":
            pieces.append(("LONG_BINPUT", memos, b"r" + struct.pack("<I", memos)))
        elif operation.name != "FRAME":
            pieces.append((operation.name, argument, content[place or 0 : end]))
        memos += operation.name in {"MEMOIZE", "BINPUT", "LONG_BINPUT"}
    return pieces


def int_bytes(value: int) -> bytes:
    """The operation that pushes an integer."""
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    encoded = pickle.encode_long(value)
    return b"\x8a" + bytes([len(encoded)]) + encoded


def text_bytes(text: str) -> bytes:
    """The operation that pushes a text."""
    encoded = text.encode(errors="surrogatepass")
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _collision_bomb() -> bytes:
    """A mapping whose keys all have one hash."""
    keys = (number * (2**61 - 1) for number in range(1, 20_000))
    return b"}(" + b"".join(int_bytes(key) + b"N" for key in keys) + b"u0"


def _hash_bomb() -> bytes:
    """A key of 2^60 leaves: a hash takes for ever, and no memory."""
    return b"})\x85" + b"2\x86" * 60 + b"Ns0"


BOMBS: list[Callable[[], bytes]] = [
    _collision_bomb,
    _hash_bomb,
    lambda: b"Nr" + struct.pack("<I", 2**31 - 1) + b"0",  # LONG_BINPUT
    lambda: b"Nr" + struct.pack("<I", 2**28) + b"0",
    lambda: b"\x8d" + struct.pack("<Q", 2**40),  # BINUNICODE8
    lambda: b"\x8d" + struct.pack("<Q", 2**63),
    lambda: b"\x8e" + struct.pack("<Q", 2**34),  # BINBYTES8
    lambda: b"\x96" + struct.pack("<Q", 2**34),  # BYTEARRAY8
    lambda: b"\x95" + struct.pack("<Q", 2**40),  # FRAME
    lambda: b"\x8b" + struct.pack("<i", 2**31 - 1),  # LONG4
    lambda: b"\x8b" + struct.pack("<i", 3_000_000) + b"\x7f" * 3_000_000 + b"0",
    lambda: b"I" + b"9" * 100_000 + b"\n0",
    lambda: b")" + b"\x85" * 100_000 + b"0",  # nested tuples
    lambda: b"N" * 1_000_000 + b"0" * 1_000_000,
    lambda: b"(" * 1_000_000,
    lambda: b"]" + b"2a" * 3 + b"0",  # a list of itself
    lambda: b"cbuiltins\neval\n0",
    lambda: b"ctorch\nSize\n(" + b"K\x01" * 100_000 + b"tR0",
    lambda: b"ctorch\nSize\n(" + b"J\xff\xff\xff\x7f" * 8 + b"ttR0",
    lambda: b"(" + b"N" * 500_000 + b"l0",
]


def change_pickle(content: bytes, dice: Dice) -> bytes:
    """One operation becomes another, or something is put between two."""
    pieces = pieces_of(content)
    kind = dice.random()
    if kind < 0.35:
        _replace(pieces, _INTS, lambda argument: int_bytes(odd_int(int(argument), dice)), dice)
    elif kind < 0.5:
        texts = [str(argument) for name, argument, _ in pieces if name in _TEXTS]
        _replace(pieces, _TEXTS, lambda _: text_bytes(dice.choice([*_ODD_TEXTS, *texts, *texts])), dice)
    elif kind < 0.6:
        _replace(pieces, _MEMO, lambda _: dice.choice([b"h", b"q"]) + bytes([dice.randrange(256)]), dice)
    elif kind < 0.72:
        at = len(pieces) - 1 if dice.random() < 0.6 else dice.randrange(len(pieces))
        pieces.insert(at, ("", None, dice.choice(BOMBS)()))
    elif kind < 0.82:
        _double(pieces, dice)
    elif kind < 0.88:
        del pieces[dice.randrange(len(pieces))]
    elif kind < 0.94:
        odd = [
            b"N",
            b")",
            b"}",
            b"]",
            b"\x88",
            b"\x8f",
            int_bytes(2**70),
            text_bytes("x"),
            b"G" + struct.pack(">d", 1e308),
        ]
        _replace(pieces, _INTS | _TEXTS | {"NONE", "NEWTRUE", "NEWFALSE"}, lambda _: dice.choice(odd), dice)
    else:
        one, two = dice.randrange(len(pieces)), dice.randrange(len(pieces))
        pieces[one], pieces[two] = pieces[two], pieces[one]
    return b"".join(piece for _, _, piece in pieces)


def _replace(pieces: Pieces, names: set[str], change: Callable[[object], bytes], dice: Dice) -> None:
    """Replace one or several operations of these names."""
    found = [number for number, (name, _, _) in enumerate(pieces) if name in names]
    for number in dice.sample(found, min(dice.choice([1, 1, 1, 3]), len(found))):
        name, argument, _ = pieces[number]
        pieces[number] = (name, argument, change(argument))


def _double(pieces: Pieces, dice: Dice) -> None:
    """A piece of the pickle occurs twice, or very often."""
    start = dice.randrange(len(pieces))
    stop = min(start + dice.choice([1, 2, 10, 100]), len(pieces) - 1)
    pieces[start:start] = pieces[start:stop] * dice.choice([1, 2, 300])


def change_archive(shard: Path, metadata: Path, dice: Dice) -> None:
    """Another pickle of a tensor in a file of shards. Its archive is put at the end, and the metadata follows."""
    content = shard.read_bytes()
    starts = _archives(content)
    start = dice.choice(starts)
    end = min([at for at in starts if at > start], default=len(content))
    archive = _with_pickle(content[start:end], dice)
    shard.write_bytes(content + archive)
    pieces = pieces_of(metadata.read_bytes())
    moved = None
    for number, (name, argument, _) in enumerate(pieces):
        if moved is not None and name in _INTS:
            if argument == end - start:
                pieces[number] = (name, argument, int_bytes(len(archive)))
            moved = None
        elif name in _INTS and argument == start:
            before = [
                each for each in pieces[max(number - 4, 0) : number] if each[1] == "offset" or each[0] == "BINGET"
            ]
            if before:
                pieces[number] = (name, argument, int_bytes(len(content)))
                moved = number
    metadata.write_bytes(b"".join(piece for _, _, piece in pieces))


def _archives(content: bytes) -> list[int]:
    """Where archives begin in a file of shards: behind the end record of another one."""
    found, at = [0], 0
    while (at := content.find(b"PK\x05\x06", at)) >= 0:
        at += 22
        if at < len(content):
            found.append(at)
    return found


def _with_pickle(archive: bytes, dice: Dice) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as before, zipfile.ZipFile(out, "w") as after:
        for info in before.infolist():
            data = before.read(info)
            if info.filename.endswith("data.pkl"):
                data = change_pickle(data, dice)
            elif dice.random() < 0.1:
                data = data[: dice.randrange(len(data) + 1)]
            method = zipfile.ZIP_DEFLATED if dice.random() < 0.1 else zipfile.ZIP_STORED
            after.writestr(info.filename, data, method)
    return out.getvalue()

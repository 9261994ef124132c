"""Odd values, and changes of trees, bytes and texts by them. All by the dice that are handed in."""

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

Dice = random.Random

LONG = "x" * 100_000
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


# -- values of the right type


def odd_of_type(value: Any, dice: Dice) -> Any:
    """An odd value, most often one that a check of types lets through."""
    odd = next((odd for kind, odd in _ODD_OF_TYPE.items() if type(value) is kind), None)
    return odd_value(dice) if odd is None or dice.random() < 0.2 else odd(value, dice)


def odd_int(value: int, dice: Dice) -> int:
    """Another integer."""
    near = [value + 1, value - 1, value * 2, -value, value // 2]
    return dice.choice([0, 1, -1, *near, *near, 2**31, 2**31 - 1, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 10**6, 10**9])


def _odd_float(value: float, dice: Dice) -> float:
    return dice.choice([0.0, -0.0, -1.0, 1e308, -1e308, 5e-324, 1e-9, 0.5, 1e15, 1e17, 2.0**63, -value, value * 2])


def _odd_text_value(value: str, dice: Dice) -> str:
    digits = "".join(dice.choice("0123456789abcdef") for _ in value)
    return digits if _is_hex(value) and dice.random() < 0.7 else dice.choice(_TEXTS)


def _odd_list(value: list[Any], dice: Dice) -> list[Any]:
    return dice.choice([[], value * 2, value[::-1], value * 300, value[:1]])


def _odd_mapping(value: dict[str, Any], dice: Dice) -> dict[str, Any]:
    others = list(value.items())
    return dice.choice([{}, dict(others[:1]), dict(others[1:]), {**value, **_entries(others, dice)}])


_TEXTS = [each for each in ODD if isinstance(each, str) and each != LONG]
_ODD_OF_TYPE: dict[type, Callable[[Any, Dice], Any]] = {
    bool: lambda value, _dice: not value,
    int: odd_int,
    float: _odd_float,
    str: _odd_text_value,
    list: _odd_list,
    dict: _odd_mapping,
}


def _is_hex(text: str) -> bool:
    return len(text) >= 16 and set(text) <= set("0123456789abcdef")


def _entries(items: list[tuple[str, Any]], dice: Dice) -> dict[str, Any]:
    value = dice.choice(items)[1] if items else 1
    return {f"{name}{number}": value for name in ("x", "\x1b[31m", "0/m") for number in range(dice.choice([1, 1, 500]))}


def change_value(tree: Any, dice: Dice) -> Any:
    """One value of a tree becomes another one."""
    found = list(places(tree))
    if not found or dice.random() < 0.2:
        return change_tree(tree, dice)
    path = dice.choice(found)
    at(tree, path[:-1])[path[-1]] = odd_of_type(at(tree, path), dice)
    return tree

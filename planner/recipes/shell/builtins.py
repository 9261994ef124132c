"""What bash's own commands do to variables: `export`, `read`, `set` and the like."""

import re
from collections.abc import Sequence

from planner.recipes.scalars import has_shell
from planner.recipes.shell.nodes import Block, Node
from planner.recipes.shell.values import Shell, Value

DECLARING = ("export", "declare", "typeset", "local", "readonly")
SETTING = ("read", "mapfile", "readarray", "getopts", "unset", "printf", "let")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def declared(texts: Sequence[str], values: dict[str, Value], *, is_local: bool) -> list[str]:
    """The names that `export` has as texts, `"NAME=VALUE"` or `NAME`. Their values are added to `values`."""
    names = []
    for text in texts:
        name, sign, value = text.partition("=")
        if sign:
            name = name.rstrip("+")
            values[name] = None if text.startswith(f"{name}+") else value
        elif is_local:
            values[name] = None
        names.append(name)
    return names


def arguments(words: Sequence[str]) -> tuple[str, ...] | None:
    """The words as arguments. None if one is open, because it may be any number of arguments."""
    return None if any(map(has_shell, words)) else tuple(words)


def set_options(words: Sequence[str], shell: Shell) -> None:
    """`set -- a b` and `set -a`. Other options change no words."""
    if "--" in words:
        shell.positional = arguments(words[words.index("--") + 1 :])
    elif words and not words[0].startswith(("-", "+")):
        shell.positional = arguments(words)
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if re.fullmatch(r"[-+][a-z]*a[a-z]*", word) or (word in {"-o", "+o"} and after == "allexport"):
            shell.exports_all = word.startswith("-")


def shift(words: Sequence[str], shell: Shell) -> None:
    """`shift` and `shift 2`."""
    count = int(words[0]) if words and re.fullmatch(r"\d{1,4}", words[0], re.ASCII) else None if words else 1
    if shell.positional is not None and count is not None and count <= len(shell.positional):
        shell.positional = shell.positional[count:]
    elif shell.positional is not None or count is None or shell.num_shifted is None:
        shell.positional = shell.num_shifted = None
    else:
        shell.num_shifted += count


def names_set(nodes: Sequence[Node], shell: Shell, seen: set[str]) -> set[str]:
    """The names of all variables that commands may set."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, Block):
            names |= names_set(node.body, shell, seen) | ({node.name} if node.kind == "loop" and node.name else set())
            continue
        names |= {its.name for its in node.assignments}
        first = node.words[0].raw if node.words else ""
        if first in DECLARING or first in SETTING:
            names |= {found[0] for word in node.words[1:] if (found := _NAME.match(word.raw))}
        for word in node.words:
            if first in {"eval", "let"} or ":=" in word.raw:
                names.update(_NAME.findall(word.raw))
        if first in shell.functions and first not in seen:
            seen.add(first)
            names |= names_set(shell.functions[first], shell, seen)
    return names

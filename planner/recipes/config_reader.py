"""Reads a recipe's YAML or JSON file as a mapping, and refuses files that are too large, too deep or no text."""

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from planner.base.disk import is_file
from planner.errors import RecipeError
from planner.files.loader import BoundedLoader, Unreadable, YamlMistake, document, read_text
from planner.files.messages import MAX_SHOWN, Mistake, cut, listed, show
from planner.recipes.scalars import scalar

# Beyond either a file is no recipe. The second also stops aliases that multiply (a "billion laughs").
_MAX_DEPTH = 20
MAX_VALUES = 20_000
_MOST = 10**MAX_SHOWN
_OCTAL = re.compile(r"[-+]?0[0-7_]{1,40}")
# An object whose first key is in quotes: `{path: //server}` is YAML.
_BETWEEN = r"(?>\s|//[^\n]*|/\*.*?\*/)*+"
_OBJECT = re.compile(rf'\A{_BETWEEN}\{{{_BETWEEN}"', re.DOTALL)
_STRING_OR_COMMENT = re.compile(r'"(?>[^"\\]|\\.)*+(?:"|\Z)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class RepeatedKey:
    """A key that occurs twice or more in one mapping of a file.

    PyYAML and `json` take the last one. OmegaConf and DeepSpeed refuse the file.
    """

    name: str
    lines: tuple[int, ...] = ()
    """from 1, empty if unknown"""
    value: str = ""
    """the last value as text, empty if it is a mapping or a list"""

    @property
    def note(self) -> str:
        """What a system that takes such a file does."""
        value = f" ({cut(self.value, 40)})" if self.value else ""
        return f"{cut(self.name)}: {self._twice()}. The last one counts{value}"

    def refusal(self, title: str) -> str:
        """What a system that does not take such a file does. `title` is its name."""
        return f"found {cut(self.name)} {self._twice()}. {title} refuses such a file: keep one"

    def _twice(self) -> str:
        """`twice, on lines 3 and 9`, `twice, on line 3` or `twice`."""
        last = list(dict.fromkeys(self.lines[-2:]))
        return ", ".join(
            ["twice", *([f"on line{'s'[: len(last) - 1]} {' and '.join(map(str, last))}"] if last else [])]
        )


def recipe_error(source: str, *texts: str) -> RecipeError:
    """The error for a recipe, with a line for each text."""
    return RecipeError(listed(source, [Mistake(text=text) for text in texts]))


def text_of(path: str | Path, kind: str = "recipe") -> str:
    """The text of a file. `kind` names it in errors, such as `accelerate config`.

    Raises:
        RecipeError: there is no such file, it is larger than 1 MiB, or it is not UTF-8.
    """
    try:
        return read_text(path, kind)
    except Unreadable as error:
        raise recipe_error(str(path), str(error)) from None


def beside(source: str, path: str) -> str:
    """A path in a command, resolved from the working folder, or from the recipe's folder or the two above it."""
    places = [Path(path), *(parent / path for parent in list(Path(source).parents)[:3])]
    return str(next((place for place in places if is_file(place)), places[0]))


def mapping_of(text: str, source: str, repeats: list[RepeatedKey] | None = None) -> dict[str, Any]:
    """The mapping in a YAML or JSON text. Keys and dates are text, and `5e-7` is a number.

    Args:
        text: the text of a file.
        source: the file, for messages.
        repeats: gets the keys that occur twice. The last one counts, as PyYAML and Python's `json` read it. Without it
            such a key is an error, as in OmegaConf.

    Raises:
        RecipeError: the text is neither, has no mapping, is too large or too deep, or has a key twice.
    """
    text = without_comments(text)
    value = _object_of(text, source, repeats)
    value = _yaml_of(text, source, repeats) if value is None else value
    if not isinstance(value, dict):
        found = "nothing in it" if value is None else "neither keys and values nor a training command"
        raise recipe_error(source, f"found {found}. Write the path of a recipe")
    _measure(value, source)
    return {str(key): its for key, its in value.items()}


def _object_of(text: str, source: str, repeats: list[RepeatedKey] | None) -> dict[str, Any] | None:
    """The JSON object in a text. None if YAML should read it, for example because it has a trailing comma.

    Only a JSON parser can name a mistake in a text that is indented by tabs, which YAML does not read.
    """
    found: list[RepeatedKey] = []
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text, object_pairs_hook=partial(_pairs, found), parse_constant=str)
    except json.JSONDecodeError as error:
        if "\n\t" not in text:
            return None
        raise recipe_error(source, f"line {error.lineno}: found a mistake ({error.msg}). Correct it") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, or brackets
        return None
    if found and repeats is None:
        raise recipe_error(source, f"found {cut(found[0].name)} twice. Keep one")
    if repeats is not None:
        repeats += found
    return value if isinstance(value, dict) else None


def without_comments(text: str) -> str:
    """A JSON object without its `//` and `/* */` comments, with its line breaks. Any other text is unchanged."""
    return _STRING_OR_COMMENT.sub(_blank, text) if _OBJECT.match(text) else text


def _blank(found: re.Match[str]) -> str:
    """A string is kept. A comment becomes its line breaks."""
    return found[0] if found[0].startswith('"') else "\n" * found[0].count("\n") or " "


def _pairs(repeats: list[RepeatedKey], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a dict. Keys that occur twice are added to `repeats`."""
    made = dict(pairs)
    numbers = Counter(name for name, _ in pairs)
    repeats += [RepeatedKey(name=name, value=_shown(made[name])) for name, number in numbers.items() if number > 1]
    return made


def _shown(value: Any) -> str:
    return "" if isinstance(value, dict | list) else json.dumps(value)


def _yaml_of(text: str, source: str, repeats: list[RepeatedKey] | None) -> Any:
    """The value in a YAML text."""
    try:
        return document(text, partial(_Loader, repeats=repeats))
    except YamlMistake as error:
        if error.line:
            found = f"line {error.line}: found a mistake ({cut(error.problem, 200)}). Correct it"
        else:
            found = f"found text that YAML cannot read ({cut(error.problem, 100)}). Write the path of a recipe"
        raise recipe_error(source, found) from None


def _measure(value: Any, source: str) -> None:
    """Refuses a value that is too deep or too large. What aliases repeat counts each time."""
    stack, seen = [(value, 1, "")], 0
    while stack:
        item, depth, where = stack.pop()
        seen += 1
        if depth > _MAX_DEPTH or seen > MAX_VALUES:
            what = f"more than {_MAX_DEPTH} levels" if depth > _MAX_DEPTH else f"more than {MAX_VALUES} values"
            raise recipe_error(source, f"found {what}, but a recipe has fewer. Write the path of a recipe")
        if isinstance(item, dict):  # Hydra writes `.inf` for a gradient that is not clipped
            children = [
                (child, depth + 1, f"{cut(str(key))}: ")
                for key, child in item.items()
                if key != "max_grad_norm" or child != math.inf
            ]
        else:
            children = [(child, depth + 1, where) for child in item] if isinstance(item, list) else []
        if isinstance(item, int) and abs(item) >= _MOST:
            raise recipe_error(source, f"{where}found {show(item)}. Write a smaller number")
        if isinstance(item, float) and not math.isfinite(item):
            raise recipe_error(source, f"{where}found {show(item)}. Write a finite number or a text")
        stack += children


class _Loader(BoundedLoader):
    """A safe loader that reads numbers as Hydra and argparse do, and refuses or notes keys that occur twice."""

    def __init__(self, text: str, repeats: list[RepeatedKey] | None) -> None:
        super().__init__(text)
        self._repeats = repeats

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping as it is written, before merge keys (`<<`) add the keys of other mappings to it."""
        node = super().compose_mapping_node(anchor)
        for name, pairs in _by_name(node).items():
            if len(pairs) > 1:
                self._note(name, pairs)
        return node

    def _note(self, name: str, pairs: list[tuple[yaml.ScalarNode, yaml.Node]]) -> None:
        """Note a key that occurs twice. It is an error if nobody asks for it."""
        lines = tuple(key.start_mark.line + 1 for key, _ in pairs)
        if self._repeats is None:
            problem = f"{cut(name)} twice, on lines {lines[0]} and {lines[1]}"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=pairs[1][0].start_mark)
        last = pairs[-1][1]
        value = last.value if isinstance(last, yaml.ScalarNode) else ""
        self._repeats.append(RepeatedKey(name=name, lines=lines, value=value))


def _by_name(node: yaml.MappingNode) -> dict[str, list[tuple[yaml.ScalarNode, yaml.Node]]]:
    """The pairs of a mapping by the text of their keys. Merge keys are left out."""
    found: dict[str, list[tuple[yaml.ScalarNode, yaml.Node]]] = {}
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            found.setdefault(key.value, []).append((key, value))
    return found


def _number(loader: _Loader, node: yaml.ScalarNode) -> Any:
    text = str(loader.construct_scalar(node))
    # YAML 1.1, which the systems' PyYAML reads, takes 010 for 8.
    return loader.construct_yaml_int(node) if _OCTAL.fullmatch(text) else scalar(text)


_Loader.add_implicit_resolver(
    "!number", re.compile(r"[-+]?(\.[0-9]|[0-9])[0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?$"), list("-+.0123456789")
)
# PyYAML takes the first resolver that matches, and a new one comes last.
for _first in "-+.0123456789":
    _resolvers = _Loader.yaml_implicit_resolvers[_first]
    _resolvers.insert(0, _resolvers.pop())
_Loader.add_constructor("!number", _number)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _number)

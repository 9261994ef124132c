"""Reads a recipe's YAML or JSON file as a mapping, and refuses files that are too large, too deep or no text."""

import math
import re
from pathlib import Path
from typing import Any

import yaml

from planner.base.disk import is_file
from planner.errors import RecipeError, printable
from planner.files.bounded_yaml import BoundedLoader
from planner.files.messages import MAX_SHOWN, Mistake, cut, listed, show
from planner.files.text_file import Unreadable, read_text
from planner.recipes.json_text import JsonError, object_of, without_comments
from planner.recipes.repeats import RepeatedKey
from planner.recipes.scalars import scalar

# Beyond either a file is no recipe. The second also stops aliases that multiply (a "billion laughs").
_MAX_DEPTH = 20
MAX_VALUES = 20_000
_MOST = 10**MAX_SHOWN
_OCTAL = re.compile(r"[-+]?0[0-7_]{1,40}")
# PyYAML's constructors raise these for a wrong tag, an invalid date or 1,000 nested brackets.
_NO_YAML = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


def recipe_error(source: str, *texts: str) -> RecipeError:
    """The error for a recipe, with a line for each text."""
    return RecipeError(listed(printable(source), [Mistake(text=text) for text in texts]))


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
    try:
        value = object_of(text, repeats)
    except JsonError as error:
        raise recipe_error(source, str(error)) from None
    value = _yaml_of(text, source, repeats) if value is None else value
    if not isinstance(value, dict):
        found = "nothing in it" if value is None else "neither keys and values nor a training command"
        raise recipe_error(source, f"found {found}. Write the path of a recipe")
    _measure(value, source)
    return {str(key): its for key, its in value.items()}


def _yaml_of(text: str, source: str, repeats: list[RepeatedKey] | None) -> Any:
    """The value in a YAML text."""
    try:
        return _Loader(text, repeats).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise recipe_error(
            source, (f"{where}found a mistake ({cut(error.problem or 'no YAML', 200)}). Correct it")
        ) from None
    except (yaml.YAMLError, *_NO_YAML) as error:
        reason = cut(next(iter(str(error).splitlines()), type(error).__name__), 100)
        raise recipe_error(source, f"found text that YAML cannot read ({reason}). Write the path of a recipe") from None


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
            if len(pairs) > 1 and self._repeats is not None:
                lines, last = tuple(key.start_mark.line + 1 for key, _ in pairs), pairs[-1][1]
                value = last.value if isinstance(last, yaml.ScalarNode) else ""
                self._repeats.append(RepeatedKey(name=name, lines=lines, value=value))
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node. A key that occurs twice is an error if nobody notes it."""
        for name, pairs in _by_name(node).items():
            if len(pairs) > 1 and self._repeats is None:
                first, second = pairs[0][0].start_mark, pairs[1][0].start_mark
                problem = f"{cut(name)} twice, on lines {first.line + 1} and {second.line + 1}"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=second)
        return super().construct_mapping(node, deep)


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

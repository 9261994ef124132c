"""What a user names as a recipe: a file, a folder of Hydra's or a command. It is read here.

Which system the recipe belongs to is not decided here.
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from planner.base.disk import is_file
from planner.files.messages import cut
from planner.recipes import strangers
from planner.recipes.command import Command, command_of, continued, is_command, other_of_trl, starts_program
from planner.recipes.entries import flat
from planner.recipes.texts import mapping_of, recipe_error, text_of

YAML = (".yaml", ".yml", ".json")
_SHELL = (".sh", ".bash", ".zsh", ".slurm", ".sbatch")
_PYTHON_KEY = re.compile(r"^([a-z_]\w*)[ \t]*=[^=]", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class RecipeSource:
    """What lies at the path that a user named."""

    kind: Literal["keys", "folder", "command", "text", "TOML", "Python"]
    """keys: of a YAML or JSON file; folder: of Hydra's; text: of a script in which planner finds no command"""
    path: str
    """as the user wrote it"""
    source: str
    """where it was found, for messages"""
    text: str = ""
    tree: Mapping[str, Any] = field(default_factory=dict)
    """keys and values; empty unless the kind is keys"""
    folder: Path | None = None
    """of Hydra's files; a command has one if its script lies in a checkout"""
    command: Command | None = None
    words: tuple[str, ...] = ()
    """overrides, those of the recipe's own command first"""
    asked: tuple[str, ...] = ()
    """those among them that stand behind the recipe"""
    env: Mapping[str, str] = field(default_factory=dict)
    """variables of the shell, by name"""
    program: str = ""
    """where the name of a program may stand"""
    keys: tuple[str, ...] = ()
    """names of all keys and options, dotted"""


def find_source(path: str, words: Sequence[str], env: Mapping[str, str]) -> RecipeSource:
    """What lies at a path, or what the text of a command says.

    Raises:
        RecipeError: nothing lies there, or it cannot be read.
    """
    if not path:
        raise recipe_error("RECIPE", "found nothing; write the path of a recipe")
    asked = tuple(words)
    named = RecipeSource(kind="keys", path=path, source=path, words=asked, asked=asked, env=env)
    if not _is_there(path):
        at = replace(named, source="the command", text=path)
        if is_command(path):
            return _command(at, None)
        if starts_program(path) or strangers.by_program(path):
            return _script(at)
    elif Path(path).is_dir():
        return _folder(named)
    return _file(replace(named, text=text_of(path)))


def _is_there(path: str) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:
        return False


def _file(found: RecipeSource) -> RecipeSource:
    place, text = Path(found.path), found.text
    if place.suffix == ".toml":
        return replace(found, kind="TOML", keys=tuple(flat(_toml(text), found.source)))
    if place.suffix not in YAML:
        if is_command(text):
            return _command(found, place.parent)
        if place.suffix == ".py":
            return replace(found, kind="Python", keys=tuple(_PYTHON_KEY.findall(text)))
        if place.suffix in _SHELL or text.startswith("#!"):
            return _script(found)
    tree = mapping_of(text, found.source)
    if isinstance(tree.get("defaults"), list) and place.name == "config.yaml":
        return replace(found, kind="folder", folder=place.parent)
    return replace(found, tree=tree, keys=tuple(flat(tree, found.source)))


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return {}


def _folder(found: RecipeSource) -> RecipeSource:
    """A Hydra configuration: the folder itself, or `config/` in the folder of a checkout."""
    place = Path(found.path)
    for folder in (place, place / "config"):
        if is_file(folder / "config.yaml"):
            return replace(found, kind="folder", source=str(folder), folder=folder)
    near = cut(", ".join(sorted(file.name for file in place.glob("*.y*ml"))), 200)
    hint = f"; the files there are {near}, write the path of one" if near else ""
    raise recipe_error(
        str(place), f"found a folder without config.yaml{hint}, or write the folder of a Hydra configuration"
    )


def _command(found: RecipeSource, beside: Path | None) -> RecipeSource:
    """A command, with the Hydra folder of the checkout that its script lies in, if it does."""
    command = command_of(found.text, found.source, found.env)
    folders = [] if beside is None else [beside / "config", beside.parent / "config", beside]
    words = (*command.words, *found.asked)
    return replace(
        found,
        kind="command",
        command=command,
        folder=next((each for each in folders if is_file(each / "config.yaml") and (each / "model").is_dir()), None),
        words=words,
        program=" ".join([*command.launched, command.path, *words[:1]]),
        keys=tuple(strangers.option_names(words)),
    )


def _script(found: RecipeSource) -> RecipeSource:
    """A text of a shell's in which no command is one that planner reads."""
    text = continued(found.text)
    # What stands behind another command of TRL's tells nothing.
    keys = () if other_of_trl(text) else tuple(strangers.option_names(text.split()))
    return replace(found, kind="text", text=text, program=text, keys=keys)

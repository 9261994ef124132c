"""Reads what a user names as a recipe: a file, a Hydra folder or a command. `detect.py` finds its system."""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from planner.files.known_files import SHELL_SUFFIXES
from planner.files.messages import cut
from planner.recipes import checkout, unsupported
from planner.recipes.command import Command, command_of, continued, is_command, other_of_trl, starts_program
from planner.recipes.config_reader import RepeatedKey, mapping_of, recipe_error, text_of
from planner.recipes.entries import flat

YAML = (".yaml", ".yml", ".json")
_PYTHON_KEY = re.compile(r"^([a-z_]\w*)[ \t]*=[^=]", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class RecipeSource:
    """The recipe as the user named it, read but not interpreted."""

    kind: Literal["keys", "folder", "command", "text", "TOML", "Python"]
    """keys is a YAML or JSON file, folder a Hydra folder, text a script without a command that planner knows"""
    path: str
    """the path or command as the user wrote it"""
    source: str
    """the name of the recipe in messages"""
    text: str = ""
    tree: Mapping[str, Any] = field(default_factory=dict)
    """keys and values of a file, empty for any other kind"""
    folder: Path | None = None
    """the folder of Hydra's files. A command has one if its script is in a checkout"""
    primary: str = "config"
    """the name of the first of Hydra's files"""
    command: Command | None = None
    arguments: tuple[str, ...] = ()
    """overrides: those of the recipe's own command, then those of the user"""
    user_arguments: tuple[str, ...] = ()
    """overrides that the user wrote behind the recipe"""
    env: Mapping[str, str] = field(default_factory=dict)
    """shell variables by name"""
    program: str = ""
    """the part of a command or script that may contain a program's name"""
    keys: tuple[str, ...] = ()
    """dotted names of all keys and options"""
    programs: str = ""
    """programs that start a training, for the refusal of a command"""
    readable: str = ""
    """what planner reads, for `System.near_miss`"""
    repeats: tuple[RepeatedKey, ...] = ()
    """the keys that the file has twice. In `tree` the last one counts"""


def find_source(
    path: str, arguments: Sequence[str], env: Mapping[str, str], *, any_script: bool = False, programs: str = ""
) -> RecipeSource:
    """Read the file or folder at a path, or parse a command.

    Args:
        path: a path, or the text of a command.
        arguments: overrides that the user wrote behind the recipe.
        env: shell variables by name.
        any_script: whether a command may start a script that planner does not know.
        programs: programs that start a training, for the refusal of a command.

    Raises:
        RecipeError: there is no such file or folder, or it cannot be read.
    """
    if not path:
        raise recipe_error("RECIPE", "found nothing. Write the path of a recipe")
    given = tuple(arguments)
    named = RecipeSource(
        kind="keys", path=path, source=path, arguments=given, user_arguments=given, env=env, programs=programs
    )
    if not _is_there(path):
        at = replace(named, source="the command", text=path)
        if is_command(path) or (any_script and starts_program(path)):
            return _command(at, None, any_script=any_script)
        if starts_program(path) or unsupported.by_program(path):
            return _script(at)
    elif Path(path).is_dir():
        return _folder(named)
    return _file(replace(named, text=text_of(path)), any_script=any_script)


def _is_there(path: str) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:
        return False


def _file(found: RecipeSource, *, any_script: bool) -> RecipeSource:
    place, text = Path(found.path), found.text
    if place.suffix == ".toml":
        return replace(found, kind="TOML", keys=tuple(flat(_toml(text), found.source)))
    if place.suffix not in YAML:
        if is_command(text) or (any_script and starts_program(text)):
            return _command(found, place.parent, any_script=any_script)
        if place.suffix == ".py":
            return replace(found, kind="Python", keys=tuple(_PYTHON_KEY.findall(text)))
        if place.suffix in SHELL_SUFFIXES or text.startswith("#!"):
            return _script(found)
    repeats: list[RepeatedKey] = []
    tree = mapping_of(text, found.source, repeats)
    if isinstance(tree.get("defaults"), list):
        keys = tuple(flat(tree, found.source))
        return replace(found, kind="folder", folder=place.parent, primary=place.stem, keys=keys)
    return replace(found, tree=tree, keys=tuple(flat(tree, found.source)), repeats=tuple(repeats))


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return {}


def _folder(found: RecipeSource) -> RecipeSource:
    """A Hydra configuration: the folder itself, or that of a checkout, which is `config/` by default."""
    place = Path(found.path)
    if made := checkout.of_folder(place, found.user_arguments):
        return replace(found, kind="folder", source=str(made.folder), folder=made.folder, primary=made.primary)
    near = cut(", ".join(sorted(file.name for file in place.glob("*.y*ml"))), 200)
    hint = f" or the path of a file in it ({near})" if near else ""
    raise recipe_error(
        str(place), f"found a folder without config.yaml. Write the folder of a Hydra configuration{hint}"
    )


def _command(found: RecipeSource, beside: Path | None, *, any_script: bool) -> RecipeSource:
    """A training command, with the configuration of the checkout that contains its script, if any."""
    command = command_of(found.text, found.source, found.env, any_script=any_script, programs=found.programs)
    made = checkout.of_command(command, found.text, beside, found.source)
    arguments = (*command.arguments, *found.user_arguments)
    return replace(
        found,
        kind="command",
        source=f"{found.source} with {made.file}" if made and beside is None else found.source,
        command=command,
        folder=made.folder if made else None,
        primary=made.primary if made else "config",
        arguments=arguments,
        program=" ".join([*command.launched, command.path, *arguments[:1]]),
        keys=tuple(unsupported.option_names(arguments)),
    )


def _script(found: RecipeSource) -> RecipeSource:
    """A shell script without a command that planner knows."""
    text = continued(found.text)
    # Options of another TRL command would look like those of another system.
    keys = () if other_of_trl(text) else tuple(unsupported.option_names(text.split()))
    return replace(found, kind="text", text=text, program=text, keys=keys)

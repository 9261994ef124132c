"""Finds the configuration that a command's script reads: the folder and the file that its `@hydra.main` names."""

import re
from dataclasses import dataclass
from pathlib import Path

from planner.base.disk import is_file
from planner.files.messages import cut
from planner.recipes.command import HYDRA_SCRIPTS, Command
from planner.recipes.config_reader import recipe_error, text_of
from planner.recipes.hydra.files import is_there, options_of, path_of
from planner.recipes.hydra.options import HydraOptions
from planner.recipes.hydra.options import read as read_options

_MAIN = re.compile(r"@hydra\.main\(([^)]*)\)")
_NAMED = {name: re.compile(rf"{name}\s*=\s*['\"]([^'\"]+)['\"]") for name in ("config_path", "config_name")}
_MOVED = re.compile(r"(?:^|[;&\n(])[ \t]*cd[ \t]+([^\s;&|$]+)[ \t]*(?:&&|;|\n)")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Where a program finds its configuration."""

    folder: Path
    primary: str = "config"
    """the name of the first file, without `.yaml`"""

    @property
    def file(self) -> Path:
        """The first file."""
        return path_of(self.folder, self.primary)


def of_command(command: Command, text: str, beside: Path | None, source: str) -> Configuration | None:
    """The configuration of a command's script, None if there is no checkout.

    Args:
        command: the command.
        text: the whole text around it, which may change the folder (`cd DIR && ...`).
        beside: the folder of the file that contains the command. None for a command that the user typed, whose script
            is below the current folder.
        source: the recipe, for messages.

    Raises:
        RecipeError: the command names a configuration that is not there.
    """
    if command.script not in HYDRA_SCRIPTS:
        return None
    options = read_options(command.arguments)
    moved = _MOVED.findall(text)
    start = _expanded(moved[0]) if len(moved) == 1 else Path()
    places = [start] if beside is None else [beside / start, beside, beside.parent]
    found = next((each for place in places if (each := _of_script(place / command.path, options))), None)
    if found is None and beside is not None:
        name = options.config_name or "config"
        folders = (beside / "config", beside.parent / "config", beside)
        near = (Configuration(folder=each, primary=name) for each in folders if (each / "model").is_dir())
        found = next((each for each in near if is_file(each.file)), None)
    if found is None and options.config_path and Path(options.config_path).is_absolute():
        named = with_options(Configuration(folder=start), options, start)
        found = named if is_file(named.file) else None
    _refuse_others(options, found, source)
    return found


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no such user
        return Path(path)


def _of_script(script: Path, options: HydraOptions) -> Configuration | None:
    """The configuration that a script reads, None if the script or its configuration is not there."""
    if not is_file(script):
        return None
    made = with_options(of_script(script), options, script.parent)
    return made if is_file(made.file) else None


def of_script(script: Path) -> Configuration:
    """What the decorator `@hydra.main` of a script names, by default `config/config.yaml`."""
    found = _MAIN.search(text_of(script, "script"))
    named = {name: its[1] for name, each in _NAMED.items() if found and (its := each.search(found[1]))}
    folder = script.parent / named.get("config_path", "config")
    return Configuration(folder=folder, primary=named.get("config_name", "config").removesuffix(".yaml"))


def with_options(made: Configuration, options: HydraOptions, place: Path) -> Configuration:
    """The configuration with what `--config-path` and `--config-name` say. `place` is the script's folder."""
    folder = place / options.config_path if options.config_path else made.folder
    return Configuration(folder=folder, primary=(options.config_name or made.primary).removesuffix(".yaml"))


def _refuse_others(options: HydraOptions, found: Configuration | None, source: str) -> None:
    """Refuses a command that names a configuration that planner has not found."""
    if options.config_dir is not None:
        raise recipe_error(source, f"--config-dir {cut(options.config_dir)}: planner reads one folder. Write its path")
    if found is None and (options.config_path or options.config_name not in {None, "config", "config.yaml"}):
        named = {"--config-path": options.config_path, "--config-name": options.config_name}
        said = " ".join(f"{name} {value}" for name, value in named.items() if value)
        raise recipe_error(
            source, f"{cut(said)}: found no such configuration. Run planner in the checkout, or write its folder"
        )


def of_folder(place: Path, arguments: tuple[str, ...]) -> Configuration | None:
    """The configuration in a folder that the user names: the folder itself, or that of a checkout. None if none is.

    Raises:
        RecipeError: `--config-name` behind it names a file that is not there.
    """
    options = read_options(arguments)
    scripts = [place / name for name in HYDRA_SCRIPTS if is_file(place / name)]
    candidates = [Configuration(folder=place), *map(of_script, scripts), Configuration(folder=place / "config")]
    for each in candidates:
        if not is_there(each.folder, each.primary):
            continue
        made = with_options(each, options, place)
        if not is_file(made.file):
            near = options_of(made.folder, "")
            raise recipe_error(
                str(made.file), f"found no such file{f', but these: {near}' if near else ''}. Correct its name"
            )
        return made
    return None

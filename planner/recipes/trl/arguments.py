"""The words of a command that starts a script of TRL or of the alignment-handbook."""

from collections.abc import Sequence

from planner.files.messages import cut
from planner.recipes.config_reader import recipe_error
from planner.recipes.scalars import has_shell, shell_names
from planner.recipes.source import YAML
from planner.recipes.trl.keys import ALONE


def open_arguments(written: Sequence[str]) -> list[str]:
    """Those arguments of a command that may be any options, such as `$ARGS` and `$@`."""
    return [
        argument
        for before, argument in zip(("", *written), written, strict=False)
        if argument.startswith(("$", "`")) and has_shell(argument) and not _takes_value(before)
    ]


def _takes_value(option: str) -> bool:
    """Whether the word behind an option is its value. A boolean option stands alone, too."""
    key = option.removeprefix("--").replace("-", "_")
    return option.startswith("--") and "=" not in option and key not in ALONE and not key.startswith("no_")


def is_file_name(argument: str) -> bool:
    """Whether an argument is the name of a file of options, and no option."""
    return argument.endswith(YAML) and not argument.startswith("-")


def first_of(arguments: list[str], script: str, source: str) -> str:
    """Removes the file that the older handbook's scripts take as their first argument, and returns its name.

    Raises:
        RecipeError: the script is TRL's, which needs `--config` before the file.
    """
    if script.startswith("run_"):
        return named(arguments.pop(0), source)
    file = cut(arguments[0])
    raise recipe_error(source, f"found {file} without --config, which TRL needs before it. Write --config {file}")


def config_of(arguments: list[str], source: str) -> str:
    """Removes `--config` and its file from the arguments, and returns the file's name, empty if there is none."""
    for at, argument in enumerate(arguments):
        if argument.startswith("--config="):
            return named(arguments.pop(at).partition("=")[2], source)
        if argument == "--config" and at + 1 < len(arguments):
            arguments.pop(at)
            return named(arguments.pop(at), source)
    return ""


def named(file: str, source: str) -> str:
    """The file's name, which must not contain shell variables."""
    if has_shell(file):
        env = " ".join(f"--env {name}=VALUE" for name in shell_names(file)) or "the file's name"
        raise recipe_error(source, f"--config: found {cut(file)}, a shell variable that is not set. Write {env}")
    return file

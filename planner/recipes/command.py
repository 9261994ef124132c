"""Finds the one training command in a shell script or a command line, with its launcher's options and its arguments."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from planner.recipes.config_reader import recipe_error

KNOWN_COMMANDS = "train.py, launch.py, sft.py, trl dpo, ..."
HYDRA_SCRIPTS = {"train.py": "the DPO repository", "launch.py": "HALOs"}
"""scripts that take Hydra overrides, and their systems. All other scripts are TRL's"""

_SCRIPT = re.compile(
    r"(?:^|[/\s])(train\.py|launch\.py|(?:run_)?(?:sft|cpt|dpo|orpo|kto|grpo)\.py|"
    r"trl\.scripts\.(?:sft|dpo|orpo|kto|grpo))(?=\s|$)"
)
_TRL = re.compile(r"(?:^|\s)trl\s+(sft|dpo|orpo|kto|grpo)(?=\s|$)")
# The beginning of a command line that starts any program. It has an argument, so a path alone does not match.
_PROGRAM = re.compile(
    r"(?:^|\n)[ \t]*(?:[A-Za-z_]\w*=\S*[ \t]+)*(?:\S*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed|trl|uv|srun|ray|"
    r"bash|axolotl|llamafactory-cli|tune|litgpt|swift|megatron|composer)[ \t]+\S"
)
_OTHER_TRL = re.compile(r"(?:^|\s)trl\s+([a-z][\w-]*)")
# A backslash at a line's end, even with a comment behind it, as in READMEs.
_CONTINUED = re.compile(r"\\[ \t]*(#[^\n]*)?\n")
_ASSIGNMENT = re.compile(
    r"(?:^|;|&&)[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|]*)", re.MULTILINE
)
_EXPORT = re.compile(r"(?:^|;|&&)[ \t]*export[ \t]+([A-Z_][A-Z0-9_]*)=(\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|]*)", re.MULTILINE)
# `$NAME`, `${NAME}`, `${NAME:-default}`, `$1`.
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^{}$]*))?\}|([A-Za-z_]\w*|\d))")
_END = re.compile(r"^([|;&]+|\d*>.*|<.*)$")
_MAX_VARIABLES_IN_VARIABLES = 8
# The beginning of a second option in one text.
_NEXT_OPTION = re.compile(r"\s(?:--[A-Za-z]|\+*[A-Za-z_][\w./@-]*=)")
_PASSED_ON = {
    "--num_processes": "--num_processes",
    "--accelerate_config": "--config_file",
    "--config_file": "--config_file",
}


@dataclass(frozen=True, kw_only=True)
class Command:
    """One training command. Variables that the script sets are filled in. Others are left as `$NAME`."""

    script: str
    """the program: `train.py`, `launch.py`, `dpo.py`, or `dpo` for `trl dpo`"""
    path: str
    """the program with its folder, as written"""
    launcher: Mapping[str, str]
    """options before the script, such as `--config_file`, and variables such as `CUDA_VISIBLE_DEVICES`"""
    environment: Mapping[str, str]
    """variables that the script exports or sets for the program"""
    launched: tuple[str, ...]
    """everything before the script, also the launcher's options"""
    arguments: tuple[str, ...]
    """everything behind the script, up to a pipe or a redirection"""
    group_size: int | None
    """completions per prompt of a sampling command in the same script, None if there is none"""


def is_command(text: str) -> bool:
    """Whether the text contains a training command that planner knows."""
    return bool(_SCRIPT.search(text) or _TRL.search(text))


def starts_program(text: str) -> bool:
    """Whether a line of the text starts Python or a launcher, with any script."""
    return bool(_PROGRAM.search(continued(text)))


def continued(text: str) -> str:
    """The text with lines joined where a backslash continues them."""
    return _CONTINUED.sub(" ", text)


def other_of_trl(text: str) -> str:
    """The name of the first `trl` command in the text, such as `reward`. Empty if there is none."""
    found = _OTHER_TRL.search(text)
    return found[1] if found else ""


def command_of(text: str, source: str, env: Mapping[str, str] | None = None) -> Command:
    """The one training command in a script or a command line.

    Args:
        text: the script or the command line.
        source: where the text is from, for messages.
        env: values of shell variables. They win over values that the script sets.

    Raises:
        RecipeError: there is no training command, there are several, or its quotes do not match.
    """
    lines = [line.strip() for line in continued(text).splitlines()]
    found = [line for line in lines if not line.startswith("#") and is_command(line)]
    if not found:
        raise recipe_error(source, f"found no training command ({KNOWN_COMMANDS}). Write one")
    if len(dict.fromkeys(found)) > 1:
        raise recipe_error(source, f"found {len(found)} training commands. Keep one, or write the command itself")
    known = _variables(text, env or {}) | dict(env or {})
    arguments = [part for argument in _split(found[0], source) for part in _filled_arguments(argument, known)]
    at, script = _find_script(arguments)
    behind = list(takewhile(lambda argument: not _END.match(argument), arguments[at + 1 :]))
    launcher = _launcher(arguments[:at])
    if arguments[at - 1] == "trl":
        launcher |= _taken(behind)
    sampled = re.search(r"--num_samples_per_prompt[= ]+(\d{1,6})", continued(text))
    return Command(
        script=script,
        path=arguments[at],
        launcher=launcher,
        environment=_exported(text, known) | _assigned(arguments[:at]),
        launched=tuple(arguments[:at]),
        arguments=tuple(behind),
        group_size=int(sampled[1]) if sampled else None,
    )


def _split(line: str, source: str) -> list[str]:
    """The arguments in a line, also in one inside `bash -c "..."` with escaped quotes and dollars."""
    line = line.replace('\\"', '"').replace("\\$", "$").strip("`")
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise recipe_error(source, f"found a command that a shell cannot split ({error}). Correct its quotes") from None


def _filled_arguments(argument: str, known: Mapping[str, str]) -> list[str]:
    """An argument with its variables filled in. It becomes several if a variable or the quotes hold several options."""
    filled = _fill(argument, known)
    is_several = argument.startswith("$") and "=" in filled
    is_several |= argument.startswith(("-", "+")) and bool(_NEXT_OPTION.search(filled))
    return filled.split() if is_several else [filled]


def _find_script(arguments: list[str]) -> tuple[int, str]:
    """The index of the training script, and its name."""
    for at, argument in enumerate(arguments):
        # In `uv run --with trl trl dpo` the first `trl` is the package.
        if argument == "trl" and _TRL.match(" ".join(arguments[at : at + 2])):
            return at + 1, arguments[at + 1]
        if found := _SCRIPT.search(f" {argument}"):
            module = found[1].removeprefix("trl.scripts.")  # behind `python -m`
            return at, found[1] if module == found[1] else f"{module}.py"
    return len(arguments) - 1, arguments[-1]


def _launcher(arguments: list[str]) -> dict[str, str]:
    """Options and variables before the script, by name."""
    options: dict[str, str] = {}
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=False):
        name, sign, value = argument.partition("=")
        if name.startswith("--"):
            options[name] = value if sign else "" if after.startswith("-") else after
        elif sign and name.isupper():
            options[name] = value
    return options


def _assigned(arguments: list[str]) -> dict[str, str]:
    """The variables that are set for the program: `NAME=VALUE` before it."""
    pairs = (argument.partition("=") for argument in arguments if not argument.startswith("-"))
    return {name: value for name, sign, value in pairs if sign and name.isidentifier() and name.isupper()}


def _exported(text: str, known: Mapping[str, str]) -> dict[str, str]:
    """The variables that the script exports, the last value of each, with known variables filled in."""
    return {name: _fill(value.strip("\"'"), known) for name, value in _EXPORT.findall(text.replace("\\$", "$"))}


def _taken(arguments: list[str]) -> dict[str, str]:
    """Removes from `arguments` the options that `trl sft` passes on to accelerate, and returns them."""
    taken = {}
    for option, name in _PASSED_ON.items():
        for at, argument in reversed(list(enumerate(arguments))):
            if argument == option and at + 1 < len(arguments):
                taken[name] = arguments.pop(at + 1)
                del arguments[at]
            elif argument.startswith(f"{option}="):
                taken[name] = arguments.pop(at).partition("=")[2]
    return taken


def _variables(text: str, env: Mapping[str, str]) -> dict[str, str]:
    """Variables that the script sets exactly once, to a value that needs no script argument and no command."""
    values: dict[str, set[str]] = {}
    for name, value in _ASSIGNMENT.findall(text.replace("\\$", "$")):
        values.setdefault(name, set()).add(value.strip("\"'"))
    single = {name: _fill(next(iter(its)), env) for name, its in values.items() if len(its) == 1}
    return {name: value for name, value in single.items() if not re.search(r"\$[0-9@*(]|`", value)}


def _fill(argument: str, known: Mapping[str, str]) -> str:
    """The text with known variables filled in. `${NAME:-default}` becomes its default only if NAME is unknown."""

    def value(found: re.Match[str]) -> str:
        return known.get(found[1] or found[3], found[0])

    for _ in range(_MAX_VARIABLES_IN_VARIABLES):
        filled = _VARIABLE.sub(value, argument)
        if filled == argument or len(filled) > 10_000:
            break
        argument = filled
    return _VARIABLE.sub(lambda found: found[0] if found[2] is None else found[2], argument)

"""Wrong commands, options and values -> one sentence that says what is wrong, and one that says what to do.

typer would draw boxes. Loaded only after an error: it may import every command, to find those that have an option.
"""

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from planner.base.disk import is_file, is_folder
from planner.base.text import enumerated
from planner.cli.commands import COMMANDS, load
from planner.cli.other_words import COMMANDS as OTHER_COMMANDS
from planner.cli.other_words import OPTIONS as OTHER_OPTIONS
from planner.errors import MAX_CHARS, shortened

# A name of two letters is close to half of all others.
_CLOSE = 0.7
# An option of another command must be closer.
_VERY_CLOSE = 0.8
_JOB_SUFFIXES, _RECIPE_SUFFIXES = (".yaml", ".yml"), (".sh", ".json", ".toml", ".cfg", ".conf")


def unknown_command(word: str) -> str:
    """The message about a word that is no command: the nearest command, what does that here, or what takes a file."""
    return shortened(f"no such command: {word or repr(word)}. {_instead_of(word)}", MAX_CHARS)


def usage_message(error: Any) -> str:
    """The message for typer's usage error (an unknown option, a missing argument, a bad value)."""
    command = error.ctx.command_path if error.ctx is not None else "planner"
    if (option := getattr(error, "option_name", None)) is not None:
        text = _option_text(error, str(option), command)
    elif type(error).__name__ == "MissingParameter":
        text = _missing(error.param, command)
    elif getattr(error, "param", None) is not None:
        text = _bad_value(error, command)
    else:
        text = _other(error, command)
    return shortened(text, MAX_CHARS)


def _instead_of(word: str) -> str:
    lower = word.lower().replace("_", "-")
    if lower in COMMANDS:
        return f"Write planner {lower}"
    if lower in OTHER_COMMANDS:
        return _sentence(OTHER_COMMANDS[lower])
    if word and (taken := _takers(word)):
        return taken
    begun = [name for name in COMMANDS if lower and name.startswith(lower)]
    near = begun[:1] or get_close_matches(lower, [*COMMANDS, *OTHER_COMMANDS], n=1, cutoff=_CLOSE)
    if near and near[0] in COMMANDS:
        return f"Did you mean planner {near[0]}?"
    if near:
        return f"If you meant {near[0]}: {OTHER_COMMANDS[near[0]]}"
    return "planner --help lists the commands"


def _takers(word: str) -> str:
    """Which commands take this file or folder. Empty if it is neither, and does not look like one."""
    path = Path(word)
    suffix = path.suffix.lower()
    if is_folder(path):
        return _for_folder(word, path)
    if suffix in _JOB_SUFFIXES:
        return f"A job file comes after a command: planner plan {word} shows its batch, planner run {word} trains it"
    if suffix == ".py":
        return (
            f"A loop of your own is named by data.path of a job (planner run JOB), and a training script is a recipe: "
            f"planner check {word}"
        )
    if suffix in _RECIPE_SUFFIXES:
        return f"A recipe comes after a command: planner check {word} or planner convert {word}"
    if "/" in word or is_file(path):
        return f"A file comes after a command: planner run {word} for a job, planner check {word} for a recipe"
    return ""


def _for_folder(word: str, path: Path) -> str:
    if (path / "run.json").exists():
        return f"A run comes after a command: planner show {word}, planner watch {word} or planner audit {word}"
    return f"A folder comes after a command: planner runs {word} lists its runs, planner run FILE trains a job file"


def _option_text(error: Any, option: str, command: str) -> str:
    if type(error).__name__ != "NoSuchOption":
        takes_none = "does not take" in str(error.message)
        return f"{option} takes no value. Write {option}" if takes_none else f"{option} needs a value after it"
    return f"{_short(command)} has no option {option}. {_other_option(error, option, command)}"


def _other_option(error: Any, option: str, command: str) -> str:
    """What does the same here, else the nearest option of the command, else the commands that have it or a near one."""
    own = _options(error.ctx.command, error.ctx) if error.ctx is not None else []
    instead = OTHER_OPTIONS.get(option, "")
    if instead and ("--set" in own or "--set" not in instead):
        return _sentence(instead)
    if near := get_close_matches(option, own, n=1, cutoff=_CLOSE):
        return f"Did you mean {near[0]}?"
    owners = {name: _options(load(name), None) for name in COMMANDS}
    if others := _owners(owners, option):
        return f"{others} it"
    every = sorted({each for names in owners.values() for each in names})
    if near := get_close_matches(option, every, n=1, cutoff=_VERY_CLOSE):
        return f"{_owners(owners, near[0])} {near[0]}"
    return f"{command} --help lists its options"


def _owners(owners: dict[str, list[str]], option: str) -> str:
    """The commands that have an option, such as `planner run and planner submit have`. Empty if none has it."""
    found = [f"planner {name}" for name, names in owners.items() if option in names]
    return f"{enumerated(found)} {'has' if len(found) == 1 else 'have'}" if found else ""


def _short(command: str) -> str:
    """The command without `planner`, with which the message begins anyway."""
    return command.partition(" ")[2] or command


def _options(command: Any, ctx: Any) -> list[str]:
    """The names of a command's options, both spellings of each."""
    parameters = command.get_params(ctx) if ctx is not None else command.params
    return [name for each in parameters for name in each.opts if name.startswith("-")]


def _missing(param: Any, command: str) -> str:
    name = _name(param)
    variable = f", or set {param.envvar}" if getattr(param, "envvar", None) else ""
    if name.startswith("-"):
        return f"{_short(command)} needs {name}. Write {command} ... {name} {_metavar(param)}{variable}"
    about = f", {param.help}" if getattr(param, "help", None) else ""
    return f"{_short(command)} needs {name}{about}. Write {command} {name}{variable}"


def _bad_value(error: Any, command: str) -> str:
    """What the value of an option must be, by pydantic's errors below typer's, or by typer's own text."""
    name = _name(error.param)
    try:
        found = error.__cause__.errors()[0]
        value, kind = found["input"], str(found["type"])
    except (AttributeError, LookupError):
        return f"{name}: {str(error.message).rstrip('.')}. {command} --help shows what it takes"
    choices = _choices(error.param)
    if choices:
        near = get_close_matches(str(value).lower(), choices, n=1)
        asked = f". Did you mean {near[0]}?" if near else ""
        return f"{name} {value}: write {enumerated(choices, 'or')}{asked}"
    if number := _number(error.param, kind):
        return f"{name} {value}: write {number}"
    return f"{name} {value}: {str(error.message).rstrip('.')}. {command} --help shows what it takes"


def _number(param: Any, kind: str) -> str:
    """What an option that is a number takes, such as `a whole number from 0 to 64`. Empty if typer does not say it."""
    described = getattr(param, "type_descriptor", None)
    info = getattr(described, "parameter_info", None)
    least, most = getattr(info, "min", None), getattr(info, "max", None)
    number = "a whole number" if getattr(described, "annotation", None) is int or kind.startswith("int") else "a number"
    if most is not None:
        return f"{number} from {least or 0:g} to {most:g}"
    if least is not None:
        return f"{number} of at least {least:g}"
    return number if kind.startswith(("int", "float")) else ""


def _choices(param: Any) -> list[str]:
    choices = getattr(getattr(param, "type_descriptor", None), "choices", None) or ()
    return [str(getattr(choice, "value", choice)) for choice in choices]


def _other(error: Any, command: str) -> str:
    text = str(error.message).rstrip(".")
    if "unexpected extra argument" not in text:
        return f"{_short(command)}: {text}. {command} --help explains it"
    extra = re.sub(r".*?argument(?:\(s\)|s)? \((.*)\)$", r"\1", text, flags=re.DOTALL)
    taken = [_name(param) for param in error.ctx.command.params if param.param_type_name == "argument"]
    takes = f"takes {' '.join(taken)} alone" if taken else "takes no arguments"
    first = extra.partition(" ")[0]
    has_set = "=" in first and "--set" in _options(error.ctx.command, None)
    advice = f"A value of the job needs --set: --set {first}" if has_set else f"{command} --help lists its options"
    return f"{_short(command)} {takes}, not also {extra}. {advice}"


def _name(param: Any) -> str:
    """`--nodes` for an option, `JOB` for an argument."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.metavar or param.name).strip("{}[].").upper()


def _metavar(param: Any) -> str:
    return str(param.metavar or "VALUE")


def _sentence(text: str) -> str:
    """The text with a capital first letter, except at the name of a command."""
    return text if text.startswith(("planner", "-")) else text[:1].upper() + text[1:]

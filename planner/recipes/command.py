"""Finds the one training command in a shell script or a command line, with its launcher's options and its arguments.

The package `shell` reads the script as bash does. This file decides which of its commands is the training.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.files.messages import cut
from planner.recipes.config_reader import recipe_error
from planner.recipes.scalars import has_shell
from planner.recipes.shell.brackets import ShellError
from planner.recipes.shell.documents import Script, continued, scripts_in
from planner.recipes.shell.programs import (
    MODULES,
    TRAINERS,
    any_script_at,
    module_named,
    nested_script,
    script_at,
    script_named,
    trainer_named,
)
from planner.recipes.shell.runs import Follower, Started
from planner.recipes.shell.values import Shell

__all__ = [
    "HYDRA_SCRIPTS",
    "Command",
    "command_of",
    "continued",
    "is_command",
    "other_of_trl",
    "starts_program",
]

HYDRA_SCRIPTS = ("train.py", "launch.py")
"""scripts that take Hydra overrides. All other scripts are TRL's"""

_COMMANDS = "|".join(rf"{name}\s+(?:{'|'.join(commands)})" for name, commands in TRAINERS.items())
# A text without this has no training command. `$` may stand for anything.
_HINT = re.compile(
    r"(?:^|[/\s\"'`])(train(?:_bash)?\.py|launch\.py|(?:run_)?(?:sft|cpt|dpo|orpo|kto|grpo)\.py|"
    r"(?:\w+_finetune|\w+_dpo|qat|knowledge_distillation)_(?:single_device|distributed(?:_multi_dataset)?)\.py|"
    r"trl\.scripts\.(?:sft|dpo|orpo|kto|grpo))(?=$|[\s\"'`;&|<>)\\])|"
    r"(?:^|[/\s\"'`])tune\s+run(?=\s)|"
    rf"(?:^|[\s\"'`])(?:trl\s+(?:sft|dpo|orpo|kto|grpo)|{'|'.join(map(re.escape, MODULES))}|"
    rf"{_COMMANDS})(?!\w)"
)
# The beginning of a command line that starts any program. It has an argument, so a path alone does not match.
_PROGRAM = re.compile(
    r"(?:^|\n)[ \t]*(?:[A-Za-z_]\w*=\S*[ \t]+)*(?:\S*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed|trl|uv|srun|ray|"
    rf"bash|{'|'.join(TRAINERS)}|tune|litgpt|megatron|composer)[ \t]+\S"
)
_OTHER_TRL = re.compile(r"(?:^|\s)trl\s+([a-z][\w-]*)")
# A line of prose that cannot be read, but begins as a training command does.
_BEGINS_TRAINING = re.compile(r"\S*(?:python[\d.]*|torchrun|accelerate|deepspeed|trl|uvx?|srun|[\w/]*\.py)\s")
# A word that is no program, so that a backslash is missing at the end of the line before it.
_IS_ARGUMENT = re.compile(r"--\w|\++[A-Za-z_][\w.]*=|[A-Za-z_]\w*\.[\w.]+=", re.ASCII)
_LAST_BACKSLASH = re.compile(r"(?<!\\)((?:\\\\)*)\\\Z")
# Arguments that a script hands to the Trainer.
_OF_TRAINER = re.compile(r"^--(?:per_device_train_batch_size|gradient_accumulation_steps)\b|\.(?:ya?ml|json)$")
_SAMPLES = "--num_samples_per_prompt"
_PASSED_ON = {
    "--num_processes": "--num_processes",
    "--accelerate_config": "--config_file",
    "--config_file": "--config_file",
}
_MOST_NAMED = 4
_MOST_FOUND = 20
_SHOWN = 90


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


@dataclass(frozen=True, kw_only=True)
class _Training:
    """A training command as the script starts it."""

    words: tuple[str, ...]
    """with the variables before it, `NAME=VALUE`"""
    at: int
    """the index of its script"""
    environment: Mapping[str, str]
    line: int = field(compare=False)


@dataclass(kw_only=True)
class _Finder:
    """Collects the training commands of a script."""

    source: str
    found: list[_Training] = field(default_factory=list)
    any_script: bool = False
    """whether a script of any name is a training, if its arguments have a size of the Trainer's or a file"""
    group_size: int | None = None
    last: _Training | None = None
    """the training command if the command before was one"""
    unknown: str = ""
    """a command that a shell makes of a variable whose value planner does not know, with its line"""

    def visit(self, started: Started) -> None:
        """Note a command if it is a training, or says how many completions a prompt has."""
        at = script_at(started.words)
        if at is None and self.any_script and any(map(_OF_TRAINER.search, started.words)):
            at = any_script_at(started.words)
        if at is None:
            self._note_other(started)
            return
        if started.has_braces:
            raise ShellError(f"line {started.line}: found {{}} without quotes, of which a shell makes several words")
        before = tuple(f"{name}={value}" for name, value in started.assigned.items())
        self.last = _Training(
            words=(*before, *started.words),
            at=len(before) + at,
            environment={**started.shell.environment(), **started.assigned},
            line=started.line,
        )
        if self.last not in self.found:
            self.found.append(self.last)
        if len(self.found) > _MOST_FOUND:
            raise several(self.found, self.source)

    def _note_other(self, started: Started) -> None:
        first = started.words[0]
        if self.last and _IS_ARGUMENT.match(first):
            raise ShellError(
                f"line {started.line} begins with {cut(first)}, which a shell runs as a command of its own",
                "Write a backslash at the end of the line before it, and no remark or empty line between them",
            )
        self.last = None
        text, _ = nested_script(started.words) or ("", ())
        is_open = has_shell(text) or (first.startswith("$") and has_shell(first))
        if is_open and not self.unknown and not is_command(text):
            self.unknown = f"line {started.line} runs {cut(' '.join(started.words), _SHOWN)}"
        for word, after in zip(started.words, [*started.words[1:], ""], strict=True):
            name, sign, value = word.partition("=")
            size = value if sign else after
            if name == _SAMPLES and self.group_size is None and re.fullmatch(r"\d{1,6}", size, re.ASCII):
                self.group_size = int(size)


def is_command(text: str) -> bool:
    """Whether the text contains the name of a training script or command that planner knows."""
    return bool(_HINT.search(text))


def starts_program(text: str) -> bool:
    """Whether a line of the text starts Python or a launcher, with any script."""
    return bool(_PROGRAM.search(continued(text)))


def other_of_trl(text: str) -> str:
    """The name of the first `trl` command in the text, such as `reward`. Empty if there is none."""
    found = _OTHER_TRL.search(text)
    return found[1] if found else ""


def command_of(
    text: str, source: str, env: Mapping[str, str] | None = None, *, any_script: bool = False, programs: str = ""
) -> Command:
    """The one training command in a script or a command line.

    Args:
        text: the script or the command line, or a document with one.
        source: where the text is from, for messages. The suffix of its path tells a document from a script.
        env: values of shell variables. They win over values that the script sets.
        any_script: whether a script of any name is a training, if it hands a size or a file to the Trainer.
        programs: programs that start a training, for the refusal.

    Raises:
        RecipeError: there is no training command, there are several, or a shell refuses the script.
    """
    finder = _Finder(source=source, any_script=any_script)
    for script in scripts_in(text.replace("\r\n", "\n"), source):
        if any_script or is_command(script.text) or _SAMPLES in script.text:
            _follow(script, finder, env or {})
    if not finder.found:
        unknown = f", but {finder.unknown}, whose value planner does not know" if finder.unknown else ""
        fix = "Write the training command in single quotes as the recipe" if unknown else "Write one"
        raise recipe_error(source, f"found no training command{programs and f' ({programs})'}{unknown}. {fix}")
    if len(finder.found) > 1:
        raise several(finder.found, source)
    return _command(finder.found[0], finder.group_size)


def _follow(script: Script, finder: _Finder, env: Mapping[str, str]) -> None:
    """Reads the commands of a script, and those of its functions if only functions have a training command."""
    shell, finder.last = Shell(given=env), None
    follower = Follower(visit=finder.visit, hints=_PROGRAM if finder.any_script else _HINT)
    try:
        # bash ignores a backslash that ends a file, and a command that was cut out of a README may have one.
        follower.follow(_LAST_BACKSLASH.sub(r"\1", script.text), shell, script.before)
        for name in [] if finder.found else list(shell.functions):
            if name not in follower.called:
                follower.call(name, shell, None)
    except ShellError as error:
        if not script.is_line or _BEGINS_TRAINING.match(script.text):
            fix = "" if error.fix else ". Correct that, or write the training command in quotes as the recipe"
            raise recipe_error(finder.source, f"found a script that planner cannot read: {error}{fix}") from None


def several(found: Sequence[_Training], source: str) -> Exception:
    """The refusal of a script with several training commands, which names them."""
    named = ", ".join(f"line {its.line}: {cut(' '.join(its.words), _SHOWN)}" for its in found[:_MOST_NAMED])
    more = f", and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return recipe_error(
        source,
        f"found {len(found)} training commands ({named}{more}). Write the one that you mean in single quotes "
        "as the recipe, or keep only that one in a copy of the script",
    )


def _command(its: _Training, group_size: int | None) -> Command:
    launched, path, behind = its.words[: its.at], its.words[its.at], list(its.words[its.at + 1 :])
    launcher = _launcher(launched)
    if launched[-1:] == ("trl",):
        launcher |= _taken(behind)
    return Command(
        script=trainer_named(its.words, its.at) or script_named(path) or module_named(path) or path,
        path=path,
        launcher=launcher,
        environment={**its.environment, **_assigned(launched)},
        launched=launched,
        arguments=tuple(behind),
        group_size=group_size,
    )


def _launcher(arguments: Sequence[str]) -> dict[str, str]:
    """Options and variables before the script, by name."""
    options: dict[str, str] = {}
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=False):
        name, sign, value = argument.partition("=")
        if name.startswith("--"):
            options[name] = value if sign else "" if after.startswith("-") else after
        elif sign and name.isupper():
            options[name] = value
    return options


def _assigned(arguments: Sequence[str]) -> dict[str, str]:
    """The variables that are set for the program: `NAME=VALUE` before it, also behind `env`."""
    pairs = (argument.partition("=") for argument in arguments if not argument.startswith("-"))
    return {name: value for name, sign, value in pairs if sign and name.isidentifier() and name.isupper()}


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

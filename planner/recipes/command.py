"""Shell scripts and command lines -> the one training command in them, its launcher's options and its arguments."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from planner.recipes.texts import recipe_error

KNOWN_COMMANDS = "train.py, launch.py, sft.py, trl dpo, ..."
HYDRA_SCRIPTS = {"train.py": "the DPO repository", "launch.py": "HALOs"}
"""those among them whose words are Hydra's; all others are TRL's"""

_SCRIPT = re.compile(
    r"(?:^|[/\s])(train\.py|launch\.py|(?:run_)?(?:sft|cpt|dpo|orpo|kto|grpo)\.py|"
    r"trl\.scripts\.(?:sft|dpo|orpo|kto|grpo))(?=\s|$)"
)
_TRL = re.compile(r"(?:^|\s)trl\s+(sft|dpo|orpo|kto|grpo)(?=\s|$)")
# The beginning of a command line that starts any program. It has several words, so a path does not match.
_PROGRAM = re.compile(
    r"(?:^|\n)[ \t]*(?:[A-Za-z_]\w*=\S*[ \t]+)*(?:\S*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed|trl|uv|srun|ray|"
    r"bash|axolotl|llamafactory-cli|tune|litgpt|swift|megatron|composer)[ \t]+\S"
)
_OTHER_TRL = re.compile(r"(?:^|\s)trl\s+([a-z][\w-]*)")
# A backslash at a line's end, also where a remark follows it, as in READMEs.
_CONTINUED = re.compile(r"\\[ \t]*(#[^\n]*)?\n")
_ASSIGNMENT = re.compile(
    r"(?:^|;|&&)[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|]*)", re.MULTILINE
)
# `$NAME`, `${NAME}`, `${NAME:-default}`, `$1`.
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^{}$]*))?\}|([A-Za-z_]\w*|\d))")
_END = re.compile(r"^([|;&]+|\d*>.*|<.*)$")
_MAX_VARIABLES_IN_VARIABLES = 8
_PASSED_ON = {
    "--num_processes": "--num_processes",
    "--accelerate_config": "--config_file",
    "--config_file": "--config_file",
}


@dataclass(frozen=True, kw_only=True)
class Command:
    """One training command; variables that the script itself sets are filled in, others stand as `$NAME`."""

    script: str
    """the program: `train.py`, `launch.py`, `dpo.py`, or `dpo` for `trl dpo`"""
    path: str
    """the program with its folder, as it was written"""
    launcher: Mapping[str, str]
    """options before the script, such as `--config_file`; and variables such as `CUDA_VISIBLE_DEVICES`"""
    launched: tuple[str, ...]
    """the words before the script, the launcher's own options among them"""
    words: tuple[str, ...]
    """what stands behind the script"""
    group_size: int | None
    """completions per prompt that a sampling command of the same script makes"""


def is_command(text: str) -> bool:
    """Whether a training command stands in it."""
    return bool(_SCRIPT.search(text) or _TRL.search(text))


def starts_program(text: str) -> bool:
    """Whether a line of it starts Python or a launcher, whatever that runs."""
    return bool(_PROGRAM.search(continued(text)))


def continued(text: str) -> str:
    """The text with each command on one line, whatever its backslashes."""
    return _CONTINUED.sub(" ", text)


def other_of_trl(text: str) -> str:
    """The name of a command of TRL's that planner does not read, such as `reward`; empty if there is none."""
    found = _OTHER_TRL.search(text)
    return found[1] if found else ""


def command_of(text: str, source: str, env: Mapping[str, str] | None = None) -> Command:
    """The one training command in a script or a command line; `env` has variables that the script does not set.

    Raises:
        RecipeError: there is none, there are several, or its quotes do not match.
    """
    lines = [line.strip() for line in continued(text).splitlines()]
    found = [line for line in lines if not line.startswith("#") and is_command(line)]
    if not found:
        raise recipe_error(source, f"found no training command ({KNOWN_COMMANDS}); write one")
    if len(dict.fromkeys(found)) > 1:
        raise recipe_error(source, f"found {len(found)} training commands; keep one, or write the command itself")
    known = _variables(text, env or {}) | dict(env or {})
    words = [part for word in _split(found[0], source) for part in _filled_arguments(word, known)]
    at, script = _find_script(words)
    behind = list(takewhile(lambda word: not _END.match(word), words[at + 1 :]))
    launcher = _launcher(words[:at])
    if words[at - 1] == "trl":
        launcher |= _taken(behind)
    sampled = re.search(r"--num_samples_per_prompt[= ]+(\d{1,6})", continued(text))
    return Command(
        script=script,
        path=words[at],
        launcher=launcher,
        launched=tuple(words[:at]),
        words=tuple(behind),
        group_size=int(sampled[1]) if sampled else None,
    )


def _split(line: str, source: str) -> list[str]:
    """The words of a line, also of one that stands inside `bash -c "..."` with its quotes and dollars escaped."""
    line = line.replace('\\"', '"').replace("\\$", "$").strip("`")
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise recipe_error(source, f"found a command that a shell cannot split ({error}); mend its quotes") from None


def _filled_arguments(word: str, known: Mapping[str, str]) -> list[str]:
    """A word with its variables filled in: several, where a variable or a quoted word holds several options."""
    filled = _fill(word, known)
    is_several = word.startswith(("$", "-", "+")) and " " in filled and "=" in filled
    return filled.split() if is_several else [filled]


def _find_script(words: list[str]) -> tuple[int, str]:
    for at, word in enumerate(words):
        # Not the package: `uv run --with trl trl dpo`.
        if word == "trl" and _TRL.match(" ".join(words[at : at + 2])):
            return at + 1, words[at + 1]
        if found := _SCRIPT.search(f" {word}"):
            module = found[1].removeprefix("trl.scripts.")  # behind `python -m`
            return at, found[1] if module == found[1] else f"{module}.py"
    return len(words) - 1, words[-1]


def _launcher(words: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], ""], strict=False):
        name, sign, value = word.partition("=")
        if name.startswith("--"):
            options[name] = value if sign else "" if after.startswith("-") else after
        elif sign and name.isupper():
            options[name] = value
    return options


def _taken(words: list[str]) -> dict[str, str]:
    """The launcher's options behind `trl sft`, which passes them on to accelerate; they are taken out of the words."""
    taken = {}
    for option, name in _PASSED_ON.items():
        for at, word in reversed(list(enumerate(words))):
            if word == option and at + 1 < len(words):
                taken[name] = words.pop(at + 1)
                del words[at]
            elif word.startswith(f"{option}="):
                taken[name] = words.pop(at).partition("=")[2]
    return taken


def _variables(text: str, env: Mapping[str, str]) -> dict[str, str]:
    """What the script sets, if it sets it once and not from its arguments or from a command; `env` may have those."""
    values: dict[str, set[str]] = {}
    for name, value in _ASSIGNMENT.findall(text.replace("\\$", "$")):
        values.setdefault(name, set()).add(value.strip("\"'"))
    single = {name: _fill(next(iter(its)), env) for name, its in values.items() if len(its) == 1}
    return {name: value for name, value in single.items() if not re.search(r"\$[0-9@*(]|`", value)}


def _fill(word: str, known: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        return known.get(found[1] or found[3], found[0])

    for _ in range(_MAX_VARIABLES_IN_VARIABLES):
        filled = _VARIABLE.sub(value, word)
        if filled == word or len(filled) > 10_000:
            break
        word = filled
    # `${NAME:-default}`: the default counts only if the variable has no value.
    return _VARIABLE.sub(lambda found: found[0] if found[2] is None else found[2], word)

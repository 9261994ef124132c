"""Which program a command's words start: behind `srun`, `env` and the like, and the training script of a launcher."""

import re
from collections.abc import Sequence

from planner.recipes.scalars import has_shell

_SCRIPT = re.compile(
    r"(?:.*/)?((?:train|train_bash|launch|(?:run_)?(?:sft|cpt|dpo|orpo|kto|grpo)|"
    r"(?:(?:full|lora|qat_lora|ppo_full|early_exit)_finetune|(?:full|lora)_dpo|qat|knowledge_distillation)_"
    r"(?:single_device|distributed(?:_multi_dataset)?))\.py)",
    re.DOTALL,
)
_MODULE = re.compile(r"trl\.scripts\.(sft|dpo|orpo|kto|grpo)")
TRAINERS = {"llamafactory-cli": ("train",), "lmf": ("train",), "axolotl": ("train",), "swift": ("sft", "pt", "rlhf")}
"""programs that train with one of their commands"""
# torchtune's recipes that do not train, and options of torchrun without a value.
_TUNE_OTHERS = re.compile(r"(?:dev/)?(?:generate\w*|eleuther_eval|quantize)")
_FLAGS = ("--standalone", "--no-python", "--no_python", "--run-path", "--run_path", "-m", "--module")
MODULES = ("axolotl.cli.train",)
"""modules that train, and that are not TRL's"""
_OF_TRL = ("sft", "dpo", "orpo", "kto", "grpo")
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*|ipython|debugpy")
_SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
_LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "trl")
# Modules behind `python -m` that start the script behind them.
_LAUNCHING = (
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed",
    "deepspeed.launcher.runner", "debugpy", "pdb", "cProfile", "scalene", "torch.utils.bottleneck",
)  # fmt: skip
# Programs that start the program behind their options, and those of their options that have a value.
_PLAIN = {
    "nohup": (), "command": (), "builtin": (), "setsid": (), "caffeinate": (), "exec": ("-a",),
    "env": ("-u", "-C", "-S"), "time": ("-o", "-f"),
    "stdbuf": ("-i", "-o", "-e"), "sudo": ("-u", "-g"), "nice": ("-n",), "ionice": ("-c", "-n"),
}  # fmt: skip
# Programs whose options may have values: the words that must follow, and the number of words before the program.
_STARTING = {
    "srun": ((), 0), "mpirun": ((), 0), "mpiexec": ((), 0), "ibrun": ((), 0), "jsrun": ((), 0), "timeout": ((), 1),
    "numactl": ((), 0), "taskset": ((), 1), "uv": (("run",), 0), "uvx": ((), 0), "poetry": (("run",), 0),
    "pipenv": (("run",), 0), "pdm": (("run",), 0), "pixi": (("run",), 0), "hatch": (("run",), 0), "rye": (("run",), 0),
    "conda": (("run",), 0), "mamba": (("run",), 0), "micromamba": (("run",), 0), "ray": (("job", "submit"), 0),
    "docker": (("run",), 1), "podman": (("run",), 1), "singularity": (("exec",), 1), "apptainer": (("exec",), 1),
    "xvfb-run": ((), 0), "screen": ((), 0), "nsys": (("profile",), 0), "wandb": (("launch",), 0), "salloc": ((), 0),
}  # fmt: skip
_SETS = re.compile(r"[A-Za-z_]\w*=", re.ASCII)


def script_named(word: str) -> str:
    """The name of a training script in a path, `src/sft.py` -> `sft.py`. Empty for any other path."""
    found = _SCRIPT.fullmatch(word)
    return found[1] if found else ""


def module_named(word: str) -> str:
    """The script of a module of TRL, `trl.scripts.dpo` -> `dpo.py`. Empty for any other module."""
    found = _MODULE.fullmatch(word)
    return f"{found[1]}.py" if found else ""


def trainer_named(words: Sequence[str], at: int) -> str:
    """The program and its command, `llamafactory-cli train`, if the word at this index is the command. Else empty."""
    name = _base(words[at - 1]) if at else ""
    if words[at] in TRAINERS.get(name, ()):
        return f"{name} {words[at]}"
    runs = [index for index in range(1, at) if words[index] == "run" and _base(words[index - 1]) == "tune"]
    return "tune run" if runs and recipe_of_tune(words, runs[0]) == at else ""


def recipe_of_tune(words: Sequence[str], at: int) -> int | None:
    """The index of the recipe that `tune run` trains, behind the options of torchrun. None if it trains nothing.

    `at` is the index of `run`.
    """
    if tuple(words[at : at + 1]) != ("run",):
        return None
    at += 1
    while at < len(words) and words[at].startswith("-"):
        at += 1 if "=" in words[at] or words[at] in _FLAGS else 2
    return at if at < len(words) and not _TUNE_OTHERS.fullmatch(words[at]) else None


def script_at(words: Sequence[str]) -> int | None:
    """The index of the training script that a command starts, None if it starts none that planner knows."""
    at = program_at(words)
    if at is None or at >= len(words):
        return None
    name, script = _base(words[at]), None
    if script_named(words[at]):
        script = at
    elif name == "trl":
        script = _of_trl(words, at + 1)
    elif name in TRAINERS:
        script = at + 1 if words[at + 1 : at + 2] and words[at + 1] in TRAINERS[name] else None
    elif name == "tune":
        script = recipe_of_tune(words, at + 1)
    elif _PYTHON.fullmatch(name):
        script = _of_python(words, at + 1)
    elif name == "accelerate":
        script = _of_launcher(words, at + 2) if tuple(words[at + 1 : at + 2]) == ("launch",) else None
    elif name in _LAUNCHERS or has_shell(words[at]):
        script = _of_launcher(words, at + 1)
    return script


def any_script_at(words: Sequence[str]) -> int | None:
    """The index of the script or module that Python or a launcher starts, whatever its name. None if there is none."""
    at = program_at(words)
    if at is None or not (_PYTHON.fullmatch(_base(words[at])) or _base(words[at]) in _LAUNCHERS):
        return None
    for index in range(at + 1, len(words)):
        is_module = words[index - 1] in {"-m", "--module"} and words[index] not in _LAUNCHING
        if is_module or words[index].endswith(".py"):
            return index
    return None


def nested_script(words: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """The text that a command gives to another shell, `bash -c TEXT`, and the arguments behind it.

    None if there is none.
    """
    at = program_at(words)
    if at is None or at >= len(words):
        return None
    name = _base(words[at])
    if name == "eval":
        return " ".join(words[at + 1 :]), ()
    if name == "sbatch":
        return _wrapped(words[at + 1 :])
    return _of_shell(words, at + 1) if name in _SHELLS else None


def reads_script(words: Sequence[str]) -> bool:
    """Whether a command runs the script on its standard input: `bash`, `sbatch` without a file."""
    at = program_at(words)
    if at is None or at >= len(words) or _base(words[at]) not in {*_SHELLS, "sbatch"}:
        return False
    return all(word.startswith("-") for word in words[at + 1 :])


def program_at(words: Sequence[str]) -> int | None:
    """The index of the program behind `srun`, `env`, `uv run` and the like. None if they start none."""
    at = 0
    while at < len(words):
        name = _base(words[at])
        if name in _PLAIN:
            at = _behind_plain(words, at + 1, _PLAIN[name])
        elif name in _STARTING:
            behind = _behind_starting(words, at + 1, *_STARTING[name])
            if behind is None:
                return None
            at = behind
        else:
            return at
    return None


def _behind_plain(words: Sequence[str], at: int, valued: Sequence[str]) -> int:
    while at < len(words):
        if words[at] in valued:
            at += 2
        elif words[at].startswith("-") or _SETS.match(words[at]):
            at += 1
        else:
            break
    return at


def _behind_starting(words: Sequence[str], at: int, needed: Sequence[str], operands: int) -> int | None:
    if tuple(words[at : at + len(needed)]) != tuple(needed):
        return None
    at += len(needed)
    while at < len(words):
        word = words[at]
        if word == "--":
            return at + 1
        if word.startswith("-"):
            at += 1
            # Its value, unless that is the program.
            has_value = "=" not in word and at < len(words) and not words[at].startswith("-")
            at += 1 if has_value and not is_program(words, at) else 0
        elif operands and not is_program(words, at):
            operands -= 1
            at += 1
        else:
            break
    return at


def is_program(words: Sequence[str], at: int) -> bool:
    """Whether the word is a program that starts scripts, or a training script. `trl` needs its command behind it."""
    if at >= len(words):
        return False
    name = _base(words[at])
    if name == "trl":
        return tuple(words[at + 1 : at + 2]) != ("trl",) and _of_trl(words, at + 1) is not None
    known = name in {*_LAUNCHERS, *TRAINERS, "tune"} or name in _SHELLS or name in _PLAIN or name in _STARTING
    return known or bool(_PYTHON.fullmatch(name) or script_named(words[at]))


def _base(word: str) -> str:
    return word.removeprefix("!").rpartition("/")[2]


def _of_trl(words: Sequence[str], at: int) -> int | None:
    return at if at < len(words) and words[at] in _OF_TRL else None


def _of_python(words: Sequence[str], at: int) -> int | None:
    """The script of Python, behind its options."""
    while at < len(words):
        word = words[at]
        if not word.startswith("-"):
            return at if script_named(word) else None
        if word in {"-W", "-X"}:
            at += 1
        elif re.fullmatch(r"-[a-zA-Z]*c", word):
            return None
        elif re.fullmatch(r"-[a-zA-Z]*m", word):
            return _of_module(words, at + 1)
        at += 1
    return None


def _of_module(words: Sequence[str], at: int) -> int | None:
    if at >= len(words):
        return None
    if module_named(words[at]) or words[at] in MODULES:
        return at
    if words[at] == "trl":
        return _of_trl(words, at + 1)
    return _of_launcher(words, at + 1) if words[at] in _LAUNCHING else None


def _of_launcher(words: Sequence[str], at: int) -> int | None:
    """The script behind a launcher's options, whose values may be any words."""
    for index in range(at, len(words)):
        word = words[index]
        if word in {"-m", "--module"}:
            return _of_module(words, index + 1)
        if script_named(word):
            return index
        # A word that is neither an option nor may be one's value is the program.
        is_value = words[index - 1].startswith("-") and "=" not in words[index - 1]
        if word.endswith(".py") or not (index == at or is_value or word.startswith("-") or has_shell(word)):
            return None
    return None


def _of_shell(words: Sequence[str], at: int) -> tuple[str, Sequence[str]] | None:
    """The text behind `-c` and its arguments."""
    for index in range(at, len(words)):
        word = words[index]
        if re.fullmatch(r"-[a-zA-Z]*c", word):
            return (words[index + 1], words[index + 2 :]) if index + 1 < len(words) else None
        if not word.startswith(("-", "+")) and words[index - 1] not in {"-o", "-O"}:
            return None
    return None


def _wrapped(words: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """The text of `sbatch --wrap=TEXT`."""
    for word, after in zip(words, [*words[1:], ""], strict=False):
        if word == "--wrap":
            return after, ()
        if word.startswith("--wrap="):
            return word.removeprefix("--wrap="), ()
    return None

"""Refuses files and commands of systems that planner does not read, and names the system that they look like."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import NoReturn

from planner.files.words import cut
from planner.recipes import known, strangers
from planner.recipes.command import Command, refuse_other
from planner.recipes.entries import Entry, flat
from planner.recipes.texts import recipe_error
from planner.recipes.trl_keys import KNOWN

_HYDRAS = {"train.py": "the DPO repository", "launch.py": "HALOs"}
# Of Hydra's own command line.
_HYDRAS_OPTIONS = ("--config-", "--multirun", "--run", "--cfg", "--package", "--resolve", "--info", "--experimental")
_EXAMPLES = {
    False: "the DPO repository (loss=dpo, model=pythia69, trainer=FSDPTrainer, datasets)",
    True: "HALOs (loss=kto, model=llama, train_datasets, model.batch_size)",
}
_SHELL = (".sh", ".bash", ".zsh", ".slurm", ".sbatch")
_PYTHON_KEY = re.compile(r"^([a-z_]\w*)[ \t]*=[^=]", re.MULTILINE)
# Any script may have fewer of them.
_FEWEST_OPTIONS = 2
_MOST_SHOWN = 4


def refuse_script(text: str, source: str, suffix: str) -> None:
    """Refuse a shell script or a Python file, because neither is YAML.

    Raises:
        RecipeError: the text is one of the two.
    """
    if suffix == ".py":
        strangers.refuse_keys(_PYTHON_KEY.findall(text), source)
        raise recipe_error(source, f"found a Python file; planner reads {strangers.READ}")
    if suffix in _SHELL or text.startswith("#!"):
        refuse_other(text, source)


def refuse_toml(text: str, source: str) -> NoReturn:
    """Refuse TOML: no system that planner reads uses it.

    Raises:
        RecipeError: always.
    """
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError):
        tree = {}
    strangers.refuse_keys(flat(tree, source), source)
    raise recipe_error(source, f"found TOML, and no system that planner reads has it; it reads {strangers.READ}")


def refuse_command(command: Command, words: Sequence[str], source: str) -> None:
    """Refuse a command whose program or options belong to another system.

    Raises:
        RecipeError: it names the system, or the options that the script does not take.
    """
    strangers.refuse_program(" ".join([*command.launched, command.path, *words[:1]]), source)
    strangers.refuse_keys(strangers.option_names(words), source)
    options = [word for word in words if word.startswith("--") and not word.startswith(_HYDRAS_OPTIONS)]
    if command.script not in _HYDRAS or not options:
        return
    trainers = [name for name in strangers.option_names(options) if name in KNOWN]
    if len(trainers) >= _FEWEST_OPTIONS:
        shown = cut(", ".join(trainers[:_MOST_SHOWN]), 120)
        text = f"this looks like a script of its own on transformers' Trainer ({shown}); planner does not read it"
        raise recipe_error(source, f"{text}. It reads {strangers.READ}")
    shown = cut(" ".join(options[:_MOST_SHOWN]), 120)
    text = f"found {command.script} with {shown}, which {_HYDRAS[command.script]} does not take"
    raise recipe_error(source, f"{text}; planner reads {strangers.READ}")


def require_own(
    entries: Mapping[str, Entry], choices: Mapping[str, str], source: str, script: str, *, is_halos: bool
) -> None:
    """Refuse a configuration that is named like one of HALOs or the DPO repository but lacks their keys.

    Raises:
        RecipeError: fewer than two keys are theirs.
    """
    if not is_halos and known.is_legacy_halos(entries, choices):
        text = "this looks like HALOs before launch.py (its branch legacy), whose configuration must be there"
        raise recipe_error(source, f"{text}; write the folder of its checkout, and the overrides behind it")
    if (known.is_halos if is_halos else known.is_dpo)(entries, choices):
        return
    what = script or "a configuration of Hydra's"
    text = f"found {what} with fewer than two keys of {_EXAMPLES[is_halos]}"
    raise recipe_error(source, f"{text}; planner reads {strangers.READ}")

"""Tells the DPO repository's recipes from those of HALOs by their keys: both are Hydra with the same file names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.files.messages import cut
from planner.recipes import unsupported
from planner.recipes.command import HYDRA_SCRIPTS
from planner.recipes.dpo.keys import TITLE
from planner.recipes.entries import COMMAND_LINE, Entry, KeyReader, flat
from planner.recipes.hydra import files, options
from planner.recipes.hydra.compose import Composed, Override, compose, parse_overrides
from planner.recipes.hydra_recipes import signatures
from planner.recipes.scalars import Unresolved
from planner.recipes.source import RecipeSource
from planner.recipes.trl.keys import KNOWN

GROUPS = ("model", "loss")
"""Hydra's groups in both systems: `model=pythia69` chooses a file"""
_EXAMPLES = {
    False: "the DPO repository (loss=dpo, model=pythia69, trainer=FSDPTrainer, datasets)",
    True: "HALOs (loss=kto, model=llama, train_datasets, model.batch_size)",
}
# One key or option alone may belong to any script.
_FEWEST_OPTIONS = 2
_MOST_SHOWN = 4


def detect(found: RecipeSource, *, is_halos: bool) -> bool:
    """Whether a recipe is HALOs' (`is_halos`) or the DPO repository's, by its file names and several keys."""
    if not _is_hydras(found) or _foreign_options(found) or _is_named_like_halos(found) != is_halos:
        return False
    its = _marks(found)
    if found.kind == "keys":
        # `hydra_systems` refuses both keys at once with its own message.
        is_both = {"batch_size", "model.batch_size"} <= its.entries.keys()
        return is_both or _has_own(its, is_halos=is_halos)
    return _has_own(its, is_halos=is_halos) and not (
        not is_halos and signatures.is_legacy_halos(its.entries, its.choices)
    )


def near_miss(found: RecipeSource) -> str:
    """Why neither system reads a recipe that is named like theirs, empty if it is not named like theirs."""
    if found.kind == "keys" or not _is_hydras(found):
        return ""
    script = found.command.script if found.command else ""
    if options := _foreign_options(found):
        return _of_options(found, script, options)
    its, is_halos = _marks(found), _is_named_like_halos(found)
    if not is_halos and signatures.is_legacy_halos(its.entries, its.choices):
        text = "this looks like HALOs before launch.py (its branch legacy), which needs its configuration"
        return f"{text}. Write the folder of its checkout, and the overrides behind it"
    what = script or "a Hydra configuration"
    return f"found {what} with fewer than two keys of {_EXAMPLES[is_halos]}. planner reads {found.readable}"


def _is_hydras(found: RecipeSource) -> bool:
    if found.command:
        return found.command.script in HYDRA_SCRIPTS
    model = found.tree.get("model")
    return found.kind == "folder" or "batch_size" in found.tree or (isinstance(model, dict) and "batch_size" in model)


def _is_named_like_halos(found: RecipeSource) -> bool:
    """Whether the batch size is below `model`, or for a bare command whether the script is launch.py."""
    if found.folder is not None:
        return "batch_size" not in files.read(files.path_of(found.folder, found.primary)).tree
    if found.command:
        return found.command.script == "launch.py"
    model = found.tree.get("model")
    is_below = isinstance(model, dict) and "batch_size" in model
    return "batch_size" not in found.tree or ("trainer" not in found.tree and is_below)


def _foreign_options(found: RecipeSource) -> list[str]:
    """Arguments such as `--name`, which no Hydra script takes."""
    arguments = options.read(found.arguments).arguments if found.command else ()
    return [argument for argument in arguments if argument.startswith("--")]


def _of_options(found: RecipeSource, script: str, options: list[str]) -> str:
    trainers = [name for name in unsupported.option_names(options) if name in KNOWN]
    if len(trainers) >= _FEWEST_OPTIONS:
        shown = cut(", ".join(trainers[:_MOST_SHOWN]), 120)
        text = f"this looks like a script of its own on transformers' Trainer ({shown}), which planner does not read"
        return f"{text}. It reads {found.readable}"
    shown = cut(" ".join(options[:_MOST_SHOWN]), 120)
    foreign = f"found {script} with {shown}, which {'HALOs' if script == 'launch.py' else TITLE} does not take"
    return f"{foreign}. planner reads {found.readable}"


@dataclass(frozen=True, kw_only=True)
class _Marks:
    """The keys and the choices of groups by which the two systems are recognised."""

    entries: Mapping[str, Entry]
    choices: Mapping[str, str]


def _marks(found: RecipeSource) -> _Marks:
    if found.kind == "keys":
        return _Marks(entries=resolved(found), choices={})
    _, arguments = without_choices(found)
    if found.folder is not None:
        made = composed(found, {}, arguments, found.env)
        return _Marks(entries=made.entries, choices=made.choices)
    overrides = parse_overrides(arguments)[0]
    said = {its.key: Entry(value=its.value, where=found.source) for its in overrides if its.key not in GROUPS}
    return _Marks(entries=said, choices=chosen(overrides))


def composed(
    found: RecipeSource,
    base: Mapping[str, Entry],
    arguments: Sequence[str],
    env: Mapping[str, str],
    new: Sequence[str] = (),
) -> Composed:
    """The configuration of a recipe. `base` and `new` are as in `compose`."""
    return compose(
        base, found.folder, arguments, source=found.source, groups=GROUPS, env=env, primary=found.primary, new=new
    )


def _has_own(its: _Marks, *, is_halos: bool) -> bool:
    return (signatures.is_halos if is_halos else signatures.is_dpo_repository)(its.entries, its.choices)


def chosen(overrides: list[Override]) -> dict[str, str]:
    """The choice of each of Hydra's groups."""
    return {its.key: str(its.value) for its in overrides if its.key in GROUPS and its.sign != "~"}


def without_choices(found: RecipeSource) -> tuple[dict[str, Unresolved], list[str]]:
    """The groups whose choice is an unset variable, and the arguments without them and without Hydra's options.

    A missing `loss` becomes `loss=sft`, so that reading continues and one error names all missing variables. In a
    folder the choice decides which file to read, so there reading ends.

    Raises:
        RecipeError: such a choice is missing and the recipe has a folder.
    """
    given = options.read(found.arguments).arguments
    overrides = parse_overrides(given)[0]
    missing = {its.key: its.value for its in overrides if its.key in GROUPS and isinstance(its.value, Unresolved)}
    if missing and found.folder is not None:
        keys = KeyReader(source=found.source, entries={})
        for key, value in missing.items():
            keys.unresolved(key, value, COMMAND_LINE)
        keys.raise_mistakes()
    arguments = [argument for argument in given if argument.partition("=")[0].lstrip("+") not in missing]
    return missing, [*arguments, *(["loss=sft"] if "loss" in missing else [])]


def resolved(found: RecipeSource) -> dict[str, Entry]:
    """The keys of a resolved configuration file, such as the DPO repository writes into a run's folder."""
    return flat({key: value for key, value in found.tree.items() if key != "defaults"}, found.source)

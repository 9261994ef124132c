"""axolotl as planner reads it: its YAML files, and the commands that train them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from planner.files.loader import BoundedLoader, YamlMistake, document
from planner.files.messages import cut
from planner.recipes.axolotl.behaviour import DIALECT, axes_of, convert, is_whole, prepare, resembles, trained_by
from planner.recipes.axolotl.keys import IGNORED, RULES, VERSIONS
from planner.recipes.axolotl.refusals import refuse
from planner.recipes.axolotl.system import CLI
from planner.recipes.command import Command
from planner.recipes.config_reader import beside, mapping_of, recipe_error, text_of
from planner.recipes.drafting import RecipeOptions
from planner.recipes.engine import rename
from planner.recipes.entries import Entry, KeyReader, flat
from planner.recipes.overrides import overrides
from planner.recipes.recipe import Recipe
from planner.recipes.rule import KeyRule
from planner.recipes.source import YAML, RecipeSource
from planner.recipes.trainer.accelerate import LaunchSettings, read_launch
from planner.recipes.trainer.batching import Limit, TrainerFacts
from planner.recipes.trainer.launch_keys import ACCELERATE_LAUNCH
from planner.recipes.trainer.launcher import is_alone, is_launched, launch_of
from planner.recipes.trainer.reading import started
from planner.recipes.trainer.recipe import leave_unresolved, read_truths, recipe_of
from planner.recipes.trainer.sizes import expand

_VARIABLES = {"mlflow_tracking_uri": "MLFLOW_TRACKING_URI", "mlflow_experiment_name": "MLFLOW_EXPERIMENT_NAME",
              "wandb_mode": "WANDB_MODE"}  # fmt: skip
_NO_KEYS = frozenset(
    {
        *("debug", "debug_text_only", "debug_num_examples", "prompter", "shard", "launcher", "cloud", "sweep"),
        *("type_of_model", "revision_of_model", "overrides_of_model_config", "overrides_of_model_kwargs"),
    }
)
"""options of `axolotl train` that are no keys of a recipe (cli/args.py, cli/config_options.py)"""
_TORCHRUN = (
    " nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf standalone max_restarts monitor_interval"
    " start_method event_log_handler role module no_python run_path log_dir redirects tee local_ranks_filter node_rank"
    " master_addr master_port local_addr logs_specs numa_binding signals_to_handle virtual_local_rank"
    " shutdown_timeout duplicate_stdout_filters duplicate_stderr_filters help"
)
"""the options of torchrun, which takes their beginnings, too"""


@dataclass(frozen=True, kw_only=True)
class _Started:
    """A recipe's file, and how a command starts it."""

    config: str = ""
    overrides: tuple[str, ...] = ()
    command: Command | None = None
    """with the launcher's options, also those that `axolotl train` hands on"""
    is_alone: bool = False
    """whether Python starts one process, over whose GPUs the model is spread"""
    mistakes: list[str] = field(default_factory=list)


def read(found: RecipeSource, options: RecipeOptions) -> Recipe:
    """The recipe in a file or a command.

    Raises:
        RecipeError: a file, key or value is wrong or missing.
    """
    how = _started(found)
    text, tree, where, repeats = found.text, found.tree, how.config or found.source, list(found.repeats)
    if how.config:
        text = text_of(path := beside(found.source, how.config))
        tree = mapping_of(text, path, repeats)
    entries: dict[str, Entry] = flat(tree, where)
    others = overrides(_allowed(how.overrides, tree), entries)
    others += overrides(found.user_arguments, entries)
    keys = KeyReader(source=where, entries=_set_apart(entries), fix="{}=VALUE", is_for_job=options.is_for_job,
                     rules=RULES, versions=VERSIONS)  # fmt: skip
    keys.mistakes += [
        *how.mistakes,
        *_texts(text, keys.entries, where),
        *(f"{each}: axolotl knows no such argument. Remove it" for each in others),
    ]
    rename(keys)
    leave_unresolved(keys, DIALECT)
    expand(keys)
    read_truths(keys)
    convert(keys)
    refuse(keys)
    prepare(keys)
    trained = trained_by(keys)
    keys.method = trained.method
    options = replace(options, env=_environment(keys, how, options))
    launch = _launch(how, options, keys, found.source)
    recipe = recipe_of(keys, options, trained, DIALECT, launch)
    if isinstance(facts := recipe.foreign, TrainerFacts):
        recipe = replace(recipe, foreign=_with_start(facts, how, keys))
    recipe = replace(recipe, repeats=tuple(each.note for each in repeats))
    return started(recipe, keys, found, options, how.config, (*how.overrides, *found.user_arguments))


def _texts(text: str, entries: Mapping[str, Entry], where: str) -> Iterator[str]:
    """A text for each number of the file that is none for PyYAML, such as 1e1, where axolotl takes whole numbers."""
    try:
        found = document(text, BoundedLoader)
    except YamlMistake:
        return
    for name, its in flat(found, where).items() if isinstance(found, dict) else ():
        row, entry = RULES.row(name), entries.get(name)
        if not row or not is_whole(row) or not entry or entry.where != where or not isinstance(its.value, str):
            continue
        if isinstance(entry.value, float) and not re.fullmatch(r"[-+]?[0-9]+\.0*", its.value):
            fix = f"Write {int(entry.value)}" if entry.value.is_integer() else "Write a whole number"
            yield f"{name}: found {cut(its.value)}, which is a text in YAML, and no whole number for axolotl. {fix}"


def _set_apart(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The entries, of which those that axolotl drops have a name that nothing reads."""
    return {
        (name if RULES.row(name) else f"{IGNORED}{name}"): (its if RULES.row(name) else replace(its, written_as=name))
        for name, its in entries.items()
    }


def _allowed(arguments: Sequence[str], tree: Mapping[str, Any]) -> list[str]:
    """The arguments that axolotl takes: with `strict: true` those of keys in the file."""
    if tree.get("strict") is not True:
        return list(arguments)
    kept, takes = list[str](), True
    for each in arguments:
        takes = _name(each).partition(".")[0] in tree if each.startswith("--") else takes
        kept += [each] if takes else []
    return kept


def _name(option: str) -> str:
    return option.lstrip("-").partition("=")[0].replace("-", "_")


def _with_start(facts: TrainerFacts, started: _Started, keys: KeyReader) -> TrainerFacts:
    """The facts with what depends on how the recipe is started."""
    facts = replace(facts, is_launched=not started.is_alone, is_alone=started.is_alone)
    workers = _ray(keys) or (1 if started.is_alone else None)
    if workers is None:
        return facts
    # A limit of processes holds for all GPUs or for none, because their number does not follow that of the GPUs.
    limits = [replace(each, most=0) for each in facts.limits if each.most is not None and workers > each.most]
    if _ray(keys):
        limits.append(Limit(text=f"Ray waits for {workers} GPUs", least=workers))
    return replace(facts, workers=workers, limits=tuple(limits))


# -- commands


def _started(found: RecipeSource) -> _Started:
    command = found.command
    if command is None:
        return _Started()
    if command.script == CLI:
        return _of_cli(command, found.source)
    config, rest = "", list(command.arguments)
    if rest and not rest[0].startswith("-"):
        config = rest.pop(0)
    for each in [each for each in rest if each.startswith("--config=")]:
        config = each.partition("=")[2]
        rest.remove(each)
    return _Started(config=_file(config, found.source), overrides=tuple(map(_negated, rest)), command=command,
                    is_alone=is_alone(command))  # fmt: skip


def _file(config: str, source: str) -> str:
    if not config.endswith(YAML):
        raise recipe_error(source, f"axolotl: found {cut(config) or 'no file'}. Write the recipe's YAML file behind it")
    return config


def _negated(option: str) -> str:
    """`--nosample_packing`, as fire takes it, as `--sample_packing=false`."""
    name = _name(option).removeprefix("no").removeprefix("_")
    row = RULES.exact(name) if option.startswith("--no") and "=" not in option else None
    return f"--{name}=false" if row else option


def _of_cli(command: Command, source: str) -> _Started:
    """`axolotl train FILE`: dashed options of its own are overrides, and all others are the launcher's."""
    first, *rest = [*command.arguments, ""]
    config, mistakes = _file(first, source), list(_mistyped(rest))
    own, launcher, handed, how, index = list[str](), list[str](), list[str](), "accelerate", 0
    rest = rest[:-1]
    while index < len(rest):
        word, index = rest[index], index + 1
        if word == "--":
            launcher += rest[index:]
            break
        name, (option, sign, value) = _name(word), word.partition("=")
        row = _row(name)
        takes = not sign and index < len(rest) and not rest[index].startswith("--")
        if option in {"--launcher", "--cloud", "--sweep"}:
            how = value or (rest[index] if takes else "") if option == "--launcher" else how
            index += takes
            if option != "--launcher":
                mistakes.append(f"{option}: planner reads one run on this cluster. Remove it")
        elif not word.startswith("--") or row is None:
            launcher.append(word)
            handed += [option] if word.startswith("--") else []
            launcher += [rest[index]] if takes and word.startswith("--") else []
            index += takes and word.startswith("--")
        elif "_" in option:
            mistakes.append(f"{option}: axolotl train hands it to the launcher, which refuses it. Write it with dashes")
            index += takes
        elif row.value == "truth":
            own.append(f"--{row.name}={str(not name.startswith('no_')).lower()}")
            if sign or takes:
                mistakes.append(f"{word}: axolotl train takes it without a value. Write --no-... for false")
                index += takes
        else:
            named = [option, rest[index]] if takes else [word]
            own += named if RULES.row(name) else [f"--{name.removeprefix('no_')}=false"]
            index += takes
    mistakes += _refused(handed, "ray" if "--use_ray=true" in own else how)
    words = ["accelerate", "launch"] if how == "accelerate" else [how]
    given: dict[str, Entry] = {}
    mistakes += [f"{each}: axolotl train hands it to the launcher, which starts it. Remove it"
                 for each in overrides(launcher, given)]  # fmt: skip
    its = {f"--{name}": str(entry.value) for name, entry in given.items()}
    started = replace(command, launcher={**command.launcher, **its}, launched=(*command.launched, *words, *launcher))
    return _Started(config=config, overrides=tuple(own), command=started, is_alone=how == "python", mistakes=mistakes)


def _row(name: str) -> KeyRule | None:
    """The row of an option of `axolotl train`, also of `no_NAME`. None for one of no key, and for accelerate's."""
    positive = name.removeprefix("no_")
    row = RULES.exact(name) or RULES.exact(positive)
    return row or (None if ACCELERATE_LAUNCH.row(name) else RULES.row(name) or RULES.row(positive))


def _refused(options: Sequence[str], launcher: str) -> Iterator[str]:
    """A text for each option that `axolotl train` hands to a launcher that does not know it."""
    for option in options if launcher in {"accelerate", "torchrun"} else ():
        name = _name(option)
        is_known = ACCELERATE_LAUNCH.row(name) if launcher == "accelerate" else f" {name}" in _TORCHRUN
        if not is_known and name.removeprefix("no_") not in _NO_KEYS and not resembles(name):
            fix = "Write --launcher python" if name == "no_accelerate" else "Remove it"
            yield f"{option}: axolotl train does not know it, and hands it to {launcher}, which refuses it. {fix}"


def _mistyped(words: Sequence[str]) -> Iterator[str]:
    """A text for each option before `--` that axolotl does not know and that resembles one of its own."""
    for word in words[: words.index("--")] if "--" in words else words:
        name = _name(word)
        is_known = RULES.row(name) or RULES.row(name.removeprefix("no_")) or name in {"launcher", "cloud", "sweep"}
        if word.startswith("--") and not is_known and not name.startswith("fsdp_") and (near := resembles(name)):
            option, meant = word.partition("=")[0], near.replace("_", "-")
            yield f"{option}: axolotl train does not know it, and hands it to the launcher. Did you mean --{meant}?"


def _environment(keys: KeyReader, started: _Started, options: RecipeOptions) -> dict[str, str]:
    """The variables of the command and of `--env`, and those that axolotl sets by keys."""
    own = {name: str(keys.value(key)) for key, name in _VARIABLES.items() if keys.has(key)}
    return {**(started.command.environment if started.command else {}), **own, **options.env}


def _launch(started: _Started, options: RecipeOptions, keys: KeyReader, source: str) -> LaunchSettings | None:
    """The launcher's settings with what the recipe itself says of the count. None if nothing says them."""
    launch: LaunchSettings | None = None
    if started.command is not None:
        launch = launch_of(started.command, options, keys, source)
    elif options.accelerate:
        launch = read_launch(options.accelerate)
    axes = axes_of(keys)
    deepspeed = keys.is_set("deepspeed") or (launch is not None and launch.kind == "DEEPSPEED")
    if deepspeed and ((keys.peek("context_parallel_size") or keys.peek("sequence_parallel_degree") or 1) != 1):
        name = "context_parallel_size" if keys.has("context_parallel_size") else "sequence_parallel_degree"
        keys.refuse(name, "Beside DeepSpeed, axolotl counts fewer rows than its processes read, so planner does not "
                    "know the batch: remove one")  # fmt: skip
    counts = {"python, which starts one process": 1 if started.is_alone else None,
              "ray_num_workers (use_ray)": _ray(keys), "its product of parallel sizes": axes.processes}  # fmt: skip
    for whose, count in counts.items():
        if count is None:
            continue
        if launch and launch.num_processes not in {None, count}:
            keys.wrong(f"{launch.source}: it starts {launch.num_processes} processes, but {whose} makes {count}. "
                       "Correct one")  # fmt: skip
        launch = replace(launch or LaunchSettings(num_processes=None), num_processes=count, source=whose)
    if launch is None or launch.num_processes is None:
        return _by_devices(started, options, launch)
    return launch


def _ray(keys: KeyReader) -> int | None:
    return keys.whole("ray_num_workers", 1) if keys.peek("use_ray") is True else None


def _by_devices(started: _Started, options: RecipeOptions, launch: LaunchSettings | None) -> LaunchSettings | None:
    """The settings with a process for each device of CUDA_VISIBLE_DEVICES, as accelerate starts them."""
    command = started.command
    if command is None or not is_launched(command):
        return launch
    name = "CUDA_VISIBLE_DEVICES"
    devices = command.launcher.get(name, options.env.get(name, "")).split(",")
    if "accelerate" not in command.launched or not all(each.strip().isdecimal() for each in devices):
        return launch
    return replace(launch or LaunchSettings(num_processes=None), num_processes=len(devices), source=name)

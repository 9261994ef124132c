"""Generates small Hydra configurations and command lines, and lets Hydra itself compose them."""

import random
import warnings
from dataclasses import dataclass
from pathlib import Path

from hydra import compose as hydras
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from planner.errors import RecipeError
from planner.recipes.hydra.compose import compose
from planner.recipes.scalars import Unresolved

GROUPS = ("model", "loss", "loss/aux", "data")
FILES = ("a", "b", "base")
KEYS = ("lr", "beta", "batch_size", "name", "opt", "none", "sub")
# As YAML writes them: numbers of every base, booleans, texts, lists, sections and interpolations.
VALUES = (
    *("1", "0", "-3", "64", "5e-7", "1_000", "010", "0x1F", "1.", ".5", "1e3", "true", "off", "null", "~", "''"),
    *("hello", "'64'", '"5e-7"', "2024-01-01", "1:30", "a-b", "[]", "[1, two]", "[a, {b: 1}]", "{}", "{x: 1, y: z}"),
    *("???", "${lr}", "${.lr}", "${..lr}", "x-${name}", "${model.lr}", "${model}", "${none}", "${nowhere}"),
    *(
        "${sub.x}",
        "'${lr}${lr}'",
        "{x: '${..lr}'}",
        "${loss.beta}",
        "${data.opt}",
    ),
)
# As a command line writes them.
WORDS = (
    *(
        "1",
        "8",
        "5e-7",
        "1_000",
        "010",
        "null",
        "None",
        "true",
        "FALSE",
        "",
        "''",
        "'64'",
        '"a b"',
        "a\\,b",
        "a b",
        "???",
    ),
    *(
        "[1,2]",
        "[]",
        "[a,'b c',[3]]",
        "{x:1}",
        "{}",
        "{x:{y:2}}",
        "{lr:3,new:4}",
        "${lr}",
        "${model.lr}",
        "x${lr}",
        "a:b",
    ),
    *("1,2", "a=b", "(1)", "int(3)", "$HOME", "a#b", "/x/y.z", "-1", "1e-3x", "é", "inf", "a", "b", "base"),
)
# Of which overrides are put together that are mostly none.
PIECES = (
    *(
        "a",
        "b.c",
        "=",
        "1",
        "-",
        "2_0",
        "0",
        "7",
        ".5",
        "5e-7",
        "true",
        "null",
        "None",
        "${x}",
        "$",
        "[",
        "]",
        "{",
        "}",
    ),
    *(",", ":", " ", "'", '"', "\\", "/", "@", "+", "~", "x y", "'q r'", '"d"', "\\,", "???", "inf", "1_000", "é", "#"),
    *("\t", "|", "%", "(", ")"),
)


@dataclass(frozen=True)
class Case:
    """A folder of a configuration as file name -> text, and a command line."""

    files: dict[str, str]
    arguments: tuple[str, ...]


def case_of(seed):
    """The case of a seed, always the same one. Most are what people write, some are what Hydra refuses."""
    pick = random.Random(seed)
    groups = pick.sample(GROUPS, pick.randint(1, 4))
    names = {group: ("a", "b", "base")[: pick.choice((2, 3, 3, 3))] for group in groups}
    files = {"config": _file(pick, names, "", may_have=0.95)}
    for at, group in enumerate(groups):
        below = {each: names[each] for each in groups[at + 1 :]}
        for name in names[group]:
            files[f"{group}/{name}"] = _file(pick, below, group, may_have=0.3, is_base=name == names[group][-1])
    arguments = tuple(_argument(pick, names) for _ in range(pick.choice((0, 1, 1, 2, 2, 3, 4))))
    return Case(files=files, arguments=arguments)


def _file(pick, names, group, *, may_have, is_base=True):
    """A file's text: a header, a defaults list and values. `is_base` is false for a file that may include `base`."""
    header = pick.choice(("_global_", "_global_", "model", "loss.x")) if group and pick.random() < 0.1 else ""
    lines = [f"# @package {header}"] if header else []
    if pick.random() < may_have and (items := _defaults(pick, names, group, is_base=is_base)):
        lines += ["defaults:", *(f"- {item}" for item in items)]
    for key in pick.sample(KEYS, pick.randint(1, 5)):
        if key == "sub" and pick.random() < 0.7:
            lines += ["sub:", *(f"  {name}: {_value(pick)}" for name in pick.sample(("x", "lr", "y"), 2))]
        else:
            lines.append(f"{key}: {_value(pick)}")
    return "\n".join(lines) + "\n"


def _value(pick):
    return pick.choice(VALUES[:20] if pick.random() < 0.7 else VALUES)


def _defaults(pick, names, group, *, is_base):
    """The items of a list: mostly each group once, with a file that exists, and overrides last."""
    items = ["_self_"] if pick.random() < 0.7 else []
    for where in pick.sample(sorted(names), pick.randint(0, len(names)) if group else len(names)):
        name = pick.choice(names[where]) if pick.random() < 0.93 else pick.choice(("null", "???", "[a, b]", "c"))
        sign = "optional " if pick.random() < 0.1 else "override " if pick.random() < 0.02 else ""
        package = pick.choice(("@other", "@_global_", "@model.y", "@_here_")) if pick.random() < 0.1 else ""
        slash = "/" if group and pick.random() < 0.9 else ""
        items.insert(pick.randint(0, len(items)), f"{sign}{slash}{where}{package}: {name}")
    if group and not is_base and pick.random() < 0.6:
        items.insert(pick.randint(0, len(items)), "base" if pick.random() < 0.8 else pick.choice(FILES))
    if pick.random() < (0.02 if group else 0.15):
        items.append("override hydra/job_logging: disabled")
    if not group and names and pick.random() < 0.15:
        where = pick.choice(sorted(names))
        items.append(f"override {where}: {pick.choice(names[where])}")
    if pick.random() < 0.95:
        items.sort(key=lambda item: item.startswith("override"))
    return items


def _argument(pick, names):
    """An override: of a group, of a key, of Hydra's own settings, or none at all."""
    kind = pick.random()
    if kind < 0.3:
        group = pick.choice(sorted(names)) if pick.random() < 0.95 else pick.choice(GROUPS)
        package = pick.choice(("@other", "@_global_")) if pick.random() < 0.06 else ""
        sign = "" if pick.random() < 0.85 else pick.choice(("+", "~", "~", "++"))
        value = pick.choice(names.get(group, FILES)) if pick.random() < 0.93 else pick.choice(("null", "[a,b]", "7"))
        return f"{sign}{group}{package}{'' if sign == '~' and pick.random() < 0.6 else f'={value}'}"
    if kind < 0.36:
        return pick.choice(("hydra.run.dir=out/${lr}", "hydra.job.chdir=true", "hydra/job_logging=disabled"))
    sign = pick.choice(("", "++", "++", "++", "++", "++", "+", "~"))
    section = pick.choice(("", "", "", "model.", "loss.", "sub.", "new."))
    key = f"{section}{pick.choice((*KEYS, 'x'))}"
    value = (
        "" if sign == "~" and pick.random() < 0.7 else f"={pick.choice(WORDS if pick.random() < 0.4 else WORDS[:20])}"
    )
    return f"{sign}{key}{value}" if pick.random() < 0.98 else key


def write(case, folder):
    """Writes the files of a case."""
    for name, text in case.files.items():
        file = Path(folder) / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def of_hydra(case, folder, name="config"):
    """The configuration that Hydra composes, with dotted keys. None if it refuses."""
    GlobalHydra.instance().clear()
    try:
        with warnings.catch_warnings(), initialize_config_dir(version_base=None, config_dir=str(folder)):
            warnings.simplefilter("ignore")
            composed = hydras(config_name=name, overrides=list(case.arguments))
    except Exception:  # noqa: BLE001  it raises many kinds
        return None
    return _leaves(composed, "")


def _leaves(node, prefix):
    found = {}
    for key in node:
        name = f"{prefix}{key}"
        if OmegaConf.is_missing(node, key):
            found[name] = "???"
            continue
        try:
            value = node[key]
            is_section = OmegaConf.is_dict(value) and len(value)
            if is_section and name.count(".") < 12:
                found |= _leaves(value, f"{name}.")
            else:
                found[name] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        except Exception:  # noqa: BLE001  an interpolation that leads nowhere
            found[name] = _NOWHERE
    return found


_NOWHERE = "<leads nowhere>"


def of_planner(case, folder, name="config"):
    """What planner composes, with dotted keys. None if it refuses."""
    try:
        made = compose({}, Path(folder), case.arguments, source="s", groups=(), env={}, primary=name)
    except RecipeError:
        return None
    # Hydra refuses an argument that is no override. `hydra_systems` refuses it with a message of its own.
    return None if made.arguments else {key: entry.value for key, entry in made.entries.items()}


def verdict(theirs, ours):
    """`equal`, `both refuse`, `planner refuses` (a whole or a value), `hydra refuses` or `differs`."""
    if theirs is None or ours is None:
        return "both refuse" if theirs == ours else "planner refuses" if ours is None else "hydra refuses"
    unknown = {key for key, value in ours.items() if isinstance(value, Unresolved)}
    same = {key: value for key, value in ours.items() if key not in unknown}
    # What planner does not resolve, it refuses where it is needed, with all that would be below it.
    left = {
        key: value
        for key, value in theirs.items()
        if not any(key == each or key.startswith(f"{each}.") for each in unknown)
    }
    if repr(sorted(same.items())) != repr(sorted(left.items())):
        return "differs"
    is_known = all(theirs.get(key) in {"???", _NOWHERE} for key in unknown if isinstance(theirs.get(key), str))
    return "equal" if is_known and all(isinstance(theirs.get(key), str) for key in unknown) else "planner refuses"

"""Fuzz: random recipes of four systems train what their judges compute, or planner refuses them.

    python tests/fuzz/fuzz_recipes.py --minutes 25 --seed 1             as `make fuzz` does
    python tests/fuzz/fuzz_recipes.py --seed 1 --system axolotl --case 17   one case again

A case is a shipped example with changed, removed, added and wrongly typed keys, and a file alone or a command with
overrides and a launcher, by dice of the seed, the system and the case's number. The judges are
tests/recipes/*_judge.py. It fails if planner names another batch than theirs at 1 to 16 GPUs, a batch where they
refuse, or shows a traceback. It counts refusals of recipes that the judge starts, by their first words: a judge does
not know all that is refused.
"""

import argparse
import contextlib
import copy
import json
import os
import random
import re
import shlex
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from planner.errors import PlannerError
from planner.recipes import CheckOptions, Recipe, RecipeOptions, job_of, read_recipe

_ROOT = Path(__file__).parents[2]
SIZES = range(1, 17)
_SHOWN, _CLASSES = 8, 25
# What a judge raises for a value of a wrong type.
_WRONG_TYPE = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, OSError)
# What planner says of a count that is written twice, or not at all. The case is then read with another option.
_OF_COUNT = re.compile(r"GPU count|Leave one of them out|names no GPU count|Correct one")


@cache
def pools() -> ModuleType:
    """The table of pools, and the judges that it needs."""
    sys.path.append(str(_ROOT / "tests/recipes"))
    import fuzz_recipe_pools

    return fuzz_recipe_pools


@dataclass(frozen=True, kw_only=True)
class Case:
    """One recipe, and how it is started."""

    system: str
    recipe: str
    """torchtune's, else empty"""
    tree: dict[str, Any]
    start: Any
    """a `Start`"""
    given: Mapping[str, Any]
    overrides: tuple[str, ...]
    """the words of `given`"""
    command: str
    """a file or a command, in which {file} is the recipe's"""
    is_judged: bool
    """whether the judge knows what it trains: not if words stand at a wrong place"""


@dataclass(kw_only=True)
class Found:
    """What became of a case."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """reasons, where the judge starts"""


def made(system: str, seed: int, number: int) -> Case:
    """The case of a number."""
    dice, pool = random.Random(f"{seed} {system} {number}"), pools().POOLS[system]
    recipe, example = dice.choice(pool.examples())
    tree = copy.deepcopy(example)
    for name in dice.sample(sorted(pool.values), dice.randint(0, 4)):
        _set(tree, name, dice.choice(pool.values[name]))
    if dice.random() < 0.25:
        _set(tree, dice.choice([*sorted(pool.known), *pool.values, *tree]), dice.choice(pools().ODD))
    if dice.random() < 0.5:
        for name, value in pool.helps.items():
            _set(tree, name, value)
    if dice.random() < 0.2:
        tree.pop(dice.choice(list(tree)), None)
    start, given = dice.choice(pool.starts), {}
    if start.override and dice.random() < 0.4:
        for name in dice.sample(sorted(pool.values), dice.randint(1, 2)):
            plain = [its for its in pool.values[name] if isinstance(its, str | int | float) and its != ""]
            given |= {name: dice.choice(plain)} if plain else {}
    overrides = [word for name, its in given.items() for word in _written(start.override, name, its)]
    words = start.text.split()
    is_judged = not start.override or dice.random() < 0.85
    if not is_judged:
        for _ in range(dice.randint(1, 4)):
            words.insert(dice.randint(0, len(words)), dice.choice(pool.words))
    command = " ".join(words).replace("{more}", shlex.join(overrides)).replace("{n}", str(dice.choice([1, 2, 4, 8])))
    command = command.replace("{recipe}", recipe)
    return Case(system=system, recipe=recipe, tree=tree, start=start, given=given, overrides=tuple(overrides),
                command=command, is_judged=is_judged)  # fmt: skip


def _set(tree: dict[str, Any], name: str, value: Any) -> None:
    *path, last = name.split(".")
    for each in path:
        if not isinstance(tree.get(each), dict):
            return
        tree = tree[each]
    tree[last] = value


def _written(form: str, name: str, value: Any) -> list[str]:
    """An override as the launcher's program takes it. `axolotl train` takes truths without a value."""
    dashed = name.replace("_", "-")
    if "{dashed}" in form and isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    return [word.format(name=name, dashed=dashed, value=value) for word in form.split()]


def judged(case: Case, file: Path, recipe: str) -> dict[int, int | str]:
    """GPUs -> the batch: `-` where the system refuses it, `?` where none is fixed, `!` where it does not know."""
    pool, theirs = pools().POOLS[case.system], dict[int, int | str]()
    try:
        config = pool.merged(file, case.tree, case.overrides, case.given, case.start)
    except Exception:  # noqa: BLE001  OmegaConf has many
        return dict.fromkeys(SIZES, "!")
    for gpus in SIZES:
        try:
            theirs[gpus] = pool.batch(config, gpus, case.start, recipe, file.parent)
        except pool.refused:
            theirs[gpus] = "-"
        except pool.unfixed:
            theirs[gpus] = "?"
        except _WRONG_TYPE:
            theirs[gpus] = "!"
    return theirs


def tried(case: Case, folder: Path) -> Found:
    """planner's answer to a case, against the judge's."""
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump(case.tree, sort_keys=False))
    found, theirs = Found(), judged(case, file, case.recipe) if case.is_judged else {}
    fits = next((gpus for gpus in (4, *SIZES) if isinstance(theirs.get(gpus), int)), 4)
    for is_for_job in (False, True):
        with _watched(found):
            recipe, reason = _read(case, file, fits, is_for_job=is_for_job)
            if recipe is None:
                found.counts["job refused" if is_for_job else "refused"] += 1
                if not is_for_job and any(isinstance(its, int) for its in theirs.values()):
                    found.refused.append(reason)
                continue
            if not case.start.override and recipe.script and recipe.script != case.recipe and case.recipe:
                theirs = judged(case, file, recipe.script)  # a file does not say which recipe of torchtune trains it
            _drafted(found, recipe, theirs) if is_for_job else _checked(found, recipe, theirs)
    return found


@contextlib.contextmanager
def _watched(found: Found) -> Iterator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001  whatever it is, a user would see it
        found.counts["tracebacks"] += 1
        found.wrong.append(traceback.format_exc(limit=-4))


def _read(case: Case, file: Path, fits: int, *, is_for_job: bool) -> tuple[Recipe | None, str]:
    """The recipe, or why not: with a GPU count that starts, and without one for a recipe that names it."""
    said = []
    for gpus in (fits, None):
        options = RecipeOptions(gpus=gpus, is_for_job=is_for_job, needs_micro=False, env={"M": "2"})
        try:
            return read_recipe(case.command.replace("{file}", str(file)), (), options), ""
        except PlannerError as error:
            said.append(str(error).replace(f"{file}: ", "").replace(str(file), "").splitlines())
    others = [[each for each in lines if not _OF_COUNT.search(each)] for lines in said]
    return None, ([each for each in others[0] if each in others[1]] or others[0] or others[1] or said[0])[0]


def _checked(found: Found, recipe: Recipe, theirs: Mapping[int, int | str]) -> None:
    found.counts["verdicts"] += 1
    foreign = recipe.foreign
    assert foreign is not None
    foreign.units()
    traps = recipe.traps(CheckOptions(counts=list(SIZES), rows=1000))
    if older := [trap.text for trap in traps if trap.name == "does not load"]:
        found.counts["older"] += 1
        found.refused += older[:1] if any(isinstance(its, int) for its in theirs.values()) else []
        return
    outcomes = {gpus: foreign.outcome(gpus) for gpus in SIZES}
    ours = {gpus: "-" if its.verdict == "error" else its.batch for gpus, its in outcomes.items()}
    wrong = [f"{gpus} GPUs: planner {ours[gpus]}, judge {its}" for gpus, its in theirs.items()
             if its != "!" and ours[gpus] not in {"-", its}]  # fmt: skip
    found.counts["wrong"] += bool(wrong)
    found.wrong += ["; ".join(wrong[:4])] if wrong else []
    strict = [outcomes[gpus].text for gpus, its in theirs.items() if isinstance(its, int) and ours[gpus] == "-"]
    found.counts["stricter"] += bool(strict)
    found.refused += [f"at a count: {strict[0]}"] if strict and not wrong else []
    found.counts["unjudged"] += not theirs or "!" in theirs.values()


def _drafted(found: Found, recipe: Recipe, theirs: Mapping[int, int | str]) -> None:
    try:
        job, _ = job_of(recipe)
    except PlannerError:
        found.counts["job refused"] += 1
        return
    found.counts["own loops" if job.objective.kind == "own" else "jobs"] += 1
    batch, whose = job.batch.global_batch, theirs.get(recipe.gpus or 0, "!")
    if recipe.gpus and (batch != recipe.global_batch or (isinstance(whose, int) and batch != whose)):
        found.counts["wrong"] += 1
        found.wrong.append(f"a job of {batch}, read as {recipe.global_batch}, judge {whose} at {recipe.gpus} GPUs")


def cases(system: str, seed: int, folder: Path, *, count: int, until_s: float) -> tuple[Counter[str], Counter[str]]:
    """Counts and reasons of refusals. The first failures are printed."""
    counts, reasons = Counter[str](), Counter[str]()
    first, before = dict[str, int](), Path.cwd()
    os.chdir(pools().POOLS[system].folder)
    try:
        for number in range(count):
            if time.monotonic() > until_s:
                break
            found = tried(made(system, seed, number), folder)
            counts += Counter(cases=1, **{"refused though it starts": bool(found.refused)}) + found.counts
            for each in found.refused:
                said = re.sub(r"\d+", "N", each)[:110]
                reasons[said] += 1
                first.setdefault(said, number)
            for each in found.wrong if counts["wrong"] + counts["tracebacks"] <= _SHOWN else ():
                print(f"FAILED --seed {seed} --system {system} --case {number}: {each}\n", flush=True)
    finally:
        os.chdir(before)
    return counts, Counter({f"{said} (--case {first[said]})": its for said, its in reasons.items()})


def _show(case: Case, folder: Path) -> None:
    os.chdir(pools().POOLS[case.system].folder)
    print(yaml.safe_dump(case.tree, sort_keys=False), case.command, sep="\n")
    found = tried(case, folder)
    print("judge:", judged(case, folder / "recipe.yaml", case.recipe) if case.is_judged else "not asked")
    print(dict(found.counts), *found.wrong, *found.refused, sep="\n")
    raise SystemExit(bool(found.wrong))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--system", choices=pools().POOLS, action="append")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="of all systems together")
    parser.add_argument("--cases", type=int, default=2**40, help="at most so many of each system")
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--results", action="store_true", help="write bench/results/fuzz_recipes.json")
    asked = parser.parse_args()
    systems, rows = asked.system or list(pools().POOLS), []
    with tempfile.TemporaryDirectory(prefix="plf-") as place:
        pools().write_deepspeed(folder := Path(place))
        if asked.case is not None:
            _show(made(systems[0], asked.seed, asked.case), folder)
        for system in systems:
            until_s = time.monotonic() + 60 * asked.minutes / len(systems)
            counts, reasons = cases(system, asked.seed, folder, count=asked.cases, until_s=until_s)
            rows.append({"system": system, "seed": asked.seed, "wrong": 0, "tracebacks": 0, **counts})
            print(json.dumps(rows[-1]), *(f"{its:6} {said}" for said, its in reasons.most_common(_CLASSES)), sep="\n")
    if asked.results:
        sys.path.insert(0, str(_ROOT / "bench"))
        from _results import write

        write("fuzz_recipes", rows)
    raise SystemExit(any(row["wrong"] or row["tracebacks"] for row in rows))


if __name__ == "__main__":
    main()

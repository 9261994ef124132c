"""What `planner check` and `planner convert` answer to a recipe, as lines of text.

An answer is a list of pairs (word, text), in the order in which a user sees them. It has no path outside of the folder
that the recipe stands in, and no version of this machine.
"""

import json
import os
import re
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from planner.errors import PlannerError
from planner.recipes import CheckOptions, RecipeOptions, job_of, needs_job, read_recipe, rewrite
from planner.report.recipe_table import recipe_text, span_text

COUNTS = range(1, 17)
_OWN = {"trl": "trl", "dpo": "dpo", "halos": "halos", "deepspeed": "deepspeed"}
_DEFAULT_AT = 8
# A command is a line for each of its options, so that a difference is small.
_OPTION = re.compile(r" (?=--|\+\+|[a-z_.]+=)")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A recipe with all that it reads."""

    name: str
    recipe: str
    """a path in the case's folder, or a command"""
    args: tuple[str, ...] = ()
    options: dict = field(default_factory=dict)
    """fields of `RecipeOptions`"""
    question: dict = field(default_factory=dict)
    """fields of `CheckOptions`"""
    files: dict = field(default_factory=dict)
    """path -> text. A path that ends with a slash is an empty folder"""
    ask: tuple[str, ...] = ("check", "convert", "to")
    """what is asked: `planner check`, `planner convert`, `planner convert --to`"""
    to: tuple[str, ...] = ()
    """targets of `convert --to`, as `trl@4`. Without any, the recipe's own system at the count that it was tuned for"""


@contextmanager
def in_folder_of(case):
    """Work in a new folder with the case's files."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in case.files.items():
            place = Path(folder, name)
            (place if name.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
            if not name.endswith("/"):
                place.write_text(text)
        os.chdir(folder)
        try:
            yield Path.cwd()
        finally:
            os.chdir(before)


def answer_of(case):
    """The lines of both commands."""
    with in_folder_of(case) as folder:
        checked, read = _checked(case)
        made = checked if "check" in case.ask else []
        made = [*made, *(_converted(case) if "convert" in case.ask else [])]
        made += _written(case, read) if "to" in case.ask else []
    return [(word, text.replace(str(folder), "HERE")) for word, text in _joined(made)]


def _joined(lines):
    """A refusal that both commands print is one line."""
    texts = {word: [text for its, text in lines if its == word] for word in ("check refused", "convert refused")}
    if not texts["check refused"] or texts["check refused"] != texts["convert refused"]:
        return lines
    return [
        (word.removeprefix("check "), text) if word == "check refused" else (word, text)
        for word, text in lines
        if word != "convert refused"
    ]


def _refusal(word, error):
    # check and convert name an option of their own for the count that a recipe was tuned for.
    return [(f"{word} refused", line.replace("--tuned-for W", "--gpus W")) for line in str(error).split("\n")]


def _read(case, option, **options):
    return read_recipe(
        case.recipe, list(case.args), RecipeOptions(**{"gpus_option": option, **case.options, **options})
    )


# -- planner check


def _checked(case):
    """The lines of `check`, and the recipe that it read."""
    try:
        found = _read(case, "--tuned-for", is_for_job=False, needs_micro=False)
        lines = [("is", recipe_text(found)), ("held", f"micro {found.micro}, accumulation {found.accumulation}")]
        if found.foreign is None:
            return lines, found
        lines += _verdicts(found) + _trapped(found, CheckOptions(counts=COUNTS, **case.question))
    except PlannerError as error:
        return _refusal("check", error), None
    return lines, found


def _verdicts(found):
    """What the recipe's own system does at each GPU count."""
    outcomes = [found.foreign.outcome(count) for count in COUNTS]
    exact = spans(each.gpus for each in outcomes if each.verdict == "exact")
    others, errors, evaluated = {}, {}, {}
    for each in outcomes:
        if each.verdict == "other batch":
            others.setdefault(_other(each), []).append(each.gpus)
        elif each.verdict == "error":
            errors.setdefault(f"{each.text}{'' if each.is_raised else ' (not raised)'}", []).append(each.gpus)
        evaluated.setdefault(each.eval_text, []).append(each.gpus)
    evaluated.pop("-", None)
    named = (("other", others), ("error", errors), ("eval", evaluated))
    lines = [(word, "; ".join(f"{spans(gpus)}: {text}" for text, gpus in its.items())) for word, its in named if its]
    return [("exact", exact), *lines] if exact else lines


def _other(outcome):
    """The batch at a GPU count, and what is dropped. `64 a GPU` stands for a batch that grows with the count."""
    if outcome.dropped:
        return f"{outcome.batch} drops {span_text(outcome.dropped)}"
    share, rest = divmod(outcome.batch, outcome.gpus)
    return f"{outcome.batch}" if rest else f"{share} a GPU"


def spans(counts):
    """`1-4 6 8-9`."""
    found = []
    for count in counts:
        if found and count == found[-1][1] + 1:
            found[-1][1] = count
        else:
            found.append([count, count])
    return " ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in found)


def _trapped(found, question):
    units = [("unit", f"{each.key} {each.value}: {each.there} -> {each.here}") for each in found.foreign.units()]
    return units + [("trap", f"{each.name}: {each.text}") for each in found.traps(question)]


# -- planner convert


def _converted(case):
    try:
        found = _read(case, "--gpus")
        if found.foreign is None:
            return []
        _, text = job_of(found)
    except PlannerError as error:
        return _refusal("convert", error)
    draft = found.draft
    job = yaml.safe_load(text)
    lines = [("job", leaf) for leaf in leaves(job)]
    lines += [("remark", f"{key}: {its}") for key, its in sorted(draft.remarks.items()) if _has(job, key)]
    lines += [("repeats", each) for each in found.repeats]
    lines += [("carried", f"{note.key} -> {note.text}") for note in draft.carried]
    lines += [("derived", note.text) for note in draft.derived]
    lines += [("dropped", f"{note.key}: {note.text}") for note in draft.dropped]
    return lines + [("to do", str(each)) for each in draft.to_do]


def leaves(value, path=""):
    """The values of a job as `train.optimizer.lr: 1e-6`, its keys in the order of the alphabet. A list is one value."""
    if isinstance(value, dict) and value:
        for key in sorted(value):
            yield from leaves(value[key], f"{path}.{key}" if path else key)
    else:
        is_plain = isinstance(value, str) and value.isprintable() and '"' not in value
        yield f"{path}: {value if is_plain else json.dumps(value, sort_keys=True, ensure_ascii=False)}"


def _has(job, key):
    for name in key.split("."):
        if not isinstance(job, dict) or name not in job:
            return False
        job = job[name]
    return True


# -- planner convert --to


def _written(case, read):
    """The command for other systems. `read` is the recipe as `check` read it, None if it was refused."""
    targets = case.to
    if not targets and read is not None and read.system in _OWN:
        targets = (f"{_OWN[read.system]}@{read.gpus or _DEFAULT_AT}",)
    return [line for target in targets for line in _to(case, *target.split("@"))]


def _to(case, system, at):
    word = f"to {system} {at}"
    try:
        found = _read(case, "--gpus", is_for_job=False, needs_micro=False)
        if needs_job(found, system):
            found = _read(case, "--gpus", is_for_job=True, needs_micro=False)
        made = rewrite(found, system, int(at))
    except PlannerError as error:
        return _refusal(word, error)
    lines = [(word, made.arithmetic), *((word, part) for part in _OPTION.split(made.command))]
    lines += [(f"{word} note", note) for note in made.notes]
    lines += [(f"{word} unsaid", str(each)) for each in made.unsaid]
    return lines + ([(f"{word} file", made.file)] if made.file else [])


def with_line(case, name, line):
    """The case with a line in its first file, where it replaces the line with the same key."""
    first, key = next(iter(case.files)), line.partition(":")[0]
    kept = [each for each in case.files[first].splitlines() if each.partition(":")[0] != key]
    return replace(case, name=name, files={**case.files, first: "\n".join([*kept, line, ""])})

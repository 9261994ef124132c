"""Drafts a job's data section from the data sets that a recipe names, and says what is left to do."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.base.disk import expanded, is_file
from planner.files.messages import cut
from planner.recipes.drafting import plain
from planner.recipes.recipe import Draft, Note
from planner.recipes.row_sources import DatasetSource, Place, parts_of, place_of, short_name

_ROWS: dict[str, str] = {
    "chat": '{"messages": [{"role": ..., "content": ...}, ...]}',
    "pairs": '{"prompt": ..., "chosen": ..., "rejected": ...}',
    "feedback": '{"prompt": ..., "completion": ..., "label": true or false}',
}
# What a shell reads in double quotes.
_SPECIAL = set('"$`\\!\n')


@dataclass(frozen=True, kw_only=True)
class _Set:
    """A data set of the job, and what the user must do before it can be read."""

    keys: dict[str, Any]
    to_do: tuple[tuple[str, ...], ...] = ()
    """a text, and the shell commands that it speaks of"""
    is_placeholder: bool = False


def set_data(draft: Draft, kind: str, datasets: Sequence[DatasetSource], seed: int = 0) -> None:
    """Sets `data` to the data sets of a recipe, and adds what the user must do first to the to-do list.

    What planner reads becomes `data.path`, or `data.mixture` if there are several sets or a part of one. In place of
    any other set stands a folder, and the to-do list has the command that saves the rows there, or their form if
    nothing known loads them.

    Args:
        draft: the job in the making.
        kind: the job's `data.kind`.
        datasets: the data sets.
        seed: the seed by which a part of a set is chosen.
    """
    draft.set("data.kind", kind)
    sources = [part for each in datasets for part in parts_of(each) if part.name or part.loader is not None]
    sets = _sets(kind, sources) or [_unnamed(kind)]
    shown = ", ".join(map(_shown, sources)) or "no data set"
    said = f"the recipe names {cut(shown, 200)}"
    is_mixture = len(sets) > 1 or not {"fraction", "weight"}.isdisjoint(sets[0].keys)
    if is_mixture:
        draft.set("data.mixture", [each.keys for each in sets])
        note = f"data.kind {kind}, data.mixture of {len(sets)} data set{'s' * (len(sets) > 1)}: {said}"
    else:
        for name, value in sets[0].keys.items():
            draft.set(f"data.{name}", value)
        note = f"data.kind {kind}, data.path {sets[0].keys['path']}: {said}"
    draft.derived.append(Note(key="data", text=note))
    if any("fraction" in each.keys for each in sets):
        draft.derive("data.seed", seed, f"data.seed {seed}: it chooses the rows of a set of which a part is taken")
    if not is_mixture and sets[0].is_placeholder:
        draft.remarks["data.path"] = "a placeholder: see to do"
    for text, *commands in (each for its in sets for each in its.to_do):
        draft.ask(text, *commands)


def _shown(source: DatasetSource) -> str:
    """A data set's name with its configuration, split and files."""
    files = plain(source.files) if source.files is not None else None
    parts = ", ".join(filter(None, (source.config, source.split, source.folder, files)))
    return f"{source.name} ({parts})" if parts else source.name


def rows_of(kind: str, datasets: Sequence[DatasetSource]) -> dict[str, Any] | None:
    """The keys that name these data sets in a job, whole. None if planner does not read all of them where they are."""
    found = []
    for each in datasets:
        place = place_of(each, kind)
        keys = dict(place.keys)
        path = keys.get("path", "")
        is_split = keys.get("split") == each.wanted_split or path.endswith(f"/{each.wanted_split}")
        is_whole = each.split is None and is_file(expanded(path))
        if place.lack or not path or not (is_split or is_whole):
            return None
        found.append({**keys, **_columns(each)})
    if len(found) == 1:
        return found[0]
    return {"mixture": found} if found else None


def set_test_rows(draft: Draft, kind: str, test: Sequence[DatasetSource], samples: int, why: str) -> bool:
    """Sets `eval.data` to the rows that a recipe evaluates, if planner reads them where they are.

    Args:
        draft: the job in the making.
        kind: the job's `data.kind`.
        test: the data sets that the recipe evaluates.
        samples: how many of their rows it evaluates, 0 for all.
        why: what the note says of them.

    Returns:
        Whether planner reads them. Otherwise nothing is set.
    """
    rows = rows_of(kind, test)
    if rows is None:
        return False
    draft.derive("eval.data", rows, f"eval.data {shown_sets(rows)}: {why}")
    draft.set("eval.samples", samples)
    if not samples:
        draft.remarks["eval.samples"] = "all rows of eval.data"
    return True


def _sets(kind: str, sources: Sequence[DatasetSource]) -> list[_Set]:
    """Each data set as the job names it. Folders for those that must be saved first differ from each other."""
    made: list[_Set] = []
    for source in sources:
        place = place_of(source, kind)
        lack = cut(f"data.path: {place.lack}", 400) if place.lack else ""
        if place.keys:
            to_do = ((f"{lack}. Its rows must have the form {_ROWS[kind]}",),) if lack else ()
            made.append(_Set(keys={**place.keys, **_columns(source), **_share(source)}, to_do=to_do))
            continue
        folder = _folder(source, {str(each.keys["path"]) for each in made})
        to_do = (*(((lack,),) if lack else ()), _saving(kind, folder, source, place))
        keys = {"path": folder, **_columns(source), **_share(source)}
        made.append(_Set(keys=keys, to_do=to_do, is_placeholder=True))
    return made


def _unnamed(kind: str) -> _Set:
    text = f"write the data into data/NAME/ as jsonl, with rows such as {_ROWS[kind]}"
    return _Set(keys={"path": "data/NAME/"}, to_do=((text,),), is_placeholder=True)


def _columns(source: DatasetSource) -> dict[str, Any]:
    """The columns that a recipe keeps, or the one of plain text under its other name."""
    if source.text:
        return {"columns": {"text": source.text}}
    if isinstance(source.columns, Mapping) and source.columns:
        return {"columns": dict(source.columns)}
    return {"columns": list(source.columns)} if source.columns else {}


def _share(source: DatasetSource) -> dict[str, float]:
    """The part of a set, without the one that means all of its rows."""
    if source.weight is not None:
        return {"weight": source.weight}
    return {"fraction": source.fraction} if source.fraction not in {None, 1} and source.fraction else {}


def _folder(source: DatasetSource, others: set[str]) -> str:
    """A folder for the saved rows, at which no other data is. The slash keeps it from being a name of the hub."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", short_name(source.name))[:80].strip("-.") or "NAME"
    folder = f"data/{base}"
    while (
        f"{folder}/" in others
        or _is_at(folder, source.name)
        or (os.path.lexists(folder) and not _may_be_replaced(Path(folder)))
    ):
        folder += "-rows"
    return f"{folder}/"


def _is_at(folder: str, name: str) -> bool:
    """Whether a data set's name is that of a folder."""
    try:
        return os.path.realpath(folder) == os.path.realpath(name)
    except ValueError:  # a name that no file can have
        return False


def _may_be_replaced(folder: Path) -> bool:
    """Whether the folder has what `save_to_disk` wrote, such as the rows that this command saved before."""
    return (folder / "state.json").is_file()


def _saving(kind: str, folder: str, source: DatasetSource, place: Place) -> tuple[str, ...]:
    """How to save a data set, and the shell command for it. The form of its rows alone if nothing known loads it."""
    if not place.load:
        return (f"write {cut(source.name, 200)} into {folder} as jsonl, with rows such as {_ROWS[kind]}",)
    code = f"from datasets import load_dataset; {place.load}.save_to_disk({folder.rstrip('/')!r})"
    text = f"save {cut(_shown(source), 200)} once with the command below. Its rows must have the form {_ROWS[kind]}"
    return text, python_command(code)


def python_command(code: str) -> str:
    """The shell command that runs a line of Python. In it the shell replaces nothing."""
    return f"python -c {shlex.quote(code)}" if _SPECIAL & set(code) else f'python -c "{code}"'


def shown_sets(rows: dict[str, Any]) -> str:
    """The data sets that `rows_of` found, in one line for a note."""
    named = [(each["path"], each.get("config"), each.get("split")) for each in rows.get("mixture", [rows])]
    return cut(", ".join(" ".join(filter(None, parts)) for parts in named), 200)

"""Drafts a job's `data.kind` and `data.path` from the data sets that a recipe names, and says what is left to do."""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from planner.data.formats import Kind
from planner.files.messages import cut
from planner.recipes.recipe import Draft, Note
from planner.recipes.row_sources import DatasetSource, Place, place_of, short_name

_ROWS: dict[str, str] = {
    "chat": '{"messages": [{"role": ..., "content": ...}, ...]}',
    "pairs": '{"prompt": ..., "chosen": ..., "rejected": ...}',
    "feedback": '{"prompt": ..., "completion": ..., "label": true or false}',
}
_FUNCTIONS = ("Dataset", "concatenate_datasets", "load_dataset", "load_from_disk")
# What a shell reads in double quotes.
_SPECIAL = set('"$`\\!\n')


def set_data(draft: Draft, kind: str, datasets: Sequence[DatasetSource]) -> None:
    """Sets `data.kind` and `data.path`, and adds what the user must do first to the to-do list.

    A single file or folder that planner reads becomes `data.path` itself. For other data sets `data.path` is a folder,
    and the to-do list has a command that saves them there, or the form of their rows if nothing known loads them.
    """
    places = [place_of(each, cast("Kind", kind)) for each in datasets]
    is_direct = len(places) == 1 and bool(places[0].path)
    path = places[0].path if is_direct else _folder(datasets)
    draft.set("data.kind", kind)
    draft.set("data.path", path)
    shown = ", ".join(each.name + (f" ({each.split})" if each.split else "") for each in datasets) or "no data set"
    note = f"data.kind {kind}, data.path {path}: the recipe names {cut(shown, 200)}"
    draft.derived.append(Note(key="data", text=note))
    if is_direct and places[0].split:
        draft.set("data.split", places[0].split)
    lacks = [place.lack for place in places if place.lack]
    if is_direct:
        for lack in lacks:
            draft.ask(f"{cut(lack, 400)}. Its rows must have the form {_ROWS[kind]}")
        return
    draft.remarks["data.path"] = "a placeholder: see to do"
    for lack in lacks:
        draft.ask(cut(lack, 400))
    draft.ask(*_saving(kind, path, datasets, places))


def _folder(datasets: Sequence[DatasetSource]) -> str:
    """A folder for the saved rows, at which no other data is."""
    names = [short_name(each.name) for each in datasets]
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(dict.fromkeys(names)))[:80].strip("-.") or "NAME"
    folder = f"data/{base}"
    taken = {os.path.realpath(each.name) for each in datasets}
    while os.path.realpath(folder) in taken or (os.path.lexists(folder) and not _may_be_replaced(Path(folder))):
        folder += "-rows"
    return folder


def _may_be_replaced(folder: Path) -> bool:
    """Whether the folder has what `save_to_disk` wrote, such as the rows that this command saved before."""
    return (folder / "state.json").is_file()


def _saving(kind: str, folder: str, datasets: Sequence[DatasetSource], places: Sequence[Place]) -> list[str]:
    """How to save data sets, and the shell command for it. For others the form of their rows alone."""
    loads = [place.joined if len(places) > 1 else place.load for place in places]
    if not loads or not all(loads):
        names = ", ".join(each.name for each in datasets) or "the data"
        return [f"write {cut(names, 200)} into {folder}/ as jsonl, with rows such as {_ROWS[kind]}"]
    whole = loads[0] if len(loads) == 1 else f"concatenate_datasets([{', '.join(loads)}])"
    imports = [name for name in _FUNCTIONS if f"{name}(" in whole or f"{name}." in whole]
    code = f"from datasets import {', '.join(imports)}; {whole}.save_to_disk({folder!r})"
    return [
        f"save the data once with the command below. Its rows must have the form {_ROWS[kind]}",
        python_command(code),
    ]


def python_command(code: str) -> str:
    """The shell command that runs a line of Python. In it the shell replaces nothing."""
    return f"python -c {shlex.quote(code)}" if _SPECIAL & set(code) else f'python -c "{code}"'

"""Writes a job's data sets and its evaluation as TRL's scripts, or those of the alignment-handbook, take them.

A single set goes into options. Several go into a file: `dataset_mixture` of the handbook, whose weights are parts of a
set's rows, or `datasets` of TRL, whose fractions are shares of the mixture.
"""

import json
import shlex
from pathlib import PurePath
from typing import Any, Literal

from planner.base.disk import expanded
from planner.data.hub_sets import is_hub_name
from planner.data.tables import is_saved_folder
from planner.job import Job, MixtureSet, Rows, RowsData, duration
from planner.recipes.rendering import DATA_SETS, Rendering
from planner.recipes.scalars import number

LISTED = "datasets:"
"""the line of a file that only TRL's own scripts read, and not those of the handbook"""
_Form = Literal["name", "mixture", "list", ""]
# The loader of the datasets library for a file that planner reads.
_LOADERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}


def data_to_trl(rendering: Rendering) -> None:
    """Write the job's data sets and what it evaluates, and list what TRL cannot express."""
    job = rendering.job
    form = _form(job)
    if not form or not isinstance(job.data, RowsData):
        rendering.write("", "--dataset_name DATA", "--output_dir OUT")
        rendering.leave(f"name {DATA_SETS}", "write your data set for DATA and a folder for OUT")
    else:
        _write_sets(rendering, job.data, form)
        rendering.leave("data.revision", "TRL reads the newest revision of a data set")
        rendering.leave("data.columns", "TRL reads the columns that it knows")
        rendering.leave("data.seed", "TRL takes the first rows of a set")
        rendering.leave("name", "write a folder for OUT")
    _evaluation(rendering, form)


def _form(job: Job) -> _Form:
    """How TRL takes the job's data sets. Empty if it does not."""
    if not isinstance(job.data, RowsData):
        return ""
    sets, holds_out = job.data.sets, job.eval.samples != 0 and job.eval.data is None
    # Only `datasets` of TRL takes files, and a folder within a data set.
    files = sum(_loader(each.path) != "" or each.folder is not None for each in sets)
    if any(each.rows is not None or each.loader or _renames(each) for each in sets) or not all(map(_is_loadable, sets)):
        return ""
    is_one = len(sets) == 1 and not files and sets[0].fraction is None and sets[0].weight is None
    if is_one and not holds_out and (sets[0].columns is None or job.eval.data is not None):
        return "name"
    if job.objective.kind == "simpo":  # its script reads dataset_name alone
        return ""
    has_parts, has_shares = (any(getattr(each, key) is not None for each in sets) for key in ("fraction", "weight"))
    if job.objective.kind != "kto" and not has_shares and not files:
        return "mixture" if all((each.fraction or 1) <= 1 for each in sets) else ""
    return "" if has_parts else "list"


def _is_loadable(each: MixtureSet) -> bool:
    """Whether `load_dataset` reads what is at the path."""
    folder = expanded(each.path)
    return bool(is_hub_name(each.path) or _loader(each.path) or (folder.is_dir() and not is_saved_folder(folder)))


def _loader(path: str) -> str:
    return "" if is_hub_name(path) else _LOADERS.get(PurePath(path).suffix.lower(), "")


def _renames(each: MixtureSet) -> bool:
    return any(ours != theirs for ours, theirs in (each.columns or {}).items())


def _write_sets(rendering: Rendering, data: Rows, form: _Form) -> None:
    for each in data.mixture:
        if each.revision:
            rendering.remark(f"data.mixture, revision {each.revision}: TRL reads the newest revision of {each.path}")
        if each.columns and form == "name":
            rendering.remark(f"data.mixture, columns {', '.join(each.columns)}: TRL reads the columns that it knows")
    if form == "name":
        options = {"name": data.sets[0].path, "config": data.sets[0].config, "train_split": data.sets[0].split}
        written = [f"--dataset_{key} {shlex.quote(value)}" for key, value in options.items() if value]
        rendering.write("data.path data.config data.split data.mixture", *written, "--output_dir OUT")
        return
    rendering.write("data.path data.config data.folder data.split data.columns data.mixture", "--output_dir OUT")
    held = _test_split_size(rendering.job)
    if form == "list":
        listed = "".join(f"  - {json.dumps(_of_trl(each))}\n" for each in data.sets)
        rendering.file += f"{LISTED}\n{listed}" + (f"test_split_size: {held}\n" if held else "")
        return
    listed = "".join(f"    - {json.dumps(_of_handbook(each))}\n" for each in data.sets)
    rendering.file += f"dataset_mixture:\n  datasets:\n{listed}  seed: {data.seed}\n"
    rendering.file += f"  test_split_size: {held}\n" if held else ""
    rendering.write("data.seed")


def _of_trl(each: MixtureSet) -> dict[str, Any]:
    loader = _loader(each.path)
    source = {"path": loader, "data_files": each.path} if loader else {"path": each.path}
    split = None if loader else each.split
    named = {**source, "name": each.config, "data_dir": each.folder, "split": split}
    return _without_nulls({**named, **_columns(each), "fraction": each.weight})


def _of_handbook(each: MixtureSet) -> dict[str, Any]:
    named = {"id": each.path, "config": each.config, "split": each.split, **_columns(each), "weight": each.fraction}
    return _without_nulls(named)


def _columns(each: MixtureSet) -> dict[str, Any]:
    return {"columns": list(each.columns)} if each.columns else {}


def _without_nulls(section: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if value is not None}


# -- evaluation


def _test_split_size(job: Job) -> str:
    """What a job holds out, as a number of rows or as a part of 1. Empty if it holds out nothing."""
    samples = job.eval.samples
    if not samples or job.eval.data is not None:
        return ""
    return number(float(samples[:-1]) / 100) if isinstance(samples, str) else str(samples)


def _evaluation(rendering: Rendering, form: _Form) -> None:
    job = rendering.job
    if not job.eval.is_on:
        rendering.write("eval")
        return
    every = _eval_every(job)
    if every and form in {"mixture", "list"} and job.eval.data is None:
        rendering.write("eval.samples eval.every", *every)
    elif every and form == "name" and _is_split_of_the_same(job):
        test = job.eval.data.split if job.eval.data else None
        rendering.write("eval.data eval.every", *every, f"--dataset_test_split {shlex.quote(str(test))}")
        if not job.eval.samples:
            rendering.write("eval.samples")
        rendering.leave("eval.samples", "TRL evaluates all rows of a split")
    rendering.leave("eval", "TRL evaluates a test split, so write --eval_strategy steps and --eval_steps")


def _is_split_of_the_same(job: Job) -> bool:
    """Whether the rows to evaluate are a named split of the data set to train on, which is all that TRL takes."""
    rows = job.eval.data
    if rows is None or not isinstance(job.data, RowsData) or len(rows.sets) != 1:
        return False
    test, train = rows.sets[0], job.data.sets[0]
    is_plain = test.split is not None and test.columns == train.columns and test.fraction is None and test.rows is None
    return is_plain and all(
        getattr(test, key) == getattr(train, key) for key in ("path", "config", "folder", "revision", "loader")
    )


def _eval_every(job: Job) -> list[str]:
    """The options for the distance between two evaluations. Empty if TRL has none for it."""
    every, batch = duration.parse(job.eval.every), job.batch.global_batch
    if every.unit == "epochs":
        return ["--eval_strategy epoch"] if every.amount == 1 else []
    steps = {"steps": every.amount, "examples": every.amount / batch, "%": every.amount / 100}[every.unit]
    is_whole = steps.denominator == 1 or every.unit == "%"
    return [f"--eval_strategy steps --eval_steps {number(float(steps))}"] if is_whole and steps else []

"""What reads files of strangers: one function each, which is given a folder and reads all of it as the commands do."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from planner.cli import app
from planner.job import Job

_ROWS = 20


def _command(*words: str) -> None:
    """A command of planner's; its errors are raised."""
    app(list(words), standalone_mode=False)


def _job_of(folder: Path, **sections: object) -> Job:
    values = {
        "name": "fuzz",
        "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 64},
        "batch": {"global": 2, "max_micro": 1},
        "train": {"steps": 2, "optimizer": {"kind": "adamw", "lr": 1e-3}},
        "eval": {"samples": 0},
        "workers": {"gpus": 0},
        "checkpoint": {"path": str(folder / "none")},
    }
    return Job.model_validate({**values, **sections})


def _open(job: Job) -> None:
    """The data set, as the driver opens it, and its first rows."""
    from planner.data.open import open_dataset

    dataset = open_dataset(job.data, job.model)
    for row in islice(range(dataset.num_rows), _ROWS):
        (dataset.sample if hasattr(dataset, "sample") else dataset.tokens)(row)


def read_job(folder: Path) -> None:
    """A job file."""
    _command("plan", str(folder / "job.yaml"), "--gpus", "1-4")
    _command("plan", str(folder / "job.yaml"), "--json", "--gpus", "3")


def read_cluster(folder: Path) -> None:
    """A cluster file of Ray's or KubeRay's."""
    _command("plan", str(folder / "sound" / "job.yaml"), "--cluster", str(folder / "cluster.yaml"))


def read_recipe(folder: Path) -> None:
    """A recipe: checked, and made a job."""
    told = json.loads((folder / "sound" / "words.json").read_text())
    path = str(folder / told["file"])
    check = ["check", path, *told["words"], *told["check"], "--gpus", "1-4"]
    _command(*check)
    _command(*check, "--json")
    _command("convert", path, *told["words"], *told["convert"])


def read_recipe_for_another(folder: Path) -> None:
    """A recipe, said to another system."""
    told = json.loads((folder / "sound" / "words.json").read_text())
    path = str(folder / told["file"])
    _command("convert", path, *told["words"], *told["convert"], "--to", told["to"], "--at", "4")


def read_model(folder: Path) -> None:
    """A model's folder, as the driver and a worker look at it."""
    from planner.data.model_files import check_here, fingerprint
    from planner.train.models.hf import build_on_meta

    model = {"kind": "hf", "path": str(folder / "model"), "context": 32}
    path = folder / "sound" / "rows.jsonl"
    job = _job_of(folder, model=model, data={"kind": "chat", "path": str(path)}, objective="sft")
    check_here(job)
    fingerprint(job)
    build_on_meta(job.model)


def read_tokenizer(folder: Path) -> None:
    """A tokenizer and its chat template, by the tokens that they make."""
    model = {"kind": "hf", "path": str(folder / "model"), "context": 256, "weights": "random"}
    path = folder / "sound" / "rows.jsonl"
    _open(_job_of(folder, model=model, data={"kind": "chat", "path": str(path)}, objective="sft"))


def _read_rows(file: Path) -> None:
    name = file.stem.partition("-")[0]
    objective = {"chat": "sft", "pairs": "dpo", "feedback": "kto", "text": "lm"}[name]
    kind = "jsonl" if name == "text" else name
    data = {"kind": kind, "path": str(file)}
    _open(_job_of(file.parent, data=data, objective=objective))


def read_parquet(folder: Path) -> None:
    """A parquet file of rows."""
    _read_rows(next(folder.glob("*.parquet"), folder / "chat.parquet"))


def read_jsonl(folder: Path) -> None:
    """JSON lines, or an array."""
    _read_rows(next(folder.glob("*.json*"), folder / "chat.jsonl"))


def read_tokens(folder: Path) -> None:
    """A file of prepared tokens."""
    _open(_job_of(folder, data={"kind": "tokens", "path": str(folder / "file.tokens")}))


def read_run(folder: Path) -> None:
    """A run's folder: listed, shown and audited."""
    run = str(folder / "run")
    _command("runs", str(folder))
    _command("show", run)
    _command("show", run, "--json")
    _command("audit", run)


READERS: dict[str, Callable[[Path], None]] = {
    "job": read_job,
    "cluster": read_cluster,
    "recipe": read_recipe,
    "rewrite": read_recipe_for_another,
    "model": read_model,
    "tokenizer": read_tokenizer,
    "parquet": read_parquet,
    "jsonl": read_jsonl,
    "tokens": read_tokens,
    "run": read_run,
}

"""What reads files of strangers: one function each, which is given a folder and reads all of it as the commands do."""

import json
import os
import sys
from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import CodeType, ModuleType
from unittest import mock

from planner.cli import app
from planner.errors import PlannerError
from planner.job import Job
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

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
    from planner.data.job_folders import JobFolders, check_here
    from planner.data.model_folder import ModelFolder
    from planner.train.models.hf import build_on_meta

    model = {"kind": "hf", "path": str(folder / "model"), "context": 32}
    path = folder / "sound" / "rows.jsonl"
    job = _job_of(folder, model=model, data={"kind": "chat", "path": str(path)}, objective="sft")
    check_here(job)
    folders = JobFolders.of(job, ModelFolder.find)
    folders.fingerprint()
    build_on_meta(folders.model)


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


def _each(*reads: Callable[[], object]) -> None:
    """All of them, though one refuses. The longest message is raised at the end."""
    refused = []
    for read in reads:
        try:
            read()
        except PlannerError as error:
            refused.append(error)
            print(ascii(str(error)))  # for who looks at what was refused
    if refused:
        raise max(refused, key=lambda error: (not _is_printable(str(error)), len(str(error))))


def _is_printable(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


def _commands(*commands: tuple[str, ...]) -> None:
    _each(*(partial(_command, *words) for words in commands))


def _run_of(folder: Path) -> RunFolder:
    return RunFolder(Storage(str(folder / "run")))


def _beside_run(read: Callable[[Path], None]) -> Callable[[Path], None]:
    """A reader that runs where the paths of the run's data begin."""

    def reader(folder: Path) -> None:
        folder = folder.absolute()
        os.chdir(folder)
        read(folder)

    return reader


def read_run(folder: Path) -> None:
    """A run's folder: listed, shown, watched."""
    run = str(folder / "run")
    _commands(("runs", str(folder)), ("show", run), ("show", run, "--json"), ("watch", run))


def read_run_for_audit(folder: Path) -> None:
    """A run's folder, audited with its tensors, whether or not it has a certificate."""
    from planner.train.checkpoints.checkpoint import read_digests

    run = _run_of(folder)

    def tensors() -> None:
        manifest = run.manifest(run.commits()[-1]) if run.commits() else None
        if manifest is not None:
            run.check_files(manifest.folder, manifest.files)
            read_digests(run.storage, manifest)

    _each(partial(_command, "audit", str(folder / "run")), tensors)


def read_run_for_report(folder: Path) -> None:
    """A run's folder, on a page."""
    _command("report", str(folder / "run"), "-o", str(folder / "sound" / "page.html"))


def read_run_for_export(folder: Path) -> None:
    """A run's folder, exported."""
    _command("export", str(folder / "run"), "-o", str(folder / "sound" / "exported"))


def read_run_for_trackers(folder: Path) -> None:
    """A run's folder, as the child that sends rows to trackers reads it."""
    from planner.job.tracking import JsonlTracking
    from planner.runner.track_run import job_of_run
    from planner.tracking.child import subjects_of
    from planner.tracking.feed import Feed

    url = str(folder / "run")
    trackers = (JsonlTracking(),)

    def rows() -> None:
        feed = Feed(_run_of(folder))
        list(feed.new_rows())
        list(feed.last_rows())

    _each(lambda: subjects_of(job_of_run(url, lambda job: job.model_copy(update={"tracking": trackers})), url), rows)


def read_run_for_comparison(folder: Path) -> None:
    """A run's folder, compared with what was observed while it was trained."""
    from planner.files import read_job
    from planner.provenance.compare import compare_batches, compare_bitwise, read_trace
    from planner.train.checkpoints.checkpoint import read

    run = _run_of(folder)
    job = read_job(str(folder / "sound" / "job.yaml"))
    trace = read_trace(run, (folder / "sound" / "observed.jsonl").read_bytes())
    compare_bitwise(trace, trace)
    compare_batches(trace, trace, job.train.precision)
    for _name, tensor in read(run.storage, run.manifest(run.commits()[-1]), "model/"):
        float(tensor.double().norm())


def read_run_to_resume(folder: Path) -> None:
    """A run's folder, as a driver and a worker that resume it read it. The worker stops before its first step."""
    import torch.distributed as dist

    from planner.files import read_job
    from planner.runner.local import Local
    from planner.runner.start import plan_start
    from planner.train.generation import train
    from planner.train.hooks import Hooks
    from planner.train.setup import Launch
    from planner.train.world import cpu_device

    job = read_job(str(folder / "sound" / "job.yaml"))
    url = str(folder / "run")

    def worker() -> None:
        store = folder / "sound" / "rendezvous"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        train(Launch(job=job, url=url, accept=frozenset({"data"})), cpu_device, Hooks(should_stop=lambda _step: True))

    _each(lambda: plan_start(job, Local()), worker)


def read_run_with_script(folder: Path) -> None:
    """A run's folder, checked by `docs/verify_run.py`."""
    script = ModuleType("verify_run")
    exec(_script_code(), script.__dict__)
    with mock.patch.object(sys, "argv", ["verify_run.py", str(folder / "run")]):
        try:
            code = script.main()
        except SystemExit as end:  # argparse
            code = end.code
    assert code in {0, 1, 2, 3}, f"exit code {code!r}"


@cache
def _script_code() -> CodeType:
    file = Path(__file__).parents[2] / "docs" / "verify_run.py"
    return compile(file.read_text(), file, "exec")


RUN_READERS: dict[str, Callable[[Path], None]] = {
    name: _beside_run(read)
    for name, read in {
        "run": read_run,
        "audit": read_run_for_audit,
        "report": read_run_for_report,
        "export": read_run_for_export,
        "track": read_run_for_trackers,
        "compare": read_run_for_comparison,
        "resume": read_run_to_resume,
        "verify_run": read_run_with_script,
    }.items()
}
"""What reads a run. The valid inputs of all are those of `run`."""

SLOW = {"report": 5}
"""reader -> only each so-manieth case is run"""

HAS_MODEL = frozenset({"hf"})
"""the valid runs that can be exported"""

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
    **RUN_READERS,
}

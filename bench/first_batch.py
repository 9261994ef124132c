"""Seconds to the first batch, rows per second and memory of every kind of data, also beside another version of planner.

    python bench/first_batch.py [--rows 10000 10000000] [--before CHECKOUT] [--pairs 3]

Each figure is of a process of its own: `first` has an empty cache, `again` the cache that the first one filled. With
--before, processes of the checkout there and of this one take turns.

open_s         until the data set is open and its order is known
batch_s        from then on until 256 rows are tensors
rows_per_s     of a thread that only loads, with the checksums that a step computes
peak_mib       what the process grew by at its peak, mapped files included
anonymous_mib  what it holds after the last batch, without mapped files
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from _results import write

_ROOT = Path(__file__).parent.parent
_CONTEXT, _BATCH, _STEPS = 64, 256, 40
_LONG = ("text", "jsonl", "stream", "rows")
_KINDS = (*_LONG, "chat", "pairs", "feedback")


def write_data(folder: Path, num_rows: int) -> None:
    """Rows of about 64 bytes in every form. Token files are those of `planner prepare`."""
    from planner.data.prepare_tokens import prepare
    from planner.job import JsonlData, TextData

    words = "the quick brown fox jumps over the lazy dog "
    forms = {"jsonl": {"text": f"{words}N"}}
    if num_rows <= 10**5:
        forms |= {
            "chat": {"prompt": words, "completion": "N"},
            "pairs": {"prompt": words, "chosen": "N", "rejected": "no N"},
            "feedback": {"prompt": words, "completion": "N", "label": True},
        }
    for kind, row in forms.items():
        begin, _, end = json.dumps(row).partition("N")
        with (folder / f"{kind}.jsonl").open("w") as stream:
            stream.writelines(f"{begin}{number}{end.replace('N', str(number))}\n" for number in range(num_rows))
    with (folder / "text.txt").open("w") as stream:
        stream.writelines(f"{words}{number:018d}\n" for number in range(num_rows))
    prepare(TextData(kind="text", path=str(folder / "text.txt")), folder / "stream.tokens")
    prepare(JsonlData(kind="jsonl", path=str(folder / "jsonl.jsonl")), folder / "rows.tokens")


def job_values(kind: str, folder: Path) -> dict[str, object]:
    """A job on that data, as a file would say it."""
    place = {"text": ("text", "text.txt"), "stream": ("tokens", "stream.tokens"), "rows": ("tokens", "rows.tokens")}
    named, file = place.get(kind, (kind, f"{kind}.jsonl"))
    objectives = {"chat": "sft", "pairs": "dpo", "feedback": "kto"}
    return {
        "name": "bench",
        "model": {"kind": "gpt", "layers": 1, "width": 2, "heads": 1, "context": _CONTEXT},
        "data": {"kind": named, "path": str(folder / file)},
        "objective": objectives.get(kind, "lm"),
        "batch": {"global": _BATCH, "max_micro": 16},
        "train": {"steps": 1, "optimizer": {"kind": "sgd", "lr": 0.1}},
    }


def measure_one(values: dict[str, object]) -> dict[str, float]:
    """The figures of this process."""
    import resource
    import time

    from planner.job import Job, batch_sizes
    from planner.plan import make_plan
    from planner.provenance.identity import open_data
    from planner.train.batches import Loader
    from planner.train.generation import make_batch_of

    job = Job.model_validate(values)
    partners = {"has_partners" if "has_partners" in Loader.__dataclass_fields__ else "is_coupled"}
    needs = dict.fromkeys(partners, job.data.kind == "feedback")
    small = job.data.model_copy(update={"path": str(Path(job.data.path).parent / "small" / Path(job.data.path).name)})
    open_data(job.model_copy(update={"data": small}))  # imports what it needs
    gc.freeze()  # a full collection of that takes 0.1 s, and would come by chance
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s = time.perf_counter()
    dataset, order = open_data(job)
    opened_s = time.perf_counter()
    plan = make_plan(batch_sizes(job), 1)
    loader = Loader(dataset=dataset, order=order, plan=plan, rank=0, make_batch=make_batch_of(job), **needs)
    loader.load(0)
    first_s = time.perf_counter()
    for step in range(1, _STEPS + 1):
        for batch in loader.load(step * _BATCH).batches:
            batch.check_sum()
    end_s = time.perf_counter()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "open_s": round(opened_s - began_s, 3),
        "batch_s": round(first_s - opened_s, 4),
        "rows_per_s": round(_STEPS * _BATCH / (end_s - first_s)),
        "peak_mib": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024),
        "anonymous_mib": round(int(status["RssAnon"].split()[0]) / 1024),
    }


def measured(root: Path, values: dict[str, object], cache: Path) -> dict[str, float]:
    """The figures of a process with the planner of a checkout."""
    command = [sys.executable, str(Path(__file__).absolute()), "--one", json.dumps(values)]
    environment = {**os.environ, "PYTHONPATH": str(root), "PLANNER_CACHE": str(cache)}
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    figures: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return figures


def rows_of(folder: Path, num_rows: int, roots: dict[str, Path], pairs: int) -> Iterator[dict[str, object]]:
    """Every figure of data of one size."""
    for kind in _KINDS if num_rows <= 10**5 else _LONG:
        values = job_values(kind, folder)
        for number in range(pairs):
            for version, root in roots.items():
                with tempfile.TemporaryDirectory(dir=folder) as cache:
                    for start in ("first", "again"):
                        facts = {"kind": kind, "rows": num_rows, "version": version, "start": start, "pair": number}
                        yield {**facts, **measured(root, values, Path(cache))}


def main() -> None:
    """Measure and write `bench/results/first_batch.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10**4, 10**7])
    parser.add_argument("--before", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure_one(given.one)))
        return
    roots = {**({"before": given.before.absolute()} if given.before else {}), "now": _ROOT}
    rows: list[dict[str, object]] = []
    for num_rows in given.rows:
        with tempfile.TemporaryDirectory(prefix="planner-bench-") as name:
            (Path(name) / "small").mkdir()
            write_data(Path(name) / "small", 300)
            write_data(Path(name), num_rows)
            for row in rows_of(Path(name), num_rows, roots, given.pairs):
                rows.append(row)
                print(json.dumps(row), flush=True)
    write("first_batch", rows)


if __name__ == "__main__":
    main()

"""How long a large group needs until its first step, by phase, and what its second gloo group costs.

    python bench/start.py [--workers 64 128] [--groups two lazy one] [--repeats 5]

A tiny gpt on so many processes of this machine (gloo, TCP store, no Ray). A forkserver has imported torch for all of
them, because so many imports on two cores would hide the rest: `import_s` is that of one process alone. A phase ends
when the last worker has it behind it. All workers share this machine's cores: a cluster's phases are shorter.

groups     two: as planner does, a gloo group for gradients and another for small objects and the control message
           lazy: two, whose connections are made when two workers first exchange something (TORCH_GLOO_LAZY_INIT=1)
           one: the default group for everything. A trial, see below
process    all processes run
default group, second group    `init_process_group` and `new_group`
mesh       the rest of `World.join`: the first agreement, and the device mesh
agreement  opening the run, comparing what each worker derives, the claim
model      model, FSDP, optimizer
records    the ledger, copies, commits
first step, second step        their gradients are computed

Is one group safe? Only while nothing fails. gloo numbers the collectives of a group in the order of calls, and planner
makes all of them in the training thread, in one order on all workers. So the trial trains. Tried with two processes and
one group (torch 2.13), where orders differ: two all-reduces of one size in swapped order give wrong sums without an
error. With different sizes gloo ends the process (`terminate called`, SIGABRT). An all-gather against an all-reduce
waits for the timeout, and the group is broken after it. planner agrees on an error when one worker has left a step and
the others wait in a collective of gradients: that needs a second group.
"""

import argparse
import multiprocessing
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from _lines import lines
from _results import hand_over
from _start_worker import LOOPBACK, MARKS, started

from planner.job import Job

_GROUPS = ("two", "lazy", "one")
_LIMIT_S = 600.0
_PRELOADED = [
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.onnx",
    "planner.train.generation",
]


def job_of(num_workers: int, folder: Path) -> Job:
    """One sample per worker."""
    (folder / "corpus").write_bytes(bytes(range(1, 128)) * 2**12)
    return Job.model_validate(
        {
            "name": "start",
            "model": {"kind": "gpt", "layers": 2, "width": 32, "heads": 2, "context": 16},
            "data": {"kind": "text", "path": str(folder / "corpus")},
            "batch": {"global": num_workers, "max_micro": 1},
            "train": {"steps": 1000, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            "eval": {"samples": 0},
            "workers": {"gpus": 0},
            "checkpoint": {"every": 1000},
        }
    )


def measure(num_workers: int, groups: str) -> dict[str, float]:
    """Phase -> its seconds, of one start.

    Raises:
        TimeoutError: the second step was not there in time.
        RuntimeError: a worker has ended.
    """
    import torch.distributed as dist

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    idle = context.Process(target=time.monotonic)
    idle.start()
    idle.join()  # the forkserver has imported everything
    processes = []
    with tempfile.TemporaryDirectory(prefix="planner-start-") as name, socket.create_server((LOOPBACK, 0)) as listener:
        log, port = Path(name) / "log", listener.getsockname()[1]
        store = dist.TCPStore(
            LOOPBACK,
            port,
            num_workers,
            is_master=True,
            timeout=timedelta(seconds=_LIMIT_S),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        job = job_of(num_workers, Path(name))
        began_s = time.monotonic()
        try:
            for rank in range(num_workers):
                arguments = (rank, num_workers, port, job, str(Path(name) / "run"), str(log), groups)
                processes.append(context.Process(target=started, args=arguments, daemon=True))
                processes[-1].start()
            seen = _awaited(log, num_workers, processes)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.join()
            del store
    return phases(seen, began_s)


def _awaited(log: Path, num_workers: int, processes: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    """The lines, once all workers have the last mark."""
    deadline_s = time.monotonic() + _LIMIT_S
    while True:
        seen = lines(log)
        if sum(line["kind"] == MARKS[-1] for line in seen) == num_workers:
            return seen
        if ended := [rank for rank, process in enumerate(processes) if process.exitcode is not None]:
            raise RuntimeError(f"workers {ended} have ended")
        if time.monotonic() > deadline_s:
            missing = {mark: sum(line["kind"] == mark for line in seen) for mark in MARKS}
            raise TimeoutError(f"no second step within {_LIMIT_S:.0f} s: {missing}")
        time.sleep(0.2)


def phases(seen: Sequence[Mapping[str, Any]], began_s: float) -> dict[str, float]:
    """Phase -> seconds from the end of the phase before, each when the last worker had it behind it."""
    found, before_s = {}, began_s
    for mark in MARKS:
        ended_s = max(line["at_s"] for line in seen if line["kind"] == mark)
        found[mark], before_s = ended_s - before_s, ended_s
    return found


def row_of(num_workers: int, groups: str, figures: Sequence[Mapping[str, float]], import_s: float) -> dict[str, Any]:
    """Medians of the repeats."""
    totals = [sum(seconds for mark, seconds in each.items() if mark != "second step") for each in figures]
    return {
        "workers": num_workers,
        "groups": groups,
        "repeats": len(figures),
        "import_s": round(import_s, 2),
        "seconds_to_first_step": round(statistics.median(totals), 2),
        "range_s": [round(min(totals), 2), round(max(totals), 2)],
        "phases_s": {mark: round(statistics.median(each[mark] for each in figures), 2) for mark in MARKS},
    }


def import_seconds() -> float:
    """A new process that imports what a worker needs, less an empty one."""

    def of(code: str) -> float:
        began_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - began_s

    return of("import " + ", ".join(_PRELOADED)) - of("")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--groups", nargs="+", choices=_GROUPS, default=list(_GROUPS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    import_s = import_seconds()
    rows: list[dict[str, Any]] = []
    for num_workers in options.workers:
        figures: dict[str, list[dict[str, float]]] = {groups: [] for groups in options.groups}
        for _ in range(options.repeats):
            for groups in options.groups:
                figures[groups].append(measure(num_workers, groups))
        for groups, found in figures.items():
            rows.append(row_of(num_workers, groups, found, import_s))
            if options.dry:
                print(rows[-1], flush=True)
            else:
                hand_over("start", rows)


if __name__ == "__main__":
    main()

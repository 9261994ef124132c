"""For how long a commit stops training: planner's way, the way of 0.1.0, and a plain copy of the same bytes.

    python bench/commit.py               all sizes on 1 and on 3 workers, and limited storage (30 minutes)
    python bench/commit.py --no-largest  without the largest model that fits this machine (15 minutes)
    python bench/commit.py --add-largest only that one: its row is added to those of bench/results/commit.json

Each row is one generation: real steps of planner's gpt with FSDP and AdamW, in processes of its own, in a folder on
this machine's disk. It commits once to make the buffers, then five times. Then it commits five times in the way of
0.1.0, in the same processes. One worker trains on the first core and writes on the second. Three workers share them.

stall_s            training stood still for a commit, in all of planner's calls together (median). For each commit, the
                   slowest worker counts
begin_s            the part of it until the step was held in memory (median)
first_stall_s      of the generation's first commit, whose copy goes into fresh memory
copy_s             a copy of the same bytes into the same buffers, between two commits (median)
bound_s            1.5 x copy_s + 50 ms: the most that stall_s may be
stall_0_1_0_s      a commit in the way of 0.1.0 (median)
write_s            from the begin of a commit until it was durable (median)
step_s             a step without a commit in flight (median), and step_beside_s one while files are written.
                   step_beside_stranger_s is a step while another program hashes and writes as many bytes: what the
                   machine costs. Only with one worker
extra_mb           most resident memory of a worker during a commit, less the most before the first commit. copied_mb
                   are the bytes of its shards. Measured in a generation of its own
storage            of the checkpoint's files: local disk, or limited to 20 MB/s: each worker writes an equal share of
                   that. The two take turns in one generation

It exits with 1 if a bound is missed: of the stall, of a step beside a write (1.1 x, one worker), of memory (one copy
and 16 MB), or if limited storage changes the stall by more than 20 %.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from _commit_worker import Script, Seen, measured
from _results import hand_over, kept

from planner.base.host_memory import available_bytes
from planner.job import Job
from planner.rehearsal.local_workers import LocalWorkers

_LIMIT = 20e6
_LOCAL, _LIMITED = "local disk", "local disk at 20 MB/s"
_SPARE_BYTES = 16e6
# The largest model has more parameters than this, and the others have fewer.
_LARGEST_M = 160


@dataclass(frozen=True, kw_only=True)
class Case:
    """One generation to measure."""

    layers: int
    width: int
    workers: int
    repeats: int = 5
    repeats_0_1_0: int = 5
    is_limited: bool = False
    """whether every other commit goes to limited storage"""

    @property
    def script(self) -> Script:
        """What its workers do."""
        turn = (0.0, _LIMIT) if self.is_limited else (0.0,)
        limits = (0.0, *turn * self.repeats)
        return Script(limits=limits, repeats_0_1_0=self.repeats_0_1_0, is_pinned=self.workers == 1)


SIZES = ((4, 256), (4, 512), (6, 768), (12, 1024))
"""layers and width: 3, 13, 43 and 151 M parameters"""
CASES = [
    Case(layers=layers, width=width, workers=workers, is_limited=width == 512)
    for workers in (1, 3)
    for layers, width in SIZES
]
TOY = Case(layers=1, width=32, workers=1, repeats=1, repeats_0_1_0=1, is_limited=True)


def largest() -> Case | None:
    """The largest model that fits this machine's memory on one worker. None if it is hardly larger than the others.

    Weights, AdamW's state, gradients and the copy take 28 bytes per parameter. Up to 2 more were seen.
    """
    width = 2048
    layers = int((0.85 * available_bytes() - 1.5e9) / (30 * 12 * width**2))
    return Case(layers=layers, width=width, workers=1, repeats_0_1_0=2) if layers >= 4 else None


def job_of(case: Case, folder: Path) -> Job:
    """Short steps: three samples of 4 bytes."""
    (folder / "corpus").write_bytes(np.random.default_rng(0).integers(1, 128, 2**20, dtype=np.uint8).tobytes())
    return Job.model_validate(
        {
            "name": "commit",
            "model": {"kind": "gpt", "layers": case.layers, "width": case.width, "heads": 4, "context": 4},
            "data": {"kind": "text", "path": str(folder / "corpus")},
            "batch": {"global": 3, "max_micro": 3},
            "train": {"steps": 100_000, "optimizer": {"kind": "adamw", "lr": 1e-4}},
            "workers": {"gpus": 0},
            "checkpoint": {"every": 1_000_000, "keep": 1},
        }
    )


def measure(case: Case, folder: Path | None = None) -> list[dict[str, Any]]:
    """The rows of one generation: one for each kind of storage."""
    with tempfile.TemporaryDirectory(dir=folder) as name, LocalWorkers(case.workers) as workers:
        job = job_of(case, Path(name))
        seen = workers.run(measured, case.workers, job, str(Path(name) / "run"), case.script)
    memory = memory_of(case, folder)
    storages = {0.0: _LOCAL, _LIMIT: _LIMITED}
    return [
        {**row_of(case, seen, limit, storages[limit]), **memory} for limit in storages if limit in case.script.limits
    ]


def memory_of(case: Case, folder: Path | None) -> dict[str, float]:
    """Memory of the worker that needs most, in a generation of one commit.

    glibc gives freed memory back at once there. By default it keeps some 100 MB of any training, more with each step.
    """
    script = Script(limits=(0.0,), repeats_0_1_0=0, is_pinned=False)
    with (
        mock.patch.dict(os.environ, MALLOC_MMAP_THRESHOLD_=str(2**20)),
        tempfile.TemporaryDirectory(dir=folder) as name,
        LocalWorkers(case.workers) as workers,
    ):
        job = job_of(case, Path(name))
        seen = workers.run(measured, case.workers, job, str(Path(name) / "run"), script)
    extra, copied = max((max(each.commit_peak_bytes) - each.quiet_peak_bytes, each.shard_bytes) for each in seen)
    return {"copied_mb": round(copied / 1e6, 1), "extra_mb": round(extra / 1e6, 1)}


def row_of(case: Case, seen: list[Seen], limit: float, storage: str) -> dict[str, Any]:
    """The row of one kind of storage, of what all workers have seen."""
    numbers = [i for i, each in enumerate(case.script.limits) if i > 0 and each == limit]
    stalls, copies = _slowest(seen, "stall_s"), _slowest(seen, "copy_s")
    here = [stalls[i] for i in numbers]
    copy_s = statistics.median(copies)
    state_bytes = sum(each.shard_bytes for each in seen)
    quiet = [seconds for each in seen for seconds in each.quiet_step_s]
    beside = [seconds for each in seen for i in numbers for seconds in each.beside_step_s.get(i, [])]
    strange = [seconds for each in seen for seconds in each.beside_stranger_s]
    return {
        "parameters_m": round(state_bytes / 12e6, 1),
        "workers": case.workers,
        "state_mb": round(state_bytes / 1e6),
        "storage": storage,
        "repeats": len(here),
        "copy_s": round(copy_s, 4),
        "copy_range_s": _range(copies),
        "stall_s": round(statistics.median(here), 4),
        "stall_range_s": _range(here),
        "begin_s": round(statistics.median(_slowest(seen, "begin_s")[i] for i in numbers), 4),
        "bound_s": round(1.5 * copy_s + 0.05, 4),
        "first_stall_s": round(stalls[0], 4),
        "stall_0_1_0_s": round(statistics.median(_slowest(seen, "stall_0_1_0_s")), 3),
        "stall_0_1_0_range_s": _range(_slowest(seen, "stall_0_1_0_s")),
        "write_s": round(statistics.median(seen[0].write_s[i] for i in numbers), 3),
        "step_s": round(statistics.median(quiet), 4),
        "step_beside_s": round(statistics.median(beside), 4) if beside else None,
        "steps_beside": len(beside),
        "step_beside_stranger_s": round(statistics.median(strange), 4) if strange else None,
    }


def _slowest(seen: list[Seen], name: str) -> list[float]:
    """Of each commit, the time of the slowest worker."""
    return [max(times) for times in zip(*(getattr(each, name) for each in seen), strict=True)]


def _range(seconds: list[float]) -> list[float]:
    return [round(min(seconds), 4), round(max(seconds), 4)]


def missed(rows: list[dict[str, Any]]) -> list[str]:
    """The bounds that these rows of one generation miss, one sentence each."""
    return [
        f"{row['parameters_m']} M parameters, {row['workers']} workers, {row['storage']}: {what}"
        for row in rows
        for what in _missed(row, rows[0])
    ]


def _missed(row: dict[str, Any], local: dict[str, Any]) -> list[str]:
    found = []
    if row["stall_s"] > row["bound_s"]:
        found.append(f"a stall of {row['stall_s']:.3f} s, bound {row['bound_s']:.3f}")
    if row["extra_mb"] * 1e6 > row["copied_mb"] * 1e6 + _SPARE_BYTES:
        found.append(f"{row['extra_mb']} MB more memory, where the copy has {row['copied_mb']}")
    if row["workers"] == 1 and row["step_beside_s"] is not None and row["step_beside_s"] > 1.1 * row["step_s"]:
        found.append(f"a step of {row['step_beside_s']:.4f} s beside the write, {row['step_s']:.4f} without")
    if abs(row["stall_s"] - local["stall_s"]) > 0.2 * local["stall_s"]:
        changed_ms = (row["stall_s"] - local["stall_s"]) * 1000
        found.append(f"a stall of {row['stall_s']:.4f} s, {changed_ms:+.1f} ms with the limit")
    return found


def main() -> int:
    """Measure and write. 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--add-largest", action="store_true")
    parser.add_argument("--folder", type=Path, help="on the disk to measure. By default that of temporary files")
    parser.add_argument("--only", type=int, nargs=2, metavar=("WIDTH", "WORKERS"), help="one case, nothing is written")
    parser.add_argument("--toy", action="store_true", help="a tiny model, without bounds")
    options = parser.parse_args()
    cases = [TOY] if options.toy else CASES + [case for case in [largest()] if options.largest and case]
    if options.only:
        cases = [case for case in cases if [case.width, case.workers] == options.only]
    rows: list[dict[str, Any]] = []
    if options.add_largest:
        rows = [row for row in kept("commit") if row["parameters_m"] < _LARGEST_M]
        cases = [case for case in [largest()] if case]
    failures = []
    for case in cases:
        began_s = time.monotonic()
        found = measure(case, options.folder)
        for row in found:
            rows.append(row)
            if options.only:
                print(row)
            else:
                hand_over("commit", rows)
        failures += [] if options.toy else missed(found)
        print(f"{case.width} x {case.layers}, {case.workers} workers: {time.monotonic() - began_s:.0f} s", flush=True)
    print(*(f"missed: {failure}" for failure in failures), sep="\n", file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())

"""A run through several world sizes on one GPU, against one that nothing disturbed. A piece of `bench/gpu.py`.

Stops, commits, resharded resumes and held-out losses are planner's own. Workers share the first GPU
(PLANNER_SHARED_GPU). With `equality: bitwise` the final weights, every loss and every norm must be those of one rank
that was left alone, and both audits clean. With `equality: balanced` the losses may differ by rounding, and the row
says by how much. `--ray` goes through an embedded Ray cluster, whose nodes come, get notice and are killed.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _results import hand_over

import planner
from planner.job import Job
from planner.rehearsal.local_workers import LocalWorkers
from planner.rehearsal.on_processes import rehearse, train_observed
from planner.rehearsal.stages import stages
from planner.train.setup import Launch
from planner.train.world import SHARED_GPU

LOCAL, ON_RAY = (2, 1, 2, 3), (2, 1, 2)
# Two runs in float32 whose sums are rounded in another order. bf16 weights amplify the difference.
LARGEST_DIFFERENCE = {"fp32": 1e-3, "bf16": 5e-2}


def job_for(folder: Path, *, equality: str, precision: str, toy: bool) -> Job:
    """A small GPT on random text, with a global batch that no number of workers divides."""
    text = folder / "corpus"
    if not text.exists():
        text.write_bytes(np.random.default_rng(0).integers(1, 128, 2**17, dtype=np.uint8).tobytes())
    small = {"layers": 1, "width": 32, "heads": 2, "context": 16}
    large = {"layers": 4, "width": 512, "heads": 8, "context": 512}
    return Job.model_validate(
        {
            "name": "resize",
            "model": {"kind": "gpt", **(small if toy else large)},
            "data": {"kind": "text", "path": str(text)},
            "batch": {"global": 13, "max_micro": 2, "equality": equality},
            "train": {
                "steps": 8,
                "optimizer": {"kind": "adamw", "lr": 1e-3},
                "clip_norm": 1.0,
                "precision": precision,
            },
            "eval": {"samples": 3, "every": 4},
            "workers": {"gpus": 0, "max": max(*LOCAL, *ON_RAY)},
            "checkpoint": {"every": 2},
        }
    )


def outcome(url: str) -> dict[str, Any]:
    """Digests of the newest commit's tensors, and what the ledger has of every step (the last time it was done)."""
    records = [
        json.loads(line)["record"]
        for file in sorted(Path(url, "ledger").iterdir())
        for line in file.read_text().splitlines()
    ]
    newest = json.loads(max(Path(url, "manifests").iterdir()).read_text())["value"]

    def of_kind(kind: str) -> list[dict[str, Any]]:
        return [record for record in records if record["kind"] == kind]

    return {
        "digests": newest["tensors"],
        "steps": {r["step"]: (r["loss"], r["grad_norm"], r["checksum"]) for r in of_kind("step")},
        "held_out": {r["step"]: r["loss"] for r in of_kind("eval")},
        "sizes": [r["world_size"] for r in of_kind("generation")],
        "facts": {str(r["facts"]) for r in of_kind("generation")},
        "is_clean": planner.audit(url).clean,
    }


def go_through(sizes: tuple[int, ...], job: Job, url: str, *, on_ray: bool) -> float:
    """Train the job with this history. Returns the seconds that it took."""
    began_s = time.monotonic()
    history = stages(sizes, job.train.steps or 1)
    if on_ray:
        from planner.runner.verify_job import rehearse_on_ray

        rehearse_on_ray(job, url, history, say=print)
    else:
        with LocalWorkers(max(sizes)) as workers:
            rehearse(workers, Launch(job=job, url=url), history, train_observed, print)
    return time.monotonic() - began_s


def compare(equality: str, precision: str, *, toy: bool, on_ray: bool) -> dict[str, object]:
    """One row: an undisturbed run on one rank, and one through the history."""
    with tempfile.TemporaryDirectory() as name:
        job = job_for(Path(name), equality=equality, precision=precision, toy=toy)
        alone, resized = f"{name}/alone", f"{name}/resized"
        alone_s = go_through((1,), job, alone, on_ray=False)
        resized_s = go_through(ON_RAY if on_ray else LOCAL, job, resized, on_ray=on_ray)
        one, other = outcome(alone), outcome(resized)
    largest = max(abs(other["steps"][step][0] - loss) / abs(loss) for step, (loss, _, _) in one["steps"].items())
    same = all(one[name] == other[name] for name in ("digests", "steps", "held_out"))
    return {
        "equality": equality,
        "precision": precision,
        "on_ray": on_ray,
        "sizes": other["sizes"],
        "steps": len(one["steps"]),
        "same_bits": same,
        "tensors_compared": len(one["digests"]),
        "largest_loss_difference": largest,
        "audits_clean": one["is_clean"] and other["is_clean"],
        "facts": sorted(one["facts"] | other["facts"]),
        "undisturbed_s": round(alone_s, 1),
        "resized_s": round(resized_s, 1),
        "passed": one["is_clean"]
        and other["is_clean"]
        and (same and bool(one["digests"]) if equality == "bitwise" else largest < LARGEST_DIFFERENCE[precision]),
    }


def main() -> None:
    """Compare, hand over the rows, and fail if one did not pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--ray", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda":
        os.environ[SHARED_GPU] = "1"
        # Ray hides every GPU from a worker that asked for none.
        os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    wanted = [("bitwise", "bf16"), ("bitwise", "fp32"), ("balanced", "fp32")]
    rows: list[dict[str, object]] = []
    for equality, precision in wanted[:1] if options.toy or options.ray else wanted:
        rows.append(compare(equality, precision, toy=options.toy, on_ray=options.ray))
        hand_over("gpu-resize", rows)
    if wrong := [f"{row['equality']}, {row['precision']}" for row in rows if not row["passed"]]:
        raise SystemExit(f"not as it should be: {'; '.join(wrong)}")


if __name__ == "__main__":
    main()

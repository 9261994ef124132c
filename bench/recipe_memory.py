"""The memory of each file in `jobs/full` on GPUs of 80 GB, as a table for docs/guides/memory.md.

    python bench/recipe_memory.py

The models are on the hub. Their configurations, which are all that is needed, are in `model_configs.json` beside this
file, so nothing is fetched.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from planner.files.job_file import read_job
from planner.job import batch_sizes
from planner.job.memory import GpuNeed, gpu_need, largest_micro
from planner.plan import make_plan
from planner.plan.commit_size import NotKnown
from planner.plan.gpu_kinds import gpu_kind
from planner.runner.memory import job_memory_here

_BENCH = Path(__file__).parent
_TUNED_FOR = {
    "llama-3-8b-kto": 8,
    "pythia-6.9b-dpo": 4,
    "smollm3-3b-sft": 8,
    "zephyr-7b-dpo": 8,
    "zephyr-7b-sft": 8,
}
"""job -> the GPUs that its recipe was tuned for. 64, or 8 with more rounds, for smollm3"""
_MOST = 64
_GPU = gpu_kind("h100-80g")


def row(file: Path, configs: dict[str, Any]) -> list[str]:
    """The cells of a job."""
    with tempfile.TemporaryDirectory() as name:
        path = read_job(file).model.path  # type: ignore[union-attr]
        (Path(name) / "config.json").write_text(json.dumps(configs[path]))
        job = read_job(file, [f"model.path={name}", "model.weights=random", "model.revision=null"])
        memory = job_memory_here(job, "cuda", lambda text: print(text, file=sys.stderr))
    assert not isinstance(memory, NotKnown), memory.reason
    sizes, at = batch_sizes(job), _TUNED_FOR[job.name]

    def need(count: int) -> GpuNeed:
        return gpu_need(memory, make_plan(sizes, count), _GPU.memory_bytes)

    least = next(count for count in range(1, _MOST) if need(count).total <= _GPU.memory_bytes)
    found, items = need(at), need(at).tensors.items
    parts = [
        *(items.weights, items.optimizer, items.reference, items.gradients, items.gathered + items.exchange),
        *(items.activations, items.update, found.workspace + found.slack + found.outside, found.total),
    ]
    largest = largest_micro(memory, sizes, at, _GPU.memory_bytes)
    cells = (f"{part / 1e9:.1f}" for part in parts)
    return [f"`{job.name}`", f"{least} or more", str(at), *cells, f"{sizes.max_micro}, {largest} would"]


def main() -> None:
    """Print the table."""
    configs = json.loads((_BENCH / "model_configs.json").read_text())
    columns = (
        *("file", "fits on", "at", "weights", "optimizer", "reference", "gradients", "gathered and buffers"),
        *("activations", "optimizer's step", "others", "in all", "micro-batch"),
    )
    print("|", " | ".join(columns), "|")
    print("|---" * len(columns) + "|")
    for file in sorted((_BENCH.parent / "jobs" / "full").glob("*.yaml")):
        print("|", " | ".join(row(file, configs)), "|")


if __name__ == "__main__":
    main()

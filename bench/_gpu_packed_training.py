"""Training on packed micro-batches (`batch.max_tokens`) beside padded ones, on one GPU. A piece of `bench/gpu.py`.

A gpt and a Llama learn from the same samples of unequal length, in bf16. Each row is a run of its own.

rows        padded: a row for each sample. packed: a row for each micro-batch, as `auto` computes it (varlen on a GPU).
            masked: the same rows with a mask of all tokens by all tokens (a Llama on a CPU: as `packed`)
step_s      median over the steps but the first three, and their range
ratio       over `padded`
peak_gb     most memory of the GPU that torch's tensors had
calls       of torch's varlen kernel. On a GPU, `packed` has some
difference  largest difference of a step's loss from that of `padded`, relative. Beyond the bound the piece fails
"""

import argparse
import gc
import importlib.util
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from _plain import records_of, train_plainly
from _results import hand_over

from planner.job import Job
from planner.rehearsal.local_workers import LocalWorkers
from planner.train.setup import Launch

_STEPS, _SLOW_STEPS, _GLOBAL, _MICRO = 12, 3, 32, 16
_ROWS = ("padded", "packed", "masked")
# bf16 keeps 8 bits: single logits differ by up to 1 %, and the mean over the tokens of a step by less.
_BOUNDS = {"cpu": 1e-4, "cuda": 1e-2}
_CONTEXT = {"cpu": 64, "cuda": 2048}
_MAX_TOKENS = {"cpu": 256, "cuda": 16_384}
_GPT = {"cpu": {"layers": 2, "width": 32, "heads": 2}, "cuda": {"layers": 12, "width": 1024, "heads": 16}}


def write_samples(folder: Path, device: str) -> Path:
    """Texts whose lengths are spread as those of conversations are: a quarter of the context in the median."""
    dice, context = random.Random(0), _CONTEXT[device]
    rows = []
    for number in range(_STEPS * _GLOBAL):
        length = min(round(context / 4 * dice.lognormvariate(0, 0.8)), context)
        text = " ".join(str(dice.randrange(97)) for _ in range(length // 3 + 1))
        rows.append({"prompt": f"say {number}", "completion": text})
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def job_for(folder: Path, device: str, model: str, rows: str) -> Job:
    """The job of a row."""
    own = {"kind": "gpt", **_GPT[device]}
    masked = {"attention": "sdpa"} if rows == "masked" else {}
    section = own if model == "gpt" else {"kind": "hf", "path": str(folder / "llama"), **masked}
    return Job.model_validate(
        {
            "name": f"{model}-{rows}",
            "model": {**section, "context": _CONTEXT[device]},
            "data": {"kind": "chat", "path": str(folder / "samples.jsonl"), "loss_on": "all"},
            "objective": {"kind": "sft"},
            "batch": {
                "global": _GLOBAL,
                "max_micro": _MICRO,
                **({} if rows == "padded" else {"max_tokens": _MAX_TOKENS[device]}),
            },
            "train": {
                "steps": _STEPS + 1,
                "optimizer": {"kind": "adamw", "lr": 1e-5},
                "precision": "bf16" if device == "cuda" else "fp32",
            },
            "workers": {"gpus": 1 if device == "cuda" else 0, "max": 1},
            "checkpoint": {"every": 1_000_000},
        }
    )


def trained(rank: int, launch: Launch, device: str, is_masked: bool) -> tuple[float, int]:
    """Run in the worker: train. The most memory of the GPU in GB, and how often the kernel was called."""
    import torch

    from planner.train.models import varlen_attention
    from planner.train.models.gpt import Gpt

    gc.collect()  # the run before
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    within, calls = varlen_attention.within, 0

    def counted(*arguments: Any, **settings: Any) -> Any:
        nonlocal calls  # no Mock: it would keep the tensors of all calls
        calls += 1
        return within(*arguments, **settings)

    limits = _mask_of if is_masked else Gpt._limits  # noqa: SLF001
    with mock.patch.object(varlen_attention, "within", counted), mock.patch.object(Gpt, "_limits", limits):
        train_plainly(rank, launch, _STEPS, device)
    return torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else 0.0, calls


def _mask_of(_model: object, documents: Any, _dtype: object) -> Any:
    """In the place of `Gpt._limits`: a mask, on every device."""
    from planner.train.models.document_attention import mask_of

    return None if documents is None else mask_of(getattr(documents, "numbers", documents))


def row_of(workers: LocalWorkers, folder: Path, device: str, model: str, rows: str) -> dict[str, Any]:
    """Train, and read the ledger."""
    run = folder / "runs" / f"{model}-{rows}"
    launch = Launch(job=job_for(folder, device, model, rows), url=str(run))
    ((peak_gb, calls),) = workers.run(trained, 1, launch, device, rows == "masked")
    steps = records_of(run, "step")
    seconds = [step["seconds"] for step in steps[_SLOW_STEPS:]]
    step_s = statistics.median(seconds)
    return {
        "step_s": round(step_s, 4),
        "range_s": [round(bound(seconds), 4) for bound in (min, max)],
        "steps_per_s": round(1 / step_s, 3),
        "tokens_per_s": round(statistics.mean(step["tokens"] for step in steps[_SLOW_STEPS:]) / step_s),
        "peak_gb": round(peak_gb, 2),
        "calls": calls,
        "losses": [round(step["loss"], 6) for step in steps],
    }


def beside(row: dict[str, Any], padded: dict[str, Any]) -> dict[str, float]:
    """What a row says beside the padded one."""
    pairs = zip(row["losses"], padded["losses"], strict=True)
    difference = max(abs(one - other) / abs(other) for one, other in pairs)
    return {"ratio": round(row["step_s"] / padded["step_s"], 3), "difference": float(f"{difference:.1e}")}


def failure(row: dict[str, Any], device: str) -> str:
    """What is wrong with a row. Empty if nothing is."""
    if "error" in row:
        return str(row["error"])
    if row.get("difference", 0) > _BOUNDS[device]:
        return f"losses differ by {row['difference']}, more than {_BOUNDS[device]}"
    if device == "cuda" and bool(row["calls"]) != (row["rows"] == "packed"):
        return f"{row['calls']} calls of the kernel"
    return ""


def measure(folder: Path, device: str, models: list[str]) -> list[dict[str, Any]]:
    """A row for each model and each way."""
    found: list[dict[str, Any]] = []
    with LocalWorkers(1, "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo") as workers:
        for model in models:
            padded: dict[str, Any] = {}
            for rows in _ROWS:
                row: dict[str, Any] = {"device": device, "model": model, "rows": rows}
                try:
                    row |= row_of(workers, folder, device, model, rows)
                    padded = padded or row
                    row |= beside(row, padded)
                except Exception as error:  # noqa: BLE001  contract: what fails on this machine is a row
                    row["error"] = " ".join(str(error).split())[-300:]
                found.append(row)
                hand_over("gpu-packed-training", found)  # type: ignore[arg-type]
    return found


def main() -> int:
    """Measure and hand over the rows. Fails if losses differ, or a way is not computed as it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args()
    models = ["gpt"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_samples(folder, options.device)
        if importlib.util.find_spec("transformers") is None:
            print("no transformers here: the Llama is left out", flush=True)
        else:
            from dpo_beside_trl import make_model

            make_model(folder / "llama", options.device)
            models.append("llama")
        found = measure(folder, options.device, models)
    failed = [f"{row['model']}, {row['rows']}: {reason}" for row in found if (reason := failure(row, options.device))]
    for text in failed:
        print(text, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

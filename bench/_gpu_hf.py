"""Supervised steps of a Llama of 0.5 B parameters on one GPU, by the settings there are. A piece of `bench/gpu.py`.

Each row is a run of its own: bf16, packed rows of 1,024 tokens, the same data. The runs share a process, whose start
takes longer than a run. A setting that fails on this machine has the error in place of figures.

step_s      median over the steps but the first three, and their range
ratio       over `usual`
mfu         6 FLOPs per parameter (without the embedding) and token with loss over the GPU's peak. Not for adapters, and
            null where the peak is not known
peak_gb     most memory of the GPU that torch's tensors had
loss        of the last step: the same for all but the 4-bit weights, within rounding
"""

import argparse
import gc
import importlib.util
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from _plain import records_of, train_plainly
from _results import hand_over
from dpo_beside_trl import make_model, rows_for

from planner.job import Job
from planner.rehearsal.local_workers import LocalWorkers
from planner.train.setup import Launch

_STEPS, _SLOW_STEPS = 12, 3
_LORA = {"rank": 16, "alpha": 32}
# Name -> settings of model and train, beside those of `usual`.
_RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "usual": ({}, {}),
    "compiled": ({}, {"compile": "blocks"}),
    "selective": ({}, {"activation_checkpointing": "selective"}),
    "recomputed": ({}, {"activation_checkpointing": True}),
    "qlora": ({"lora": _LORA, "frozen": "nf4"}, {}),
    "lora": ({"lora": _LORA}, {}),
    "sdpa": ({"attention": "sdpa"}, {}),
    "flash": ({"attention": "flash_attention_2"}, {}),
    "varlen": ({"attention": "varlen"}, {}),
    "liger": ({}, {"kernels": "liger"}),  # last, because it may change transformers in the whole process
}
_NEEDS = {"flash": "flash_attn", "liger": "liger_kernel"}


def job_for(folder: Path, device: str, name: str) -> Job:
    """The job of a row."""
    model, train = _RUNS[name]
    is_gpu = device == "cuda"
    return Job.model_validate(
        {
            "name": name,
            "model": {"kind": "hf", "path": str(folder / "llama"), "context": 1024 if is_gpu else 64, **model},
            "data": {"kind": "chat", "path": str(folder / "rows.jsonl"), "loss_on": "all", "packing": True},
            "objective": {"kind": "sft"},
            "batch": {"global": 8, "max_micro": 4},
            "train": {
                "steps": _STEPS + 1,
                "optimizer": {"kind": "adamw", "lr": 1e-5},
                "precision": "bf16" if is_gpu else "fp32",
                **train,
            },
            "workers": {"gpus": 1, "max": 1},
            "checkpoint": {"every": 1_000_000},
        }
    )


def peak_of(rank: int, launch: Launch, device: str) -> float:
    """Run in the worker: train. The most memory of the GPU in GB."""
    import torch

    gc.collect()  # the run before
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    train_plainly(rank, launch, _STEPS, device)
    return torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else 0.0


def start(device: str) -> LocalWorkers:
    """The process that trains."""
    return LocalWorkers(1, "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")


def mfu(job: Job, device: str, num_parameters: int, tokens_per_s: float) -> float | None:
    """Of steps on one device."""
    import torch

    from planner.train.device_peaks import peak_flops_per_s

    peak = peak_flops_per_s(torch.device(device), job.train.precision)
    return round(6 * num_parameters * tokens_per_s / peak, 3) if peak else None


def num_multiplied(folder: Path, num_parameters: int) -> int:
    """The parameters that tokens are multiplied with: all but the embedding."""
    config = json.loads((folder / "llama" / "config.json").read_text())
    return num_parameters - int(config["vocab_size"] * config["hidden_size"])


def row_of(workers: LocalWorkers, folder: Path, device: str, name: str, num_parameters: int) -> dict[str, object]:
    """Train, and read the ledger."""
    if name in _NEEDS and importlib.util.find_spec(_NEEDS[name]) is None:
        raise ModuleNotFoundError(f"no {_NEEDS[name]} here")
    run = folder / "runs" / name
    job = job_for(folder, device, name)
    (peak_gb,) = workers.run(peak_of, 1, Launch(job=job, url=str(run)), device)
    steps = records_of(run, "step")
    seconds = [step["seconds"] for step in steps[_SLOW_STEPS:]]
    step_s = statistics.median(seconds)
    tokens_per_s = statistics.mean(step["tokens"] for step in steps[_SLOW_STEPS:]) / step_s
    return {
        "step_s": round(step_s, 4),
        "range_s": [round(bound(seconds), 4) for bound in (min, max)],
        "tokens_per_s": round(tokens_per_s),
        **({} if "lora" in _RUNS[name][0] else {"mfu": mfu(job, device, num_parameters, tokens_per_s)}),
        "peak_gb": round(peak_gb, 2),
        "loss": round(steps[-1]["loss"], 5),
    }


def main() -> None:
    """Measure and hand over the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        num_parameters = num_multiplied(folder, make_model(folder / "llama", options.device))
        chats = [[*row["prompt"], *row["chosen"]] for row in rows_for(options.device)]  # type: ignore[misc]
        (folder / "rows.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats * 4))
        workers = start(options.device)
        for run in _RUNS:
            row: dict[str, object] = {"device": options.device, "run": run}
            try:
                row |= row_of(workers, folder, options.device, run, num_parameters)
            except Exception as error:  # noqa: BLE001  contract: what fails on this machine is a row
                row["error"] = " ".join(str(error).split())[-300:]
                workers.close()  # a failed run may leave memory behind, or a GPU that answers no more
                workers = start(options.device)
            if "step_s" in row and "step_s" in (rows or [row])[0]:
                row["ratio"] = round(row["step_s"] / (rows or [row])[0]["step_s"], 3)  # type: ignore[operator]
            rows.append(row)
            hand_over("gpu-hf", rows)
        workers.close()


if __name__ == "__main__":
    main()

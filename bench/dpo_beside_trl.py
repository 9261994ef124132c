"""DPO at equal settings in TRL and in planner on one device: seconds of a step, one process each.

    python bench/dpo_beside_trl.py [--python PYTHON]      a tiny Llama in float32 on the CPU
    python bench/dpo_beside_trl.py --device cuda          0.5 B parameters over 32,768 words, 1,024 tokens, in bf16

PYTHON has TRL. Without it, a virtual environment is made in .venv-trl. Both sides train the same rows
in the same order, with the same reference (the first weights), AdamW, and no activation checkpointing. Each has the
device for itself, one after the other.

step_s      median over the steps but the first three, and their range
ratio       planner over TRL
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _plain import records_of, train_plainly
from _results import hand_over
from same_as_trl import environment_with_trl, versions

from planner.job import Job
from planner.order.order import Order
from planner.rehearsal.local_workers import LocalWorkers
from planner.train.setup import Launch

_STEPS, _SLOW_STEPS, _MICRO, _ACCUMULATION, _BETA, _LR = 15, 3, 4, 2, 0.1, 1e-5
_GLOBAL = _MICRO * _ACCUMULATION
_ROOT = Path(__file__).parent.parent
_SIZES: dict[str, dict[str, int]] = {
    "cpu": {},
    "cuda": {
        "vocab_size": 32_768,
        "hidden_size": 1536,
        "intermediate_size": 4096,
        "num_hidden_layers": 16,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
    },
}
_CONTEXT = {"cpu": 64, "cuda": 1024}


def make_model(folder: Path, device: str) -> int:
    """Random weights and a tokenizer. Returns the number of parameters."""
    from transformers import AutoConfig, AutoModelForCausalLM, set_seed

    subprocess.run([sys.executable, str(_ROOT / "jobs" / "make_llama.py"), str(folder)], check=True)
    config = AutoConfig.from_pretrained(folder)
    for name, value in _SIZES[device].items():
        setattr(config, name, value)
    set_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return int(sum(parameter.numel() for parameter in model.parameters()))


def rows_for(device: str) -> list[dict[str, object]]:
    """Pairs that fill most of the context."""
    words = _CONTEXT[device] // 4
    rows: list[dict[str, object]] = []
    for i in range(_STEPS * _GLOBAL):
        text = " ".join(f"{i * j % 97}" for j in range(words))
        said = {"chosen": f"good {text}", "rejected": f"bad {text}"}
        rows.append(
            {
                "prompt": [{"role": "user", "content": f"say {i}"}],
                **{name: [{"role": "assistant", "content": content}] for name, content in said.items()},
            }
        )
    return rows


def theirs(python: str, folder: Path, device: str) -> list[float]:
    """Seconds of TRL's steps."""
    rows = rows_for(device)
    order = Order(num_rows=len(rows), num_held_out=0, seed=0).rows(0, len(rows))
    (folder / "there.jsonl").write_text("".join(json.dumps(rows[i]) + "\n" for i in order))
    settings = {
        "method": "dpo",
        "device": device,
        "data": str(folder / "there.jsonl"),
        "folder": str(folder / "trl"),
        "out": str(folder / "there.json"),
        "model": str(folder / "llama"),
        "micro": _MICRO,
        "accumulation": _ACCUMULATION,
        "steps": _STEPS,
        "lr": _LR,
        "clip_norm": 1.0,
        "context": _CONTEXT[device],
        "beta": _BETA,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    script = str(Path(__file__).parent / "_trl_side.py")
    # One process on one GPU, without DistributedDataParallel: what is fastest for TRL.
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": first}
    subprocess.run([python, script, str(folder / "settings.json")], check=True, env=environment)
    found: list[float] = json.loads((folder / "there.json").read_text())["seconds"]
    return found


def ours(folder: Path, device: str) -> list[float]:
    """Seconds of planner's steps, from the ledger."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_for(device)))
    job = Job.model_validate(
        {
            "name": "beside-trl",
            "model": {"kind": "hf", "path": str(folder / "llama"), "context": _CONTEXT[device]},
            "data": {"kind": "pairs", "path": str(folder / "rows.jsonl")},
            "objective": {"kind": "dpo", "beta": _BETA},
            "batch": {"global": _GLOBAL, "max_micro": _MICRO},
            "train": {
                "steps": _STEPS + 1,
                "optimizer": {"kind": "adamw", "lr": _LR},
                "clip_norm": 1.0,
                "precision": "bf16" if device == "cuda" else "fp32",
            },
            "workers": {"gpus": 0},
        }
    )
    run = folder / "run"
    with LocalWorkers(1, "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo") as workers:
        workers.run(train_plainly, 1, Launch(job=job, url=str(run)), _STEPS, device)
    return [record["seconds"] for record in records_of(run, "step")]


def figures(seconds: list[float]) -> dict[str, Any]:
    """Of the steps that are not the first."""
    usual = seconds[_SLOW_STEPS:]
    return {"step_s": round(statistics.median(usual), 4), "range_s": [round(f(usual), 4) for f in (min, max)]}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=tuple(_SIZES), default="cpu")
    parser.add_argument("--python", help="of a virtual environment with TRL")
    parser.add_argument("--toy", action="store_true", help="the sizes of the CPU")
    options = parser.parse_args()
    python = options.python or environment_with_trl()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        num_parameters = make_model(folder / "llama", options.device)
        row: dict[str, Any] = {
            "device": options.device,
            "parameters": num_parameters,
            "global_batch": _GLOBAL,
            "micro_batch": _MICRO,
            "context": _CONTEXT[options.device],
            "steps": _STEPS - _SLOW_STEPS,
            "planner": figures(ours(folder, options.device)),
        }
        hand_over("dpo_beside_trl", [row])
        row |= {"beside": versions(python), "trl": figures(theirs(python, folder, options.device))}
    row["ratio"] = round(row["planner"]["step_s"] / row["trl"]["step_s"], 3)
    hand_over("dpo_beside_trl", [row])


if __name__ == "__main__":
    main()

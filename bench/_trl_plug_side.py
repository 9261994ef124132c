"""One run of TRL with or without planner.trl: run by bench/trl_plug.py under torchrun, or called in a Ray worker.

    torchrun --nproc-per-node W bench/_trl_plug_side.py SETTINGS.json

Appends `[step, loss]` of each optimizer step to the lines of `settings["out"]`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer


class Losses(TrainerCallback):
    """Writes what the trainer logs of each step, and stops the run at a step."""

    def __init__(self, out: Path, upto: int) -> None:
        self._out, self._upto = out, upto

    def on_log(self, _args: Any, state: Any, _control: Any, logs: dict[str, float], **_more: Any) -> None:
        """`loss` is of this step alone: logging_steps is 1."""
        if "loss" in logs and state.is_world_process_zero:
            with self._out.open("a") as file:
                file.write(json.dumps([state.global_step, logs["loss"]]) + "\n")

    def on_step_end(self, _args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Save and stop, as a run does that Ray interrupts."""
        if state.global_step == self._upto:
            control.should_save = control.should_training_stop = True


def train(settings: dict[str, Any]) -> None:
    """One run, in a process group that torchrun or Ray has described."""
    torch.set_num_threads(1)
    shared = {
        "output_dir": settings["folder"],
        "per_device_train_batch_size": settings["micro"],
        "max_steps": settings["steps"],
        "learning_rate": settings["lr"],
        "lr_scheduler_type": "cosine",
        "weight_decay": 0.0,
        "max_grad_norm": settings["clip_norm"],
        "max_length": settings["context"],
        "logging_steps": 1,
        "save_steps": 1000,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "seed": settings["seed"],
    }
    if not settings["plug"]:
        # The rows are in planner's order already.
        shared |= {"gradient_accumulation_steps": settings["accumulation"], "train_sampling_strategy": "sequential"}
    if settings["method"] == "sft":
        args, kind = SFTConfig(**shared), SFTTrainer
    else:
        args, kind = DPOConfig(**shared, beta=settings["beta"]), DPOTrainer
    if settings["plug"]:
        from planner.trl import exact

        kind = exact(kind, global_batch=settings["global_batch"])
    rows = [json.loads(line) for line in Path(settings["data"]).read_text().splitlines()]
    trainer = kind(
        model=settings["model"],
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(settings["model"]),
        callbacks=[Losses(Path(settings["out"]), settings["upto"])],
    )
    trainer.train(resume_from_checkpoint=settings["resume"])


if __name__ == "__main__":
    train(json.loads(Path(sys.argv[1]).read_text()))

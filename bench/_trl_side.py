"""What TRL does with the same rows: run by bench/same_as_trl.py in a virtual environment that has TRL, under torchrun.

    torchrun --nproc-per-node W bench/_trl_side.py SETTINGS.json

Writes losses and seconds of the optimizer steps to `settings["out"]`.
"""

import json
import sys
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer


class Losses(TrainerCallback):
    """Keeps what the trainer logs of each step, and its seconds."""

    def __init__(self) -> None:
        self.found: list[float] = []
        self.seconds: list[float] = []
        self._began_s = 0.0

    def on_step_begin(self, *_args, **_kwargs) -> None:  # noqa: ANN002, ANN003 TRL's own
        """Of an optimizer step."""
        self._began_s = _now_s()

    def on_step_end(self, *_args, **_kwargs) -> None:  # noqa: ANN002, ANN003 TRL's own
        """With the optimizer."""
        self.seconds.append(_now_s() - self._began_s)

    def on_log(self, _args, _state, _control, logs=None, **_kwargs) -> None:  # noqa: ANN001, ANN003 TRL's own
        """`loss` is of this step alone: logging_steps is 1."""
        if logs and "loss" in logs:
            self.found.append(float(logs["loss"]))


def _now_s() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    """One run."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    is_gpu = settings.get("device") == "cuda"
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in Path(settings["data"]).read_text().splitlines()]
    shared = {
        "output_dir": settings["folder"],
        "per_device_train_batch_size": settings["micro"],
        "gradient_accumulation_steps": settings["accumulation"],
        "max_steps": settings["steps"],
        "learning_rate": settings["lr"],
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": settings["clip_norm"],
        "max_length": settings["context"],
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": not is_gpu,
        "bf16": is_gpu,
        "gradient_checkpointing": False,
        "train_sampling_strategy": "sequential",
        "disable_tqdm": True,
    }
    shared |= settings.get("more", {})
    losses = Losses()
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    if settings["method"] == "sft":
        args, make = SFTConfig(**shared), SFTTrainer
    else:
        args, make = DPOConfig(**shared, beta=settings["beta"]), DPOTrainer
    trainer = make(
        model=settings["model"],
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[losses],
    )
    trainer.train()
    if trainer.accelerator.is_main_process:
        Path(settings["out"]).write_text(json.dumps({"losses": losses.found, "seconds": losses.seconds}))


if __name__ == "__main__":
    main()

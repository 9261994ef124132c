"""`torchrun exact_runs.py RUNS.json`: several short runs of trainers in one process group, one after another.

Each run appends what its trainer logs to `run["out"]`, a line for each optimizer step.
"""

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from planner.errors import PlannerError
from planner.order.order import Order
from planner.trl import exact

NUM_ROWS, SEED = 44, 5


class Log(TrainerCallback):
    """Keeps logs, and stops the run at a step."""

    def __init__(self, run):
        self.run = run

    def on_log(self, _args, state, _control, logs, **_more):
        if "loss" in logs and state.is_world_process_zero:
            line = {"step": state.global_step, "epoch_now": state.epoch, **logs}
            with Path(self.run["out"]).open("a") as file:
                file.write(json.dumps(line) + "\n")

    def on_step_end(self, _args, state, control, **_more):
        if state.global_step == self.run.get("upto"):
            control.should_save = control.should_training_stop = True


def rows_of(method):
    """Of unequal lengths, so that a mean of means would be another mean."""
    rows = []
    for i in range(NUM_ROWS):
        word = "abcdefghij"[: i % 9 + 1]
        prompt = [{"role": "user", "content": f"say {word} {i}"}]
        good = [{"role": "assistant", "content": f"{word.upper()} {'x' * (i % 7)}"}]
        bad = [{"role": "assistant", "content": f"{word[::-1]} no"}]
        rows.append(
            {"prompt": prompt, "chosen": good, "rejected": bad}
            if method == "dpo"
            else {"prompt": prompt, "completion": good}
        )
    return rows


def trainer_of(run):
    """TRL's trainers and transformers' own, with planner's batches or without."""
    method, model, plug = run["method"], run["model"], run["plug"]
    settings = {
        "output_dir": run["folder"],
        "per_device_train_batch_size": run.get("micro", 2),
        "num_train_epochs": 1.2,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "max_grad_norm": 1.0,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": 100,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "seed": SEED,
        **run.get("settings", {}),
    }
    rows = rows_of(method)
    if not plug:
        count = run["accumulation"] * settings["per_device_train_batch_size"] * settings["max_steps"]
        rows = [rows[i] for i in Order(num_rows=NUM_ROWS, seed=SEED).rows(0, count)]
        settings |= {"gradient_accumulation_steps": run["accumulation"], "train_sampling_strategy": "sequential"}
    tokenizer = AutoTokenizer.from_pretrained(model)
    more = {"model": model}
    if method == "sft":
        args, kind = SFTConfig(max_length=64, **settings), SFTTrainer
    elif method == "dpo":
        args, kind = DPOConfig(max_length=64, **settings), DPOTrainer
    else:
        args, kind = TrainingArguments(**settings), Trainer
        texts = [row["prompt"][0]["content"] + row["completion"][0]["content"] for row in rows]
        rows = [{"input_ids": tokenizer(text)["input_ids"]} for text in texts]
        more = {
            "model": AutoModelForCausalLM.from_pretrained(model),
            "data_collator": DataCollatorForLanguageModeling(tokenizer, mlm=False),
        }
    if plug:
        kind = exact(kind, global_batch=run["global_batch"])
    return kind(
        args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, callbacks=[Log(run)], **more
    )


def main():
    torch.set_num_threads(1)
    for run in json.loads(Path(sys.argv[1]).read_text()):
        trainer = trainer_of(run)
        try:
            trainer.train(resume_from_checkpoint=run.get("resume"))
        except PlannerError as error:
            rank = trainer.accelerator.process_index
            Path(f"{run['out']}.{rank}").write_text(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()

"""SFT with TRL on Ray Train. The global batch stays 32 on any number of workers, also when a run resumes with another.

    python jobs/trl_sft.py --workers 3                # on this machine, in a Ray of its own
    ray job submit --address http://HOST:8265 --working-dir . -- \
        python jobs/trl_sft.py --workers 2-8 --storage /shared/trl-sft --gpu

`--workers 2-8` follows the cluster. Ray Train starts the workers again when their number changes, and they go on from
the newest checkpoint. The same command resumes a run that was stopped. Wants the `trl` extra. A tiny Llama with random
weights learns to add, so nothing is downloaded. Put your own model and data into `train`.
"""

import argparse
from typing import Any

import ray.train
from datasets import Dataset
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

from planner.trl import exact

GLOBAL_BATCH = 32
STEPS = 40


def make_tokenizer(texts: list[str]) -> Any:
    """Byte-level BPE with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<pad>", "<|user|>", "<|assistant|>"]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, special_tokens=special))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = (
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    return fast


class Report(TrainerCallback):
    """Shows each logged step, and hands it to Ray Train."""

    def on_log(self, _args: Any, state: Any, _control: Any, logs: dict[str, float], **_more: Any) -> None:
        """Every worker reports, because Ray waits for all."""
        if "loss" not in logs:
            return
        workers = ray.train.get_context().get_world_size()
        if state.is_world_process_zero:
            print(f"step {state.global_step} on {workers} workers: loss {logs['loss']:.4f}", flush=True)
        ray.train.report({"step": state.global_step, "loss": logs["loss"], "workers": workers})


def train(config: dict[str, Any]) -> None:
    """Runs on every worker, and again after every change of their number."""
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{a} + {b}"}],
            "completion": [{"role": "assistant", "content": f"{a + b}"}],
        }
        for a in range(40)
        for b in range(40)
    ]
    tokenizer = make_tokenizer([message["content"] for row in rows for message in (*row["prompt"], *row["completion"])])
    set_seed(0)  # so that all workers make the same first weights
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
        )
    )
    args = SFTConfig(
        output_dir=config["storage"],  # storage that all workers see
        per_device_train_batch_size=4,  # the largest micro-batch of a worker
        max_steps=config["steps"],
        learning_rate=1e-3,
        max_length=64,
        logging_steps=5,
        save_steps=5,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not config["gpu"],
        bf16=config["gpu"],
    )
    trainer = exact(SFTTrainer, global_batch=GLOBAL_BATCH)(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Report()],
    )
    trainer.train(resume_from_checkpoint="newest")


def main() -> None:
    """Start the workers on the cluster that Ray finds, or on this machine."""
    parser = argparse.ArgumentParser(description="SFT with TRL on Ray Train, with an exact global batch")
    parser.add_argument("--workers", default="2", help="a number, or a range such as 2-8 that follows the cluster")
    parser.add_argument("--storage", default="/tmp/trl-sft", help="checkpoints. All nodes must see it")  # noqa: S108
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker")
    options = parser.parse_args()
    least, _, most = options.workers.partition("-")

    TorchTrainer(
        train,
        train_loop_config={"storage": options.storage, "steps": options.steps, "gpu": options.gpu},
        scaling_config=ScalingConfig(num_workers=(int(least), int(most)) if most else int(least), use_gpu=options.gpu),
        run_config=RunConfig(storage_path=f"{options.storage}/ray", failure_config=FailureConfig(max_failures=8)),
        torch_config=TorchConfig(backend="nccl" if options.gpu else "gloo"),
    ).fit()
    print("finished", flush=True)


if __name__ == "__main__":
    main()

"""TRL's data and loss in planner's loop, so that `planner run` and `planner submit` train it.

`planner run jobs/trl_loop.yaml` calls `dataset()` and, on every worker and again after every resize, `train(run)`. TRL
makes the rows, the batches and the loss. The batch, FSDP, the optimizer's steps, resizes, commits and the audit are
planner's. jobs/trl_sft.py is the other way: TRL's own loop, with planner's batches. Wants the `trl` extra.
"""

import math
from typing import Any

import torch
from accelerate.state import AcceleratorState
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from planner.own import Run

ROWS = [
    {
        "prompt": [{"role": "user", "content": f"{a} + {b}"}],
        "completion": [{"role": "assistant", "content": f"{a + b}"}],
    }
    for a in range(40)
    for b in range(40)
]
LEARNING_RATE = 1e-3


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [message["content"] for row in ROWS for message in (*row["prompt"], *row["completion"])]
    special = ["<s>", "</s>", "<pad>", "<|user|>", "<|assistant|>"]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, special_tokens=special))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = (
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    return fast


def make_trainer() -> SFTTrainer:
    """TRL's trainer, which never trains. The model is tiny and random, so nothing is downloaded. Put yours here."""
    AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001  # a resize keeps processes
    disable_progress_bars()
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    args = SFTConfig(
        output_dir="/tmp/trl-loop",  # noqa: S108  # nothing is written there
        average_tokens_across_devices=False,  # planner divides
        max_length=64,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
    )
    model = AutoModelForCausalLM.from_config(config)
    return SFTTrainer(model=model, args=args, train_dataset=Dataset.from_list(ROWS), processing_class=tokenizer)


def dataset() -> Any:
    """The rows as TRL tokenizes them."""
    return make_trainer().train_dataset


def tokens(batch: dict[str, Tensor]) -> int:
    """What the loss is divided by, over the whole global batch: the tokens that have one."""
    return int((batch["labels"][:, 1:] != -100).sum())


def train(run: Run) -> None:
    """The loop. `num_items_in_batch=1` makes TRL's loss the sum over the micro-batch's tokens."""
    trainer = make_trainer()
    model = run.shard(trainer.model, units=trainer.model.model.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for step in run.steps(model, optimizer, counts=[tokens], collate=trainer.data_collator):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 + math.cos(math.pi * step.number / run.total_steps)) / 2
        for batch in step.micro_batches():
            inputs = {name: value.to(run.device) for name, value in batch.items()}
            step.backward(trainer.compute_loss(model, inputs, num_items_in_batch=1))
        trainer._metrics["train"].clear()  # noqa: SLF001  # TRL keeps a value of each micro-batch until it logs

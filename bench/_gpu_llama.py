"""Steps of a Llama of 1.24 B parameters: our loop beside a hand-written FSDP2 loop. A piece of `bench/gpu.py`.

Both sides train the same shape (that of Llama 3.2 1B: 128,256 words, tied embeddings) in bf16 from random weights, with
the same optimizer and micro-batches: full rows of 2,048 tokens, no padding, no activation checkpointing, `sdpa`, blocks
compiled. They share a process and take one step each in turn: A B, B A, ... `ours` is everything that a run does.
`by_hand` is what torchtitan does on one GPU: each block compiled by `block.compile()`, whole logits with a compiled
cross-entropy in float32, fused AdamW. The row is handed over as its figures come.

step_s        median over the pairs, and their range
tokens_per_s  tokens of a step over step_s
mfu           FLOPs of a step over step_s and the GPU's dense peak. The FLOPs of both sides are those that
              `planner.train.flops` counts: per token 6 per weight that is multiplied (the head, too) and 12 L H Q T of
              attention, which is not halved for causal masks. null where the peak is not known
peak_gb       most memory of the GPU that torch's tensors had during a step, without what the other side keeps
start_s       from nothing to the end of the first step: making the model, and most of the compilation
graphs        that torch.compile made for this side
ratio         of step times, ours over by hand: median over the pairs, and its 95 % bootstrap interval
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _plain import records_of
from _results import hand_over
from step import interval, our_steps

from planner.job import Job
from planner.rehearsal.local_workers import LocalWorkers

_WARM_UP, _PAIRS, _HAND_OVER_EVERY, _ROWS, _AIM = 5, 20, 5, 64, 1.02
_LR, _CLIP_NORM = 1e-4, 1.0
_SHAPES: dict[str, dict[str, int]] = {
    "cuda": {
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "cpu": {},  # that of `jobs/make_llama.py`
}
# Beside the 15 GB of the other side, a step by hand has 15 GB of weights and AdamW, 5 GB of gradients, 3 GB of gathered
# weights, and for 4 rows about 10 GB of activations and 15 GB of logits: 63 GB in all.
_TOKENS, _GLOBAL, _MICRO = {"cuda": 2048, "cpu": 32}, 16, 4
_SIDES = ("ours", "by_hand")


def write_files(folder: Path, device: str) -> None:
    """The model's configuration, a tokenizer, and rows that are longer than the context."""
    sys.path.append(str(Path(__file__).parent.parent / "jobs"))
    from make_llama import make_tokenizer
    from transformers import LlamaConfig

    tokenizer = make_tokenizer(Path(__file__).read_text().splitlines())
    shape = _SHAPES[device] or {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    LlamaConfig(
        **shape, architectures=["LlamaForCausalLM"], max_position_embeddings=4096, tie_word_embeddings=True
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    texts = (" ".join(str(row * place % 997) for place in range(_TOKENS[device])) for row in range(1, _ROWS + 1))
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def job_for(folder: Path, device: str) -> Job:
    """The job of both sides."""
    return Job.model_validate(
        {
            "name": "llama",
            "model": {
                "kind": "hf",
                "path": str(folder),
                "weights": "random",
                "context": _TOKENS[device] + 1,  # the last token is only a label
                "attention": "sdpa",
            },
            "data": {"kind": "chat", "path": str(folder / "rows.jsonl"), "loss_on": "all"},
            "objective": "sft",
            "batch": {"global": _GLOBAL, "max_micro": _MICRO},
            "train": {
                "steps": 100_000,
                "optimizer": {"kind": "adamw", "lr": _LR},
                "clip_norm": _CLIP_NORM,
                "precision": "bf16" if device == "cuda" else "fp32",
                "compile": "blocks",
            },
            "workers": {"gpus": 0},
            "checkpoint": {"every": 1_000_000},
        }
    )


def steps_by_hand(folder: Path, device: Any) -> Iterator[None]:
    """The loop that one would write for speed. Do not improve it: it is what we are compared with."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn import functional
    from torch.utils.data import DataLoader, Dataset

    is_gpu, num_tokens = device.type == "cuda", _TOKENS[device.type]

    class Samples(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, i: int) -> Any:
            return torch.randint(1, 500, (num_tokens + 1,), generator=torch.Generator().manual_seed(i))

    def loss_of(logits: Any, labels: Any) -> Any:
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    loader = iter(DataLoader(Samples(), batch_size=_MICRO, pin_memory=is_gpu))
    torch.manual_seed(0)
    model = make_llama(folder, device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if is_gpu else None, reduce_dtype=torch.float32)
    mesh = init_device_mesh(device.type, (1,))
    for block in model.model.layers:
        block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    compiled_loss = torch.compile(loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LR, fused=is_gpu)
    rounds = _GLOBAL // _MICRO
    while True:
        total = torch.zeros((), device=device)
        for _ in range(rounds):
            tokens = next(loader).to(device, non_blocking=True)
            logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
            loss = compiled_loss(logits, tokens[:, 1:]) / rounds
            del logits
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        total.item()
        yield


def make_llama(folder: Path, device: Any) -> Any:
    """The whole model with random weights, in float32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device(device):
        return AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder), attn_implementation="sdpa", dtype=torch.float32
        ).train()


def num_graphs() -> int:
    """That torch.compile has made in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


class Sides:
    """Both loops in one worker, and the memory that each of them keeps."""

    def __init__(self, folder: Path, device: Any) -> None:
        self._device, self._is_gpu = device, device.type == "cuda"
        self._steps = {
            "ours": our_steps(job_for(folder, device.type), str(folder / "run"), device),
            "by_hand": steps_by_hand(folder, device),
        }
        self._kept = dict.fromkeys(_SIDES, 0)
        self.peak = dict.fromkeys(_SIDES, 0)

    def step(self, side: str) -> float:
        """Take a step. Its seconds."""
        import torch

        if self._is_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began_s = time.perf_counter()
        next(self._steps[side])
        if self._is_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began_s
        if self._is_gpu:
            others = sum(kept for each, kept in self._kept.items() if each != side)
            self._kept[side] = torch.cuda.memory_allocated() - others
            self.peak[side] = torch.cuda.max_memory_allocated() - others
        return seconds


def flops_of_a_step(folder: Path, num_tokens: int) -> tuple[int, int]:
    """FLOPs of a step, and the number of parameters."""
    import torch

    from planner.train.flops import step_flops
    from planner.train.reference.frozen import UniformReference

    model = make_llama(folder, torch.device("meta"))
    of_samples = step_flops(model, num_tokens, UniformReference()).samples
    flops = of_samples.of(_GLOBAL * num_tokens, _GLOBAL * num_tokens**2)
    return flops, sum(parameter.numel() for parameter in model.parameters())


def measure(rank: int, folder_name: str, device_name: str, num_pairs: int) -> dict[str, Any]:
    """Run in the worker: time both sides. Hands the row over as its figures come, and returns it."""
    import torch

    from planner.train.device_peaks import peak_flops_per_s

    folder, device = Path(folder_name), torch.device(device_name, rank if device_name == "cuda" else None)
    job = job_for(folder, device_name)
    num_tokens = _TOKENS[device_name]
    flops, num_parameters = flops_of_a_step(folder, num_tokens)
    peak_flops = peak_flops_per_s(device, job.train.precision)
    row: dict[str, Any] = {
        "device": device_name,
        "precision": job.train.precision,
        "compile": job.train.compile,
        "parameters": num_parameters,
        "tokens_per_row": num_tokens,
        "global_batch": _GLOBAL,
        "micro_batch": _MICRO,
        "tflop_per_step": round(flops / 1e12, 3),
        "aim": _AIM,
    }

    def add(side: str, seconds: list[float]) -> None:
        step_s = statistics.median(seconds)
        row[side] = {
            **row.get(side, {}),
            "step_s": round(step_s, 4),
            "range_s": [round(bound(seconds), 4) for bound in (min, max)],
            "tokens_per_s": round(_GLOBAL * num_tokens / step_s),
            "mfu": round(flops / step_s / peak_flops, 3) if peak_flops else None,
            "peak_gb": round(sides.peak[side] / 1e9, 2),
        }

    sides = Sides(folder, device)
    for side in _SIDES:
        before = num_graphs()
        start_s = sides.step(side)
        warm = [sides.step(side) for _ in range(_WARM_UP)]
        row[side] = {"start_s": round(start_s, 1), "graphs": num_graphs() - before}
        add(side, warm[_WARM_UP // 2 :])
        hand_over("gpu-compiled", [row])
    found: dict[str, list[float]] = {side: [] for side in _SIDES}
    for pair in range(num_pairs):
        for side in _SIDES if pair % 2 == 0 else reversed(_SIDES):
            found[side].append(sides.step(side))
        if (pair + 1) % _HAND_OVER_EVERY == 0 or pair + 1 == num_pairs:
            ratios = [ours / by_hand for ours, by_hand in zip(*found.values(), strict=True)]
            for side in _SIDES:
                add(side, found[side])
            row |= {"ratio": round(statistics.median(ratios), 3), "pairs": len(ratios)}
            row["ratio_95"] = [round(bound, 3) for bound in interval(ratios)]
            hand_over("gpu-compiled", [row])
    return row


def main() -> None:
    """Measure, and check that our side had full rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=tuple(_SHAPES), default="cuda")
    parser.add_argument("--toy", action="store_true", help="few pairs")
    options = parser.parse_args()
    device, num_pairs = options.device, 4 if options.toy else _PAIRS
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as name, LocalWorkers(1, backend) as workers:
        folder = Path(name)
        write_files(folder, device)
        (row,) = workers.run(measure, 1, name, device, num_pairs)
        steps = records_of(folder / "run", "step")
    row["ours"]["loss"] = [round(step["loss"], 4) for step in (steps[0], steps[-1])]
    hand_over("gpu-compiled", [row])
    wanted = _GLOBAL * _TOKENS[device]
    if any(step["tokens"] != wanted for step in steps):
        sys.exit(f"a step of ours had {steps[-1]['tokens']} tokens with loss, and one by hand has {wanted}")


if __name__ == "__main__":
    main()

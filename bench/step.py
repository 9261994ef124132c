"""What our loop costs beside a minimal hand-written FSDP2 loop at the same plan.

    python bench/step.py                     2 processes on this machine, gloo (two minutes)
    python bench/step.py --device cuda       one process on a GPU, bf16
    python bench/step.py --compile           blocks compiled on both sides

Both sides train the same model with the same micro-batches, in the same processes, one step each in turn: A B, B A, ...
The ratio is the median over the pairs, its interval the 95 % bootstrap interval of that median. `ours` is everything
that a run does: loading, the exact mean, checksums, the control message, clipping, the ledger. `by_hand` is frozen: a
DataLoader, a loss per micro-batch, backward, clipping, AdamW, an all-reduce of the loss for the log.

mfu     6 FLOPs per parameter and token over the GPU's peak, of both sides. null where the peak is not known
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _results import write

from planner.job import Job
from planner.rehearsal.local_workers import LocalWorkers

_WARM_UP, _PAIRS = 5, 40


LARGE = {
    "1b": {"layers": 16, "width": 2048, "heads": 32, "context": 2048},
    "3b": {"layers": 28, "width": 3072, "heads": 24, "context": 2048},
}


def job_for(device: str, folder: Path, *, toy: bool, size: str = "usual", is_compiled: bool = False) -> Job:
    """A GPT on random text: 10.9 M parameters on the CPU, 86 M on a GPU, or 0.8 B or 3.2 B."""
    (folder / "corpus").write_bytes(np.random.default_rng(0).integers(1, 128, 2**22, dtype=np.uint8).tobytes())
    cpu = {"layers": 6, "width": 384, "heads": 6, "context": 128}
    gpu = {"layers": 12, "width": 768, "heads": 12, "context": 1024}
    gpu = LARGE.get(size, gpu)
    if toy:
        cpu = {"layers": 1, "width": 32, "heads": 2, "context": 16}
    return Job.model_validate(
        {
            "name": "step",
            "model": {"kind": "gpt", **(gpu if device == "cuda" else cpu)},
            "data": {"kind": "text", "path": str(folder / "corpus")},
            # With 3.2 B, weights, gradients and AdamW take 51 GB. 4 rows keep 13 GB of activations, 8 would keep 25 GB.
            "batch": {
                "global": 16 if size in LARGE else 32,
                "max_micro": 8 if device == "cuda" and size != "3b" else 4,
            },
            "train": {
                "steps": 100_000,
                "optimizer": {"kind": "adamw", "lr": 1e-3},
                "precision": "bf16" if device == "cuda" else "fp32",
                "compile": "blocks" if is_compiled else False,
                "activation_checkpointing": "selective" if size == "3b" else False,
            },
            "workers": {"gpus": 0},
            "checkpoint": {"every": 1_000_000},
        }
    )


def our_steps(job: Job, url: str, device: Any) -> Iterator[None]:
    """Our loop, one step for each `next`."""
    from planner.train.flops import StepFlops
    from planner.train.generation import make_batch_of, make_state
    from planner.train.hooks import Hooks
    from planner.train.lifecycle import begin, looping
    from planner.train.objectives import make_objective
    from planner.train.optimizer_step import accumulate
    from planner.train.reference.frozen import UniformReference
    from planner.train.setup import Launch

    generation = begin(Launch(job=job, url=url), lambda: device, Hooks())
    state, objective = make_state(generation), make_objective(job.objective, UniformReference())
    given = objective, StepFlops()
    with looping(generation, state, lambda _note: given, make_batch_of(job)) as loop:
        for step in loop.steps():
            accumulate(state.model, objective, step)
            yield


def steps_by_hand(job: Job, device: Any) -> Iterator[None]:
    """The loop that one would write. Do not improve it: it is what we are compared with."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn import functional
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    from planner.train.models.gpt import Gpt

    tokens = torch.from_numpy(np.fromfile(job.data.path, dtype=np.uint8)).long()
    context = job.model.context  # type: ignore[union-attr]

    class Samples(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return (len(tokens) - 1) // context

        def __getitem__(self, i: int) -> Any:
            return tokens[i * context : (i + 1) * context], tokens[i * context + 1 : (i + 1) * context + 1]

    world_size, micro = dist.get_world_size(), job.batch.max_micro
    rounds = job.batch.global_batch // (world_size * micro)
    sampler = DistributedSampler(Samples(), seed=0, drop_last=True)
    loader = iter(DataLoader(Samples(), batch_size=micro, sampler=sampler, drop_last=True))
    torch.manual_seed(0)
    model = Gpt(job.model).to(device)  # type: ignore[arg-type]
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if job.train.precision == "bf16" else None, reduce_dtype=torch.float32
    )
    mesh = init_device_mesh(device.type, (world_size,))  # by default FSDP takes GPUs where there are any
    for block in model.blocks:
        if job.train.compile:
            block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while True:
        total = torch.zeros((), device=device)
        for _ in range(rounds):
            inputs, labels = (part.to(device) for part in next(loader))
            loss = functional.cross_entropy(model(inputs).flatten(0, 1).float(), labels.flatten()) / rounds
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        total.item()
        yield


def pairs(rank: int, job: Job, url: str, device_name: str, num_pairs: int) -> list[tuple[float, float]]:
    """Run in every worker. Returns the seconds of a step of ours and of a hand-written one, in turn."""
    import torch
    import torch.distributed as dist

    device = torch.device(device_name, rank if device_name == "cuda" else None)
    sides = our_steps(job, url, device), steps_by_hand(job, device)

    def timed(side: Iterator[None]) -> float:
        dist.barrier()
        began_s = time.perf_counter()
        next(side)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began_s

    for side in sides:
        for _ in range(_WARM_UP):
            timed(side)
    found = []
    for pair in range(num_pairs):
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        times = {which: timed(sides[which]) for which in order}
        found.append((times[0], times[1]))
    return found


def interval(ratios: list[float]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def mfu(job: Job, device: str, step_s: float) -> float | None:
    """Of a step on one device."""
    import torch

    from planner.train.device_peaks import peak_flops_per_s

    peak = peak_flops_per_s(torch.device(device), job.train.precision)
    if not peak:
        return None
    model: Any = job.model
    flops = 6 * 12 * model.layers * model.width**2 * job.batch.global_batch * model.context
    return round(flops / step_s / peak, 3)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--toy", action="store_true", help="a tiny model and few pairs, on the CPU")
    parser.add_argument("--compile", action="store_true", help="compile the blocks of both sides")
    options = parser.parse_args()
    device, num_pairs = options.device, 4 if options.toy else _PAIRS
    world_size = 1 if device == "cuda" else 2
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as name, LocalWorkers(world_size, backend) as workers:
        job = job_for(device, Path(name), toy=options.toy, is_compiled=options.compile)
        by_rank = workers.run(pairs, world_size, job, str(Path(name) / "run"), device, num_pairs)
    seconds = [(max(rank[i][0] for rank in by_rank), max(rank[i][1] for rank in by_rank)) for i in range(num_pairs)]
    ratios = [ours / by_hand for ours, by_hand in seconds]
    low, high = interval(ratios)
    tokens = job.batch.global_batch * job.model.context  # type: ignore[union-attr]
    row = {
        "device": device,
        "world_size": world_size,
        "precision": job.train.precision,
        "compile": job.train.compile,
        "ratio": round(statistics.median(ratios), 3),
        "ratio_95": [round(low, 3), round(high, 3)],
        "ours_tokens_per_s": round(tokens / statistics.median(ours for ours, _ in seconds)),
        "by_hand_tokens_per_s": round(tokens / statistics.median(by_hand for _, by_hand in seconds)),
        "mfu": [mfu(job, device, statistics.median(side)) for side in zip(*seconds, strict=True)],
        "pairs": num_pairs,
        "aim": 1.02,
    }
    kinds = [*(["cuda"] if device == "cuda" else []), *(["compiled"] if options.compile else [])]
    write("-".join(["step", *kinds]), [row])


if __name__ == "__main__":
    main()

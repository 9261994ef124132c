"""One hash of the weights at 1, 2 and 3 ranks on one GPU. A piece of `bench/gpu.py`. Needs torch alone.

The model, the fixed-point sums and the collectives are planner's own. The loop around them is written out here, because
planner's needs pydantic. Every rank is a process on the first GPU, over gloo. `exact` sums must give one hash
for each precision, whatever the number of ranks, the place where sums wait and the way they travel. `float` sums are
FSDP's own, for comparison. Their hash may depend on the number of ranks, and the row says so.

With one rank, FSDP calls planner's sum on a stream of its own and frees the memory at once. A row with `is_late` makes
that stream come late, so that memory which is used again too soon gives another hash.
"""

import argparse
import hashlib
import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from _results import hand_over
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

from planner.rehearsal.local_workers import LocalWorkers
from planner.train import collectives
from planner.train.exact import gradient_sums
from planner.train.exact.gradient_sums import FixedPointSums, FloatSums
from planner.train.models.gpt import VOCABULARY, Gpt

NUM_MICRO_BATCHES = 6  # 1, 2 and 3 ranks take as many each
LATE_CYCLES = 10**7  # of the GPU's clock: some 6 ms, longer than a block's backward pass


@dataclass(frozen=True, kw_only=True)
class Config:
    """What `Gpt` asks of a `planner.job.GptModel`."""

    layers: int
    width: int
    heads: int
    context: int
    dropout: float = 0.0
    tied_embeddings: bool = False


@dataclass(frozen=True, kw_only=True)
class Task:
    """One training, whatever its ranks."""

    device: str
    config: Config
    micro_batch: int
    steps: int
    precision: str
    sums: str
    """exact or float"""
    where: str = "sharded"
    """where exact sums wait between rounds"""
    travel: str = "exchange"
    """how exact sums travel: gradients are exchanged, or integers are summed on their way, as over NCCL"""
    is_staged: bool = True
    """on the CPU: whether tensors are copied as they are on a GPU"""
    is_late: bool = False
    """on a GPU: whether a single rank's sums begin late"""


@dataclass(frozen=True, kw_only=True)
class Peers:
    """What `FixedPointSums` asks of a `planner.train.world.World`."""

    rank: int
    world_size: int
    device: torch.device
    object_group: Any


def train(rank: int, task: Task) -> dict[str, Any]:
    """Train some steps on every rank. Returns the hash of the weights and the seconds that the steps took."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    device = torch.device("cuda", 0) if task.device == "cuda" else torch.device("cpu")
    if task.device == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.reset_peak_memory_stats()
        # As in `planner.train.exact.determinism`. Filling new memory would wait for its stream, and hide a late one.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    originals = collectives.is_staged, collectives.is_gloo
    sums: Any = gradient_sums._ModuleSum  # noqa: SLF001  the sums have no seam for a slow stream
    on_one_worker = sums.on_one_worker
    if task.device == "cpu" and task.is_staged:
        collectives.is_staged = lambda *_: True
    if task.travel == "sum":
        collectives.is_gloo = lambda *_: False
    if task.is_late and task.device == "cuda":
        sums.on_one_worker = _late(on_one_worker)
    try:
        return _train(rank, task, device)
    finally:
        collectives.is_staged, collectives.is_gloo = originals
        sums.on_one_worker = on_one_worker


def _late(on_one_worker: Any) -> Any:
    """The same on a stream that is busy first."""

    def late(module_sum: Any, reduce_output: Tensor) -> None:
        torch.cuda._sleep(LATE_CYCLES)  # noqa: SLF001  torch's tests use it, and nothing public does the same
        on_one_worker(module_sum, reduce_output)

    return late


def _train(rank: int, task: Task, device: torch.device) -> dict[str, Any]:
    peers = Peers(rank=rank, world_size=dist.get_world_size(), device=device, object_group=dist.group.WORLD)
    model = _sharded(task, device)
    if task.sums == "exact":
        sums: Any = FixedPointSums(model, peers, NUM_MICRO_BATCHES, task.where)  # type: ignore[arg-type]
    else:
        sums = FloatSums(model)
    shards = [(parameter, parameter.to_local().detach()) for parameter in model.parameters()]  # type: ignore[attr-defined]
    optimizer = torch.optim.AdamW([shard for _, shard in shards], lr=1e-3, foreach=True)
    seconds, norms = [], []
    for number in range(task.steps):
        dist.barrier()
        began_s = time.perf_counter()
        norms.append(_step(task, peers, model, sums, number))
        for parameter, shard in shards:
            shard.grad = parameter.grad.to_local().mul_(min(1.0 / (norms[-1] + 1e-6), 1.0))  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()
        model.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began_s)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        parts = [collectives.whole_on(parameter.detach(), owner, dist.group.WORLD) for owner in range(peers.world_size)]  # type: ignore[arg-type]
        digest.update(next(part for part in parts if part is not None).contiguous().view(-1).view(torch.uint8).numpy())
    return {
        "hash": digest.hexdigest()[:16],
        "norms": norms,
        "seconds": seconds,
        "peak_mib": round(torch.cuda.max_memory_allocated() / 2**20) if device.type == "cuda" else None,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _sharded(task: Task, device: torch.device) -> nn.Module:
    """As `planner.train.shard` does it, for one of our blocks at a time."""
    group = dist.group.WORLD
    assert group is not None  # the process group is initialised
    mesh = DeviceMesh.from_group(group, device.type, mesh_dim_names=("shard",))
    torch.manual_seed(0)
    model = Gpt(task.config).to(device)  # type: ignore[arg-type]
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if task.precision == "bf16" else None, reduce_dtype=torch.float32
    )
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    collectives.let_fsdp_sum_gradients(model)
    if task.device == "cuda" or task.is_staged:
        collectives.use_own_collectives(model)
    return model


def _step(task: Task, peers: Peers, model: Any, sums: Any, number: int) -> float:
    """Gradients of one step in the shards, and their norm."""
    rounds = NUM_MICRO_BATCHES // peers.world_size
    total = NUM_MICRO_BATCHES * task.micro_batch * task.config.context
    while True:
        sums.begin()
        for index in range(rounds):
            if index == rounds - 1:
                sums.last_round()
            model.set_is_last_backward(index == rounds - 1)
            inputs, labels = _micro_batch(task, number, peers.rank * rounds + index, peers.device)
            losses = functional.cross_entropy(model(inputs).flatten(0, 1).float(), labels.flatten(), reduction="sum")
            (losses / total).backward()
        if sums.settle():
            return float(sums.norm())
        model.zero_grad()


def _micro_batch(task: Task, step: int, index: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random tokens that depend on the position alone."""
    dice = torch.Generator().manual_seed(step * NUM_MICRO_BATCHES + index)
    tokens = torch.randint(VOCABULARY, (task.micro_batch, task.config.context + 1), generator=dice)
    return tokens[:, :-1].to(device), tokens[:, 1:].to(device)


def tasks(device: str, *, toy: bool) -> list[tuple[int, Task]]:
    """(ranks, task): the first of each precision is what the others must agree with."""
    if toy:
        sizes: dict[str, Any] = {
            "config": Config(layers=1, width=32, heads=2, context=16),
            "micro_batch": 2,
            "steps": 2,
        }
    else:
        sizes = {"config": Config(layers=4, width=512, heads=8, context=512), "micro_batch": 8, "steps": 4}
    found = []
    for precision in ("bf16", "fp32"):
        common = {"device": device, "precision": precision, **sizes}
        exact = Task(sums="exact", **common)
        found += [(ranks, exact) for ranks in (1, 2, 3)]
        found.append((1, Task(sums="exact", is_late=True, **common)))
        found.append((2, Task(sums="exact", travel="sum", **common)))
        if precision == "bf16":  # what is used on GPUs
            found += [(1, exact), (3, exact), (3, Task(sums="exact", where="local", **common))]
            found += [(ranks, Task(sums="float", **common)) for ranks in (1, 2, 3)]
    return found


def main() -> None:
    """Train, hand over the rows, and fail if exact sums gave more than one hash."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args()
    # For the workers: cuBLAS reads it at its first call. `planner.train.exact.determinism` sets the same.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    rows: list[dict[str, object]] = []
    with LocalWorkers(3) as workers:
        for ranks, task in tasks(options.device, toy=options.toy):
            found = workers.run(train, ranks, task)
            assert len({worker["hash"] for worker in found}) == 1  # all of them gathered the same weights
            seconds = [max(worker["seconds"][i] for worker in found) for i in range(task.steps)]
            # The first step makes kernels and, for exact sums, is done twice.
            steady = seconds[1:]
            rows.append(
                {
                    "precision": task.precision,
                    "sums": task.sums,
                    "where": task.where,
                    "travel": task.travel,
                    "is_late": task.is_late,
                    "ranks": ranks,
                    "hash": found[0]["hash"],
                    "norm": found[0]["norms"][-1],
                    "steps": task.steps,
                    "step_s": round(statistics.median(steady), 4),
                    "step_s_spread": [round(min(steady), 4), round(max(steady), 4)],
                    "peak_mib": [worker["peak_mib"] for worker in found],
                    "parameters": found[0]["parameters"],
                }
            )
            hand_over("gpu-sums", rows)
    wrong = [
        precision
        for precision in ("bf16", "fp32")
        if len({row["hash"] for row in rows if (row["precision"], row["sums"]) == (precision, "exact")}) != 1
    ]
    if wrong:
        raise SystemExit(f"exact sums gave more than one hash in {' and in '.join(wrong)}")


if __name__ == "__main__":
    main()

"""What `bitwise` costs beside `balanced`: time per step, bytes sent, memory per worker. Checks that its hash repeats.

    python bench/bitwise.py                  4 processes on this machine's CPU (about ten minutes)
    python bench/bitwise.py --device cuda    W = 1, 2, 4, 8 of this machine's GPUs in bf16 (torch and planner, no Ray)

Time: both ways train in the same processes, on a plan that is the same for both (W divides the number of micro-batches,
so that no step is longer for `bitwise`). Steps are taken in pairs, one each, in turn A B, B A, ... The ratio is the
median over the pairs, its interval the 95 % bootstrap interval of that median. The first step of a bitwise run is done
twice, once per run: it is not timed. Deterministic algorithms are on for the bitwise steps and off for the others.
`cpu_s` is what all workers together spent on a CPU, system time included: steadier than a clock on a busy machine.

Bytes: counted from the tensors handed to torch's collectives in one step. A worker must send at least:
S (W - 1) / W of a reduce-scatter or an all-to-all of S bytes, s (W - 1) of an all-gather of its s bytes, and
2 S (W - 1) / W of an all-reduce. gloo sends more than that for a reduce-scatter, which it does as an all-reduce:
`loopback_mib` is what this machine's loopback really carried, per worker (whatever else used it included).

Memory and hash: each way trains alone in fresh processes. Memory is the peak of a worker's resident memory, the largest
of them (on a GPU: of allocated device memory). The hash is SHA-256 over the weights afterwards. All bitwise hashes of
one job must be the same one, for every way to hold the sums, every W, and every repetition.
"""

import argparse
import hashlib
import multiprocessing
import os
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from _results import hand_over, write
from torch import Tensor

from planner.data.samples import Text
from planner.job import AdamW, GptModel, LmObjective, Train
from planner.job.step_schedule import StepSchedule, learning_rate
from planner.plan import BatchSizes, Plan, make_plan
from planner.rehearsal.local_workers import LocalWorkers
from planner.train import control, optimize
from planner.train.control import Tally
from planner.train.cuts import Cuts
from planner.train.exact.gradient_sums import FixedPointSums, FloatSums
from planner.train.hooks import Hooks
from planner.train.models.gpt import VOCABULARY
from planner.train.objectives.next_token import NextToken
from planner.train.optimizer_step import Step, accumulate
from planner.train.sample_batches import SampleBatch, batch_of
from planner.train.shard import build_model, shard
from planner.train.state import TrainState, tensor_digest
from planner.train.stopwatch import Stopwatch
from planner.train.world import World

BALANCED = "balanced"
WARM_UP_STEPS = 3
HASHED_STEPS = 4
ALLOWED_RATIO = 1.15  # the issue's, for the headline on the CPU


@dataclass(frozen=True, kw_only=True)
class Task:
    """A job in small: everything that a measurement depends on."""

    model: GptModel
    train: Train
    num_micro_batches: int
    micro_batch: int
    world_size: int
    num_pairs: int

    @property
    def plan(self) -> Plan:
        """One plan for both ways: every micro-batch is of the same size, and every worker has as many."""
        sizes = BatchSizes(global_batch=self.num_micro_batches * self.micro_batch, max_micro=self.micro_batch)
        plans = [
            make_plan(BatchSizes(**{**vars(sizes), "equality": equality}), self.world_size)
            for equality in ("balanced", "bitwise")
        ]
        for plan in plans:
            assert plan.accumulation_steps * self.world_size == self.num_micro_batches
            assert plan.step_cost == plan.accumulation_steps * self.micro_batch
        return plans[1]


CPU_MODEL = GptModel(kind="gpt", layers=6, width=384, heads=6, context=128)  # 10.9 M parameters
GPU_MODEL = GptModel(kind="gpt", layers=12, width=768, heads=12, context=1024)  # 86 M parameters


def _train(precision: str) -> Train:
    values = {"steps": 1000, "optimizer": AdamW(kind="adamw", lr=1e-3), "clip_norm": 1.0, "precision": precision}
    return Train(**values)  # type: ignore[arg-type]


class Side:
    """One way to sum gradients, and the model it trains: the steps of `planner.train.loop`, without its journal."""

    def __init__(self, task: Task, world: World, way: str) -> None:
        self._task, self._world, self._is_exact = task, world, way != BALANCED
        model = shard(build_model(task.model, task.train), world, task.train)
        self.num_parameters = sum(p.numel() for p in model.parameters())
        optimizer = optimize.make_optimizer(task.train.optimizer, model)
        sums = FixedPointSums(model, world, task.num_micro_batches, way) if self._is_exact else FloatSums(model)  # type: ignore[arg-type]
        self.state = TrainState.of(model, optimizer, sums)
        self._objective = NextToken(LmObjective())

    def step(self, number: int, batches: list[SampleBatch], num_tokens: int) -> None:
        """One optimizer step."""
        torch.use_deterministic_algorithms(self._is_exact)
        state, train = self.state, self._task.train
        while True:
            step = Step(
                number=number,
                model=state.model,
                sums=state.sums,
                batches=batches,
                totals=(num_tokens,),
                seed=train.seed,
                watch=Stopwatch(),
                cuts=Cuts(self._world, Hooks()),
            )
            accumulate(state.model, self._objective, step)
            (loss,), check_sum = step.result()
            if state.sums.settle():
                break
            state.model.zero_grad(set_to_none=True)
        samples = sum(len(batch.rows) for batch in batches)
        tally = Tally(denominators=(num_tokens,), samples=samples, loss=loss, check_sum=check_sum)
        pending = control.start(self._world, tally)
        lengths = StepSchedule(total_steps=train.steps or 1, warmup_steps=0, eval_every=1, commit_every="auto")
        optimize.set_learning_rate(state.optimizer, learning_rate(train, number, lengths))
        norm = state.sums.norm()
        optimize.clip_gradients(state.model, norm, train.clip_norm)
        state.step()
        state.model.zero_grad(set_to_none=True)
        pending.wait()

    def digest(self) -> str:
        """16 hex digits of SHA-256 over all weights."""
        digests = [
            tensor_digest(p.detach().full_tensor())  # type: ignore[attr-defined]
            for p in self.state.model.parameters()
        ]
        return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def _batches(task: Task, rank: int, step: int) -> list[SampleBatch]:
    """Random bytes that depend on the position alone, every sample as long as the context."""
    start = step * task.plan.global_batch

    def micro_batch(slot: range) -> SampleBatch:
        rows = [start + i for i in slot]
        texts = [np.random.default_rng(row).integers(0, VOCABULARY, task.model.context + 1) for row in rows]
        return batch_of(rows, [Text.of(text.astype(np.int32)) for text in texts], rows[0])

    return [micro_batch(slot) for slot in task.plan.micro_batches(rank)]


# What runs in the workers.


def side_by_side(rank: int, task: Task, way: str) -> dict[str, Any]:
    """(Seconds, CPU seconds of this process) of every pair `(balanced, bitwise)`, and the bytes of a step of each."""
    world = World.join(partial(_device, rank))
    sides = {name: Side(task, world, name) for name in (BALANCED, way)}
    num_tokens = task.plan.global_batch * task.model.context
    found: dict[str, Any] = {"num_parameters": sides[way].num_parameters, "pairs": []}

    def timed(name: str, number: int) -> tuple[float, float]:
        batches = _batches(task, rank, number)
        _wait_for_all(world)
        started_s, busy_s = time.perf_counter(), time.process_time()
        sides[name].step(number, batches, num_tokens)
        _wait_for_all(world)
        return time.perf_counter() - started_s, time.process_time() - busy_s

    for number in range(WARM_UP_STEPS):
        for name in sides:
            timed(name, number)
    for name in sides:
        _wait_for_all(world)
        before = _loopback_bytes()
        with _counted() as sent:
            timed(name, WARM_UP_STEPS)
        found[name] = {
            "sent_mib": _mib(sum(sent.values())),
            "sent_by": {kind: _mib(size) for kind, size in sent.items()},
            "loopback_mib": _mib((_loopback_bytes() - before) / task.world_size),
        }
    for pair in range(task.num_pairs):
        names = (BALANCED, way) if pair % 2 == 0 else (way, BALANCED)
        times = {name: timed(name, WARM_UP_STEPS + 1 + pair) for name in names}
        found["pairs"].append((times[BALANCED], times[way]))
    return found


def alone(rank: int, task: Task, way: str) -> tuple[float, str]:
    """Peak memory of this worker in MiB, and the hash of the weights after some steps."""
    world = World.join(partial(_device, rank))
    side = Side(task, world, way)
    _forget_the_peak(world.device)
    num_tokens = task.plan.global_batch * task.model.context
    for number in range(HASHED_STEPS):
        side.step(number, _batches(task, rank, number), num_tokens)
    return _peak_mib(world.device), side.digest()


def _device(rank: int) -> torch.device:
    if "nccl" in str(dist.get_backend_config()):
        torch.cuda.set_device(rank)
        return torch.device("cuda", rank)
    return torch.device("cpu")


def _wait_for_all(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier(group=world.object_group)


_COLLECTIVES: dict[str, Callable[[int, int], float]] = {
    # The bytes handed in and W -> the bytes that a worker must send.
    "reduce_scatter": lambda size, w: size * (w - 1) / w,
    "all_to_all": lambda size, w: size * (w - 1) / w,
    "all_gather": lambda size, w: size * (w - 1),
    "all_reduce": lambda size, w: 2 * size * (w - 1) / w,
}


@contextmanager
def _counted() -> Iterator[dict[str, float]]:
    """Count what is handed to torch's collectives, for the time of a `with`, as bytes to send by kind."""
    # 2.13 renamed two of them. torch 2.9 has the older names only. (A scalar that torch sums for a norm is not seen.)
    names = ["reduce_scatter_single", "reduce_scatter_tensor", "all_to_all_single", "all_gather_single"]
    names = [name for name in [*names, "all_gather_into_tensor", "all_reduce"] if hasattr(dist, name)]
    originals = {name: getattr(dist, name) for name in names}
    sent = dict.fromkeys(_COLLECTIVES, 0.0)

    def counting(name: str) -> Callable[..., Any]:
        kind = next(kind for kind in _COLLECTIVES if name.startswith(kind))

        def call(*arguments: Any, **keywords: Any) -> Any:
            # All take the output first and then the input, but for all_reduce, which has one tensor.
            tensors = [a for a in (*arguments, *keywords.values()) if isinstance(a, Tensor)]
            size = tensors[-1].numel() * tensors[-1].element_size()
            sent[kind] += _COLLECTIVES[kind](size, dist.get_world_size(keywords.get("group")))
            return originals[name](*arguments, **keywords)

        return call

    for name in names:
        setattr(dist, name, counting(name))
    try:
        yield sent
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def _loopback_bytes() -> int:
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))


def _forget_the_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, see proc(5)


def _peak_mib(device: torch.device) -> float:
    if device.type == "cuda":
        return _mib(torch.cuda.max_memory_allocated())
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return _mib(int(found[1]) * 1024)


def _mib(size: float) -> float:
    return round(size / 2**20, 2)


# What starts them.


def on_cpu(function: Callable[..., Any], task: Task, way: str) -> list[Any]:
    """Call the function in fresh worker processes. Returns the results by rank."""
    with LocalWorkers(task.world_size) as workers:
        return workers.run(function, task.world_size, task, way)


def on_gpus(function: Callable[..., Any], task: Task, way: str) -> list[Any]:
    """The same on the first GPUs of this machine."""
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(task.world_size, mp_context=spawn) as workers,
    ):
        calls = [
            workers.submit(_on_one_gpu, function, rank, task, way, f"file://{folder}/rendezvous")
            for rank in range(task.world_size)
        ]
        return [call.result() for call in calls]


def _on_one_gpu(function: Callable[..., Any], rank: int, task: Task, way: str, rendezvous: str) -> Any:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as `planner.train.exact.determinism` does
    torch.backends.cudnn.benchmark = False
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=rendezvous, rank=rank, world_size=task.world_size)
    try:
        return function(rank, task, way)
    finally:
        dist.destroy_process_group()


Start = Callable[[Callable[..., Any], Task, str], list[Any]]


def compare(start: Start, task: Task, way: str) -> dict[str, object]:
    """One row: time and bytes of both ways."""
    workers = start(side_by_side, task, way)
    found = workers[0]
    # (balanced, bitwise) of each pair: rank 0's clock (every step ends at a barrier) and the work of all ranks.
    seconds = [(a[0], b[0]) for a, b in found["pairs"]]
    busy = [
        tuple(sum(worker["pairs"][pair][side][1] for worker in workers) for side in (0, 1))
        for pair in range(task.num_pairs)
    ]
    ratios, busy_ratios = ([b / a for a, b in pairs] for pairs in (seconds, busy))
    ratio = statistics.median(ratios)
    return {
        "what": "step time",
        "sums": way,
        "world_size": task.world_size,
        "accumulation_steps": task.plan.accumulation_steps,
        "parameters": found["num_parameters"],
        "tokens_per_micro_batch": task.micro_batch * task.model.context,
        "precision": task.train.precision,
        "pairs": len(ratios),
        "balanced_s": round(statistics.median(a for a, _ in seconds), 4),
        "bitwise_s": round(statistics.median(b for _, b in seconds), 4),
        "ratio": round(ratio, 3),
        "interval": _interval(ratios),
        "overhead_percent": round(100 * (ratio - 1), 1),
        "balanced_cpu_s": round(statistics.median(a for a, _ in busy), 4),
        "bitwise_cpu_s": round(statistics.median(b for _, b in busy), 4),
        "cpu_ratio": round(statistics.median(busy_ratios), 3),
        "cpu_interval": _interval(busy_ratios),
        "balanced_bytes": found[BALANCED],
        "bitwise_bytes": found[way],
    }


def _interval(values: list[float]) -> list[float]:
    """The 95 % bootstrap interval of the median."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(values, k=len(values))) for _ in range(2000))
    return [round(medians[49], 3), round(medians[1949], 3)]


def each_alone(start: Start, task: Task, ways: list[str], repetitions: int) -> list[dict[str, object]]:
    """One row per way: peak memory and hash."""
    rows: list[dict[str, object]] = []
    for way in ways:
        found = [worker for _ in range(1 if way == BALANCED else repetitions) for worker in start(alone, task, way)]
        hashes = {digest for _, digest in found}
        assert len(hashes) == 1, f"{way}: the hash does not repeat: {sorted(hashes)}"
        rows.append(
            {
                "what": "memory and hash",
                "sums": way,
                "world_size": task.world_size,
                "accumulation_steps": task.plan.accumulation_steps,
                "peak_mib": max(peak for peak, _ in found),
                "hash": hashes.pop(),
                "runs": len(found) // task.world_size,
            }
        )
    assert len({row["hash"] for row in rows if row["sums"] != BALANCED}) == 1, "the ways to hold the sums differ"
    return rows


def main() -> None:
    """Measure and write `bench/results/bitwise.json` (`bitwise-cuda.json`)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--max-world-size", type=int, default=8, help="of --device cuda")
    parser.add_argument("--toy", action="store_true", help="a tiny model, few pairs, 2 processes on the CPU")
    options = parser.parse_args()
    if options.toy:
        write("bitwise-toy", _toy_rows())
    elif options.device == "cuda":
        _measure_on_gpus(options.pairs, options.max_world_size)
    else:
        write("bitwise", _cpu_rows(options.pairs))


def _cpu_rows(num_pairs: int) -> list[dict[str, object]]:
    rows = []
    # The headline is A = 2, for both ways to hold the sums.
    for rounds, way in [(2, "sharded"), (2, "local"), (1, "sharded"), (4, "sharded"), (4, "local")]:
        task = Task(
            model=CPU_MODEL,
            train=_train("fp32"),
            num_micro_batches=4 * rounds,
            micro_batch=4,
            world_size=4,
            num_pairs=max(num_pairs * 2 // max(rounds, 2), 1),
        )
        rows.append(compare(on_cpu, task, way))
        if rounds == 2:
            rows[-1] |= {"headline": True, "allowed_ratio": ALLOWED_RATIO}
        print(rows[-1], flush=True)
        if (rounds, way) == (2, "sharded"):
            rows += each_alone(on_cpu, task, [BALANCED, "sharded", "local"], repetitions=2)
    return rows


def _toy_rows() -> list[dict[str, object]]:
    """Toy sizes of what `--device cuda` compares. The piece `sums` checks that hashes agree."""
    task = Task(
        model=GptModel(kind="gpt", layers=1, width=32, heads=2, context=16),
        train=_train("bf16"),
        num_micro_batches=4,
        micro_batch=2,
        world_size=2,
        num_pairs=2,
    )
    return [compare(on_cpu, task, "sharded")]


def _measure_on_gpus(num_pairs: int, most: int) -> None:
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here")
    rows: list[dict[str, object]] = []
    for world_size in (1, 2, 4, 8):
        if world_size > min(torch.cuda.device_count(), most):
            break
        task = Task(
            model=GPU_MODEL,
            train=_train("bf16"),
            num_micro_batches=16,
            micro_batch=8,
            world_size=world_size,
            num_pairs=num_pairs,
        )
        ways = ["sharded", "local"] if world_size > 1 else ["sharded"]
        for way in ways:
            rows.append(compare(on_gpus, task, way))
            hand_over("bitwise-cuda", rows)
        rows += each_alone(on_gpus, task, [BALANCED, *ways], repetitions=2)
        hand_over("bitwise-cuda", rows)
    hashes = {row["hash"] for row in rows if "hash" in row and row["sums"] != BALANCED}
    assert len(hashes) == 1, f"the hash depends on the world size: {hashes}"


if __name__ == "__main__":
    main()

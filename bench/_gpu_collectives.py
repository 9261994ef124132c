"""Which of gloo's collectives take this device's tensors, between two ranks on one GPU. A piece of `bench/gpu.py`.

Needs torch alone. `direct` hands the tensor to torch: ok, wrong (another value), refused (an error), or died (the
process ended, as it is known of `full_tensor`: pytorch/pytorch#152645). `staged` goes by `planner.train.collectives`,
through the CPU, and must be right everywhere. The first column shows where that copy could be left out.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from _results import hand_over
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from planner.errors import TrainingFailed
from planner.rehearsal.local_workers import LocalWorkers
from planner.train import collectives

RANKS = 2
REPEATS = 5
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int64": torch.int64}
CASES = [
    ("all_gather", "float32"),
    ("all_gather", "bfloat16"),
    ("reduce_scatter", "float32"),
    ("reduce_scatter", "int64"),
    ("exchange", "float32"),
    ("exchange", "int64"),
    ("whole", "float32"),
    ("whole", "bfloat16"),
]


def case(
    rank: int, what: str, dtype_name: str, device_name: str, size: int, is_staged: bool
) -> tuple[str, list[float]]:
    """What became of one collective on this rank, and the seconds of each repeat."""
    device = torch.device("cuda", 0) if device_name == "cuda" else torch.device("cpu")
    if device_name == "cuda":
        torch.cuda.set_device(device)
    dtype = DTYPES[dtype_name]
    # Small integers: every sum of them is exact in every type.
    whole = torch.arange(RANKS * size) % 7
    mine = (whole[rank * size : (rank + 1) * size]).to(device, dtype)
    shifted = ((whole + rank) % 7).to(device, dtype)
    both = torch.stack([(whole + other) % 7 for other in range(RANKS)])[:, rank * size : (rank + 1) * size]
    group = dist.group.WORLD
    original = collectives.is_staged
    collectives.is_staged = lambda *_: is_staged
    work: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
        "all_gather": lambda: (_gathered(mine, group), whole),
        "reduce_scatter": lambda: (_scattered(shifted, size, group), both.sum(dim=0)),
        "exchange": lambda: (collectives.all_to_all(shifted, group), both),  # type: ignore[arg-type]
        "whole": lambda: (_whole(_sharded(mine, device, group), group), whole),
    }
    seconds = []
    try:
        for _ in range(REPEATS):
            dist.barrier()
            began_s = time.perf_counter()
            found, expected = work[what]()
            found = found.cpu()
            seconds.append(time.perf_counter() - began_s)
            if not torch.equal(found, expected.to(dtype)):
                return "wrong", seconds
    except RuntimeError as error:
        return f"refused: {str(error).splitlines()[0][:200]}", seconds
    finally:
        collectives.is_staged = original
    return "ok", seconds


def _gathered(mine: Tensor, group: Any) -> Tensor:
    output = torch.empty(RANKS * mine.numel(), dtype=mine.dtype, device=mine.device)
    collectives.all_gather(output, mine, group)
    return output


def _scattered(tensor: Tensor, size: int, group: Any) -> Tensor:
    output = torch.empty(size, dtype=tensor.dtype, device=tensor.device)
    collectives.reduce_scatter(output, tensor, group)
    return output


def _whole(tensor: DTensor, group: Any) -> Tensor:
    """Gathered by each rank in turn, as digests of a checkpoint's tensors are."""
    parts = [collectives.whole_on(tensor, owner, group) for owner in range(RANKS)]
    return next(part for part in parts if part is not None)


def _sharded(mine: Tensor, device: torch.device, group: Any) -> DTensor:
    mesh = DeviceMesh.from_group(group, device.type)
    return DTensor.from_local(mine, mesh, [Shard(0)], run_check=False)


def ask(
    workers: LocalWorkers, what: str, dtype: str, device: str, size: int, *, is_staged: bool
) -> tuple[str, list[float]]:
    """What became of it, and rank 0's seconds."""
    try:
        answers = workers.run(case, RANKS, what, dtype, device, size, is_staged)
    except TrainingFailed as error:
        return ("died" if str(error).endswith("died") else f"refused: {str(error).splitlines()[-1][:200]}"), []
    verdict = next((words for words, _ in answers if words != "ok"), "ok")
    return verdict, answers[0][1]


def main() -> None:
    """Ask, hand over the rows, and fail if the way through the CPU is wrong anywhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args()
    size = 1000 if options.toy else 2**22
    rows: list[dict[str, object]] = []
    kept = LocalWorkers(RANKS)
    for what, dtype in CASES[3:4] if options.toy else CASES:
        with LocalWorkers(RANKS) as own:  # a tensor handed to torch directly may end them
            direct, _ = ask(own, what, dtype, options.device, size, is_staged=False)
        staged, seconds = ask(kept, what, dtype, options.device, size, is_staged=True)
        row: dict[str, object] = {"what": what, "dtype": dtype, "elements": size, "direct": direct, "staged": staged}
        if seconds:
            row["staged_s"] = round(statistics.median(seconds), 5)
            row["staged_s_spread"] = [round(min(seconds), 5), round(max(seconds), 5)]
        rows.append(row)
        hand_over("gpu-collectives", rows)
    kept.close()
    if wrong := [f"{row['what']} of {row['dtype']}" for row in rows if row["staged"] != "ok"]:
        raise SystemExit(f"through the CPU, not right: {', '.join(wrong)}")


if __name__ == "__main__":
    main()

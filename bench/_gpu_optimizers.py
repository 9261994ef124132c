"""Which optimizers give the same bits on shards as on whole tensors. A piece of `bench/gpu.py`. Needs torch alone.

`planner.train.exact.determinism.SHARD_INVARIANT` was found on a CPU. Here each optimizer takes ten steps on whole
tensors and on their rows cut as FSDP2 cuts them over 2, 3 and 7 workers. Those that planner allows for
`bitwise`, in their `foreach` form, must not differ in a bit. The fused forms are measured for comparison.
"""

import argparse
from collections.abc import Callable

import torch
from _results import hand_over
from torch import Tensor

Make = Callable[[list[Tensor]], torch.optim.Optimizer]

ALLOWED: dict[str, Make] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, weight_decay=0.1, foreach=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.1, foreach=True),
}
OTHERS: dict[str, Make] = {
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1, fused=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.1, fused=True),
}
SHAPES = [(1,), (7,), (13, 5), (31, 17), (64, 33), (3, 129), (768,), (257, 1023)]
LARGE_SHAPES = [(4096,), (4096, 1024), (50257, 768)]
WORKERS = (2, 3, 7)
STEPS = 10


def trained(make: Make, shards: list[Tensor], gradients: list[list[Tensor]]) -> Tensor:
    """The whole tensor after all steps on its shards."""
    shards = [shard.clone() for shard in shards]
    optimizer = make(shards)
    for parts in gradients:
        for shard, part in zip(shards, parts, strict=True):
            shard.grad = part.clone()
        optimizer.step()
    return torch.cat(shards)


def differs(make: Make, shape: tuple[int, ...], workers: int, device: str) -> bool:
    """Whether a bit differs between the whole and its shards."""
    # The device's own: a CPU would draw for minutes.
    dice = torch.Generator(device).manual_seed(1)
    start = torch.randn(shape, generator=dice, device=device)
    gradients = [torch.randn(shape, generator=dice, device=device) * 10.0 ** (-i) for i in range(STEPS)]
    whole = trained(make, [start], [[gradient] for gradient in gradients])
    cut = trained(make, list(start.chunk(workers)), [list(gradient.chunk(workers)) for gradient in gradients])
    return not torch.equal(whole, cut)


def main() -> None:
    """Measure, hand over the rows, and fail if an allowed optimizer sees shards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    rows: list[dict[str, object]] = []
    shapes = SHAPES if options.toy else SHAPES + LARGE_SHAPES
    for name, make in {**ALLOWED, **OTHERS}.items():
        cases = [(shape, workers) for shape in shapes for workers in WORKERS]
        differing = [[*shape, workers] for shape, workers in cases if differs(make, shape, workers, options.device)]
        rows.append(
            {
                "optimizer": name,
                "allowed": name in ALLOWED,
                "cases": len(cases),
                "differing": len(differing),
                "first_differing": differing[:3],
            }
        )
        hand_over("gpu-optimizers", rows)
    if wrong := [row["optimizer"] for row in rows if row["allowed"] and row["differing"]]:
        raise SystemExit(f"allowed for bitwise, and not the same on shards: {wrong}")


if __name__ == "__main__":
    main()

"""Copies between a node's memory and its first GPU, and measures how long they take."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from planner.probe.figures import Move, Pace, repeated

if TYPE_CHECKING:
    import torch

_MOST_BYTES = 2**28
_PACE = Pace(most_bytes=_MOST_BYTES, target_s=0.1, limit_s=2.0, first_bytes=2**24)
# Drivers of NVIDIA, AMD and WSL make these. Without any of them there is no need to import torch, which takes seconds.
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


@dataclass(frozen=True, kw_only=True)
class Copies:
    """The copies of one node."""

    device: str = ""
    """the GPU's name, empty if nothing was measured"""
    missing: str = ""
    """why nothing was measured, such as `no GPU`"""
    moves: dict[str, list[Move]] = field(default_factory=dict)
    """what was copied -> the repeats"""


def has_driver() -> bool:
    """Whether this machine has the driver of a GPU."""
    return any(Path(driver).exists() for driver in _DRIVERS)


def copies(*, is_expected: bool = False) -> Copies:
    """Copy from pinned and from pageable memory to the GPU and back.

    Args:
        is_expected: Ray says that there is a GPU, so look for it, whatever drivers are here.
    """
    if not (is_expected or has_driver()):
        return Copies(missing="no GPU")
    import torch

    if not torch.cuda.is_available():
        return Copies(missing="no GPU that torch can use")
    try:
        return Copies(device=torch.cuda.get_device_name(), moves=_moves(torch.device("cuda")))
    except torch.cuda.OutOfMemoryError:
        return Copies(missing=f"a GPU without {_MOST_BYTES // 2**20} MiB of free memory")
    except RuntimeError as error:  # another process may have it for itself, and a host may not page-lock so much memory
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        return Copies(missing=f"a GPU that torch cannot use: {reason}")


def _moves(device: "torch.device") -> dict[str, list[Move]]:
    import torch

    on_device = torch.zeros(_MOST_BYTES, dtype=torch.uint8, device=device)
    found: dict[str, list[Move]] = {}
    for kind in ("pinned", "pageable"):
        on_host = torch.ones(_MOST_BYTES, dtype=torch.uint8, pin_memory=kind == "pinned")
        found[f"host to GPU, {kind}"] = _repeats(_copy(on_device, on_host))
        found[f"GPU to host, {kind}"] = _repeats(_copy(on_host, on_device))
    return found


def _repeats(copy: Callable[[int], Move]) -> list[Move]:
    return [moves[0] for moves in repeated(lambda size: [copy(size)], _PACE).moves]


def _copy(target: "torch.Tensor", source: "torch.Tensor") -> Callable[[int], Move]:
    import torch

    def copy(num_bytes: int) -> Move:
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        target[:num_bytes].copy_(source[:num_bytes], non_blocking=True)
        torch.cuda.synchronize()
        return Move(num_bytes=num_bytes, seconds=time.perf_counter() - began_s)

    return copy

"""How much memory kinds of GPUs have, for plans that are made without one.

A worker asks its own GPU. This table is for `planner plan --gpu NAME`. A kind that is not in it is given by its memory.
"""

import re
from dataclasses import dataclass

from planner.errors import PlanError

_MIB = 2**20
# name -> MiB in all, as nvidia-smi prints it ("Memory-Usage"). Error correction is on where it is by default.
_MEMORY_MIB = {
    "t4-16g": 15_360,
    "v100-16g": 16_384,
    "v100-32g": 32_768,
    "a10-24g": 23_028,
    "a10g-24g": 23_028,
    "l4-24g": 23_034,
    "a30-24g": 24_576,
    "rtx3090-24g": 24_576,
    "rtx4090-24g": 24_564,
    "rtx5090-32g": 32_607,
    "a100-40g": 40_960,
    "a40-48g": 46_068,
    "l40-48g": 46_068,
    "l40s-48g": 46_068,
    "a6000-48g": 49_140,
    "rtx6000ada-48g": 49_140,
    "h100-80g": 81_559,
    "a100-80g": 81_920,
    "h100nvl-94g": 95_830,
    "gh200-96g": 97_871,
    "h200-141g": 143_771,
    "b200-180g": 183_359,
}
# Words of CUDA's names, such as "NVIDIA A100-SXM4-80GB", that do not tell kinds apart.
_LEFT_OUT = {"nvidia", "tesla", "geforce", "hbm2", "hbm2e", "hbm3", "hbm3e", "pcie", "sxm", "sxm2", "sxm4", "sxm5"}
_BY_SIZE = re.compile(r"(\d{1,4})(g|gb|gib)")


@dataclass(frozen=True, kw_only=True)
class GpuKind:
    """A kind of GPU."""

    name: str
    memory_bytes: int
    """of one GPU, in all"""


def has_kind(text: str) -> bool:
    """Whether a name is that of one or several kinds."""
    return bool(_size(text) or _found(text))


def kinds_named(text: str) -> tuple[str, ...]:
    """The kinds that have a name. Empty if there is none, several if their memory differs: `A100`."""
    return tuple(_found(text))


def gpu_kind(text: str) -> GpuKind:
    """The kind that a user names, such as `h100-80g`, `A100-80GB`, or `24g` for any GPU with 24 GiB.

    Raises:
        PlanError: there is no such name, or several GPUs have it.
    """
    if size := _size(text):
        return GpuKind(name=text, memory_bytes=size * 1024 * _MIB)
    found = _found(text)
    if len(found) == 1:
        return GpuKind(name=found[0], memory_bytes=_MEMORY_MIB[found[0]] * _MIB)
    if found:
        raise PlanError(f"GPU {text}: there are {' and '.join(found)}. Write one of them")
    raise PlanError(
        f"GPU {text}: not known. Write one of {', '.join(_MEMORY_MIB)}, or the memory of one GPU, such as 24g"
    )


def is_size(text: str) -> bool:
    """Whether a name is a memory alone, such as `24g`."""
    return bool(_size(text))


def nominal_gib(text: str) -> int:
    """The memory in a kind's name: 24 of `24g`, and of `L4`, which is the kind `l4-24g`. 0 if it is not known.

    That of a name which several kinds have, such as `A100`, is not known.
    """
    found = _found(text)
    return _size(text) or (_size(found[0].rpartition("-")[2]) if len(found) == 1 else 0)


def most_gib(text: str) -> int:
    """The most memory that a GPU of this name may have, by its kinds' names: 80 of `A100`. 0 if it is not known."""
    return _size(text) or max((_size(name.rpartition("-")[2]) for name in _found(text)), default=0)


def _key(text: str) -> str:
    words = re.split(r"[-_\s]+", text.strip().lower())
    return "-".join(word for word in words if word not in _LEFT_OUT)


def _size(text: str) -> int:
    """GiB, if the text is the memory of a GPU. Otherwise 0."""
    size = _BY_SIZE.fullmatch(_key(text))
    return int(size[1]) if size else 0


def _found(text: str) -> list[str]:
    """The names of the table that the text means."""
    wanted = re.sub(r"g(i?b)$", "g", _key(text))
    return [name for name in _MEMORY_MIB if wanted == name or wanted == name.rpartition("-")[0]]

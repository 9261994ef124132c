"""Writes tensors into safetensors files in the Hugging Face layout, with one file's tensors in memory at a time."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from planner.base.disk import disk_full_text, no_room
from planner.data.model_folder import INDEX
from planner.errors import RunError

# The size at which transformers also splits files (`save_pretrained`, decimal gigabytes).
MOST_BYTES = 5 * 10**9
# The library's errors of the disk end with the number of the system's error.
_DISK_ERROR = re.compile(r"\(os error (\d+)\)")


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """The name and shape of a tensor to be written."""

    name: str
    shape: tuple[int, ...]


def write(
    folder: Path,
    stem: str,
    planned: Sequence[TensorSpec],
    tensors: Iterable[Tensor],
    dtype: torch.dtype,
    metadata: Mapping[str, str],
    most_bytes: int = MOST_BYTES,
) -> list[Path]:
    """Write `tensors`, which come in the order of `planned`, to one file, or to several with an index.

    Returns the files that hold tensors.

    Raises:
        RunError: the disk is full. The files are removed again.
    """
    parts = list(_cut(planned, dtype.itemsize, most_bytes))
    count = len(parts)
    names = [
        f"{stem}.safetensors" if count == 1 else f"{stem}-{number:05d}-of-{count:05d}.safetensors"
        for number in range(1, count + 1)
    ]
    coming = iter(tensors)
    size = sum(_num_bytes(plan, dtype.itemsize) for plan in planned)
    with _removed_if_full([folder / name for name in names], size):
        for name, part in zip(names, parts, strict=True):
            _save(folder / name, {plan.name: _next(coming, plan, dtype) for plan in part}, metadata)
        if count > 1:
            where = {plan.name: name for name, part in zip(names, parts, strict=True) for plan in part}
            index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
            (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return [folder / name for name in names]


def _next(coming: Iterator[Tensor], plan: TensorSpec, dtype: torch.dtype) -> Tensor:
    tensor = next(coming)
    assert tuple(tensor.shape) == plan.shape
    return tensor.to(dtype).contiguous()


def _save(file: Path, tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write one file.

    Raises:
        OSError: the disk refuses it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, file, {"format": "pt", **metadata})
    except SafetensorError as error:
        if (found := _DISK_ERROR.search(str(error))) is None:
            raise
        raise OSError(number := int(found[1]), os.strerror(number), str(file)) from error


@contextmanager
def _removed_if_full(files: Sequence[Path], num_bytes: int) -> Iterator[None]:
    """While the block writes `files` of `num_bytes` in all, remove them if the disk is full.

    Raises:
        RunError: the disk is full.
    """
    try:
        yield
    except OSError as error:
        if (full := no_room(error)) is None:
            raise
        for file in files:
            file.unlink(missing_ok=True)
        reason = disk_full_text(full, "the model", num_bytes, files[0].parent)
        raise RunError(f"{reason}. Nothing was left behind: make room, or export to another disk") from error


def _cut(planned: Sequence[TensorSpec], itemsize: int, most_bytes: int) -> Iterator[list[TensorSpec]]:
    """Split tensors into files, in order, as many as fit. A tensor larger than `most_bytes` gets its own file."""
    part: list[TensorSpec] = []
    size = 0
    for plan in planned:
        num_bytes = _num_bytes(plan, itemsize)
        if part and size + num_bytes > most_bytes:
            yield part
            part, size = [], 0
        part.append(plan)
        size += num_bytes
    yield part


def _num_bytes(plan: TensorSpec, itemsize: int) -> int:
    return prod(plan.shape) * itemsize

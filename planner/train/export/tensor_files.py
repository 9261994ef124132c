"""Writes tensors into safetensors files in the Hugging Face layout, with one file's tensors in memory at a time."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from planner.base.disk import disk_full_text, no_room
from planner.data.model_folder import INDEX
from planner.errors import RunError

Shapes = Mapping[str, tuple[int, ...]]
"""name -> shape of tensors, in the order in which they are written"""

# The size at which transformers also splits files (`save_pretrained`, decimal gigabytes).
MOST_BYTES = 5 * 10**9


def write(
    folder: Path,
    stem: str,
    shapes: Shapes,
    tensors: Iterable[Tensor],
    dtype: torch.dtype,
    metadata: Mapping[str, str],
    most_bytes: int = MOST_BYTES,
) -> list[Path]:
    """Write `tensors`, which come in the order of `shapes`, to one file, or to several with an index.

    Returns the files that hold tensors.

    Raises:
        RunError: the disk is full. The files are removed again.
    """
    parts = list(_cut(shapes, dtype.itemsize, most_bytes))
    count = len(parts)
    names = [
        f"{stem}.safetensors" if count == 1 else f"{stem}-{number:05d}-of-{count:05d}.safetensors"
        for number in range(1, count + 1)
    ]
    coming, size = iter(tensors), dtype.itemsize * sum(map(prod, shapes.values()))
    with _removed_if_full([folder / name for name in names], size):
        for name, part in zip(names, parts, strict=True):
            _save(folder / name, part, coming, dtype, metadata)
        if count > 1:
            where = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
            index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
            (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return [folder / name for name in names]


def _save(file: Path, part: Shapes, coming: Iterator[Tensor], dtype: torch.dtype, metadata: Mapping[str, str]) -> None:
    """Write the next tensors to one file.

    Raises:
        OSError: the disk refuses it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {name: next(coming).to(dtype).contiguous() for name in part}
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == part
    try:
        save_file(tensors, file, {"format": "pt", **metadata})
    except SafetensorError as error:
        # Rust ends a message with the number of the system's error.
        if (number := re.search(r"\(os error (\d+)\)", str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error


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


def _cut(shapes: Shapes, itemsize: int, most_bytes: int) -> Iterator[Shapes]:
    """Split tensors into files, in order, as many as fit. A tensor larger than `most_bytes` gets its own file."""
    part: dict[str, tuple[int, ...]] = {}
    size = 0
    for name, shape in shapes.items():
        num_bytes = prod(shape) * itemsize
        if part and size + num_bytes > most_bytes:
            yield part
            part, size = {}, 0
        part[name] = shape
        size += num_bytes
    yield part

"""Writes tensors into safetensors files in the Hugging Face layout, with only one tensor in memory at a time.

The library's own writer takes all tensors of a file at once, so the format is written here: 8 bytes of length, a JSON
header with each tensor's type, shape and place, then the tensors (github.com/huggingface/safetensors, "Format").
"""

import json
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
_CODES = {torch.float32: "F32", torch.bfloat16: "BF16"}


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
            with (folder / name).open("wb") as stream:
                stream.write(_header(part, dtype, metadata))
                for plan in part:
                    tensor = next(coming)
                    assert tuple(tensor.shape) == plan.shape
                    # As bytes: numpy has no bfloat16.
                    flat = tensor.to(dtype).contiguous().view(-1)
                    stream.write(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
        if count > 1:
            where = {plan.name: name for name, part in zip(names, parts, strict=True) for plan in part}
            index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
            (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return [folder / name for name in names]


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


def _header(part: Sequence[TensorSpec], dtype: torch.dtype, metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    offset = 0
    for plan in part:
        end = offset + _num_bytes(plan, dtype.itemsize)
        entries[plan.name] = {"dtype": _CODES[dtype], "shape": list(plan.shape), "data_offsets": [offset, end]}
        offset = end
    content = json.dumps(entries, separators=(",", ":")).encode()
    content += b" " * (-len(content) % 8)  # aligns the tensors, as the library does
    return len(content).to_bytes(8, "little") + content


def _num_bytes(plan: TensorSpec, itemsize: int) -> int:
    return prod(plan.shape) * itemsize

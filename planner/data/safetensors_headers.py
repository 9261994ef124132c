"""The tensors that a safetensors file says it holds. The file is not mapped, and only its header is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.base.disk import open_regular
from planner.base.json_text import json_object
from planner.errors import UserError

# The largest header that the safetensors library reads (its `MAX_HEADER_SIZE`).
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """One tensor of a safetensors file."""

    file: Path
    dtype: str
    """safetensors' name of the type: F32, BF16, F16, ..."""
    shape: tuple[int, ...]
    start: int
    """offset of the first byte in the file"""
    end: int
    """offset after the last byte"""


def tensors_in(file: Path) -> dict[str, StoredTensor]:
    """Name -> tensor. The file has 8 bytes of length, then a JSON header, then the tensors.

    Raises:
        UserError: the file cannot be read, is torn, or is not a safetensors file.
    """
    try:
        with open_regular(file) as stream:
            length = int.from_bytes(stream.read(8), "little")
            content = stream.read(length) if length <= _MAX_HEADER_BYTES else b""
            size = stream.seek(0, 2)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror or error}") from error
    try:
        entries = json_object(content).items()
        found = {name: _stored(file, 8 + length, entry) for name, entry in entries if name != "__metadata__"}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: not a safetensors file, or torn. Copy it again") from error
    end = max((tensor.end for tensor in found.values()), default=0)
    if end > size:
        raise UserError(f"{file}: torn ({size} bytes, and its tensors end at byte {end}). Copy it again")
    return found


def _stored(file: Path, beginning: int, entry: dict[str, Any]) -> StoredTensor:
    """One entry of a header. Its offsets count from `beginning`, the offset of the tensors in the file.

    Raises:
        ValueError: the entry has impossible offsets, shapes or types. Malformed entries may raise other errors.
    """
    (start, end), shape, dtype = entry["data_offsets"], tuple(entry["shape"]), entry["dtype"]
    numbers = (start, end - start, *shape)
    if not isinstance(dtype, str) or not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("not an entry of a safetensors file")
    return StoredTensor(file=file, dtype=dtype, shape=shape, start=beginning + start, end=beginning + end)

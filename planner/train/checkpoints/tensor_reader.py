"""A DCP checkpoint reader that reads only tensors, even from untrusted files.

DCP stores a checkpoint's metadata as a pickle. The unpickler here makes objects of the few classes that a checkpoint of
tensors needs. It hands out no class and no function, and refuses everything else by name.
"""

import io
import pickle
from collections.abc import Callable
from pathlib import PosixPath
from typing import Any

import torch
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from planner.errors import StoreError
from planner.store.records import Manifest
from planner.store.storage import Storage


class TensorReader(FileSystemReader):
    """DCP's reader for local folders, with restricted unpickling of the metadata."""

    checked_names: frozenset[str] = frozenset()
    """the files whose digests were checked. No other file is opened"""

    def read_metadata(self, *_args: Any, **kwargs: Any) -> Metadata:
        """Read the metadata without executing code from it.

        Raises:
            StoreError: the file cannot be read, or names a class or a file that a checkpoint of tensors does not need.
        """
        path = self._get_metadata_path(kwargs.get("rank"))
        try:
            with self.fs.create_stream(path, "rb") as stream:
                content = stream.read()
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
        metadata = _unpickle(content, str(path))
        for info in metadata.storage_data.values():
            if info.relative_path not in self.checked_names:
                raise StoreError(f"{path}: it names {info.relative_path!r}, a file that the manifest does not know")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _RemoteTensorReader(TensorReader, FsspecReader):  # type: ignore[misc]
    """DCP's reader for fsspec URLs, with restricted unpickling of the metadata."""


def tensor_reader(storage: Storage, manifest: Manifest) -> TensorReader:
    """A reader of the files that a commit's manifest names."""
    kind = TensorReader if storage.is_local else _RemoteTensorReader
    reader = kind(storage.path(f"checkpoints/{manifest.name}"))
    reader.checked_names = frozenset(file.name for file in manifest.files)
    return reader


class _Immutable(type):
    """A class whose attributes cannot be set. A pickle's BUILD sets attributes on any object that it is given."""

    def __setattr__(cls, name: str, _value: object) -> None:
        raise pickle.UnpicklingError(f"it sets {cls.__name__}.{name}")


def _maker(name: str, make: Callable[..., Any]) -> type:
    """A stand-in that a pickle gets for a class or a function. It can only be called, and then calls `make`."""
    return _Immutable(name, (), {"__slots__": (), "__new__": lambda _cls, *arguments: make(*arguments)})


def _bare(kind: type) -> type:
    """A stand-in for a class that makes its objects without the constructor, as pickles do."""
    return _maker(kind.__name__, lambda: object.__new__(kind))


class _MemoryFormat(str):
    """Equals a member of DCP's enumeration by name. The member itself has attributes that BUILD could replace."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _MEM_FORMAT_ENCODING) and other.name == str(self)

    __hash__ = str.__hash__


_MEMORY_FORMATS = {member.value: _MemoryFormat(member.name) for member in _MEM_FORMAT_ENCODING}
_MEMORY_FORMAT = _maker("_MEM_FORMAT_ENCODING", _MEMORY_FORMATS.__getitem__)


def _memory_format(kind: Any, name: Any) -> _MemoryFormat:
    """Read an enumeration's member, which Python 3.11.0 to 3.11.3 pickle as `getattr(kind, name)`. Refuse the rest."""
    if kind is not _MEMORY_FORMAT or name not in _MEM_FORMAT_ENCODING.__members__:
        raise pickle.UnpicklingError("it names builtins.getattr")
    return _MemoryFormat(name)


# The classes in the metadata of a checkpoint of tensors (DCP of torch 2.13).
_MAKERS = {
    ("builtins", "getattr"): _maker("getattr", _memory_format),
    ("torch", "Size"): _maker("Size", torch.Size),
    ("torch.serialization", "_get_layout"): _maker(
        "_get_layout", {str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.layout)}.__getitem__
    ),
    ("pathlib", "PosixPath"): _maker("PosixPath", PosixPath),
    ("pathlib._local", "PosixPath"): _maker("PosixPath", PosixPath),  # its name in Python 3.13
    (_MEM_FORMAT_ENCODING.__module__, _MEM_FORMAT_ENCODING.__name__): _MEMORY_FORMAT,
    **{
        (kind.__module__, kind.__name__): _bare(kind)
        for kind in (
            ChunkStorageMetadata,
            Metadata,
            MetadataIndex,
            StorageMeta,
            TensorProperties,
            TensorStorageMetadata,
            _StorageInfo,
        )
    },
}


class _MetadataUnpickler(pickle.Unpickler):
    """Hands out only makers and data types: with a class, BUILD could change it for the whole process."""

    def find_class(self, module: str, name: str) -> Any:
        if (maker := _MAKERS.get((module, name))) is not None:
            return maker
        dtype = getattr(torch, name, None) if module == "torch" else None
        if not isinstance(dtype, torch.dtype):
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return dtype


def _unpickle(content: bytes, where: str) -> Metadata:
    try:
        metadata = _MetadataUnpickler(io.BytesIO(content)).load()
        only_tensors = _has_only_tensors(metadata)
    except Exception as error:  # untrusted bytes and half-made objects may raise anything
        raise StoreError(f"{where}: not the metadata of a checkpoint of tensors ({error})") from error
    if not only_tensors:
        raise StoreError(f"{where}: not the metadata of a checkpoint of tensors")
    checked: Metadata = metadata
    return checked


def _has_only_tensors(metadata: Any) -> bool:
    """Whether all values have the expected types, which unpickling does not check because it calls no constructor."""
    return (
        isinstance(metadata, Metadata)
        and isinstance(metadata.storage_meta, StorageMeta | None)
        and all(isinstance(info.relative_path, str) for info in metadata.storage_data.values())
        and all(
            isinstance(name, str)
            and isinstance(item, TensorStorageMetadata)
            and isinstance(item.size, torch.Size)
            and isinstance(item.properties.dtype, torch.dtype)
            for name, item in metadata.state_dict_metadata.items()
        )
    )

"""DCP's reader of checkpoints, which takes nothing but tensors from files that anybody may have written.

DCP keeps a checkpoint's metadata as a pickle. It is read here by an unpickler that makes objects of the few classes
that a checkpoint of tensors needs, hands out no class and no function, and refuses everything else by name.
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
    """DCP's reader, but its pickled metadata may name nothing but what a checkpoint of tensors needs."""

    checked_names: frozenset[str] = frozenset()
    """the files whose digests were checked; no other is opened"""

    def read_metadata(self, *_args: Any, **kwargs: Any) -> Metadata:
        """The metadata, read without giving it the run of the interpreter.

        Raises:
            StoreError: it cannot be read, or names a class or a file that a checkpoint of tensors has no use for.
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
                raise StoreError(f"{path}: names {info.relative_path!r}, a file that the manifest does not know")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _RemoteTensorReader(TensorReader, FsspecReader):  # type: ignore[misc]
    """The same checks over fsspec."""


def tensor_reader(storage: Storage, manifest: Manifest) -> TensorReader:
    """A reader of a commit's files, of those alone that its manifest names."""
    kind = TensorReader if storage.is_local else _RemoteTensorReader
    reader = kind(storage.path(f"checkpoints/{manifest.name}"))
    reader.checked_names = frozenset(file.name for file in manifest.files)
    return reader


class _Sealed(type):
    """A class whose attributes cannot be set. A pickle's BUILD sets attributes on any object that it is given."""

    def __setattr__(cls, name: str, _value: object) -> None:
        raise pickle.UnpicklingError(f"it sets {cls.__name__}.{name}")


def _maker(name: str, make: Callable[..., Any]) -> type:
    """What a pickle gets in place of a class or a function. It can only be called, and then calls `make`."""
    return _Sealed(name, (), {"__slots__": (), "__new__": lambda _cls, *arguments: make(*arguments)})


def _bare(kind: type) -> type:
    """Makes objects of a class without its constructor, as pickles do, and does not hand out the class itself."""
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
    """An enumeration's member as Python 3.11.0 to 3.11.3 write it: `getattr(kind, name)`. No other attribute is had."""
    if kind is not _MEMORY_FORMAT or name not in _MEM_FORMAT_ENCODING.__members__:
        raise pickle.UnpicklingError("it names builtins.getattr")
    return _MemoryFormat(name)


# What DCP pickles into the metadata of a checkpoint that holds tensors alone (torch 2.13).
_MAKERS = {
    ("builtins", "getattr"): _maker("getattr", _memory_format),
    ("torch", "Size"): _maker("Size", torch.Size),
    ("torch.serialization", "_get_layout"): _maker(
        "_get_layout", {str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.layout)}.__getitem__
    ),
    ("pathlib", "PosixPath"): _maker("PosixPath", PosixPath),
    ("pathlib._local", "PosixPath"): _maker("PosixPath", PosixPath),  # what Python 3.13 calls it
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
    """Hands out makers and data types. BUILD could change a class or a function for the whole process."""

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
    except Exception as error:  # bytes that anybody may have written raise anything, and half-made objects, too
        raise StoreError(f"{where}: not the metadata of a checkpoint of tensors ({error})") from error
    if not only_tensors:
        raise StoreError(f"{where}: not the metadata of a checkpoint of tensors")
    checked: Metadata = metadata
    return checked


def _has_only_tensors(metadata: Any) -> bool:
    """Whether everything is of the type that it should be: unpickling calls no constructor that would see to it."""
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

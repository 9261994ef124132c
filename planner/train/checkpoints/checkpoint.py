"""Weights and optimizer state, sharded to and from the run's folder by torch.distributed.checkpoint (DCP).

Only tensors are saved, so nothing but tensors is read: hyper-parameters come from the job, position from the
manifest. DCP reshards: what W workers saved, any other number loads.
"""

import io
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import PosixPath
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from planner.base.disk import no_room
from planner.errors import StoreError, TrainingFailed
from planner.store.records import FileDigest, Identity, Manifest
from planner.store.run import Run
from planner.store.storage import Storage
from planner.train.checkpoints.private_files import SaysNoRoom, private_writer
from planner.train.exact.gradient_sums import STATE_KEY
from planner.train.state import OPTIMIZER, TrainState, tensor_digest
from planner.train.world import World


def save(storage: Storage, folder: str, state: TrainState) -> None:
    """Write every worker's shards below `folder`. A checkpoint only once a manifest names its files.

    Raises:
        OSError: on every worker, if any of them found no room (`planner.base.disk.no_room`).
        TrainingFailed: on every worker, if any of them could not write.
    """
    try:
        save_tensors(state.tensors(), storage_writer=_writer(storage, folder))
    except CheckpointException as error:
        if full := next(filter(None, (no_room(failure) for failure, _ in error.failures.values())), None):
            raise full from error
        raise TrainingFailed(f"{storage.path(folder)}: cannot save: {_reason(error)}") from error


def file_digests(world: World, storage: Storage, folder: str) -> tuple[FileDigest, ...]:
    """Size and digest of every file in the checkpoint, each read back by one worker.

    Reading back costs a pass over the files; it also proves that what was written can be read.

    Raises:
        StoreError: on every worker, if any file cannot be read.
    """
    # DCP's own metadata file begins with a dot, which `names` leaves out.
    names = world.from_first(lambda: [".metadata", *storage.names(folder)])
    mine = world.agree(lambda: [_digest(storage, folder, name) for name in names[world.rank :: world.world_size]])
    return tuple(sorted((d for part in world.gather(mine) for d in part), key=lambda d: d.name))


def load(world: World, storage: Storage, manifest: Manifest, state: TrainState, identity: Identity) -> None:
    """Read a checked commit into the state, at whatever world size this is.

    Where the user has accepted another optimizer or another kind of sum by name, theirs begins anew: the state of
    one means nothing to the other.

    Raises:
        StoreError: on every worker: the files do not hold this model's and this optimizer's tensors, or hold
            anything but tensors.
    """
    folder = f"checkpoints/{manifest.name}"
    reader = _reader(storage, folder)
    reader.checked_names = frozenset(file.name for file in manifest.files)

    def prepare() -> dict[str, Tensor]:
        anew = _begun_anew(manifest.identity, identity)
        metadata = reader.read_metadata().state_dict_metadata
        saved = {name: item for name, item in metadata.items() if not name.startswith(anew)}
        _create_optimizer_state(state, saved)
        wanted = {name: tensor for name, tensor in state.tensors().items() if not name.startswith(anew)}
        if differing := sorted(set(wanted) ^ set(saved)):
            raise StoreError(f"{folder}: its tensors are not this job's; they differ in {', '.join(differing[:5])}")
        return wanted

    # Agreed upon before DCP's own collectives begin: a worker that raised alone would leave the others in them.
    wanted = world.agree(prepare)
    try:
        load_tensors(wanted, storage_reader=reader)
    except CheckpointException as error:
        raise StoreError(f"{folder}: cannot load: {_reason(error)}") from error


def read(storage: Storage, manifest: Manifest, beginning: str = "") -> Iterator[tuple[str, Tensor]]:
    """The whole tensors of a commit whose names begin so, one after another, in one process without a process group.

    Raises:
        StoreError: they cannot be read.
    """
    folder = f"checkpoints/{manifest.name}"
    reader = _reader(storage, folder)
    reader.checked_names = frozenset(file.name for file in manifest.files)
    saved = reader.read_metadata().state_dict_metadata
    for name, item in sorted((name, item) for name, item in saved.items() if name.startswith(beginning)):
        assert isinstance(item, TensorStorageMetadata)  # the reader refuses anything else
        try:
            tensor = torch.empty(item.size, dtype=item.properties.dtype)
        except RuntimeError as error:
            raise StoreError(f"{folder}: cannot make room for {name} of shape {tuple(item.size)}") from error
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as is meant
                load_tensors({name: tensor}, storage_reader=reader, no_dist=True)
        except CheckpointException as error:
            raise StoreError(f"{folder}: cannot load {name}: {_reason(error)}") from error
        except RuntimeError as error:
            raise StoreError(f"{folder}: cannot load {name}: {error}") from error
        yield name, tensor


def read_digests(storage: Storage, manifest: Manifest) -> dict[str, str]:
    """The digest of every whole tensor of a commit, taken from its files.

    Raises:
        StoreError: they cannot be read.
    """
    return {name: tensor_digest(tensor) for name, tensor in read(storage, manifest)}


def check_some_files(world: World, run: Run, manifest: Manifest) -> None:
    """Check all of a commit's files, each by one worker.

    Raises:
        StoreError: on every worker, if any file is missing, torn or altered.
    """
    world.agree(lambda: run.check_files(manifest, manifest.files[world.rank :: world.world_size]))


def _digest(storage: Storage, folder: str, name: str) -> FileDigest:
    path = f"{folder}/{name}"
    return FileDigest(name=name, size_bytes=storage.size_bytes(path), sha256=storage.sha256(path))


def _begun_anew(before: Identity, now: Identity) -> tuple[str, ...]:
    """The beginnings of names that are not carried over."""
    optimizer = (f"{OPTIMIZER}/",) if before.optimizer != now.optimizer else ()
    return optimizer + ((STATE_KEY,) if before.equality != now.equality else ())


def _create_optimizer_state(state: TrainState, saved: Mapping[str, Any]) -> None:
    """Make room for the saved state: a shard like its parameter, or a scalar.

    Raises:
        StoreError: a tensor has another shape.
    """
    for name, (parameter, shard) in state.shards.items():
        prefix = f"{OPTIMIZER}/{name}/"
        for path in (path for path in saved if path.startswith(prefix)):
            size, dtype = saved[path].size, saved[path].properties.dtype
            if len(size) > 0 and size != parameter.shape:
                raise StoreError(f"{path} has shape {tuple(size)} in the checkpoint, {tuple(parameter.shape)} here")
            state.optimizer.state[shard][path.removeprefix(prefix)] = (
                torch.zeros_like(shard, dtype=dtype) if len(size) > 0 else torch.zeros(size, dtype=dtype)
            )


def _writer(storage: Storage, folder: str) -> FileSystemWriter:
    if storage.is_local:
        return private_writer(storage.path(folder), storage.path(""))
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

    class _RemoteWriter(SaysNoRoom, FsspecWriter):  # type: ignore[misc]
        """A writer to an object store that raises the error of a full disk as it is."""

    writer: FileSystemWriter = _RemoteWriter(storage.path(folder))
    return writer


def _reader(storage: Storage, folder: str) -> "_TensorReader":
    if storage.is_local:
        return _TensorReader(storage.path(folder))
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

    class _RemoteTensorReader(_TensorReader, FsspecReader):  # type: ignore[misc]
        """The same checks over fsspec."""

    return _RemoteTensorReader(storage.path(folder))


class _TensorReader(FileSystemReader):
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
        metadata = _unpickle_metadata(content, str(path))
        for info in metadata.storage_data.values():
            if info.relative_path not in self.checked_names:
                raise StoreError(f"{path}: names {info.relative_path!r}, a file that the manifest does not know")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


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


def _unpickle_metadata(content: bytes, where: str) -> Metadata:
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


def _reason(error: CheckpointException) -> str:
    """The first worker's failure, in one line."""
    rank, (failure, _) = min(error.failures.items())
    return f"worker {rank}: {type(failure).__name__}: {str(failure).splitlines()[0] if str(failure) else ''}"

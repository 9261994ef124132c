"""A DCP checkpoint reader that reads only tensors, even from untrusted files. It reads the metadata once."""

from dataclasses import replace
from typing import Any

from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from planner.errors import StoreError
from planner.store.records import Manifest
from planner.store.storage import Storage
from planner.train.checkpoints import metadata_reader
from planner.train.checkpoints.metadata_reader import NotTensorMetadata

_METADATA = ".metadata"
# 140 bytes for each shard (measured, 57,600 shards): 15 million shards, such as 5,000 tensors on 3,000 workers.
_MAX_BYTES = 2**31


class TensorReader(FileSystemReader):
    """DCP's reader for local folders, with planner's own reader of the metadata.

    It reads a commit whose files' digests were checked, and opens no other file.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        super().__init__(storage.path(manifest.folder))
        self._storage, self._name = storage, f"{manifest.folder}/{_METADATA}"
        self._file_sizes = {file.name: file.size_bytes for file in manifest.files}
        self._metadata: Metadata | None = None

    # Without a parameter `kwargs`, DCP does not look for a file of each worker after an error.
    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        """Read the metadata without executing code from it. Only the first call opens the file.

        DCP changes the `storage_meta` that it gets, so each caller gets its own. The rest is shared.

        Raises:
            StoreError: the file cannot be read, or is not the metadata of tensors in the files of the manifest.
        """
        if self._metadata is None:
            self._metadata = self._read_metadata()
        meta = self._metadata.storage_meta or StorageMeta()
        return replace(self._metadata, storage_meta=replace(meta, load_id=self.load_id))

    def _read_metadata(self) -> Metadata:
        content = self._content()
        try:
            return metadata_reader.read_metadata(content, self._file_sizes)
        except NotTensorMetadata as error:
            raise StoreError(f"{self._name}: not the metadata of a checkpoint of tensors ({error})") from error

    def _content(self) -> bytes:
        """The bytes of the metadata, which are as many as the manifest says.

        Raises:
            StoreError: there are more or fewer, or the file cannot be read.
        """
        if (size := self._file_sizes.get(_METADATA)) is None:
            raise StoreError(f"{self._name}: the manifest does not know this file")
        if size > _MAX_BYTES:
            raise StoreError(f"{self._name}: {size} bytes. planner reads metadata of at most {_MAX_BYTES} bytes")
        content = self._storage.read(self._name, max(size, 0))
        if len(content) != size:
            raise StoreError(f"{self._name}: {len(content)} bytes, and the manifest says {size}")
        return content


class _RemoteTensorReader(TensorReader, FsspecReader):  # type: ignore[misc]
    """DCP's reader for fsspec URLs, with planner's own reader of the metadata."""


def tensor_reader(storage: Storage, manifest: Manifest) -> TensorReader:
    """A reader of the files that a commit's manifest names."""
    kind = TensorReader if storage.is_local else _RemoteTensorReader
    return kind(storage, manifest)

"""A DCP checkpoint reader that reads only tensors, even from untrusted files. It reads the metadata once."""

from collections.abc import Mapping
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
_PIECE_BYTES = 2**20


class TensorReader(FileSystemReader):
    """DCP's reader for local folders, with planner's own reader of the metadata."""

    def __init__(self, path: str, file_sizes: Mapping[str, int]) -> None:
        """Read the files of a commit in the folder `path`.

        `file_sizes` has the names of the files whose digests were checked, and their sizes in bytes. No other file is
        opened.
        """
        super().__init__(path)
        self._file_sizes = file_sizes
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
        path = str(self._get_metadata_path())
        content = self._content(path)
        try:
            return metadata_reader.read_metadata(content, self._file_sizes)
        except NotTensorMetadata as error:
            raise StoreError(f"{path}: not the metadata of a checkpoint of tensors ({error})") from error

    def _content(self, path: str) -> bytes:
        """The bytes of the metadata, which are as many as the manifest says.

        Raises:
            StoreError: there are more or fewer, or the file cannot be read.
        """
        if (size := self._file_sizes.get(_METADATA)) is None:
            raise StoreError(f"{path}: the manifest does not know this file")
        if size > _MAX_BYTES:
            raise StoreError(f"{path}: {size} bytes. planner reads metadata of at most {_MAX_BYTES} bytes")
        content = bytearray()
        try:
            with self.fs.create_stream(path, "rb") as stream:
                while len(content) <= size and (piece := stream.read(_PIECE_BYTES)):
                    content += piece
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
        if len(content) != size:
            raise StoreError(f"{path}: its size is not the {size} bytes of the manifest")
        return bytes(content)


class _RemoteTensorReader(TensorReader, FsspecReader):  # type: ignore[misc]
    """DCP's reader for fsspec URLs, with planner's own reader of the metadata."""


def tensor_reader(storage: Storage, manifest: Manifest) -> TensorReader:
    """A reader of the files that a commit's manifest names."""
    kind = TensorReader if storage.is_local else _RemoteTensorReader
    return kind(storage.path(manifest.folder), {file.name: file.size_bytes for file in manifest.files})

"""Where Ray keeps its own files: below the run's folder, at any URL at which a run can be."""

from typing import Any

from planner.store.storage import Storage

FOLDER = "ray"
"""of the run's folder"""


def ray_storage(storage: Storage) -> dict[str, Any]:
    """The arguments of Ray's `RunConfig` that say where its files go.

    Ray opens URLs with pyarrow, which knows few kinds of them. All others are opened as planner opens them, by fsspec.
    """
    import pyarrow as pa
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    url = f"{storage.url}/{FOLDER}"
    if storage.is_local:
        return {"storage_path": url}
    try:
        FileSystem.from_uri(url)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        file_system = PyFileSystem(FSSpecHandler(storage.file_system))
        return {"storage_path": storage.key(FOLDER), "storage_filesystem": file_system}
    return {"storage_path": url}

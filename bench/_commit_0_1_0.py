"""A commit as planner 0.1.0 made it, kept to compare with: training stands still until it is done. Do not improve it.

All workers save by torch.distributed.checkpoint with fsync, then each file is read back for its SHA-256 by one worker,
then the manifest is written.
"""

import json
import time
from collections.abc import Mapping
from functools import partial

from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from planner.store.storage import Storage
from planner.train.world import World


def commit_as_0_1_0(world: World, storage: Storage, name: str, tensors: Mapping[str, Tensor]) -> float:
    """Commit into a folder of the run, and remove it again. Returns the seconds for which training stood still."""
    folder = f"checkpoints/{name}"
    world.agree(lambda: None)
    began_s = time.perf_counter()
    world.from_first(partial(storage.make_folder, folder))
    save(dict(tensors), storage_writer=FileSystemWriter(storage.path(folder)))
    names = world.from_first(lambda: [".metadata", *storage.names(folder)])
    mine = world.agree(lambda: {file: _digest(storage, folder, file) for file in names[world.rank :: world.world_size]})
    files = {file: digest for part in world.gather(mine) for file, digest in part.items()}
    world.from_first(lambda: storage.write(f"{folder}/manifest.json", json.dumps(files).encode()))
    seconds = time.perf_counter() - began_s
    world.from_first(lambda: storage.delete(folder))
    return seconds


def _digest(storage: Storage, folder: str, name: str) -> tuple[int, str]:
    path = f"{folder}/{name}"
    return storage.size_bytes(path), storage.sha256(path)

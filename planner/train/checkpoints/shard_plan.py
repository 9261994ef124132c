"""Which worker writes which shard into which file. Made by all workers together, once per generation.

DCP makes such a plan at every save, with two collectives. Names and shapes do not change while a generation trains, so
its plan is made once, and shards are then written without any collective: in the background, while training goes on.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from planner.base import progress_counter
from planner.errors import TrainingFailed
from planner.store.records import FileDigest
from planner.store.storage import Storage
from planner.train.checkpoints.tensor_writer import OnPiece, tensor_writer
from planner.train.world import World

T = TypeVar("T")

# Taken at import: two writes that overlap must not take each other's interval for the usual one.
_USUAL_SWITCH_S, _SWITCH_S = sys.getswitchinterval(), 50e-6


@dataclass(frozen=True, kw_only=True)
class WrittenShards:
    """What one worker has written."""

    results: tuple[WriteResult, ...]
    """where each shard is"""
    files: tuple[FileDigest, ...]


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """One worker's part of the plan."""

    part: SavePlan
    metadata: Metadata | None
    """of the whole checkpoint. Only rank 0 has it"""
    names: tuple[str, ...]
    """of the tensors that it was made for"""

    @classmethod
    def made(cls, world: World, tensors: Mapping[str, Tensor]) -> "ShardPlan":
        """The plan for these tensors, which are sharded over all workers. Collective.

        Raises:
            TrainingFailed: on every worker, if one of them cannot make its part.
        """
        planner = DefaultSavePlanner()
        planner.set_up_planner(dict(tensors), is_coordinator=world.rank == 0)
        mine = world.agree(lambda: _planned(planner.create_local_plan))
        theirs = world.gather_on_first(mine)
        metadata: Metadata | None = None

        def divide() -> list[SavePlan]:
            nonlocal metadata
            plans, metadata = _planned(lambda: planner.create_global_plan(theirs))
            return FileSystemWriter(".").prepare_global_plan(plans)  # names each worker's file, and writes nothing

        part = world.scatter_from_first(divide)
        part = world.agree(lambda: _planned(lambda: planner.finish_plan(part)))
        return cls(part=part, metadata=metadata, names=tuple(tensors))


def _planned(make: Callable[[], T]) -> T:
    """What DCP plans.

    Raises:
        TrainingFailed: it raises anything. Another error would leave the other workers waiting in a collective.
    """
    try:
        return make()
    except Exception as error:
        line = next(iter(str(error).splitlines()), "")
        raise TrainingFailed(f"the files of a commit cannot be planned: {type(error).__name__}: {line}") from error


class _Resolved(DefaultSavePlanner):
    """Gives DCP's writer the shards by their names."""

    def __init__(self, shards: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._shards = shards

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self._shards[index.fqn]


def write_shards(
    storage: Storage, folder: str, plan: ShardPlan, shards: Mapping[str, Tensor], on_piece: OnPiece
) -> WrittenShards:
    """Write this worker's shards. No collective, so it can run beside training.

    Raises:
        Exception: as the store raises it. A full disk is an OSError (`planner.base.disk.no_room`).
    """
    writer, digests = tensor_writer(storage, folder, on_piece)
    # DCP makes the folder in `prepare_local_plan`, which is not called here.
    writer.fs.mkdir(writer.path)
    with _giving_way():
        results = writer.write_data(plan.part, _Resolved(shards)).value()
    return WrittenShards(results=tuple(results), files=tuple(digests.values()))


@contextmanager
def _giving_way() -> Iterator[None]:
    """Let the training thread have Python's lock back soon. By default it waits up to 5 ms for it, again and again.

    With this, and small pieces gathered (`tensor_writer`), a step of 55 ms took 1.3 times as long beside a write, and
    1.6 times without both (3 M parameters, medians of three repeats in turns, bench/commit.py).
    """
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(_USUAL_SWITCH_S)


def write_metadata(
    storage: Storage,
    folder: str,
    plan: ShardPlan,
    written: list[WrittenShards],
    on_piece: OnPiece = progress_counter.count_work,
) -> tuple[FileDigest, ...]:
    """Write DCP's `.metadata`, after all workers have written. Only rank 0. Returns all files' digests, sorted.

    Raises:
        Exception: as the store raises it.
    """
    assert plan.metadata is not None  # this is rank 0
    writer, digests = tensor_writer(storage, folder, on_piece)
    # `finish` fills in the places of the shards in its argument, and this plan is used for the next commit, too.
    writer.finish(replace(plan.metadata), [list(each.results) for each in written])
    files = [*digests.values(), *(file for each in written for file in each.files)]
    return tuple(sorted(files, key=lambda file: file.name))

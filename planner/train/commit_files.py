"""What the threads beside training write for a commit: shards, `.metadata` and the manifest. Without collectives."""

from collections.abc import Callable, Mapping
from typing import Literal

from torch import Tensor

from planner.errors import StoreError
from planner.store.records import FileDigest, Manifest
from planner.store.run_folder import RunFolder
from planner.train.checkpoints.shard_plan import ShardPlan, WrittenShards, write_metadata, write_shards
from planner.train.checkpoints.tensor_writer import OnPiece
from planner.train.commit_in_flight import CommitInFlight
from planner.train.journal import Journal
from planner.train.world import World, make_current


class CommitFiles:
    """The files of one worker's commits.

    Args:
        world: the workers. Only its rank and its device are used.
        run: the run's folder.
        journal: makes the manifest.
        verify: `read_back` compares each file with what was written.
    """

    def __init__(
        self, *, world: World, run: RunFolder, journal: Journal, verify: Literal["on_load", "read_back"]
    ) -> None:
        self._world, self._run, self._journal, self._verify = world, run, journal, verify

    def write(
        self,
        name: str,
        plan: ShardPlan,
        shards: Mapping[str, Tensor],
        ready: Callable[[], None],
        head: str,
        on_piece: OnPiece,
    ) -> WrittenShards:
        """Write this worker's shards.

        Args:
            name: of the commit.
            plan: says which of them go into which file.
            shards: by their names.
            ready: called before they are read. It waits for the copy.
            head: of the ledger at this step, on rank 0.
            on_piece: called after each written piece.

        Raises:
            StaleGeneration: another driver has taken over the run.
            StoreError: the ledger's lines before this step could not be written, so no manifest may name its head. Or
                a file cannot be read back.
        """
        storage, folder = self._run.storage, f"checkpoints/{name}"
        # One worker asks the store. The folder is this generation's own, and its files count only by rank 0's manifest.
        if self._world.rank == 0:
            self._run.require_current(self._journal.generation)
            if not head:
                raise self._journal.failure or StoreError(f"{storage.url}: the ledger could not be written")
        # CUDA's current device is per thread, and a new thread begins with device 0.
        make_current(self._world.device)
        ready()
        written = write_shards(storage, folder, plan, shards, on_piece)
        self._read_back(folder, written.files, on_piece)
        return written

    def seal(self, flight: CommitInFlight, written: list[WrittenShards], on_piece: OnPiece) -> Manifest:
        """Write `.metadata` and the manifest, when all workers have written. Only rank 0.

        Raises:
            StaleGeneration: another driver has taken over the run.
            StoreError: the store cannot be used.
        """
        assert flight.head  # without it, the commit would have no lineage. `write` refuses that
        folder, storage = f"checkpoints/{flight.name}", self._run.storage
        files = write_metadata(storage, folder, flight.plan, written, on_piece)
        self._read_back(folder, tuple(file for file in files if file.name == ".metadata"), on_piece)
        for name in (folder, "checkpoints", ""):  # each new name is in the folder above
            storage.sync_folder(name)
        # A manifest names the ledger's head, so those lines must survive a power cut before it does.
        self._journal.sync()
        on_piece()
        manifest = self._journal.manifest(
            flight.name, flight.step, flight.cursor, files=files, tensors=flight.tensors, head=flight.head
        )
        self._run.put_manifest(manifest)
        return manifest

    def _read_back(self, folder: str, files: tuple[FileDigest, ...], on_piece: OnPiece) -> None:
        """Compare the files with what was written, if the job asks for it.

        Raises:
            StoreError: a file cannot be read, or holds something else.
        """
        if self._verify == "read_back":
            self._run.check_files(folder, files, on_piece)

"""All manifests of a run: those of commits, and those of steps that were held in memory."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from planner.errors import NewerFormat, StoreError
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder

Readable = Manifest | StoreError
"""a manifest, or why it cannot be read"""


@dataclass(frozen=True, kw_only=True)
class Manifests:
    """What `manifests/` and `held/` of a run held when they were read.

    Names are by generation and then by step, oldest first. Of tensors and shards a manifest here has one, and no files:
    enough to know what it is. A run may go on meanwhile, so a name that a ledger has and that is not here is read from
    the run.
    """

    run: RunFolder
    commits: Mapping[str, Readable]
    held: Mapping[str, Readable]

    def commit(self, name: str) -> Manifest:
        """The manifest of a commit.

        Raises:
            StoreError: it is gone or cannot be read.
        """
        return _readable(self.commits[name]) if name in self.commits else self.run.manifest(name)

    def parent_of(self, generation: int, name: str, *, is_held: bool) -> Manifest:
        """The manifest of the step that a generation resumed from.

        Raises:
            NewerFormat: another version of planner wrote it.
            StoreError: it is gone or cannot be read.
        """
        if not is_held and (name in self.commits or name not in self.held):
            return self.commit(name)
        try:
            return _readable(self.held[name]) if name in self.held else self.run.held(name)
        except NewerFormat:
            raise
        except StoreError as error:
            raise StoreError(
                f"generation {generation} resumed from memory at held step {name}, and its manifest is no good: {error}"
            ) from error

    def of_generation(self, generation: int) -> list[Manifest]:
        """The readable manifests of a generation's commits and held steps."""
        every = (*self.commits.values(), *self.held.values())
        return [each for each in every if isinstance(each, Manifest) and each.generation == generation]


def read_manifests(run: RunFolder) -> Manifests:
    """Read all manifests of a run.

    Raises:
        StoreError: the store cannot be reached.
    """
    return Manifests(
        run=run,
        commits=_read(run.commits(), lambda name: _small(run.manifest(name))),
        held=_read(run.held_steps(), lambda name: _small(run.held(name))),
    )


def _small(manifest: Manifest) -> Manifest:
    """The manifest without its lists. They may be long, and only the newest commit's are checked."""
    tensors, shards = (dict(islice(items.items(), 1)) for items in (manifest.tensors, manifest.shards))
    return manifest.model_copy(update={"files": (), "tensors": tensors, "shards": shards})


def _read(names: Iterable[str], read: Callable[[str], Manifest]) -> dict[str, Readable]:
    found: dict[str, Readable] = {}
    for name in names:
        try:
            found[name] = read(name)
        except StoreError as error:
            found[name] = error
    return found


def _readable(found: Readable) -> Manifest:
    if isinstance(found, StoreError):
        raise found
    return found

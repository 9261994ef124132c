"""All manifests of a run, each read once: those of commits, and those of steps that were held in memory."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from planner.errors import NewerFormat, StoreError
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder

Readable = Manifest | StoreError
"""a manifest, or why it cannot be read"""


@dataclass(frozen=True, kw_only=True)
class Manifests:
    """What `manifests/` and `held/` of a run hold. Names are by generation and then by step, oldest first."""

    commits: Mapping[str, Readable]
    held: Mapping[str, Readable]

    def commit(self, name: str) -> Manifest:
        """The manifest of a commit whose name is in `commits`.

        Raises:
            StoreError: it cannot be read.
        """
        return _readable(self.commits[name])

    def parent_of(self, generation: int, name: str, *, is_held: bool) -> Manifest:
        """The manifest of the step that a generation resumed from.

        Raises:
            NewerFormat: another version of planner wrote it.
            StoreError: it is gone or cannot be read.
        """
        found = self.held.get(name) if is_held or name not in self.commits else self.commits[name]
        missing = StoreError(f"{'held' if is_held else 'manifests'}/{name}.json is missing")
        if isinstance(found, NewerFormat) or not is_held:
            return _readable(found or missing)
        if isinstance(found, Manifest):
            return found
        raise StoreError(
            f"generation {generation} resumed from memory at held step {name}, and its manifest is no good: "
            f"{found or missing}"
        )

    def of_generation(self, generation: int) -> list[Manifest]:
        """The readable manifests of a generation's commits and held steps."""
        every = (*self.commits.values(), *self.held.values())
        return [each for each in every if isinstance(each, Manifest) and each.generation == generation]


def read_manifests(run: RunFolder) -> Manifests:
    """Read all manifests of a run.

    Raises:
        StoreError: the store cannot be reached.
    """
    return Manifests(commits=_read(run.commits(), run.manifest), held=_read(run.held_steps(), run.held))


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

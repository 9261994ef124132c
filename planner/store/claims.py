"""The numbers of a run's generations: each is claimed by one worker group, and only the newest may write."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from planner.base.format_versions import STORED
from planner.base.json_text import NoJson, json_object
from planner.errors import StaleGeneration, StoreError
from planner.store.commit_names import commit_of, named
from planner.store.records import require_format
from planner.store.storage import Storage

_MAX_GENERATION = 999_999


class Claims:
    """The part of a run's folder that holds the generations' claims."""

    storage: Storage

    def generations(self) -> list[int]:
        """The numbers of all claimed generations, ascending."""
        return _numbers(self.storage.names("generations"), ".json")

    def segments(self) -> list[int]:
        """The numbers of all generations with a ledger segment, ascending."""
        return _numbers(self.storage.names("ledger"), ".jsonl")

    def newest_generation(self) -> int:
        """The highest generation number in any file name of the run's folder, or 0. Only names are read."""
        # A claim may be lost. Other files of its generation still have its number, which must not be taken again.
        folders = self.storage.names_of("checkpoints", "manifests", "held", "generations", "ledger")
        checkpoints, manifests, held, generations, segments = folders
        names = [*named(checkpoints), *named(manifests, ".json"), *named(held, ".json")]
        numbers = [generation for _, generation in map(commit_of, names)]
        return max((*_numbers(generations, ".json"), *_numbers(segments, ".jsonl"), *numbers), default=0)

    def claim_generation(self, claim: dict[str, str]) -> int:
        """Take the next generation number. At most one caller gets each number.

        Raises:
            StoreError: no number is left.
        """
        content = json.dumps({"format": STORED["generations"], **claim}, sort_keys=True).encode()
        for number in range(self.newest_generation() + 1, _MAX_GENERATION + 1):
            if self.storage.create(_claim_file(number), content):
                return number
        raise StoreError(
            f"{self.storage.url}: generation {_MAX_GENERATION} is taken, and there is none after it. "
            "Remove files that were put there by hand, or choose another checkpoint.path"
        )

    def claims(self) -> Iterator[dict[str, str]]:
        """The claims of the generations, newest first, each read when it is asked for.

        A torn claim is left out. Its number stays taken.

        Raises:
            NewerFormat: another version of planner wrote a claim.
        """
        for number in reversed(self.generations()):
            if (claim := self.claim(number)) is not None:
                require_format(claim.pop("format", None), "generations", _claim_file(number))
                yield claim

    def claim(self, number: int) -> dict[str, Any] | None:
        """The claim of a generation, of any version of planner. None if it is torn or cannot be read."""
        with suppress(StoreError, NoJson):
            return json_object(self.storage.read(_claim_file(number)))
        return None

    def require_current(self, generation: int) -> None:
        """Check that no newer generation has claimed the run.

        Raises:
            StaleGeneration: a newer generation has claimed it.
        """
        newest = self.newest_generation()
        if newest > generation:
            raise StaleGeneration(
                f"{self.storage.url}: generation {newest} has taken over this run from generation {generation}. "
                "Another driver is running it, so this one commits nothing more"
            )


def _claim_file(number: int) -> str:
    return f"generations/{number:06d}.json"


def _numbers(names: Iterable[str], ending: str) -> list[int]:
    """The generations whose files have these names, ascending."""
    stems = (name.removesuffix(ending) for name in names if name.endswith(ending))
    return sorted(int(stem) for stem in stems if re.fullmatch("[0-9]{6}", stem))

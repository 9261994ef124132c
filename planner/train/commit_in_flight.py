"""The commit in flight on one worker: what it names, how far it is, and what it cost."""

from dataclasses import dataclass, field

from planner.errors import PlannerError
from planner.store.records import Manifest
from planner.train.background import BackgroundWork
from planner.train.checkpoints.shard_plan import ShardPlan, WrittenShards

# An abandoned thread ends after the 4 MiB that it writes now.
_LAST_WORDS_S = 5.0
# Storage that takes no piece for so long may be frozen. Then training waits, so that the controller sees the hang.
SILENT_S = 120.0


@dataclass(kw_only=True)
class CommitInFlight:
    """A commit from the moment when its step is held until it is durable."""

    step: int
    cursor: int
    """samples consumed"""
    name: str
    head: str
    """of the ledger at this step. Only on rank 0"""
    plan: ShardPlan
    writing: BackgroundWork[WrittenShards]
    tensors: dict[str, str] = field(default_factory=dict)
    """the certificate"""
    sealing: BackgroundWork[Manifest] | None = None
    """only on rank 0, once all have written"""
    is_gathered: bool = False
    began_s: float = 0.0
    """by `time.monotonic`"""
    paused_s: float = 0.0
    """for which training stood still"""
    save_s: float = 0.0
    """of the slowest worker's write"""

    @property
    def has_written(self) -> bool:
        """Whether this worker's part is written and was not gathered yet."""
        return not self.is_gathered and self.writing.is_done

    @property
    def has_sealed(self) -> bool:
        """On rank 0: whether the manifest is written."""
        return self.sealing is not None and self.sealing.is_done

    @property
    def failure(self) -> PlannerError | None:
        """What went wrong on this worker."""
        return self.writing.failure or (self.sealing.failure if self.sealing else None)

    @property
    def is_silent(self) -> bool:
        """Whether this worker's storage has taken nothing for `SILENT_S`."""
        return any(work.silent_s > SILENT_S for work in self._works())

    def abandon(self, *, waits: bool = True) -> None:
        """End what is still written, and wait some seconds for that."""
        for wait_s in (0.0, _LAST_WORDS_S) if waits else (0.0,):  # all of them are told before any is waited for
            for work in self._works():
                work.abandon(wait_s)

    def _works(self) -> list[BackgroundWork[WrittenShards] | BackgroundWork[Manifest]]:
        return [self.writing, self.sealing] if self.sealing else [self.writing]

"""When copies go into the keepers' memory, and what they say: every so many steps, with each commit, and at a stop.

All workers take a copy at the same step. It counts once the copies of all of them are published, which only the next
generation finds out, from the keepers (`planner.train.checkpoints.from_memory`).
"""

import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from statistics import median
from typing import Literal

from torch import Tensor

from planner.events.saves import CopyInterval
from planner.keeper.addresses import Keepers
from planner.keeper.client import KeeperClient
from planner.keeper.errors import KeeperError
from planner.plan.interval import copy_interval
from planner.store.commit_names import commit_name
from planner.train.copies import Copies, Held
from planner.train.journal import Journal
from planner.train.state import TrainState
from planner.train.world import World

_NUM_STEPS = 50
_NUM_COPIES, _FEWEST_COPIES = 9, 3
# A smaller change of the interval is not told: on a busy machine it would be told every other second.
_TOLD_FACTOR = 4
# The first steps are slower than others.
_FEWEST_STEPS = 3


class CopyPace:
    """When a copy is due. Only rank 0's answer counts.

    Args:
        every: steps between copies. `auto`: so many that copies take at most 2 % of the time. `off`: none.
    """

    def __init__(self, every: int | Literal["auto", "off"]) -> None:
        self._every = every
        self._step_times: deque[float] = deque(maxlen=_NUM_STEPS)
        self._copy_times: deque[float] = deque(maxlen=_NUM_COPIES)
        self._since = 0
        self._told = 0

    @property
    def interval(self) -> int:
        """Steps between copies. 0 if there are none, or not yet known."""
        if self._every == "off":
            return 0
        if self._every != "auto":
            return self._every
        if len(self._step_times) < _FEWEST_STEPS:
            return 0
        if not self._copy_times:
            return 1
        return copy_interval(median(self._copy_times), max(median(self._step_times), 1e-9))

    @property
    def last_s(self) -> float:
        """Seconds for which the last copy kept training waiting. 0 before the first."""
        return self._copy_times[-1] if self._copy_times else 0.0

    def is_due(self) -> bool:
        """Whether a copy is due after the step that ends now, which `did_step` does not know yet."""
        return 0 < self.interval <= self._since + 1

    def did_step(self, seconds: float) -> CopyInterval | None:
        """Record a step. Returns an event for the ledger when `auto` has chosen a very different interval."""
        self._step_times.append(seconds)
        self._since += 1
        interval = self.interval
        is_known = self._every == "auto" and len(self._copy_times) >= _FEWEST_COPIES
        if not is_known or self._told / _TOLD_FACTOR < interval < self._told * _TOLD_FACTOR:
            return None
        self._told = interval
        return CopyInterval(steps=interval, copy_s=median(self._copy_times))

    def did_copy(self, seconds: float) -> None:
        """Record that a copy was taken, for which training stood still."""
        self._copy_times.append(seconds)
        self._since = 0


class MemoryCopies:
    """The copies of one generation on one worker.

    Args:
        world: the workers.
        state: what is copied.
        journal: makes the values of a manifest.
        copies: where they go.
        keepers: of the launch, which free older copies. None: there are none.
        every: steps between copies, as in the job.
        waits_for_copy: whether weights may change at any time, so that `take` waits for the device.
    """

    def __init__(
        self,
        *,
        world: World,
        state: TrainState,
        journal: Journal,
        copies: Copies,
        keepers: Keepers | None = None,
        every: int | Literal["auto", "off"] = "off",
        waits_for_copy: bool = False,
    ) -> None:
        self._world, self._state, self._journal, self._keepers = world, state, journal, keepers
        self._waits_for_copy = waits_for_copy
        self.copies = copies
        self.pace = CopyPace(every)
        self._has_forgotten = False
        self.copy_s = 0.0
        """seconds for which the last copy at a stop kept training waiting. 0 before"""

    def is_due(self) -> bool:
        """Whether a copy is due. It waits until all workers have published the last one."""
        return self.copies.can_publish and self.pace.is_due()

    # -- on all workers at the same step

    def copy(self, step: int, cursor: int) -> None:
        """Copy the state after `step` steps, and publish it in the background. Nothing on a worker without a keeper."""
        if not self.copies.can_publish:
            return
        began_s = time.monotonic()
        head = self._journal.stored_head()
        held = self._taken(step, self._state.local_shards())
        self.publish(held, cursor, head)
        self.pace.did_copy(time.monotonic() - began_s)

    def take(self, step: int, shards: Mapping[str, Tensor]) -> Held:
        """A copy from which a commit is written."""
        began_s = time.monotonic()
        held = self._taken(step, shards)
        self.pace.did_copy(time.monotonic() - began_s)
        return held

    def _taken(self, step: int, shards: Mapping[str, Tensor]) -> Held:
        held = self.copies.take(step, shards)
        if self._waits_for_copy:
            held.wait()
        return held

    def publish(self, held: Held, cursor: int, head: str) -> None:
        """Publish a copy in the background. `head` is that of the ledger on rank 0, empty if it cannot be written."""
        # Without a head, rank 0's copy could not say to which steps of the ledger it belongs.
        if head or self._world.rank > 0:
            self.copies.publish(held, self._facts(held, cursor, head))

    def keep(self, step: int, cursor: int) -> bool:
        """Copy the last step before a stop, if it is not copied yet. Returns whether all workers' copies are sealed."""
        began_s = time.monotonic()
        # The step after it was abandoned. Rank 0's two copies would name different heads of the ledger, and not count.
        is_again = self.copies.has_taken(step)
        is_sealed = self.copies.is_published(step) if is_again else self._seal(step, cursor)
        is_sealed = all(self._world.gather(is_sealed))
        # The controller takes it for what the next stop needs, which may have to copy.
        self.copy_s = time.monotonic() - began_s + (self.pace.last_s if is_again else 0.0)
        return is_sealed

    def _seal(self, step: int, cursor: int) -> bool:
        """Copy this worker's shards and have them sealed. Returns whether they are."""
        head = self._journal.stored_head()
        if not (self.copies.can_publish and (head or self._world.rank > 0)):
            return False
        held = self.copies.take(step, self._state.local_shards())
        return self.copies.seal_now(held, self._facts(held, cursor, head))

    def forget_older(self) -> None:
        """A step of this generation is durable: free the copies of earlier ones, in the background."""
        if self._has_forgotten or self._keepers is None:
            return
        self._has_forgotten = True
        self.copies.try_again()
        if self._world.rank > 0:
            return
        arguments = (self._keepers, self._journal.generation)
        threading.Thread(target=_forget, args=arguments, name="planner-forget", daemon=True).start()

    def _facts(self, held: Held, cursor: int, head: str) -> Mapping[str, object]:
        """What the manifest of this step would say. Only rank 0 keeps it."""
        if self._world.rank > 0:
            return {}
        name = commit_name(held.step, self._journal.generation)
        manifest = self._journal.manifest(name, held.step, cursor, files=(), tensors={}, head=head)
        return manifest.model_dump(mode="json")


def _forget(keepers: Keepers, generation: int) -> None:
    for address in keepers.addresses:
        with suppress(KeeperError), KeeperClient(address, keepers.secret) as client:
            client.forget(generation)

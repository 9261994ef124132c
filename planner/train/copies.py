"""This worker's copies of the state in host memory: in its node's keeper, or in its own where there is none.

A copy is taken on the training thread. With a keeper, a thread then has it *published*: the keeper takes digests of it
and sends it to the next node's keeper. A published copy survives this process, and a replica also this node. There are
two places, used in turns, so that one whole copy stays while the next one is made.
"""

import logging
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from planner.errors import StoreError, TrainingFailed
from planner.events.event import Event
from planner.keeper.client import KeeperClient
from planner.keeper.copies import Copy, CopyKey, Piece
from planner.keeper.errors import KeeperError, KeeperGone
from planner.train.background import BackgroundWork
from planner.train.checkpoints.held_copy import HeldCopy, own_memory
from planner.train.keeper_links import KeeperLinks

_log = logging.getLogger(__name__)

_NUM_PLACES = 2


@dataclass(frozen=True, kw_only=True)
class Held:
    """One copy."""

    place: int
    step: int
    shards: Mapping[str, Tensor]
    pieces: tuple[Piece, ...]
    wait: Callable[[], None]
    """waits until the copy is complete. Any thread may call it"""
    is_kept: bool
    """whether it is in the keeper's memory"""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Whose copies they are."""

    run_id: str
    generation: int
    rank: int
    world_size: int


def next_node(nodes: Iterable[str], own: str, floor: Collection[str] = ()) -> str:
    """The node that gets replicas of the copies on node `own`: a ring over the nodes of all ranks. Empty if alone.

    Args:
        nodes: of the workers, by rank. Those without a keeper are empty.
        own: one of them.
        floor: the nodes of the job's floor. They get the replicas of all other nodes, so that no step is lost if only
            they are left.
    """
    # In the order of ranks, so that all workers see the same ring.
    ring = [node for node in dict.fromkeys(nodes) if node]
    lasting = [node for node in ring if node in floor]
    if lasting and own not in lasting:
        others = [node for node in ring if node not in floor]
        return lasting[others.index(own) % len(lasting)]
    following = ring[(ring.index(own) + 1) % len(ring)]
    return "" if following == own else following


class Copies:
    """The copies of one worker in one generation.

    Args:
        device: on which training computes.
        owner: whose copies they are.
        pieces: makes the pieces of this worker's shards, as they are now.
        links: to keepers. By default there are none: copies stay in this process and cannot be published.
        sync: makes the ledger's lines before a copy survive a power cut. Otherwise a node could take them along, and
            the copy outlives them elsewhere. Any thread calls it.
    """

    def __init__(
        self,
        *,
        device: torch.device,
        owner: Owner,
        pieces: Callable[[], tuple[Piece, ...]],
        links: KeeperLinks | None = None,
        sync: Callable[[], None] = lambda: None,
    ) -> None:
        self._owner, self._make_pieces, self._sync = owner, pieces, sync
        self._pieces: tuple[Piece, ...] = ()
        self._links = links or KeeperLinks(None)
        self._memory: list[memoryview | None] = [None] * _NUM_PLACES
        self._places = [HeldCopy(device, partial(self._buffers, place)) for place in range(_NUM_PLACES)]
        # -1: no copy yet. It is below every step, so an unused place is the oldest.
        self._steps = [-1] * _NUM_PLACES
        self._pinned = -1
        self._published_from = self._published_step = -1
        self._publishing: BackgroundWork[bool] | None = None
        self._next: tuple[Held, Mapping[str, Any]] | None = None
        # The publishing thread prepares the other place, which the training thread may be taking at the same moment.
        self._opening = threading.Lock()

    @property
    def can_publish(self) -> bool:
        """Whether copies are kept in memory that outlives this process."""
        return self._links.is_up

    @property
    def is_publishing(self) -> bool:
        """Whether a copy is being published, or will be."""
        return self._is_reading or self._next is not None

    @property
    def _is_reading(self) -> bool:
        return self._publishing is not None and not self._publishing.has_ended

    # -- on the training thread

    def try_again(self) -> None:
        """Ask keepers again that were full: copies of earlier generations are being freed."""
        self._links.try_again()

    def advance(self) -> list[Event]:
        """Go on with what is in the background. Call it at every step. Returns events for the ledger."""
        self._links.advance()
        if not self._is_reading:
            self._links.drop_lost()
        if self._next is not None and not self._is_reading:
            held, facts = self._next
            self._next = None
            self._begin_publishing(held, facts)
        return self._links.take_events()

    def take(self, step: int, shards: Mapping[str, Tensor]) -> Held:
        """Copy this worker's shards after `step` steps, to the place whose copy is older and which nobody reads."""
        place = self._free_place()
        # It waits to be published, and would describe a copy that is being overwritten.
        if self._next is not None and self._next[0].place == place:
            self._next = None
        with self._opening:
            is_kept = self._open(place, shards)
            self._steps[place] = step
        copy = self._places[place]
        taken = copy.take(shards)
        return Held(place=place, step=step, shards=taken, pieces=self._pieces, wait=copy.wait, is_kept=is_kept)

    def _free_place(self) -> int:
        in_use = {self._pinned, self._published_from if self._is_reading else -1}
        free = [place for place in range(_NUM_PLACES) if place not in in_use]
        assert free  # a commit pins one place, and copies beside it wait until they are published
        # Without a keeper one place is enough, and a second one would take memory that nobody has counted.
        used = [place for place in free if self._steps[place] >= 0 or place == 0]
        return min(free if self.can_publish else used or free, key=self._steps.__getitem__)

    def pin(self, held: Held) -> None:
        """Keep this copy until `unpin`, because files are written from it."""
        self._pinned = held.place

    def unpin(self) -> None:
        """The files are written, or given up."""
        self._pinned = -1

    def guard(self) -> None:
        """Call it before the weights change: a GPU may still be copying them."""
        for place in self._places:
            place.guard()

    def publish(self, held: Held, facts: Mapping[str, Any]) -> None:
        """Have the keeper take digests of a copy, and send it to the next node, in the background.

        While another one is being published, it waits for that. Nothing happens if it is not in the keeper's memory.

        Args:
            held: the copy.
            facts: on rank 0 the values of the step's manifest, else empty.
        """
        if held.is_kept and self._is_reading:
            self._next = held, facts
        elif held.is_kept:
            self._begin_publishing(held, facts)

    def _begin_publishing(self, held: Held, facts: Mapping[str, Any]) -> None:
        if (client := self._links.publisher) is None:
            return
        self._published_from, self._published_step = held.place, held.step
        work = partial(self._publish, client, held, facts)
        self._publishing = BackgroundWork(work, lambda error: TrainingFailed(f"a copy in memory: {error}"))

    def has_taken(self, step: int) -> bool:
        """Whether one of the two places has the state after `step` steps."""
        return step in self._steps

    def is_published(self, step: int) -> bool:
        """Wait for what is being published. Returns whether the copy after `step` steps, taken last, now counts."""
        while (work := self._publishing) is not None:
            work.wait()
            if self._next is None:
                return self._published_step == step and work.is_done and work.result()
            held, facts = self._next
            self._next = None
            self._begin_publishing(held, facts)
        return False

    def seal_now(self, held: Held, facts: Mapping[str, Any]) -> bool:
        """Have the keeper take digests of a copy, and wait for it. Returns whether it did."""
        client = self._links.training
        return held.is_kept and client is not None and self._seal(client, held, facts)

    def close(self) -> None:
        """End what is still published, and the connections."""
        self._next = None
        if self._publishing is not None:
            self._publishing.abandon(0.0)
        self._links.close(is_publishing=self._is_reading)

    # -- steps of it

    def _open(self, place: int, shards: Mapping[str, Tensor]) -> bool:
        """Get the keeper's memory for a place, whose copy then no longer counts. False if there is none."""
        if [piece.name for piece in self._pieces] != list(shards):  # optimizer state appears at the first step
            self._pieces = self._make_pieces()
            self._memory = [None] * _NUM_PLACES
            for each in self._places:
                each.drop()
        client = self._links.training
        if client is None or not self.can_publish:
            return False
        try:
            memory = client.room(self._key(place), self._num_bytes)
        except KeeperError as error:
            self._links.lose(error)
            return False
        if memory is not self._memory[place]:  # or copies would go to memory that no keeper has any more
            self._places[place].drop()
            self._memory[place] = memory
        return True

    def _buffers(self, place: int, shards: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Buffers for a place: in the keeper's memory if there is some."""
        memory = self._memory[place]
        return own_memory(shards) if memory is None else tensors_in(memory, self._pieces, shards)

    @property
    def _num_bytes(self) -> int:
        """Of a place."""
        return max((piece.offset + piece.num_bytes for piece in self._pieces), default=0)

    def _prepare_other(self, client: KeeperClient) -> None:
        """Touch the pages of the place that was not used yet. A copy into new ones takes several times as long."""
        with self._opening:
            for place, step in enumerate(self._steps):
                if step < 0:
                    flat_tensor(client.room(self._key(place), self._num_bytes), 0, self._num_bytes).zero_()

    def _key(self, place: int) -> CopyKey:
        return CopyKey(generation=self._owner.generation, rank=self._owner.rank, slot=place)

    def _described(self, held: Held, facts: Mapping[str, Any]) -> Copy:
        return Copy(
            key=self._key(held.place),
            run_id=self._owner.run_id,
            step=held.step,
            world_size=self._owner.world_size,
            pieces=held.pieces,
            facts=facts,
        )

    def _seal(self, client: KeeperClient, held: Held, facts: Mapping[str, Any]) -> bool:
        """Make a copy count. Returns whether it does."""
        held.wait()
        try:
            self._sync()
            client.seal(self._described(held, facts))
        except StoreError:  # the journal has the reason
            _log.warning("step %s is not copied: the ledger cannot be synced", held.step, exc_info=True)
            return False
        except KeeperError as error:
            self._links.lose(error)
            return False
        return True

    def _publish(self, client: KeeperClient, held: Held, facts: Mapping[str, Any], moved: Callable[[], None]) -> bool:
        """In the thread: seal, then replicate."""
        if not self._seal(client, held, facts):
            return False
        try:
            self._prepare_other(client)
        except KeeperError as error:  # the copy that is sealed counts, and goes to the next node
            self._links.lose(error)
        moved()
        if (replica := self._links.replica) is None:
            return True
        try:
            client.replicate(self._key(held.place), replica)
        except KeeperError as error:  # the copy on this node counts
            if isinstance(error, KeeperGone):  # this node's, not that of the replica
                self._links.lose(error)
            else:
                self._links.lose_replica(replica, error)
        return True


def tensors_in(memory: memoryview, pieces: Sequence[Piece], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors in this memory, at the places of their pieces, with the types and shapes of `like`."""
    return {
        piece.name: flat_tensor(memory, piece.offset, piece.num_bytes)
        .view(like[piece.name].dtype)
        .view(like[piece.name].shape)
        for piece in pieces
    }


def flat_tensor(memory: memoryview, offset: int, num_bytes: int) -> Tensor:
    """These bytes as a tensor, in the same memory."""
    # `torch.frombuffer` refuses a count of 0, and the last workers' shards may be empty.
    if num_bytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")  # a copy that is only read
        return torch.frombuffer(memory, dtype=torch.uint8, count=num_bytes, offset=offset)

"""Finds the newest step that is whole in the keepers' memory, checks its copies, and loads it at any world size."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from planner.base import progress_counter
from planner.events.saves import LoadedFromMemory
from planner.keeper.addresses import Address, Keepers
from planner.keeper.client import KeeperClient
from planner.keeper.copies import Copy, CopyKey
from planner.keeper.errors import KeeperError, KeeperGone
from planner.keeper.ranges import Read, Whole, by_copy, newest_whole, plan_reads
from planner.store.records import HeldManifest, Manifest, TrainingIdentity
from planner.train.checkpoints.checkpoint import Saved, prepared
from planner.train.checkpoints.layout import pieces_of
from planner.train.collectives import shard_of
from planner.train.copies import flat_tensor
from planner.train.state import TrainState
from planner.train.world import World
from planner.wording.saves import held_text

_log = logging.getLogger(__name__)
T = TypeVar("T")

_MOST_CONNECTIONS = 16


class MemoryLost(Exception):
    """The copies cannot be used after all. Raised on all workers: the next generation looks for what is left."""


@dataclass(frozen=True, kw_only=True)
class HeldStep:
    """A step whose copies are all in memory, and have been checked."""

    whole: Whole
    manifest: HeldManifest

    @property
    def loaded(self) -> LoadedFromMemory:
        """The event of a generation that resumes from them."""
        places = [sources[0] for sources in self.whole.sources]
        return LoadedFromMemory(
            step=self.whole.step,
            generation=self.whole.generation,
            workers=len(places),
            nodes=len({source.node for source in places}),
        )

    @property
    def text(self) -> str:
        """Which copies they are, for people."""
        return held_text(self.loaded)


def newest_held(world: World, keepers: Keepers | None) -> HeldStep | None:
    """The newest step whose copies are all there and undamaged. None if there is none. Collective, on all workers."""
    # All workers load from the same source, and one without a keeper can read no copy.
    nodes = world.gather(keepers.node if keepers is not None else "")
    if not all(nodes):
        return None
    assert keepers is not None
    # One worker asks for all: while replicas still arrive, two workers could see different copies.
    found = world.from_first(lambda: _ask(keepers.addresses, lambda client: client.copies(), keepers.secret))
    while (whole := _newest(found)) is not None:
        damaged = {place for part in world.gather(_damaged(world, keepers, nodes, whole)) for place in part}
        if not damaged:
            return HeldStep(whole=whole, manifest=_manifest(whole))
        found = {node: [copy for copy in copies if (node, copy.key) not in damaged] for node, copies in found.items()}
    return None


def load(world: World, keepers: Keepers, held: HeldStep, state: TrainState, identity: TrainingIdentity) -> None:
    """Load a held step into the state, at any world size. Collective.

    Raises:
        MemoryLost: on every worker, if a copy is gone or damaged now.
        StoreError: on every worker, if the copies are of another model or optimizer.
    """
    wanted = world.agree(lambda: prepared(state, _saved(held.whole), held.manifest, identity))
    error = ""
    try:
        _fill(keepers, held.whole, wanted)
    except (KeeperError, ValueError) as raised:
        error = f"worker {world.rank}: {raised}"
    if errors := [text for text in world.gather(error) if text]:
        raise MemoryLost(f"{held.text}: {errors[0]}")


# -- what is there


def _ask(addresses: Sequence[Address], ask: Callable[[KeeperClient], T], secret: str) -> dict[str, T]:
    """Node -> the answer of its keeper, without those that do not answer. All at the same time."""

    def answer(address: Address) -> T | None:
        try:
            with KeeperClient(address, secret) as client:
                return ask(client)
        except KeeperError:
            _log.warning("the keeper of node %s does not answer", address.node, exc_info=True)
            return None

    with ThreadPoolExecutor(_MOST_CONNECTIONS) as pool:
        answers = zip(addresses, pool.map(answer, addresses), strict=True)
        return {address.node: found for address, found in answers if found is not None}


def _newest(found: Mapping[str, Sequence[Copy]]) -> Whole | None:
    """The newest whole step. A launch has one run, so its keepers hold copies of one."""
    runs = {copy.run_id for copies in found.values() for copy in copies}
    wholes = [whole for run_id in runs if (whole := newest_whole(found, run_id=run_id)) is not None]
    # By generation first: a later one may have gone back to an earlier step, and only its steps are continued.
    return max(wholes, key=lambda whole: (whole.generation, whole.step), default=None)


def _damaged(world: World, keepers: Keepers, nodes: Sequence[str], whole: Whole) -> list[tuple[str, CopyKey]]:
    """The copies of this worker's part that are gone or damaged.

    A copy is checked by a worker on its node, so that the work is spread. Those on other nodes are dealt out.
    """
    places = sorted({(source.node, source.key) for sources in whole.sources for source in sources})
    mine = []
    for number, (node, key) in enumerate(places):
        there = [rank for rank, name in enumerate(nodes) if name == node] or list(range(world.world_size))
        if there[number % len(there)] == world.rank:
            mine.append((node, key))
    return [place for place in mine if not _is_sound(keepers, *place, whole.step)]


def _is_sound(keepers: Keepers, node: str, key: CopyKey, step: int) -> bool:
    address = keepers.of(node)
    if address is None:
        return False
    try:
        with KeeperClient(address, keepers.secret) as client:
            client.check(key, step)
    except KeeperError:
        _log.warning("a copy in the memory of node %s cannot be used", node, exc_info=True)
        return False
    progress_counter.count_work()
    return True


def _manifest(whole: Whole) -> HeldManifest:
    facts = json.dumps({**whole.facts, "shards": whole.digests})
    return HeldManifest.of(Manifest.model_validate_json(facts))


# -- load


def _saved(whole: Whole) -> dict[str, Saved]:
    """The tensors that the copies hold together."""
    pieces = (piece for sources in whole.sources for piece in sources[0].copy.pieces)
    return {piece.name: Saved(shape=torch.Size(piece.shape), dtype=getattr(torch, piece.dtype)) for piece in pieces}


def _fill(keepers: Keepers, whole: Whole, wanted: Mapping[str, Tensor]) -> None:
    """Read this worker's shards.

    Raises:
        KeeperError: a copy is gone or damaged, or does not have what is wanted.
    """
    shards = {name: shard_of(tensor) for name, tensor in wanted.items()}
    on_host = {
        name: shard if shard.device.type == "cpu" else torch.empty_like(shard, device="cpu")
        for name, shard in shards.items()
    }
    requests = by_copy(plan_reads(whole, pieces_of(wanted), keepers.node))
    # As bytes: numpy, through which they are received, has no bfloat16.
    targets = {name: shard.view(-1).view(torch.uint8) for name, shard in on_host.items() if shard.numel()}
    with ThreadPoolExecutor(_MOST_CONNECTIONS) as pool:
        # `list`: errors of a map that nobody reads are lost.
        list(pool.map(lambda place: _read(keepers, place, whole.step, requests[place], targets), requests))
    for name, shard in shards.items():
        if shard.device.type != "cpu":
            shard.copy_(on_host[name])


def _read(
    keepers: Keepers, place: tuple[str, CopyKey], step: int, reads: Sequence[Read], targets: Mapping[str, Tensor]
) -> None:
    """Read ranges of one copy of a step: from shared memory on this node, otherwise over the network.

    A replica that was on its way when its worker died may still take the place of an older step. That is noticed.
    """
    node, key = place
    address = keepers.of(node)
    if address is None:
        raise KeeperGone(f"the keeper of node {node} is not known")
    parts = [(read, targets[read.name][read.target_offset : read.target_offset + read.num_bytes]) for read in reads]
    with KeeperClient(address, keepers.secret) as client:
        if node == keepers.node:
            with client.mapped(key, step) as memory:
                for read, target in parts:
                    target.copy_(flat_tensor(memory, read.source_offset, read.num_bytes))
                    progress_counter.count_work()
        else:
            client.read(
                key,
                [
                    (
                        read.source_offset,
                        memoryview(target.numpy()),  # type: ignore[arg-type]  # numpy arrays are buffers
                    )
                    for read, target in parts
                ],
                step,
            )
            progress_counter.count_work()

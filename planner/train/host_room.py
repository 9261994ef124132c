"""How many copies of the shards have room in the memory of every host. Without any, commits are synchronous."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from planner.base.host_memory import available_bytes
from planner.events.saves import FloorRoomLacking, HostRoomLacking
from planner.keeper.addresses import Keepers
from planner.keeper.client import KeeperClient
from planner.keeper.errors import KeeperError
from planner.plan.commit_size import COPIES, COPIES_ON_OWN_NODE
from planner.train.collectives import shard_of
from planner.train.copies import next_node
from planner.train.state import TrainState
from planner.train.world import World

# The rest is for what nobody counted: activations, loaders, other programs.
_MOST_OF_AVAILABLE = 0.8


@dataclass(frozen=True, kw_only=True)
class HostNeed:
    """What one worker needs, and what its host has."""

    host: str
    node: str
    """whose keeper has its copies. Empty: none"""
    copy_bytes: int
    """of the copy of its shards"""
    training_bytes: int
    """host memory that training will take and has not taken yet"""
    available_bytes: int
    is_on_floor: bool = False
    """whether the node belongs to the job's floor"""
    earlier_bytes: int = 0
    """that the node's keeper holds for earlier generations. They are freed when this one has committed"""


@dataclass(frozen=True, kw_only=True)
class Room:
    """How many copies of each worker's shards fit on every host."""

    copies: int
    """one of `COPIES`, or 0"""
    lacking: tuple[HostRoomLacking | FloorRoomLacking, ...] = ()
    """for each larger number of copies, the first host on which they do not fit. Before them, why `has_floor` is false
    """
    has_floor: bool = True
    """whether the nodes of the job's floor, if there are any, have room for the replicas of all others"""


def room(world: World, state: TrainState, wanted: int, keepers: Keepers | None) -> Room:
    """How many of the `wanted` copies fit. Equal on every worker. Collective.

    Args:
        world: the workers.
        state: what is copied.
        wanted: one of `COPIES`.
        keepers: have the copies. The own node's may still be starting. None: there are none.
    """
    return room_of(world.gather(_need(world, state, keepers)), wanted)


def room_of(needs: Sequence[HostNeed], wanted: int) -> Room:
    """The most copies that fit on every host, and what is lacking for each larger number.

    If the nodes of the floor have no room for the replicas of all others, each node has those of one other node.
    """
    found = _most_copies(needs, wanted)
    evenly = _most_copies([replace(need, is_on_floor=False) for need in needs], wanted)
    if evenly.copies <= found.copies:
        return Room(copies=found.copies, lacking=found.lacking)
    first = next(lacking for lacking in found.lacking if lacking.copies == evenly.copies)
    needed = FloorRoomLacking(
        host=first.host,
        needed_bytes=first.needed_bytes + first.training_bytes,
        available_bytes=first.available_bytes,
    )
    return Room(copies=evenly.copies, lacking=(needed, *evenly.lacking), has_floor=False)


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """How many copies fit, and what is lacking for each larger number."""

    copies: int
    lacking: tuple[HostRoomLacking, ...]


def _most_copies(needs: Sequence[HostNeed], wanted: int) -> _Fit:
    lacking: list[HostRoomLacking] = []
    for copies in COPIES:
        if copies > wanted:
            continue
        if (found := _lacking(needs, copies)) is None:
            return _Fit(copies=copies, lacking=tuple(lacking))
        lacking.append(found)
    return _Fit(copies=0, lacking=tuple(lacking))


def _lacking(needs: Sequence[HostNeed], copies: Literal[1, 2, 4]) -> HostRoomLacking | None:
    """The numbers of the first host on which so many copies do not fit. None if they fit."""
    for host in dict.fromkeys(need.host for need in needs):
        here = [need for need in needs if need.host == host]
        needed = _copies_bytes(needs, here, copies)
        training = sum(need.training_bytes for need in here)
        # By node: each of its workers reports the whole of its keeper.
        earlier = {need.node: need.earlier_bytes for need in here}
        # `min`: workers measure the same memory of their host, each a moment later than the other.
        available = min(need.available_bytes for need in here) + sum(earlier.values())
        if needed + training > _MOST_OF_AVAILABLE * available:
            return HostRoomLacking(
                copies=copies,
                host=host,
                needed_bytes=needed,
                available_bytes=available,
                training_bytes=training,
            )
    return None


def _copies_bytes(needs: Sequence[HostNeed], here: Sequence[HostNeed], copies: int) -> int:
    """Bytes of so many copies on one host, where `here` are: its workers' own, and those that other nodes send.

    Nodes may have different numbers of workers, so those are not as many bytes as its own.
    """
    nodes, nodes_here = [need.node for need in needs], {need.node for need in here}
    floor = {need.node for need in needs if need.is_on_floor}
    sent = [need for need in needs if need.node and next_node(nodes, need.node, floor) in nodes_here - {""}]
    num_own = min(copies, COPIES_ON_OWN_NODE)
    return num_own * sum(need.copy_bytes for need in here) + (copies - num_own) * sum(need.copy_bytes for need in sent)


def _state_tensors(optimizer: torch.optim.Optimizer) -> int:
    """The most tensors of a parameter's size that an optimizer keeps for it. For one of the user's, as for Adam."""
    if isinstance(optimizer, torch.optim.SGD):
        return int(any(group["momentum"] for group in optimizer.param_groups))
    return 2


def _earlier_bytes(keepers: Keepers | None) -> int:
    """What this node's keeper holds before this generation copies anything."""
    if keepers is None or keepers.own is None:
        return 0
    try:
        with KeeperClient(keepers.own, keepers.secret) as client:
            return sum(copy.num_bytes for copy in client.copies())
    except KeeperError:
        return 0


def _need(world: World, state: TrainState, keepers: Keepers | None) -> HostNeed:
    """This worker's part. Before the first step, its optimizer has no state yet."""
    shards = [shard_of(tensor) for tensor in state.tensors().values()]
    trained_bytes = sum(shard.nbytes for _, shard in state.shards.values())
    missing_bytes = 0 if state.optimizer.state else trained_bytes * _state_tensors(state.optimizer)
    on_host = world.device.type == "cpu"
    return HostNeed(
        host=socket.gethostname(),
        node=keepers.node if keepers is not None else "",
        is_on_floor=keepers is not None and keepers.is_on_floor,
        copy_bytes=sum(shard.nbytes for shard in shards) + missing_bytes,
        # Optimizer state and gradients.
        training_bytes=(missing_bytes + trained_bytes) if on_host else 0,
        available_bytes=available_bytes(),
        earlier_bytes=_earlier_bytes(keepers),
    )

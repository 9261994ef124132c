"""Descriptions of copies, keys and addresses that a peer sent, checked field by field."""

import math
from collections.abc import Mapping
from typing import Any

from planner.keeper.addresses import Address
from planner.keeper.copies import Copy, CopyKey, Piece
from planner.keeper.errors import KeeperError

_MOST = 1 << 62


def copy_of(value: Any) -> Copy:
    """A copy.

    Raises:
        KeeperError: it is something else, or contradicts itself.
    """
    try:
        copy = Copy.from_json(value)
        mistake = _mistake(copy)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise KeeperError(f"This is no description of a copy: {error!r}.") from error
    if mistake:
        raise KeeperError(f"This description of a copy is wrong: {mistake}.")
    return copy


def key_of(value: Any) -> CopyKey:
    """A copy's key.

    Raises:
        KeeperError: it is something else.
    """
    names = {"generation", "rank", "slot"}
    if not isinstance(value, Mapping) or set(value) != names or not all(is_count(value[name]) for name in names):
        raise KeeperError(f"This is no key of a copy: {value!r}.")
    return CopyKey(**value)


def address_of(value: Any) -> Address:
    """A keeper's address.

    Raises:
        KeeperError: it is something else.
    """
    try:
        address = Address(**value)
    except TypeError as error:
        raise KeeperError(f"This is no address of a keeper: {value!r}.") from error
    if not (isinstance(address.node, str) and isinstance(address.host, str) and is_count(address.port)):
        raise KeeperError(f"This is no address of a keeper: {value!r}.")
    return address


def is_count(value: object) -> bool:
    """Whether it is a whole number from 0 to 2^62."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _mistake(copy: Copy) -> str:
    """Why a copy's description is wrong. Empty if it is right."""
    key = copy.key
    if not all(map(is_count, (key.generation, key.rank, key.slot, copy.step, copy.world_size))):
        return "a number is no count"
    if not key.rank < copy.world_size:
        return f"it is of rank {key.rank} of {copy.world_size}"
    if not (isinstance(copy.run_id, str) and isinstance(copy.facts, dict)):
        return "run_id is no text, or facts is no object"
    if len({piece.name for piece in copy.pieces}) < len(copy.pieces):
        return "two pieces have the same name"
    return next((f"piece {piece.name!r}: {wrong}" for piece in copy.pieces if (wrong := _piece_mistake(piece))), "")


def _piece_mistake(piece: Piece) -> str:
    if not all(isinstance(text, str) for text in (piece.name, piece.dtype, piece.digest)):
        return "a text is none"
    if not all(map(is_count, (*piece.shape, piece.start, piece.stop, piece.offset, piece.num_bytes))):
        return "a number is no count"
    num_elements = piece.stop - piece.start
    if not piece.start <= piece.stop <= math.prod(piece.shape):
        return f"elements {piece.start} to {piece.stop} of shape {piece.shape}"
    if num_elements == 0:
        return f"{piece.num_bytes} bytes without elements" if piece.num_bytes else ""
    if piece.num_bytes == 0 or piece.num_bytes % num_elements:
        return f"{piece.num_bytes} bytes for {num_elements} elements"
    return ""

"""Packed rows, which hold several documents that must not interact: positions, masks, and attention without a mask.

`attend` computes each document by itself where that is faster than a mask, which is on CPUs.

A mask makes attention compute all T x T products of a row and drop most of them (`bench/packed.py`). The masks that a
model makes decide: a piece of a row that attends to nothing before it is computed alone, with its own part of the mask
(such as a sliding window) or, if it sees all of its own past, with none. planner's own model makes no mask on CPUs,
which would take 3 % of a small model's step at T = 8,000: there its documents are the pieces (`pieces_in`).

Shapes: m rows, T tokens, H heads, D width of a head, N documents.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from planner.train.models.head import moved

Piece = tuple[slice, bool]
"""a piece of a row, and whether each of its tokens attends to all of the piece up to itself"""
Pieces = list[list[Piece]]
"""the pieces of each row, in order"""


class HiddenPieces:
    """Pieces for compiled code, which hands them on. If it saw their numbers, it would be compiled for each of them."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces


_PART = 2**22
"""elements of a mask that are read at once"""

BY_TOKEN = ("position_ids", "cache_position")
"""tensors that a model of transformers gives its attention, which attention that has the mask does not read"""

# All layers of a forward pass have the same mask, or one of two.
_PIECES: "WeakTensorKeyDictionary" = WeakTensorKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class Documents:
    """The documents of packed rows on a GPU. The CPU knows where they begin, so no layer has to wait for the GPU."""

    numbers: Tensor
    """`(m, T)` int64, on the device"""
    places: Tensor
    """`(N + 1,)` int32, on the device: where documents begin in all rows behind each other, and the end"""
    begins: tuple[int, ...]
    """the same N + 1 numbers"""

    @classmethod
    def of(cls, numbers: Tensor, device: torch.device) -> "Documents":
        """Document numbers `(m, T)` on the CPU -> the documents on a device. Python does not wait for the device."""
        places = places_of(numbers)
        return cls(
            numbers=numbers.to(device, non_blocking=True),
            places=moved(places, device),
            begins=tuple(places.tolist()),
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest document."""
        return max(stop - start for start, stop in itertools.pairwise(self.begins))

    def pieces(self) -> Pieces:
        """The pieces of each row, as `pieces_in` finds them."""
        tokens = self.numbers.shape[1]
        rows: Pieces = [[] for _ in self.numbers]
        for start, stop in itertools.pairwise(self.begins):
            row = start // tokens
            rows[row].append((slice(start - row * tokens, stop - row * tokens), True))
        return rows


def documents_on(device: torch.device, numbers: Tensor) -> "Tensor | Documents":
    """Document numbers `(m, T)` on the CPU as a model on a device takes them."""
    is_cpu = device.type == "cpu"
    return numbers.to(device, non_blocking=True) if is_cpu else Documents.of(numbers, device)


def places_of(numbers: Tensor) -> Tensor:
    """Document numbers `(m, T)` on the CPU -> `(N + 1,)` int32: where documents begin in all rows, and the end."""
    found = begins_in(numbers).flatten().nonzero().flatten()
    return torch.cat([found, torch.tensor([numbers.numel()])]).int()


def positions_in(documents: Tensor) -> Tensor:
    """Document numbers `(m, T)` -> each token's position in its document, `(m, T)` int64, from 0."""
    places = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    return places - torch.where(begins_in(documents), places, 0).cummax(dim=1).values


def mask_of(documents: Tensor) -> Tensor:
    """Document numbers `(m, T)` -> causal mask within documents, `(m, 1, T, T)` bool, true where a token may attend."""
    pieces = begins_in(documents).cumsum(dim=1)
    same = pieces[:, :, None] == pieces[:, None, :]
    return same.tril()[:, None]


def pieces_in(documents: Tensor) -> Pieces:
    """Document numbers `(m, T)`, on the CPU -> the pieces of each row: those of `mask_of`, without a mask."""
    ends = [[*row.nonzero().flatten().tolist(), documents.shape[1]] for row in begins_in(documents)]
    return [[(slice(start, stop), True) for start, stop in itertools.pairwise(row)] for row in ends]


def begins_in(documents: Tensor) -> Tensor:
    """Whether a document begins at a token, `(m, T)`. A number that comes again later is a new document."""
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return begins


def attend(
    function: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
    heads: tuple[Tensor, Tensor, Tensor],
    limits: Tensor | Pieces | HiddenPieces | None,
    *,
    tokens_dim: int,
) -> Tensor:
    """Call an attention function for each piece of each row. Once without a mask, or if the device is no CPU.

    Compiled code leaves out what has pieces: it cannot loop over them, because their number depends on values.

    Args:
        function: of query, key, value and mask (causal without one), to a tensor whose dimension 0 has the rows.
        heads: query, key and value, `(m, H, T, D)`. Key and value may have fewer heads.
        limits: a mask `(m, 1, T, T)` bool, true where a token may attend, or pieces that are all causal. The function
            gets any other mask as it is.
        tokens_dim: the dimension of the result that has the tokens.
    """
    if isinstance(limits, list):
        return _in_pieces(function, heads, limits, None, tokens_dim)
    if limits is None or (isinstance(limits, Tensor) and not _has_pieces(limits, heads[0])):
        return function(*heads, limits)
    found: Tensor = _in_its_pieces(function, heads, limits, tokens_dim)
    return found


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _in_its_pieces(
    function: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
    heads: tuple[Tensor, Tensor, Tensor],
    limits: Tensor | HiddenPieces,
    tokens_dim: int,
) -> Tensor:
    if isinstance(limits, HiddenPieces):
        return _in_pieces(function, heads, limits.pieces, None, tokens_dim)
    return _in_pieces(function, heads, pieces_of(limits), limits, tokens_dim)


def _in_pieces(
    function: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
    heads: tuple[Tensor, Tensor, Tensor],
    pieces: Pieces,
    mask: Tensor | None,
    tokens_dim: int,
) -> Tensor:
    # Tensors are split and not indexed: the gradient of each index would be as large as the whole tensor.
    by_row = zip(*(torch.split(each, 1) for each in heads), strict=True)
    rows = []
    for row, (of_row, whole) in enumerate(zip(pieces, by_row, strict=True)):
        sizes = [piece.stop - piece.start for piece, _ in of_row]
        parts = zip(*(torch.split(each, sizes, dim=2) for each in whole), strict=True)
        found = []
        for (piece, is_causal), (query, key, value) in zip(of_row, parts, strict=True):
            own = None if is_causal or mask is None else mask[row : row + 1, :, piece, piece]
            found.append(function(query, key, value, own))
        rows.append(torch.cat(found, dim=tokens_dim))
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _has_pieces(mask: Tensor, query: Tensor) -> bool:
    rows, _, tokens, _ = query.shape
    return mask.device.type == "cpu" and mask.dtype == torch.bool and mask.shape == (rows, 1, tokens, tokens)


def pieces_of(mask: Tensor) -> Pieces:
    """The pieces of each row of a mask `(m, 1, T, T)`."""
    if mask not in _PIECES:
        _PIECES[mask] = [_pieces(row[0]) for row in mask]
    found: Pieces = _PIECES[mask]
    return found


def _pieces(mask: Tensor) -> list[Piece]:
    """Those of `(T, T)`."""
    length = len(mask)
    places = torch.arange(length)
    # The mask of a long row has gigabytes, so it is read in parts.
    first, last = map(torch.cat, zip(*map(_seen, torch.split(mask, max(1, _PART // length))), strict=True))
    # A token that sees nothing is taken to see itself.
    sees = mask[places, first]
    first, last = torch.where(sees, first, places), torch.where(sees, last, places)
    # The first place that each token sees, or that a later one sees: a piece begins where nothing reaches back.
    reach = first.flip(0).cummin(dim=0).values.flip(0)
    # A token may see later ones, too. Then the next piece begins behind them.
    last = last.cummax(dim=0).values
    begins = (reach >= places) & torch.cat([torch.ones(1, dtype=torch.bool), last[:-1] < places[1:]])
    starts = [*begins.nonzero().flatten().tolist(), length]
    found = []
    for start, stop in itertools.pairwise(starts):
        part, num_tokens = mask[start:stop, start:stop], stop - start
        sees_no_later = bool((last[start:stop] <= places[start:stop]).all())
        is_causal = sees_no_later and int(part.count_nonzero()) == num_tokens * (num_tokens + 1) // 2
        found.append((slice(start, stop), is_causal))
    return found


def _seen(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of a mask `(t, T)` -> the first and the last place that each token sees, `(t,)` each."""
    numbers = mask.view(torch.uint8)
    return numbers.argmax(dim=1), mask.shape[1] - 1 - numbers.flip(1).argmax(dim=1)


@cache
def use_in_transformers() -> None:
    """Make the `sdpa` of transformers compute documents by themselves, in this process.

    It keeps its name, because some models decide by that name what their masks hold.
    """
    from transformers import AttentionInterface

    # Taken once (`cache`): a second time, it would be the function below, which would call itself.
    sdpa: Any = AttentionInterface()["sdpa"]

    def forward(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
    ) -> tuple[Tensor, None]:
        def one(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
            found: Tensor = sdpa(module, query, key, value, mask, **settings)[0]
            return found

        # Other tensors, such as a bias by position, belong to whole rows.
        if any(isinstance(value, Tensor) and value.ndim for name, value in settings.items() if name not in BY_TOKEN):
            return one(query, key, value, attention_mask), None
        return attend(one, (query, key, value), attention_mask, tokens_dim=1), None

    AttentionInterface.register("sdpa", forward)

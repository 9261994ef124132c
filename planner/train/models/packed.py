"""Packed rows: several documents in one, each read as if it stood alone.

Shapes: m rows, T tokens.
"""

import torch
from torch import Tensor


def positions_in(documents: Tensor) -> Tensor:
    """Numbers of documents `(m, T)` -> each token's position in its own, `(m, T)` int64, from 0."""
    places = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    return places - torch.where(_begins(documents), places, 0).cummax(dim=1).values


def mask_of(documents: Tensor) -> Tensor:
    """Numbers of documents `(m, T)` -> whether a token sees another, `(m, 1, T, T)`: before it, in its own document."""
    pieces = _begins(documents).cumsum(dim=1)
    same = pieces[:, :, None] == pieces[:, None, :]
    return same.tril()[:, None]


def _begins(documents: Tensor) -> Tensor:
    """Where a document begins, `(m, T)`: a number that comes again later is another document."""
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return begins

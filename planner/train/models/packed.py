"""Positions and masks for packed rows, which hold several documents that must not interact.

Shapes: m rows, T tokens.
"""

import torch
from torch import Tensor


def positions_in(documents: Tensor) -> Tensor:
    """Document numbers `(m, T)` -> each token's position in its document, `(m, T)` int64, from 0."""
    places = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    return places - torch.where(_begins(documents), places, 0).cummax(dim=1).values


def mask_of(documents: Tensor) -> Tensor:
    """Document numbers `(m, T)` -> causal mask within documents, `(m, 1, T, T)` bool, true where a token may attend."""
    pieces = _begins(documents).cumsum(dim=1)
    same = pieces[:, :, None] == pieces[:, None, :]
    return same.tril()[:, None]


def _begins(documents: Tensor) -> Tensor:
    """Whether a document begins at a token, `(m, T)`. A number that comes again later is a new document."""
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return begins

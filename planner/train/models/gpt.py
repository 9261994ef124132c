"""A small decoder-only transformer over bytes, in the GPT-2 arrangement (pre-norm, learned positions).

Shapes: B samples, T tokens, D width, H heads, V vocabulary.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from planner.train.models.blocks import Checkpointing, checkpoint_settings, is_compiled
from planner.train.models.document_attention import Pieces, attend, mask_of, pieces_in, positions_in
from planner.train.models.head import Targets, log_probs_of

if TYPE_CHECKING:  # at run time this file needs only torch: `bench/gpu.py` runs it without pydantic
    from planner.job import GptModel

VOCABULARY = 256


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each around a residual."""

    def __init__(self, config: "GptModel", *, activation_checkpointing: Checkpointing) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.activation_checkpointing = activation_checkpointing
        self.attention_norm = nn.LayerNorm(config.width)
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.attention_out = nn.Linear(config.width, config.width)
        self.feed_forward_norm = nn.LayerNorm(config.width)
        self.feed_forward_in = nn.Linear(config.width, 4 * config.width)
        self.feed_forward_out = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor, limits: Tensor | Pieces | None = None) -> Tensor:
        """`(B, T, D)` -> `(B, T, D)`. Attention is causal, within the `limits` of `attend` if there are any.

        Activations are recomputed inside the block, so that FSDP gathers its weights once more.
        """
        if self.activation_checkpointing and torch.is_grad_enabled():
            recomputed: Tensor = checkpoint(
                self._forward, x, limits, **checkpoint_settings(self.activation_checkpointing)
            )
            return recomputed
        return self._forward(x, limits)

    def _forward(self, x: Tensor, limits: Tensor | Pieces | None) -> Tensor:
        x = x + self._attend(self.attention_norm(x), limits)
        hidden = functional.gelu(self.feed_forward_in(self.feed_forward_norm(x)))
        return x + self._drop(self.feed_forward_out(hidden))

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)

    def _attend(self, x: Tensor, limits: Tensor | Pieces | None) -> Tensor:
        b, t, d = x.shape
        heads = self.query_key_value(x).view(b, t, 3, self.heads, d // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # each (B, H, T, D / H)
        dropout = self.dropout if self.training else 0.0

        def mix(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=mask is None
            )

        mixed = attend(mix, (query, key, value), limits, tokens_dim=2)
        return self._drop(self.attention_out(mixed.transpose(1, 2).reshape(b, t, d)))


class Gpt(nn.Module):
    """Token ids `(B, T)` -> logits `(B, T, V)`, T at most `config.context`."""

    def __init__(self, config: "GptModel", *, activation_checkpointing: Checkpointing = False) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(VOCABULARY, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(
            Block(config, activation_checkpointing=activation_checkpointing) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, VOCABULARY, bias=False)
        if config.tied_embeddings:
            self.head.weight = self.token_embedding.weight
        self.dropout = config.dropout
        self.apply(_initialise)

    def forward(self, tokens: Tensor, documents: Tensor | None = None, targets: Targets | None = None) -> Tensor:
        """`(B, T)` -> `(B, T, V)`. `documents`, `(B, T)`, numbers the documents of packed rows, to keep them apart.

        With `targets`, their log-probabilities (`log_probs_of`) instead of logits.
        """
        if documents is None:
            positions, limits = torch.arange(tokens.shape[1], device=tokens.device), None
        else:
            positions, limits = positions_in(documents), self._limits(documents)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        x = functional.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x, limits)
        x = self.norm(x)
        if targets is not None:
            return log_probs_of(x, self.head.weight, None, targets)
        logits: Tensor = self.head(x)
        return logits

    def _limits(self, documents: Tensor) -> Tensor | Pieces:
        """What keeps documents apart in blocks. Pieces need values, which compiled code and a GPU do not have."""
        has_values = documents.device.type == "cpu" and not is_compiled(self.blocks[0])
        return pieces_in(documents) if has_values else mask_of(documents)


def _initialise(module: nn.Module) -> None:
    # GPT-2's initialisation (Radford et al. 2019, section 2.3, without the residual scaling).
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)

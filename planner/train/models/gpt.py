"""A small decoder-only transformer over bytes, in the GPT-2 arrangement (pre-norm, learned positions).

Shapes: B samples, T tokens, D width, H heads, V vocabulary.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from planner.train.models.blocks import Checkpointing, checkpoint_settings, is_compiled
from planner.train.models.document_attention import (
    Documents,
    HiddenPieces,
    Pieces,
    attend,
    mask_of,
    pieces_in,
    positions_in,
)
from planner.train.models.head import Targets, log_probs_of

if TYPE_CHECKING:  # at run time this file needs only torch: `bench/gpu.py` runs it without pydantic
    from planner.job import GptModel

VOCABULARY = 256

Limits = Tensor | Pieces | HiddenPieces | Documents | None
"""what keeps documents apart in a block: a mask `(m, 1, T, T)`, a call for each piece, or varlen (`Documents`)"""

# Products of a mask that take about as long as a call, forward and backward. An H100 needs 0.3 ms for a call, and with
# a mask as long for 1.0e7 products of 8 heads of width 64 (`packed` in bench/results/gpu.json).
_CALL_PRODUCTS = 2**23


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

    def forward(self, x: Tensor, limits: Limits = None) -> Tensor:
        """`(B, T, D)` -> `(B, T, D)`. Attention is causal, within the `limits` if there are any.

        Activations are recomputed inside the block, so that FSDP gathers its weights once more.
        """
        if self.activation_checkpointing and torch.is_grad_enabled():
            recomputed: Tensor = checkpoint(
                self._forward, x, limits, **checkpoint_settings(self.activation_checkpointing)
            )
            return recomputed
        return self._forward(x, limits)

    def _forward(self, x: Tensor, limits: Limits) -> Tensor:
        x = x + self._attend(self.attention_norm(x), limits)
        hidden = functional.gelu(self.feed_forward_in(self.feed_forward_norm(x)))
        return x + self._drop(self.feed_forward_out(hidden))

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)

    def _attend(self, x: Tensor, limits: Limits) -> Tensor:
        b, t, d = x.shape
        heads = self.query_key_value(x).view(b, t, 3, self.heads, d // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # each (B, H, T, D / H)
        if isinstance(limits, Documents):
            # Here, because it imports pydantic.
            from planner.train.models import varlen_attention

            within = varlen_attention.within(query, key, value, limits.places, limits.longest)
            return self._drop(self.attention_out(within.reshape(b, t, d)))
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
        self.head_width = config.width // config.heads
        self.apply(_initialise)

    def forward(
        self, tokens: Tensor, documents: Tensor | Documents | None = None, targets: Targets | None = None
    ) -> Tensor:
        """`(B, T)` -> `(B, T, V)`. `documents`, `(B, T)`, numbers the documents of packed rows, to keep them apart.

        With `targets`, their log-probabilities (`log_probs_of`) instead of logits.
        """
        if documents is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        else:
            positions = positions_in(documents.numbers if isinstance(documents, Documents) else documents)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        limits = self._limits(documents, x.dtype)
        x = functional.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x, limits)
        x = self.norm(x)
        if targets is not None:
            return log_probs_of(x, self.head.weight, None, targets)
        logits: Tensor = self.head(x)
        return logits

    def _limits(self, documents: Tensor | Documents | None, dtype: torch.dtype) -> Limits:
        """What keeps documents apart in blocks that compute in `dtype`. Pieces need values, which a GPU does not have.

        On GPUs the CPU knows the values of `Documents`. Deterministic runs keep the mask, which earlier versions of
        planner had there. So do compiled blocks.
        """
        if documents is None:
            return None
        are_compiled = is_compiled(self.blocks[0])
        if isinstance(documents, Tensor):
            return self._limits_on_cpu(documents) if documents.device.type == "cpu" else mask_of(documents)
        if are_compiled or torch.are_deterministic_algorithms_enabled():
            return mask_of(documents.numbers)
        if self._can_be_varlen(documents.numbers.device, dtype):
            return documents
        rows, tokens = documents.numbers.shape
        num_documents = len(documents.begins) - 1
        return documents.pieces() if rows * tokens**2 > num_documents * _CALL_PRODUCTS else mask_of(documents.numbers)

    def _limits_on_cpu(self, numbers: Tensor) -> Limits:
        block = self.blocks[0]
        if not is_compiled(block):
            return pieces_in(numbers)
        # Code that recomputes activations would not be compiled at all if its attention were left out.
        return mask_of(numbers) if block.activation_checkpointing else HiddenPieces(pieces_in(numbers))

    def _can_be_varlen(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether torch's varlen kernel computes these blocks' attention: it has 16-bit numbers and no dropout."""
        from planner.train.models import varlen_attention

        if dtype not in (torch.bfloat16, torch.float16) or (self.training and self.dropout):
            return False
        return varlen_attention.takes_width(self.head_width) and varlen_attention.is_there(device)


def _initialise(module: nn.Module) -> None:
    # GPT-2's initialisation (Radford et al. 2019, section 2.3, without the residual scaling).
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)

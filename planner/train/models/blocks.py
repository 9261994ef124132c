"""What a model's blocks get: activation checkpointing, and code from torch.compile."""

from collections import Counter
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import torch
from torch import Size, Tensor, nn
from torch.fx.experimental import _config as shapes
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

Checkpointing = Literal["selective"] | bool

_PRODUCTS = frozenset({"mm", "addmm"})
# `aten::_scaled_dot_product_flash_attention`, and `torch_attn::_varlen_attn` and `flash_attn::_flash_attn_forward`
_ATTENTION = ("attention", "_attn")


def checkpoint_settings(how: Checkpointing, adapter_rank: int | None = None) -> dict[str, Any]:
    """Arguments of `torch.utils.checkpoint.checkpoint`.

    True keeps a block's inputs alone. `selective` also keeps the results of attention and of every second matrix
    product, as torchtitan does: they take the most time to compute again. Products of adapters are neither counted nor
    kept, so the others are kept as without adapters.

    Args:
        how: what is kept.
        adapter_rank: of the model's LoRA adapters. None: it has none.
    """
    # Only this form of it takes `context_fn`.
    settings: dict[str, Any] = {"use_reentrant": False}
    if how == "selective":
        settings["context_fn"] = partial(_contexts, adapter_rank)
    return settings


def is_of_adapter(weight: Size, rank: int | None) -> bool:
    """Whether a matrix product with a weight is one of the two of a LoRA adapter.

    With n tokens, an adapter computes `(n, in) (in, rank)`, then `(n, rank) (rank, out)`. The second result is as large
    as that of the layer below, which takes `in / rank` times as many operations: to keep it costs as much memory and
    saves almost no time. A layer that is itself as narrow as `rank` is taken for an adapter. It costs no more than one.

    Args:
        weight: `(in, out)`.
        rank: of the adapters. None: the model has none.
    """
    return rank in weight


def _contexts(adapter_rank: int | None) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Those of one pass over a block."""
    num_products = Counter[bool]()

    def policy(context: Any, operation: Any, *inputs: Any, **_: Any) -> CheckpointPolicy:
        name = operation.name().removeprefix("aten::").partition(".")[0]
        keeps = any(part in name for part in _ATTENTION) and "backward" not in name
        # The last input of both is the weight.
        if name in _PRODUCTS and not is_of_adapter(inputs[-1].shape, adapter_rank):
            # Before torch 2.13, the recomputation asks again.
            num_products[context.is_recompute] += 1
            keeps = num_products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    forward, again = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
    return forward, again


def compile_block(block: nn.Module) -> None:
    """Compile a block's forward pass for training, in place.

    FSDP's hooks are around `forward`, so they stay outside, whether the block is sharded before or after. Both made the
    same graphs, without a break (torch 2.11 and 2.13, tried).

    Shapes are dynamic from the start, because micro-batches differ in rows and tokens. torch makes another graph for a
    size of 1, so each block has two graphs, for one row and for several, at any number of workers. Blocks of a kind
    share them, but for a first one below frozen embeddings. Packed micro-batches have one row. One text alone makes a
    graph, and several make some: on CPUs, code before and behind their attention is compiled, and attention, which
    computes each text by itself, is not (`document_attention.attend`).

    What would take more graphs runs uncompiled: ghosts, which have one token, and passes without gradients, for which
    torch 2.13 compiles attention on CPUs again for each number of tokens.

    Args:
        block: its first argument, or the one called `hidden_states`, is a tensor `(rows, tokens, ...)`.
    """
    shapes.use_duck_shape = False  # as many rows as tokens in the first batch do not mean that there always are
    plain = block.forward
    compiled = torch.compile(plain, dynamic=True)

    def forward(*inputs: Any, **settings: Any) -> Any:
        hidden: Tensor = inputs[0] if inputs else settings["hidden_states"]
        is_worth_it = torch.is_grad_enabled() and hidden.shape[1] > 1
        return (compiled if is_worth_it else plain)(*inputs, **settings)

    block.forward = forward


def is_compiled(block: nn.Module) -> bool:
    """Whether `compile_block` compiled a block."""
    return "forward" in vars(block)

"""Compiles the blocks of a model (`train.compile: blocks`)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as shapes


def compile_block(block: nn.Module) -> None:
    """Compile a block's forward pass for training, in place. Call it before the block is sharded.

    FSDP's hooks and activation checkpointing stay outside. Shapes are dynamic from the start, because micro-batches
    differ in rows and tokens. torch makes another graph for a size of 1, so each block has two graphs, for one row and
    for several, at any number of workers. Blocks of a kind share them, but for a first one below frozen embeddings.

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

"""What the backward pass computes again instead of keeping it (activation checkpointing), per block."""

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any, Literal

from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

Checkpointing = Literal["selective"] | bool

_PRODUCTS = frozenset({"mm", "addmm"})


def checkpoint_settings(how: Checkpointing) -> dict[str, Any]:
    """Arguments of `torch.utils.checkpoint.checkpoint`.

    True keeps a block's inputs alone. `selective` also keeps the results of attention and of every second matrix
    product, as torchtitan does: they take the most time to compute again.
    """
    # Only this form of it takes `context_fn`.
    settings: dict[str, Any] = {"use_reentrant": False}
    if how == "selective":
        settings["context_fn"] = _contexts
    return settings


def _contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Those of one pass over a block."""
    num_products = Counter[bool]()

    def policy(context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        name = operation.name().removeprefix("aten::").partition(".")[0]
        keeps = "attention" in name and "backward" not in name
        if name in _PRODUCTS:
            # Before torch 2.13, the recomputation asks again.
            num_products[context.is_recompute] += 1
            keeps = num_products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    forward, again = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
    return forward, again

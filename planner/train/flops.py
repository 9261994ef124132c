"""Model FLOPs of an optimizer step, from the shapes of the model's weights.

Forward and backward pass, per token (PaLM, Chowdhery et al. 2022, arXiv:2204.02311, appendix B):

    6 N + 12 L H Q T

N weights in matrix products, L layers, H heads of Q channels, T tokens of the sequence.

* A weight costs 2 FLOPs per token in the forward pass, 2 for the gradient of the input and 2 for its own gradient. A
  frozen weight has none of its own, so it costs 4. That is slightly too much: nothing needs the gradient of the first
  layers' inputs if all before them is frozen.
* N has every matrix of a linear layer, the output head included, also if it is tied. Embeddings are lookups, and
  norms, biases and activations are not counted.
* As in PaLM, attention is not halved for causal masks. A packed row is counted by its documents, as T^2 each.
* A pass without gradient costs 2 N + 4 L H Q T.
* Recomputed activations are not counted, nor is padding, nor a step that is repeated. So this is model FLOPs
  utilization (MFU) and not hardware FLOPs utilization.

Layers with a window shorter than the context, with latent attention or without softmax attention, are counted without
their attention, so MFU is slightly too low. For a mixture of experts, for a model with matrices outside linear layers,
and for one whose configuration planner cannot read, FLOPs are not known.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from planner.train.batches import TokenCounts
from planner.train.models.four_bit import FourBitLinear
from planner.train.reference.frozen import FrozenReference, PolicyWithoutAdapters, Reference


@dataclass(frozen=True, kw_only=True)
class PassFlops:
    """FLOPs of one pass: `per_token * tokens + per_square * (sum over documents of their length squared)`."""

    per_token: int = 0
    per_square: int = 0

    def __add__(self, other: "PassFlops") -> "PassFlops":
        """Both passes over the same tokens."""
        return PassFlops(per_token=self.per_token + other.per_token, per_square=self.per_square + other.per_square)

    def of(self, tokens: int, squares: int) -> int:
        """The FLOPs for so many tokens, whose documents' squared lengths sum to `squares`."""
        return self.per_token * tokens + self.per_square * squares


@dataclass(frozen=True, kw_only=True)
class StepFlops:
    """FLOPs of a step's passes. All 0 if they are not known."""

    samples: PassFlops = PassFlops()
    """of the samples' own tokens: training, and the reference's pass"""
    mismatched: PassFlops = PassFlops()
    """of the mismatched sequences of `kto`, in passes without gradient"""

    def of(self, counts: TokenCounts) -> int:
        """The FLOPs of these tokens, on any number of workers. 0 if they are not known."""
        return self.samples.of(counts.inputs, counts.squares) + self.mismatched.of(
            counts.mismatched, counts.mismatched_squares
        )


def step_flops(model: nn.Module, context: int, reference: Reference) -> StepFlops:
    """The FLOPs of a job's steps. All 0 if those of its model are not known.

    Args:
        model: the trained model, sharded or not.
        context: the most tokens of a sequence. Attention windows of at least this many are no windows.
        reference: of the objective. One that reads a table costs nothing.
    """
    sizes = _sizes_of(model, context)
    if sizes is None:
        return StepFlops()
    num_all, num_trained, attention = sizes.num_weights, sizes.num_trained, sizes.attention_channels
    training = PassFlops(per_token=4 * num_all + 2 * num_trained, per_square=12 * attention)
    without_gradient = PassFlops(per_token=2 * num_all, per_square=4 * attention)
    if isinstance(reference, PolicyWithoutAdapters):
        of_reference = PassFlops(per_token=2 * (num_all - num_trained), per_square=4 * attention)
    elif isinstance(reference, FrozenReference):
        of_reference = forward_flops(reference.model, context)
    else:
        of_reference = PassFlops()
    return StepFlops(samples=training + of_reference, mismatched=without_gradient + of_reference)


def forward_flops(model: nn.Module, context: int) -> PassFlops:
    """The FLOPs of a pass without gradient. All 0 if they are not known."""
    sizes = _sizes_of(model, context)
    if sizes is None:
        return PassFlops()
    return PassFlops(per_token=2 * sizes.num_weights, per_square=4 * sizes.attention_channels)


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """The sizes of a model that its FLOPs depend on."""

    num_weights: int
    """elements of all matrices of linear layers: N"""
    num_trained: int
    """those of them that are trained"""
    attention_channels: int
    """L * H * Q, over the layers whose tokens attend to all tokens before them"""


def _sizes_of(model: nn.Module, context: int) -> _Sizes | None:
    """The sizes of a model. None if its FLOPs are not known."""
    try:
        weights = _matmul_weights(model)
        attention = _attention_channels(model, context)
    except Exception:  # noqa: BLE001  # a model's configuration may raise anything, and a figure must not stop training
        return None
    if weights is None:
        return None
    return _Sizes(
        num_weights=sum(num for num, _ in weights),
        num_trained=sum(num for num, is_trained in weights if is_trained),
        attention_channels=attention,
    )


def _matmul_weights(model: nn.Module) -> list[tuple[int, bool]] | None:
    """Elements of each linear layer's matrix, and whether it is trained. None if other matrices may be multiplied."""
    if _is_mixture_of_experts(model):
        return None
    found = []
    for module in model.modules():
        # Conv1D is transformers' linear layer of GPT-2, with a transposed matrix.
        is_linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, FourBitLinear) and name == "weight":
                found.append((module.out_features * module.in_features, False))
            elif is_linear and name == "weight":
                found.append((math.prod(parameter.shape), parameter.requires_grad))
            elif len(parameter.shape) > 1 and not isinstance(module, nn.Embedding):
                return None
    return found


def _configs(model: nn.Module) -> Iterator[Any]:
    """The transformers configuration of the language model in a model, if it has one."""
    for module in model.modules():
        if (config := getattr(module, "config", None)) is not None and hasattr(config, "num_hidden_layers"):
            yield config.get_text_config()
            return


def _is_mixture_of_experts(model: nn.Module) -> bool:
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return any((getattr(config, name, None) or 0) > 1 for config in _configs(model) for name in names)


def _attention_channels(model: nn.Module, context: int) -> int:
    """L * H * Q: the query channels of all layers whose tokens attend to all tokens before them."""
    for config in _configs(model):
        # Without names of layers, a window is that of all layers.
        kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * int(config.num_hidden_layers)
        layers = [_of_layer(config, number) for number in range(len(kinds))]
        return sum(_query_channels(layer, kind, context) for layer, kind in zip(layers, kinds, strict=True))
    # planner's own model.
    return sum(int(block.attention_out.in_features) for block in getattr(model, "blocks", ()))


def _of_layer(config: Any, number: int) -> Any:
    """The configuration of one layer. The whole one raises an error for a value that differs between layers."""
    return config.per_layer_config[number] if getattr(config, "is_heterogeneous", False) else config


def _query_channels(layer: Any, kind: str, context: int) -> int:
    """H * Q of one layer. 0 if its attention is not counted."""
    window = getattr(layer, "sliding_window", None) if getattr(layer, "use_sliding_window", True) else None
    is_narrow = window is not None and window < context
    if kind not in ({"full_attention"} if is_narrow else {"full_attention", "sliding_attention"}):
        return 0
    # Latent attention has other channels in values than in queries.
    if getattr(layer, "kv_lora_rank", None):
        return 0
    heads = int(getattr(layer, "num_attention_heads", 0) or 0)
    channels = getattr(layer, "head_dim", None)
    return heads * int(channels) if channels else int(layer.hidden_size) if heads else 0

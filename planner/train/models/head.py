"""Log-probabilities of tokens from hidden states, in chunks, so that the logits of all tokens never exist at once.

With V words in the vocabulary, whole logits of N tokens take 4 N V bytes, and the backward pass two or three times as
many (N = 65,536, V = 128,256: 94 GiB in all). Here at most `CHUNK_LOGITS` logits exist, and a few blocks of them twice.

    z      = h W^T + b                         logits of a chunk, in the type of h and W
    log p  = z[token] - logsumexp(z)           in float32
    dL/dz  = g (onehot(token) - softmax(z))    g: the gradient of the token's log p, written over z

Products of matrices per chunk:

* 3 for a sum over all tokens: every g is the same, so the gradients are computed in the forward pass for g = 1, and
  scaled in the backward pass.
* 4 for log p of each token, whose g are known only after the last chunk: the backward pass computes the logits again,
  but not those of the last chunk. So a micro-batch of one chunk takes 3.
* 2 for log p of each token if W is frozen: the gradient of h for g = 1 is kept, one row per token.

A chunk's size depends on V and the kind of device, not on the number of workers. So `bitwise` may use it.
Shapes: N tokens with loss, D width, V vocabulary, C tokens of a chunk.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

CHUNK_LOGITS = {"cpu": 2**26, "cuda": 2**28}
"""kind of device -> most logits of a chunk: 256 MiB in float32 on the CPU, 512 MiB in bfloat16 on a GPU"""
# Kind of device -> most logits whose part of the head's gradient is one product. On a CPU, a sum over fewer tokens
# rounds less, and products for logits are faster with more (261 and 523 tokens at V = 128,256: bench/loss.py).
_HEAD_LOGITS = {"cpu": 2**25, "cuda": 2**28}
_BLOCK_LOGITS = {"cpu": 2**21, "cuda": 2**26}
"""kind of device -> most logits whose softmax is computed at once, in float32: 8 MiB and 256 MiB"""


class _Sizes:
    """The kind of device whose sizes count. None: the device of the tensors."""

    as_on: str | None = None


@contextmanager
def sized_for(kind: str) -> Iterator[None]:
    """Take the sizes for a kind of device wherever the tensors are, to find out what it would need."""
    before, _Sizes.as_on = _Sizes.as_on, kind
    try:
        yield
    finally:
        _Sizes.as_on = before


def full_chunks(vocabulary: int, kind: str) -> tuple[int, ...]:
    """Numbers of tokens, rising, from which on a loss needs no more memory for a block and for a chunk."""
    return tuple(max(most.get(kind, most["cpu"]) // vocabulary, 1) for most in (_BLOCK_LOGITS, CHUNK_LOGITS))


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A new tensor of the CPU, on a device. Python does not wait for the device."""
    # From memory that is not page-locked, CUDA copies only when it has done all before: the round before this one.
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The tokens whose log-probabilities are wanted."""

    places: Tensor
    """`(N,)` int64: where in the flattened `(n, T)` positions their hidden states are, increasing"""
    tokens: Tensor
    """`(N,)` int64"""
    is_summed: bool
    """whether only the sum over all tokens is wanted"""


def log_probs_of(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Targets) -> Tensor:
    """The targets' log-probabilities in float32: `(N,)`, or their sum.

    Args:
        hidden: `(n, T, D)`, the last hidden states.
        weight: `(V, D)`, of the output head.
        bias: `(V,)`.
        targets: the tokens.
    """
    states = _at_places(hidden, targets)
    if not torch.is_grad_enabled():  # autograd functions are not told, and would compute gradients in the forward pass
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    function = _LogProbSum if targets.is_summed else _LogProbs
    found: Tensor = function.apply(states, weight, bias, targets.tokens)  # type: ignore[no-untyped-call]
    return found


def log_probs_in(logits: Tensor, targets: Targets) -> Tensor:
    """The same from whole logits `(n, T, V)`, for heads that are more than a product of matrices."""
    rows, tokens = _at_places(logits, targets), targets.tokens
    losses = [
        functional.cross_entropy(rows[chunk].float(), tokens[chunk], reduction="none")
        for chunk in _chunks(len(tokens), rows, CHUNK_LOGITS, rows.shape[1])
    ]
    found = -torch.cat(losses) if losses else rows.float().sum(dim=-1)
    return found.sum() if targets.is_summed else found


def _at_places(values: Tensor, targets: Targets) -> Tensor:
    """`(n, T, X)` -> `(N, X)`."""
    flat = values.flatten(0, 1)
    return flat if len(flat) == len(targets.places) else flat.index_select(0, targets.places)


def _chunks(num_tokens: int, like: Tensor, most: dict[str, int], vocabulary: int) -> Iterator[slice]:
    size = max(most.get(_Sizes.as_on or like.device.type, most["cpu"]) // vocabulary, 1)
    for start in range(0, num_tokens, size):
        yield slice(start, min(start + size, num_tokens))


class _Logits:
    """A buffer for the logits of one chunk after another. On a CPU, fresh memory takes as long as the softmax."""

    def __init__(self, states: Tensor, weight: Tensor) -> None:
        self.chunks = list(_chunks(len(states), states, CHUNK_LOGITS, len(weight)))
        num_rows = self.chunks[0].stop if self.chunks else 0
        self._buffer = torch.empty(num_rows, len(weight), dtype=weight.dtype, device=weight.device)

    def compute(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`(C, D)` -> `(C, V)`, until the next ones are computed."""
        logits = self.newest(len(states))
        if bias is None:
            return torch.mm(states, weight.T, out=logits)
        return torch.addmm(bias, states, weight.T, out=logits)

    def newest(self, num_tokens: int) -> Tensor:
        """What was computed last, or made of it, for so many tokens."""
        return self._buffer[:num_tokens]


def _log_p(logits: Tensor, tokens: Tensor, *, into_excess: bool = False, factors: Tensor | None = None) -> Tensor:
    """`(C,)` in float32: log p of each token.

    With `into_excess` the logits are replaced by softmax less onehot, times a factor per token. The gradient of the
    logits is minus that, times g.
    """
    found = torch.empty(len(tokens), device=logits.device)
    for rows in _chunks(len(tokens), logits, _BLOCK_LOGITS, logits.shape[1]):
        places = tokens[rows, None]
        log_p = torch.log_softmax(logits[rows], dim=-1, dtype=torch.float32)
        found[rows] = log_p.gather(1, places)[:, 0]
        if into_excess:
            softmax = log_p.exp_()
            excess = softmax.scatter_(1, places, softmax.gather(1, places) - 1)
            logits[rows] = excess if factors is None else excess.mul_(factors[rows, None])
    return found


class _HeadGradient:
    """Sums of the gradients of the head's weight and bias over chunks, negative as `_excess` is."""

    def __init__(self, weight: Tensor, bias: Tensor | None, needed: tuple[bool, bool]) -> None:
        # Sums of many chunks are rounded once.
        self._weight = torch.zeros_like(weight, dtype=torch.float32) if needed[0] else None
        self._bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and needed[1] else None
        self._dtype = weight.dtype

    def add(self, excess: Tensor, states: Tensor) -> None:
        """Add a chunk: `(C, V)` and `(C, D)`."""
        if self._weight is not None:
            for rows in _chunks(len(states), states, _HEAD_LOGITS, excess.shape[1]):
                self._add_product(self._weight, excess[rows], states[rows])
        if self._bias is not None:
            self._bias.add_(excess.sum(dim=0, dtype=torch.float32))

    def _add_product(self, total: Tensor, excess: Tensor, states: Tensor) -> None:
        if self._dtype == torch.float32:
            # In place: the product by itself would be another matrix of the head's size for each chunk.
            total.addmm_(excess.T, states)
        else:  # `addmm_` takes one type only, and sums over chunks in bf16 would lose most of their bits
            total.add_(excess.T @ states)

    def times(self, factor: Tensor | float) -> tuple[Tensor | None, Tensor | None]:
        """The gradients times a number. The sums are used up."""
        found = (None if value is None else value.mul_(factor).to(self._dtype) for value in (self._weight, self._bias))
        weight, bias = found
        return weight, bias


class _LogProbSum(torch.autograd.Function):
    """Sum of log p over all tokens. The forward pass computes its gradient."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor) -> Tensor:
        of_states, of_weight, of_bias, _ = ctx.needs_input_grad
        total = torch.zeros((), device=states.device)
        gradient = torch.empty_like(states) if of_states else None
        head = _HeadGradient(weight, bias, (of_weight, of_bias))
        logits = _Logits(states, weight)
        for chunk in logits.chunks:
            of_chunk = logits.compute(states[chunk], weight, bias)
            total += _log_p(of_chunk, tokens[chunk], into_excess=any(ctx.needs_input_grad)).sum()
            head.add(of_chunk, states[chunk])
            if gradient is not None:
                torch.mm(of_chunk, weight, out=gradient[chunk])
        ctx.gradient, ctx.head = gradient, head
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_states = None if ctx.gradient is None else ctx.gradient.mul_(-grad)
        found = (of_states, *ctx.head.times(-grad), None)
        del ctx.gradient, ctx.head
        return found


class _LogProbs(torch.autograd.Function):
    """log p of each token. The backward pass computes most logits again, unless the head is frozen."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor) -> Tensor:
        of_states, of_weight, of_bias, _ = ctx.needs_input_grad
        ctx.is_frozen = of_states and not of_weight and not of_bias
        found = torch.empty(len(tokens), device=states.device)
        gradient = torch.empty_like(states) if ctx.is_frozen else None
        logits = _Logits(states, weight)
        for chunk in logits.chunks:
            of_chunk = logits.compute(states[chunk], weight, bias)
            found[chunk] = _log_p(of_chunk, tokens[chunk], into_excess=ctx.is_frozen)
            if gradient is not None:
                torch.mm(of_chunk, weight, out=gradient[chunk])
        if gradient is not None:
            ctx.save_for_backward(gradient)
        elif any(ctx.needs_input_grad):
            ctx.save_for_backward(states, weight, bias, tokens)
            ctx.logits = logits
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.is_frozen:
            (gradient,) = ctx.saved_tensors
            return (gradient * -grad[:, None]).to(gradient.dtype), None, None, None
        states, weight, bias, tokens = ctx.saved_tensors
        of_states, of_weight, of_bias, _ = ctx.needs_input_grad
        gradient = torch.empty_like(states) if of_states else None
        head = _HeadGradient(weight, bias, (of_weight, of_bias))
        logits, is_newest = ctx.logits, True
        # Backwards: the buffer still has the logits of the last chunk.
        for chunk in reversed(logits.chunks):
            num_tokens = chunk.stop - chunk.start
            of_chunk = logits.newest(num_tokens) if is_newest else logits.compute(states[chunk], weight, bias)
            is_newest = False
            _log_p(of_chunk, tokens[chunk], into_excess=True, factors=grad[chunk])
            head.add(of_chunk, states[chunk])
            if gradient is not None:
                torch.mm(of_chunk, weight, out=gradient[chunk])
        # Autograd keeps `ctx` as long as the graph, and the buffer may be the largest of all.
        del ctx.logits
        return (None if gradient is None else gradient.neg_(), *head.times(-1.0), None)

"""Log-probabilities computed in chunks through the head: equal to those of whole logits, with their gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from planner.train.models import head
from planner.train.models.head import Targets, log_probs_in, log_probs_of

WIDTH = 16


def whole(hidden, weight, bias, targets):
    """By one product, as every trainer did it."""
    states = hidden.flatten(0, 1)[targets.places]
    rows = torch.log_softmax(functional.linear(states, weight, bias).double(), dim=-1)
    found = rows.gather(1, targets.tokens[:, None])[:, 0]
    return found.sum() if targets.is_summed else found


def inputs(seed, *, vocabulary, num_tokens, has_bias):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(3, 7, WIDTH, generator=generator, dtype=torch.float64)
    weight = torch.randn(vocabulary, WIDTH, generator=generator, dtype=torch.float64)
    bias = torch.randn(vocabulary, generator=generator, dtype=torch.float64) if has_bias else None
    places = torch.randperm(21, generator=generator)[:num_tokens].sort().values
    tokens = torch.randint(vocabulary, (num_tokens,), generator=generator)
    return hidden, weight, bias, places, tokens


def gradients(function, tensors, targets, factors):
    """The value, and the gradient of each tensor that needs one."""
    leaves = [None if t is None else t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    value = function(*leaves, targets)
    (value * factors).sum().backward()
    return value.detach(), [None if t is None or t.grad is None else t.grad for t in leaves]


@given(
    seed=st.integers(0, 2**31),
    vocabulary=st.integers(1, 40),
    num_tokens=st.integers(0, 21),
    chunk=st.integers(1, 200),
    part=st.integers(1, 200),
    block=st.integers(1, 200),
    has_bias=st.booleans(),
    is_summed=st.booleans(),
    is_frozen=st.booleans(),
)
def test_values_and_gradients_are_those_of_whole_logits(
    seed, vocabulary, num_tokens, chunk, part, block, has_bias, is_summed, is_frozen
):
    """For any chunk, and any part of it that is one product of the head's gradient.

    With and without bias, with a frozen head, and for no tokens at all (a ghost).
    """
    hidden, weight, bias, places, tokens = inputs(seed, vocabulary=vocabulary, num_tokens=num_tokens, has_bias=has_bias)
    targets = Targets(places=places, tokens=tokens, is_summed=is_summed)
    factors = torch.tensor(-0.3) if is_summed else torch.linspace(-1, 2, num_tokens)
    single = [t if t is None else t.float() for t in (hidden, weight, bias)]
    for t in (hidden, single[0]):
        t.requires_grad_()
    for t in (weight, bias, *single[1:]):
        if t is not None:
            t.requires_grad_(not is_frozen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(head.CHUNK_LOGITS, "cpu", chunk)
        patch.setitem(head._HEAD_LOGITS, "cpu", part)
        patch.setitem(head._BLOCK_LOGITS, "cpu", block)
        found, grads = gradients(log_probs_of, single, targets, factors)
    expected, exact = gradients(whole, (hidden, weight, bias), targets, factors.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert grads[0] is not None
    assert [grad is None for grad in grads] == [grad is None for grad in exact]
    for grad, right in zip(grads, exact, strict=True):
        if grad is not None:
            torch.testing.assert_close(grad.double(), right, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("is_summed", [True, False])
def test_logits_of_other_heads_give_the_same(is_summed):
    """Heads that scale or cap their logits take the way over whole logits."""
    hidden, weight, bias, places, tokens = (
        t.float() if t.is_floating_point() else t for t in inputs(1, vocabulary=11, num_tokens=9, has_bias=True)
    )
    targets = Targets(places=places, tokens=tokens, is_summed=is_summed)
    found = log_probs_in(functional.linear(hidden, weight, bias), targets)
    torch.testing.assert_close(found, log_probs_of(hidden, weight, bias, targets), rtol=1e-5, atol=1e-5)


def test_a_half_precision_head_sums_its_gradient_in_float32():
    """A hundred chunks are rounded once: no further from the truth than one product is."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(1, 400, WIDTH, generator=generator).bfloat16()
    weight = torch.randn(32, WIDTH, generator=generator).bfloat16()
    tokens = torch.randint(32, (400,), generator=generator)
    targets = Targets(places=torch.arange(400), tokens=tokens, is_summed=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(head.CHUNK_LOGITS, "cpu", 4 * 32)
        leaves = [hidden, weight.clone().requires_grad_(), None]
        _, (_, found, _) = gradients(log_probs_of, leaves, targets, torch.tensor(1.0))
    exact_weight = weight.double().requires_grad_()
    whole(hidden.double(), exact_weight, None, targets).backward()
    error = (found.double() - exact_weight.grad).abs().max() / exact_weight.grad.abs().max()
    assert found.dtype == torch.bfloat16
    assert error < 2**-7


class Products(TorchDispatchMode):
    """Counts products of matrices."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        self.count += "mm" in function.overloadpacket.__name__
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("num_chunks", "products"), [(1, 3), (2, 7), (5, 19)])
def test_only_the_last_chunk_is_not_computed_twice(num_chunks, products):
    """Where each token has a gradient of its own. A sum takes three products for each chunk, evaluation one."""
    hidden, weight, _, places, tokens = inputs(5, vocabulary=9, num_tokens=10, has_bias=False)
    leaves = [t.float().requires_grad_() for t in (hidden, weight)]
    for is_summed, expected in ((False, products), (True, 3 * num_chunks)):
        targets = Targets(places=places, tokens=tokens, is_summed=is_summed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(head.CHUNK_LOGITS, "cpu", 9 * 10 // num_chunks)
            with Products() as counted:
                log_probs_of(*leaves, None, targets).sum().backward()
            assert counted.count == expected
            with torch.no_grad(), Products() as counted:
                log_probs_of(*leaves, None, targets)
            assert counted.count == num_chunks

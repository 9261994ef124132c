"""The fixed-point sum against exact arithmetic: its stated error bound, over gradients of many magnitudes."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.train.exact.fixed_point import HEADROOM_BITS, Exponents, exponent_for, range_bits
from planner.train.exact.gradient_sums import _ModuleSum

# Two modules of a network differ by orders of magnitude, and so do the elements of one.
MAGNITUDES = [1e-30, 1e-12, 1e-6, 1.0, 1e6, 1e30]


def summed(gradients, exponent):
    """What FSDP gets for a list of micro-batches' gradients, on one worker."""
    module = _ModuleSum("sharded")
    module.begin(exponent, is_plain=False)
    for number, gradient in enumerate(gradients, 1):
        module.is_last = number == len(gradients)
        output = gradient.clone()
        module.on_one_worker(output)
    return output


def exact(gradients, index):
    return sum((Fraction(float(gradient[index])) for gradient in gradients), Fraction(0))


@st.composite
def gradients_of_many_magnitudes(draw):
    count = draw(st.integers(1, 70))
    size = draw(st.integers(1, 40))
    magnitude = draw(st.sampled_from(MAGNITUDES))
    spread = draw(st.integers(0, 30))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    elements = torch.randn(count, size, generator=generator)
    scales = 2.0 ** -torch.randint(0, spread + 1, (size,), generator=generator)
    return list(elements * scales * magnitude)


@given(gradients=gradients_of_many_magnitudes(), headroom_used=st.integers(0, HEADROOM_BITS))
def test_the_error_is_within_its_bound(gradients, headroom_used):
    """|sum - exact| <= C/2 * 2^-e, and one rounding to float32; with the exponent of a step before, too."""
    largest = max(float(gradient.abs().max()) for gradient in gradients)
    exponent = exponent_for(largest * 2.0**-headroom_used, len(gradients))
    _, fits = Exponents(values=(exponent,), num_micro_batches=len(gradients)).after((largest,))
    assert fits
    result = summed(gradients, exponent)
    quantum = Fraction(2) ** -exponent
    for index, value in enumerate(result.tolist()):
        truth = exact(gradients, index)
        rounding = abs(truth) * Fraction(2) ** -24 + Fraction(2) ** -150
        bound = len(gradients) * quantum / 2
        # The double that the integers pass through rounds once more, 2^29 times finer.
        assert abs(Fraction(value) - truth) <= (bound + rounding) * (1 + Fraction(2) ** -20)


@given(gradients=gradients_of_many_magnitudes())
def test_it_is_no_worse_than_float64_rounded_once(gradients):
    """Off float64's sum by a rounding, by C^2 * 2^-50 of the largest element, or by quanta of 2^-120, the smallest."""
    largest = max(float(gradient.abs().max()) for gradient in gradients)
    result = summed(gradients, exponent_for(largest, len(gradients)))
    truth = torch.stack(gradients).double().sum(dim=0)
    allowed = truth.abs() * 2.0**-23 + len(gradients) ** 2 * 2.0**-50 * largest + len(gradients) * 2.0**-120
    assert bool(((result.double() - truth).abs() <= allowed).all())


@given(gradients=gradients_of_many_magnitudes(), seed=st.integers(0, 1000))
def test_the_order_changes_no_bit(gradients, seed):
    """Any order of the micro-batches, one result; a float32 sum has several (the next test)."""
    exponent = exponent_for(max(float(g.abs().max()) for g in gradients), len(gradients))
    order = torch.randperm(len(gradients), generator=torch.Generator().manual_seed(seed)).tolist()
    shuffled = [gradients[i] for i in order]
    assert torch.equal(summed(gradients, exponent), summed(shuffled, exponent))


def test_a_float32_sum_does_see_the_order():
    """Else the test above could not fail."""
    gradients = torch.randn(64, 100, generator=torch.Generator().manual_seed(1))
    forwards, backwards = torch.zeros(100), torch.zeros(100)
    for gradient in gradients:
        forwards += gradient
    for gradient in gradients.flip(0):
        backwards += gradient
    assert not torch.equal(forwards, backwards)


@given(
    largest=st.floats(2.0**-120, 2.0**127, width=32),
    count=st.integers(1, 2**20),
    growth=st.integers(0, HEADROOM_BITS),
)
def test_what_fits_cannot_overflow(largest, count, growth):
    """As many micro-batches of the largest magnitude as there are stay within an int64, headroom used up or not."""
    grown = min(largest * 2.0**growth, 2.0**127)
    exponent = exponent_for(largest, count)
    following, fits = Exponents(values=(exponent,), num_micro_batches=count).after((grown,))
    if exponent > -120:  # where the exponent is at its limit, gradients are at float32's own
        assert fits
    if fits:
        quanta = round(Fraction(grown) * Fraction(2) ** exponent)
        assert count * quanta < 2**62
    assert following.values[0] == exponent_for(grown, count)


@pytest.mark.parametrize("count", [1, 2, 3, 64, 65])
def test_one_bit_too_many_is_found(count):
    """The first magnitude that does not fit is named so, and the next exponent takes it."""
    exponents = Exponents(values=(40,), num_micro_batches=count)
    too_large = math.ldexp(1.0, range_bits(count) - 40)
    assert exponents.after((math.nextafter(too_large, 0),))[1]
    following, fits = exponents.after((too_large,))
    assert not fits
    assert following.after((too_large,))[1]

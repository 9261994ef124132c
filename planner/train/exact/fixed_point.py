"""Fixed-point gradient sums in int64, which do not depend on the order, for `bitwise` plans.

A micro-batch's gradient g of one FSDP module (float32, all its parameters in one flat tensor) becomes

    q = round(g * 2^e)                 an int64; e is one exponent per module
    sum over micro-batches of q        exact and associative: any W, any order, the same bits
    gradient = sum * 2^-e              rounded once to float32

Bounds, with C micro-batches in a global batch:

    error    every q is off by at most 1/2, so an element of the sum by at most C/2 * 2^-e
    range    every |q| < 2^62 / C, so no partial sum can overflow an int64 (checked per micro-batch, because partial
             sums do depend on the order)

e is chosen so that the module's largest |g| lies `HEADROOM_BITS` below that range. A quantum (2^-e) is then
2^-(62 - log2(C) - HEADROOM_BITS) of the largest element. With C = 64, elements down to 2^-26 of the largest are summed
at least as exactly as in float32, and smaller ones with the same absolute error. (1e-12 beside 1e6 cannot both be kept
in one module. A float32 sum would also lose the former if they were added.) e is at most 120, so quanta are never below
2^-120 (8e-37): with a largest gradient of 1e-30, 20 bits are kept.

e depends only on the checkpoint: it follows from the largest |g| of the step before, and a maximum does not depend on
the order. If a gradient exceeds the range, all workers see that in the same step, and repeat the step with a coarser e
(`Exponents.after`).
"""

import math
from dataclasses import dataclass

RANGE_BITS = 62
# Gradients may grow by 2^HEADROOM_BITS from one step to the next before a step must be repeated.
HEADROOM_BITS = 8
# 2^e itself must be a float32, and so must g * 2^e.
_LARGEST_EXPONENT = 120


@dataclass(frozen=True, kw_only=True)
class Exponents:
    """One exponent per FSDP module, in the order of the modules."""

    values: tuple[int, ...]
    num_micro_batches: int

    def after(self, largest: tuple[float, ...]) -> "tuple[Exponents, bool]":
        """The exponents for the next step, and whether this step's sums can be used.

        `largest` is the largest |g| of each module over all micro-batches and workers.
        """
        fits = all(g == 0 or self._fits(g, e) for g, e in zip(largest, self.values, strict=True))
        chosen = tuple(
            # A module that got no gradient in this step says nothing about its magnitude.
            exponent_for(g, self.num_micro_batches) if g else e
            for g, e in zip(largest, self.values, strict=True)
        )
        return Exponents(values=chosen, num_micro_batches=self.num_micro_batches), fits

    def _fits(self, largest: float, exponent: int) -> bool:
        return math.frexp(largest)[1] + exponent <= range_bits(self.num_micro_batches)


def range_bits(num_micro_batches: int) -> int:
    """The most bits that one micro-batch's |q| may have, so that `num_micro_batches * |q| < 2^62`."""
    # `(C - 1).bit_length()` is log2(C), rounded up.
    return RANGE_BITS - (num_micro_batches - 1).bit_length()


def exponent_for(largest: float, num_micro_batches: int) -> int:
    """The exponent with which `largest` (> 0, finite) lies `HEADROOM_BITS` below the range."""
    # frexp: largest = f * 2^x with f in [1/2, 1), so largest * 2^e < 2^(x + e).
    exponent = range_bits(num_micro_batches) - HEADROOM_BITS - math.frexp(largest)[1]
    return max(min(exponent, _LARGEST_EXPONENT), -_LARGEST_EXPONENT)

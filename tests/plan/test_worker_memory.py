"""The memory of a worker against sums by hand, and what holds for every model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlanError
from planner.plan.gpu_kinds import gpu_kind
from planner.plan.memory import (
    Footprint,
    Items,
    Live,
    MemoryRules,
    Pass,
    SampleSize,
    Unit,
    Units,
    worker_memory,
)

ADAMW = MemoryRules(optimizer_numbers=2, update_numbers=0, is_fixed_point=False, has_fast_exchange=True)
REST = Unit(trained=1000, frozen_bytes=0, gathered_bytes=2000)
BLOCK = Unit(trained=400, frozen_bytes=80, gathered_bytes=880)


def live(peak, end):
    return Live(peak=peak, end=end)


def passes(rows, *, loss=20_000):
    """Of a model with two blocks."""
    return Pass(
        forward=live(300 * rows, 250 * rows),
        loss=live(loss * rows, 260 * rows),
        blocks=(live(900 * rows, 200 * rows), live(850 * rows, 100 * rows)),
        end=live(90 * rows, 50 * rows),
    )


def footprint(**changes):
    facts = {
        "units": Units(rest=REST, blocks=(BLOCK, BLOCK)),
        "reference": None,
        "sample": SampleSize(rows=1, tokens=8, is_summed=True),
        "measured": ((1, passes(1)), (2, passes(2))),
    }
    return Footprint(**{**facts, **changes})


def memory(found=None, rules=ADAMW, *, world_size=1, samples=1, rounds=1, placement="sharded", **more):
    return worker_memory(
        found or footprint(),
        rules,
        world_size=world_size,
        samples=samples,
        rounds=rounds,
        placement=placement,
        **more,
    )


def test_one_worker_in_one_round():
    """1,800 trained numbers of 4 bytes, twice as many of AdamW, 160 frozen bytes. In the loss no block is gathered."""
    found = memory()
    assert found.moment == "loss"
    assert found.items == Items(weights=7360, optimizer=14_400, gathered=2000, activations=20_000)
    assert found.peak_bytes == 43_760


def test_later_rounds_have_the_sums_of_earlier_ones_and_the_last_buffer():
    """4 bytes for each trained number, and what the rest's sum went through."""
    assert memory(rounds=2).items == Items(
        weights=7360, optimizer=14_400, gathered=2000, gradients=7200, exchange=4000, activations=20_000
    )


def test_several_workers_share_what_is_sharded_and_gather_into_a_second_buffer():
    """Four workers."""
    assert memory(world_size=4).items == Items(weights=1840, optimizer=3600, gathered=2880, activations=20_000)


def test_whole_sums_are_not_divided():
    """Sums that are exchanged once per step."""
    found = memory(world_size=4, rounds=2, placement="local").items
    assert (found.gradients, found.exchange) == (7200, 0)


def test_integer_sums_take_eight_bytes_beside_a_shard_of_zeros():
    """`bitwise`."""
    rules = MemoryRules(optimizer_numbers=2, update_numbers=1, is_fixed_point=True, has_fast_exchange=True)
    assert memory(rules=rules, rounds=2).items.gradients == 12 * 1800
    assert memory(rules=rules, world_size=2, rounds=2, placement="local").items.gradients == 8 * 1800


def test_the_backward_pass_of_a_block_comes_after_the_sums_of_later_blocks():
    """With a small loss, the second block's backward pass needs the most: one block is summed, its buffer is kept."""
    small = ((1, passes(10, loss=1)), (2, passes(20, loss=1)))
    found = memory(footprint(measured=small), world_size=2, samples=1)
    assert found.moment == "backward"
    assert found.items == Items(
        weights=3680, optimizer=7200, gradients=800, gathered=2000 + 2 * 880, exchange=1600, activations=8500
    )


def test_the_optimizers_step_may_need_the_most():
    """Gradients, and as many numbers as it makes."""
    rules = MemoryRules(optimizer_numbers=2, update_numbers=2, is_fixed_point=False, has_fast_exchange=True)
    tiny = Pass(forward=live(1, 1), loss=live(1, 1), blocks=(live(1, 1), live(1, 1)), end=live(1, 1))
    found = memory(footprint(measured=((1, tiny), (2, tiny))), rules, world_size=2)
    assert found.moment == "update"
    assert found.items == Items(weights=3680, optimizer=7200, gradients=3600, update=7200)


def test_a_frozen_reference_stays_gathered_outside_of_its_blocks():
    """Its passes have no backward pass that would free it."""
    reference = Units(rest=Unit(trained=0, frozen_bytes=4000, gathered_bytes=2000), blocks=(BLOCK,))
    assert memory(footprint(reference=reference), world_size=2).items.reference == 4080 // 2 + 2000


def test_a_mask_is_there_while_the_micro_batch_is():
    """Not in the optimizer's step."""
    assert memory(mask_bytes=77).items.activations == 20_077


def test_micro_batches_between_and_beyond_those_measured():
    """The loss grows up to four samples, and no more."""
    found = footprint(measured=((1, passes(1)), (4, passes(4)), (8, passes(8, loss=10_000))))
    assert found.passes(2) == passes(2)
    assert found.passes(6).loss.peak == 80_000
    assert found.passes(16).forward == live(4800, 4000)
    assert found.passes(16).loss.peak == 80_000
    assert found.passes(1) == passes(1)


numbers = st.integers(0, 10**9)


@given(
    trained=numbers, frozen=numbers, peak=numbers, world_size=st.integers(1, 64), rounds=st.integers(1, 4), more=numbers
)
def test_more_workers_or_smaller_micro_batches_never_need_more(trained, frozen, peak, world_size, rounds, more):
    """From two workers on: one alone gathers nothing into a second buffer."""
    unit = Unit(trained=trained, frozen_bytes=frozen, gathered_bytes=2 * trained)
    shape = Units(rest=unit, blocks=(unit,))

    def of(size):
        return Pass(*(), forward=live(size, size), loss=live(size, size), blocks=(live(size, size),), end=live(0, 0))

    found = footprint(units=shape, measured=((1, of(peak)), (2, of(peak + more))))
    here = memory(found, world_size=world_size + 1, samples=2, rounds=rounds).peak_bytes
    assert memory(found, world_size=world_size + 2, samples=2, rounds=rounds).peak_bytes <= here
    assert memory(found, world_size=world_size + 1, samples=1, rounds=rounds).peak_bytes <= here
    assert here >= found.passes(2).forward.peak + 4 * 2 * trained // (world_size + 1)


@pytest.mark.parametrize(
    ("text", "name", "gib"),
    [
        ("h100-80g", "h100-80g", 79.6),
        ("H100", "h100-80g", 79.6),
        ("NVIDIA A100-80GB", "a100-80g", 80.0),
        ("A100_40GB", "a100-40g", 40.0),
        ("NVIDIA H100 80GB HBM3", "h100-80g", 79.6),
        ("Tesla V100-SXM2-16GB", "v100-16g", 16.0),
        ("24g", "24g", 24.0),
        ("96GiB", "96GiB", 96.0),
    ],
)
def test_names_of_gpus(text, name, gib):
    """As people write them."""
    found = gpu_kind(text)
    assert found.name == name
    assert found.memory_bytes == pytest.approx(gib * 2**30, rel=1e-3)


@pytest.mark.parametrize(("text", "told"), [("A100", "a100-40g and a100-80g"), ("tpu", "not known"), ("0g", "0g")])
def test_names_that_are_no_gpu(text, told):
    """What there is instead."""
    with pytest.raises(PlanError, match=told):
        gpu_kind(text)

"""Caps that are lowered after a lack of memory, and whether those on record can be right."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.plan import BatchSizes, make_plan
from planner.plan.lowered_caps import (
    Caps,
    LoweredCap,
    LoweredCaps,
    caps_text,
    least_caps,
    lower,
    lowered_sizes,
    misfits,
)

DEVICES = ("CPU", "NVIDIA A", "NVIDIA B")


@st.composite
def histories(draw):
    """A job's caps, and lowerings as groups of any devices make them."""
    longest = draw(st.none() | st.integers(1, 300))
    tokens = None if longest is None else draw(st.integers(longest, 10_000))
    caps = LoweredCaps(of=Caps(max_micro=draw(st.integers(1, 4096)), max_tokens=tokens))
    for _ in range(draw(st.integers(0, 12))):
        devices = draw(st.sets(st.sampled_from(DEVICES), min_size=1))
        was = least_caps(caps.of, caps.where(devices))
        samples = draw(st.integers(1, was.max_micro))
        now = lower(was, samples=samples, tokens=draw(st.none() | st.integers(1, 9000)), longest=longest)
        if now is not None:
            place = draw(st.sampled_from(["forward", "backward"]))
            device = draw(st.sampled_from(sorted(devices)))
            caps = caps.with_one(LoweredCap(device=device, place=place, was=was, now=now))
    return caps, longest


@given(histories(), st.sets(st.sampled_from(DEVICES), min_size=1))
def test_what_a_run_lowers_fits_on_record(found, devices):
    """For a group of any devices: what its header has is free of contradictions."""
    caps, _ = found
    lowered = caps.where(devices)
    assert list(misfits(caps.of, lowered, least_caps(caps.of, lowered))) == []


@given(histories())
def test_each_lowering_halves_the_largest_micro_batch_and_none_is_below_the_longest_sample(found):
    caps, longest = found
    for each in caps.lowered:
        assert 1 <= each.now.max_micro <= each.was.max_micro // 2
        assert each.now.is_within(each.was)
        if longest is not None:
            assert each.now.max_tokens >= longest


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_lowering_ends(max_micro, samples):
    """After at most log2 of the cap, one sample is left."""
    caps, times = Caps(max_micro=max_micro), 0
    while (now := lower(caps, samples=samples, tokens=None, longest=None)) is not None:
        caps, times = now, times + 1
    assert times <= max_micro.bit_length() - 1
    assert min(samples, caps.max_micro) == 1


@given(histories(), st.integers(1, 500), st.integers(1, 40))
def test_a_lower_cap_computes_the_same_samples_in_more_rounds(found, global_batch, workers):
    caps, _ = found
    sizes = BatchSizes(global_batch=global_batch, max_micro=caps.of.max_micro)
    lowered = [replace(each, now=Caps(max_micro=each.now.max_micro)) for each in caps.lowered]
    before, after = make_plan(sizes, workers), make_plan(lowered_sizes(sizes, lowered), workers)
    assert after.shares == before.shares
    assert after.accumulation_steps >= before.accumulation_steps


def lowered(was, now, device="CPU"):
    return LoweredCap(device=device, place="forward", was=was, now=now)


OF, HALF = Caps(max_micro=8, max_tokens=400), Caps(max_micro=4, max_tokens=200)


@pytest.mark.parametrize(
    ("on_record", "caps", "says"),
    [
        ([], HALF, "its micro-batches have at most 4 samples and 200 tokens, and its job and lowered caps say 8"),
        ([lowered(OF, HALF)], OF, "at most 8 samples and 400 tokens, and its job and lowered caps say 4 samples"),
        ([lowered(OF, HALF)], Caps(max_micro=4), "at most 4 samples, and"),
        ([lowered(Caps(max_micro=16, max_tokens=400), HALF)], HALF, "from 16 samples and 400 tokens, which was not"),
        ([lowered(Caps(max_micro=8), HALF)], HALF, "from 8 samples, which was not in force"),
        ([lowered(OF, HALF), lowered(OF, HALF)], HALF, "from 8 samples and 400 tokens, which was not in force"),
        ([lowered(OF, Caps(max_micro=5, max_tokens=400))], Caps(max_micro=5, max_tokens=400), "to 5 samples"),
        ([lowered(OF, Caps(max_micro=0, max_tokens=1))], Caps(max_micro=0, max_tokens=1), "to 0 samples"),
        ([lowered(OF, Caps(max_micro=4, max_tokens=401))], HALF, "to 4 samples and 401 tokens"),
    ],
)
def test_what_cannot_be_right_on_record_is_found(on_record, caps, says):
    """Another plan than the job and the lowerings give, or a lowering from a cap that was not in force."""
    assert any(says in wrong for wrong in misfits(OF, on_record, caps)), list(misfits(OF, on_record, caps))


def test_two_kinds_of_devices_are_lowered_each_from_what_the_group_had():
    """The second kind fails with the cap of the first."""
    quarter = Caps(max_micro=2, max_tokens=100)
    both = [lowered(OF, HALF), lowered(HALF, quarter, "NVIDIA A")]
    assert list(misfits(OF, both, quarter)) == []
    assert list(misfits(OF, both[:1], HALF)) == []
    assert list(misfits(OF, both[1:], quarter)) == []


def test_another_cap_in_the_job_file_begins_anew():
    """The user has decided."""
    caps = LoweredCaps(of=OF, lowered=(lowered(OF, HALF),))
    assert caps.for_job(OF) == caps
    assert caps.for_job(HALF) == LoweredCaps(of=HALF)


def test_half_of_the_largest_micro_batch_counts_and_not_half_of_the_cap():
    """A cap of 4,096 samples, of which 12 were ever in one micro-batch."""
    was = Caps(max_micro=4096, max_tokens=8192)
    assert lower(was, samples=12, tokens=3000, longest=700) == Caps(max_micro=6, max_tokens=1500)
    assert lower(was, samples=12, tokens=3000, longest=2000) == Caps(max_micro=6, max_tokens=2000)
    assert lower(was, samples=12, tokens=None, longest=700) == Caps(max_micro=6, max_tokens=4096)
    assert lower(was, samples=1, tokens=3000, longest=700) is None


def test_caps_read_as_a_sentence_has_them():
    assert [caps_text(Caps(max_micro=1)), caps_text(Caps(max_micro=8, max_tokens=4096))] == [
        "1 sample",
        "8 samples and 4,096 tokens",
    ]


@pytest.mark.parametrize(("most", "is_right"), [(1, True), (4, True), (5, False), (8, False)])
def test_with_auto_a_plan_may_have_less_than_what_was_lowered_and_no_more(most, is_right):
    """The memory of the group's devices decides, and a cap that was lowered still holds."""
    of, half = Caps(max_micro=8), Caps(max_micro=4)
    found = list(misfits(of, [lowered(of, half)], Caps(max_micro=most), is_auto=True))
    assert (not found) == is_right


@pytest.mark.parametrize(
    ("found", "is_right"),
    [
        (Caps(max_micro=4, max_tokens=200), True),
        (Caps(max_micro=4, max_tokens=1), True),
        (Caps(max_micro=4, max_tokens=201), False),
        (Caps(max_micro=3, max_tokens=200), False),
        (Caps(max_micro=4), False),
    ],
)
def test_auto_tokens_may_be_less_and_the_samples_may_not(found, is_right):
    """A cap on samples that is a number stays one."""
    wrong = list(misfits(OF, [lowered(OF, HALF)], found, are_tokens_auto=True))
    assert (not wrong) == is_right
    assert (
        list(misfits(OF, [lowered(OF, HALF)], Caps(max_micro=3, max_tokens=9), is_auto=True, are_tokens_auto=True))
        == []
    )
    assert any(misfits(Caps(max_micro=8), [], OF, are_tokens_auto=True))

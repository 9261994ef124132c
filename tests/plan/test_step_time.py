"""The step model: its terms, and what a fit finds."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.plan import BatchSizes, make_plan
from planner.plan.speed import Speeds
from planner.plan.step_time import NOTHING, MeasuredSize, StepModel, Term, Traffic, compute_by_flops, fit, rounds_of

seconds = st.floats(1e-4, 10)
counts = st.sets(st.integers(1, 64), min_size=1, max_size=8)
modes = st.sampled_from(["balanced", "bitwise"])


def plan_at(world_size, global_batch=240, max_micro=8, mode="balanced"):
    return make_plan(BatchSizes(global_batch=global_batch, max_micro=max_micro, equality=mode), world_size)


def planted(sample_s=0.1, round_s=0.0, fixed_s=0.0, s_per_byte=0.0, **more):
    values = (Term(value=value, source="assumed") for value in (sample_s, round_s, fixed_s, s_per_byte))
    sample, each_round, fixed, per_byte = values
    return StepModel(
        sample_s=sample, round_s=each_round, fixed_s=fixed, in_node_s_per_byte=per_byte, between_s_per_byte=per_byte,
        **more,
    )  # fmt: skip


def measured(model, plan, *, knows_waits=True):
    """What a run would measure at a plan: its time, and the mean worker's wait for bytes and for larger shares."""
    parts = model.parts(plan)
    waits = parts.gather_s + parts.reduce_s + model.sample_s.value * (plan.work - plan.global_batch / plan.world_size)
    return MeasuredSize(plan=plan, seconds=parts.step_s, waited_s=waits if knows_waits else None)


# -- the model


def test_each_term_by_hand():
    """G = 240 on 7 workers: 35 samples one after another in 5 rounds, and 6/7 of the bytes come from others."""
    traffic = Traffic(gather_bytes=140.0, reduce_bytes=70.0)
    model = replace(planted(0.1, 0.01, 0.5, 1e-3, traffic=traffic), commit_s=Term(value=0.02, source="measured"))
    parts = model.parts(plan_at(7))
    assert (parts.compute_s, parts.rounds_s) == (pytest.approx(3.5), pytest.approx(0.05))
    assert (parts.gather_s, parts.reduce_s) == (pytest.approx(5 * 140e-3 * 6 / 7), pytest.approx(70e-3 * 6 / 7))
    assert (parts.fixed_s, parts.commit_s) == (0.5, 0.02)
    assert model.seconds_per_step(plan_at(7)) == parts.step_s == pytest.approx(3.5 + 0.05 + 0.5 + 0.6 + 0.06)
    every_round = replace(model, traffic=replace(traffic, reduces_every_round=True))
    assert every_round.parts(plan_at(7)).reduce_s == pytest.approx(5 * parts.reduce_s)


def test_the_slowest_link_of_the_ring_counts():
    """One worker receives nothing, and the workers of one node do not use the network between nodes."""
    slow = Term(value=1.0, source="data sheet")
    model = replace(planted(s_per_byte=0.01), between_s_per_byte=slow, node_workers=4)
    alone, one_node, two_nodes = (model.parts(plan_at(w)) for w in (1, 4, 5))
    assert alone.gather_s == alone.reduce_s == 0
    assert (one_node.reduce_s, two_nodes.reduce_s) == (pytest.approx(0.01 * 3 / 4), pytest.approx(4 / 5))


@given(sample_s=seconds, round_s=seconds, fixed_s=seconds, mode=modes)
def test_without_bytes_more_workers_are_never_slower(sample_s, round_s, fixed_s, mode):
    """Neither the cost nor the rounds rise with W."""
    model = planted(sample_s, round_s, fixed_s)
    times = [model.seconds_per_step(plan_at(w, mode=mode)) for w in range(1, 81)]
    assert all(more <= fewer * (1 + 1e-9) for fewer, more in pairwise(times))


@given(s_per_byte=seconds, rounds=st.integers(1, 5))
def test_at_equal_rounds_more_workers_move_more_bytes(s_per_byte, rounds):
    """Up to twice what two workers move."""
    model = planted(s_per_byte=s_per_byte)
    moved = [model.parts(plan_at(w, global_batch=w * 8 * rounds)).gather_s for w in range(1, 65)]
    assert all(fewer < more for fewer, more in pairwise(moved))
    assert moved[-1] < 2 * moved[1]


def test_compute_by_flops_is_work_over_a_rate():
    """6 GFLOP at 3 TFLOP/s, as certain as the rate is."""
    rate = Term(value=3e12, source="data sheet", because="40 % of the peak")
    assert compute_by_flops(6e9, rate) == Term(value=0.002, source="data sheet", because="40 % of the peak")
    with pytest.raises(ValueError, match="must be above 0"):
        compute_by_flops(0.0, rate)


# -- the fit


@given(
    sample_s=st.floats(0.01, 1),
    round_s=st.floats(0, 1),
    fixed_s=st.floats(0, 5),
    s_per_byte=st.floats(0, 0.5),
    asked=st.integers(1, 64),
)
def test_planted_terms_are_found(sample_s, round_s, fixed_s, s_per_byte, asked):
    """Sizes whose rounds do not follow the cost: all other sizes are then known within 5 %, and bytes within 8 %."""
    model = planted(sample_s, round_s, fixed_s, s_per_byte)
    sizes = [measured(model, plan_at(w)) for w in (1, 2, 3, 5, 7, 12, 16, 24, 31, 48, 61)]
    found = fit(sizes)
    assert found.seconds_per_step(plan_at(asked)) == pytest.approx(model.seconds_per_step(plan_at(asked)), rel=0.05)
    if s_per_byte > 0.1:
        assert found.in_node_s_per_byte.value == pytest.approx(s_per_byte, rel=0.08)


@given(sample_s=st.floats(0.05, 1), s_per_byte=st.floats(0.01, 0.5), asked=st.integers(1, 64))
def test_two_sizes_tell_samples_from_bytes(sample_s, s_per_byte, asked):
    """Where the time in collectives is known. W = 1, 2 tell what 3 to 64 do."""
    model = planted(sample_s, s_per_byte=s_per_byte)
    found = fit([measured(model, plan_at(w)) for w in (1, 2)])
    assert found.seconds_per_step(plan_at(asked)) == pytest.approx(model.seconds_per_step(plan_at(asked)), rel=1e-6)


def test_without_waits_bytes_have_no_term_of_their_own():
    """Their time is then in other terms, and the model says so."""
    found = fit([measured(planted(s_per_byte=0.1), plan_at(w), knows_waits=False) for w in (1, 2, 4)])
    assert found.in_node_s_per_byte == found.between_s_per_byte == NOTHING
    assert found.fixed_s.value + found.round_s.value > 0
    assert (found.sample_s.source, found.sample_s.because) == ("fitted", "of the steps at W = 1, 2, 4")


def test_waits_for_larger_shares_are_no_bytes():
    """3 samples on 2 workers: the second one waits for a sample, and no byte is slow."""
    plan = plan_at(2, global_batch=3)
    found = fit([MeasuredSize(plan=plan, seconds=2.0, waited_s=0.5)])
    assert found.sample_s.value == pytest.approx(1.0)
    assert found.in_node_s_per_byte.value == pytest.approx(0.0)


def sizes_of(times, mode):
    return [
        MeasuredSize(plan=plan_at(w, mode=mode), seconds=taken, waited_s=waited) for w, (taken, waited) in times.items()
    ]


@given(
    times=st.dictionaries(
        st.integers(1, 64), st.tuples(st.floats(1e-3, 1e3), st.none() | st.floats(0, 2e3)), min_size=1, max_size=6
    ),
    mode=modes,
)
def test_no_term_is_negative_and_every_size_takes_time(times, mode):
    """Whatever was measured, with any noise, and with waits that are longer than the step."""
    model = fit(sizes_of(times, mode))
    for world_size in (1, 2, 33, 64):
        parts = model.parts(plan_at(world_size, mode=mode))
        assert min(parts.compute_s, parts.rounds_s, parts.fixed_s, parts.gather_s, parts.reduce_s) >= 0
        assert 0 < parts.step_s < 1e9


@given(times=st.dictionaries(st.integers(1, 64), st.tuples(st.floats(1e-2, 1e2), st.none()), min_size=1, max_size=6))
def test_the_unit_of_time_does_not_matter(times):
    """Milliseconds give the same terms as seconds, times a thousand."""
    model = fit(sizes_of(times, "balanced"))
    in_ms = fit(sizes_of({w: (1e3 * taken, None) for w, (taken, _) in times.items()}, "balanced"))
    for world_size in (1, 5, 64):
        plan = plan_at(world_size)
        assert in_ms.seconds_per_step(plan) == pytest.approx(1e3 * model.seconds_per_step(plan), rel=1e-6)


@given(known=counts, asked=st.integers(1, 80), s_per_byte=st.floats(0, 0.5))
def test_the_controller_and_a_plan_say_the_same(known, asked, s_per_byte):
    """`Speeds` decides by the fit, and meets the nearest measurement."""
    model = planted(s_per_byte=s_per_byte)
    sizes = [measured(model, plan_at(w)) for w in known]
    times = {size.plan.world_size: size.seconds for size in sizes}
    waits = {size.plan.world_size: size.waited_s for size in sizes}
    said = Speeds(measured=times, waited=waits).seconds_per_step(plan_at(asked))
    given_model = Speeds(measured=times, model=fit(sizes)).seconds_per_step(plan_at(asked))
    assert said == pytest.approx(given_model)


@given(
    counts=st.sets(st.integers(1, 24), min_size=1, max_size=4),
    caps=st.lists(st.integers(1, 16), min_size=4, max_size=4),
    asked=st.integers(1, 24),
    cap=st.integers(1, 16),
)
def test_what_was_measured_with_other_micro_batches_is_scaled_by_rounds(counts, caps, asked, cap):
    """`auto` and lowered caps give each size its own rounds. With the true model, every time comes out as it is."""
    model = planted(0.1, round_s=0.7, fixed_s=0.3)
    plans = {count: plan_at(count, max_micro=each) for count, each in zip(sorted(counts), caps, strict=False)}
    times = {count: model.seconds_per_step(plan) for count, plan in plans.items()}
    speeds, plan = Speeds(measured=times, plans=plans, model=model), plan_at(asked, max_micro=cap)
    assert speeds.seconds_per_step(plan) == pytest.approx(model.seconds_per_step(plan))
    assert speeds.has(plan) == (asked in plans and plans[asked].accumulation_steps == plan.accumulation_steps)


def test_rounds_by_length_follow_from_the_tokens_of_a_mean_sample():
    """64 samples of 35 tokens on one worker: 2,240 tokens are one round of that many, and 12 of 200."""
    one, many = (make_plan(BatchSizes(global_batch=64, max_micro=64, max_tokens=most), 1) for most in (2240, 200))
    assert [rounds_of(plan, 35.0) for plan in (one, many)] == [1, 12]
    assert rounds_of(many, 0.0) == rounds_of(plan_at(30), 35.0) == 1
    model = planted(0.001, round_s=0.02, sample_tokens=35.0)
    seconds = model.seconds_per_step(one)
    speeds = Speeds(measured={1: seconds}, plans={1: one}, model=model)
    assert speeds.seconds_per_step(many) == pytest.approx(seconds + 11 * 0.02)
    fitted = fit([measured(model, plan) for plan in (one, many)], sample_tokens=35.0)
    assert fitted.round_s.value == pytest.approx(0.02, rel=0.05)


def test_sizes_with_different_caps_tell_rounds_apart():
    """16 workers in 1 round, 8 in 8, 4 in 4: the fit sees the rounds that each had, not those of one cap."""
    model = planted(0.1, round_s=0.5)
    plans = {16: plan_at(16, max_micro=16), 8: plan_at(8, max_micro=4), 4: plan_at(4, max_micro=16)}
    fitted = Speeds(measured={w: model.seconds_per_step(p) for w, p in plans.items()}, plans=plans).law(plan_at(2))
    assert (fitted.sample_s.value, fitted.round_s.value) == (pytest.approx(0.1, rel=0.05), pytest.approx(0.5, rel=0.05))


def test_a_given_model_needs_no_measurement():
    """As of a rates file whose job has another batch."""
    assert Speeds(model=planted(0.1, fixed_s=1.0)).seconds_per_step(plan_at(8)) == pytest.approx(4.0)


@pytest.mark.parametrize(("taken", "waited"), [(0.0, None), (float("nan"), None), (1.0, -1.0), (1.0, float("inf"))])
def test_impossible_measurements_are_refused(taken, waited):
    """The error names the world size."""
    with pytest.raises(ValueError, match="world size 4 "):
        MeasuredSize(plan=plan_at(4), seconds=taken, waited_s=waited)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_impossible_terms_are_refused(value):
    """With the number."""
    with pytest.raises(ValueError, match="must be finite and 0 or more"):
        Term(value=value, source="fitted")

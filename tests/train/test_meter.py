"""What one worker measures: tokens of every kind of micro-batch, times, memory, and the records of a meter."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.data.samples import Feedback, Pair, Text
from planner.store.records import StepRecord
from planner.train import meter as meters
from planner.train.batches import LoadedStep, StepCosts, TokenCounts
from planner.train.flops import PassFlops, StepFlops
from planner.train.meter import Meter, peak_memory_bytes
from planner.train.sample_batches import SampleBatch, batch_of, feedback_batch, pair_batch, text_batch
from planner.train.stopwatch import Stopwatch
from planner.train.world import World, cpu_device


def text(length, documents=None):
    ids = np.arange(length, dtype=np.int32)
    return Text(inputs=ids, labels=ids, documents=None if documents is None else np.array(documents, np.int32))


def of_lengths(*lengths):
    """A micro-batch of texts with these numbers of tokens."""
    return batch_of(range(len(lengths)), [Text.of(np.arange(n, dtype=np.int32)) for n in lengths])


class Rows:
    """A data set whose row i is the i-th of some samples."""

    def __init__(self, found):
        self.found = found

    def samples(self, rows):
        return [self.found[row] for row in rows]


@given(st.lists(st.integers(2, 9), min_size=1, max_size=4))
def test_tokens_of_rows(lengths):
    """A row of n tokens has n - 1 inputs. The longest row sets the padding."""
    batch = of_lengths(*lengths)
    inputs = [n - 1 for n in lengths]
    assert batch.token_counts == TokenCounts(
        inputs=sum(inputs), padded=len(inputs) * max(inputs), squares=sum(n * n for n in inputs)
    )


def test_tokens_of_conversations():
    """A packed row counts by its documents."""
    rows = Rows([text(5), text(6, [0, 0, 1, 2, 2, 2])])
    assert text_batch(rows, [0, 0], 0).token_counts == TokenCounts(inputs=10, padded=10, squares=50)
    packed = Rows([text(6, [0, 0, 1, 2, 2, 2]), text(2, [0, 1])])
    assert text_batch(packed, [0, 1], 0).token_counts == TokenCounts(inputs=8, padded=12, squares=4 + 1 + 9 + 1 + 1)


def test_tokens_of_pairs():
    """Both completions count."""
    rows = Rows([Pair(chosen=text(3), rejected=text(5))])
    assert pair_batch(rows, [0], 0).token_counts == TokenCounts(inputs=8, padded=10, squares=34)


def test_tokens_of_feedback():
    """Mismatched sequences count by themselves: each prompt with the next completion."""
    prompts = [np.zeros(2, np.int32), np.zeros(3, np.int32)]
    samples = [
        Feedback(text=text(4 + i), is_desirable=True, prompt=prompt, context=24) for i, prompt in enumerate(prompts)
    ]
    counts = feedback_batch(Rows(samples), [0, 1], 0, partners=[1, 0]).token_counts
    batch = feedback_batch(Rows(samples), [0, 1], 0, partners=[1, 0])
    lengths = batch.mismatched.lengths
    assert len(lengths) == 2
    assert counts == TokenCounts(
        inputs=9, padded=10, squares=41, mismatched=sum(lengths), mismatched_squares=sum(n * n for n in lengths)
    )


@pytest.mark.parametrize(
    "ghost",
    [
        batch_of([], []),
        text_batch(Rows([]), [], 0),
        pair_batch(Rows([]), [], 0),
        feedback_batch(Rows([]), [], 0, partners=[]),
    ],
)
def test_a_ghost_has_only_padding(ghost):
    """One token for each of its sequences."""
    padded = 2 if "PairBatch" in type(ghost).__name__ else 1
    assert ghost.token_counts == TokenCounts(padded=padded)


def test_a_lap_belongs_to_one_part(monkeypatch):
    """What is skipped belongs to none. Taking the times resets them."""
    times = iter([0.0, 1.0, 3.0, 7.0, 15.0, 31.0])
    monkeypatch.setattr("planner.train.stopwatch.time.perf_counter", lambda: next(times))
    watch = Stopwatch()
    watch.skip()
    watch.lap("forward")
    watch.lap("backward")
    watch.skip()
    watch.lap("forward")
    assert watch.take(all_of_it=True) == {"data": 0.0, "forward": 18.0, "backward": 4.0, "update": 0.0}
    assert set(watch.take(all_of_it=False).values()) == {0.0}


def test_peak_memory_is_what_linux_says_of_this_process(tmp_path, monkeypatch):
    """Its largest resident set, not the one of now, nor its address space, nor that of the process that started it."""
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t 9000000 kB\nVmHWM:\t    3000 kB\nVmRSS:\t    2000 kB\n")
    assert Path("/proc/self/status") == meters._STATUS
    monkeypatch.setattr(meters, "_STATUS", status)
    assert peak_memory_bytes(torch.device("cpu")) == 3000 * 1024


STEP = StepRecord(
    step=0, cursor=4, samples=4, tokens=9, checksum="0" * 16, loss=1.0, grad_norm=1.0, lr=0.1, seconds=0.25
)


def measured(meter, batch, numbers, due, last=None, costs=None):
    """The measurements of some steps, in the order in which they are given back."""
    found = []
    for number in numbers:
        meter.begin_step(LoadedStep(batches=[batch], costs=costs))
        record = STEP.model_copy(update={"step": number})
        found += meter.end_step(record, is_due=number in due, is_last=number == last)
    return found


@pytest.mark.usefixtures("process_group")
def test_every_step_is_in_one_measurement():
    """A measurement is given back one step after it was due, and at the last step at once."""
    flops = StepFlops(samples=PassFlops(per_token=10, per_square=1))
    meter = Meter(World.join(cpu_device), flops, 2e12)
    batch = of_lengths(3, 5)
    assert set(meter.newest.values()) == {0}
    found = measured(meter, batch, range(3), due={0, 2})
    assert [(each.step, each.num_steps) for each in found] == [(1, 1)]
    found += measured(meter, batch, range(3, 9), due={7}, last=8)
    assert [(each.step, each.num_steps) for each in found] == [(1, 1), (3, 2), (8, 5), (9, 1)]
    for each in found:
        assert (each.input_tokens, each.padded_tokens) == (6 * each.num_steps, 8 * each.num_steps)
        assert each.flops == (10 * 6 + 4 + 16) * each.num_steps
        assert (each.seconds, each.peak_flops_per_s) == (0.25 * each.num_steps, 2e12)
        assert each.mfu == pytest.approx(80 / (0.25 * 2e12))
        assert each.tokens_per_s == 24.0
    assert meter.newest["input_tokens"] == 6
    assert meter.newest["tokens_per_s"] == 24.0
    assert meter.newest["peak_memory_bytes"] == found[-1].peak_memory_bytes > 0


@pytest.mark.usefixtures("process_group")
def test_costs_by_length_add_up_and_others_are_not_written():
    """A measurement has the costs of its own steps. In plans by samples, ledgers are as they were."""
    meter = Meter(World.join(cpu_device), StepFlops(samples=PassFlops(per_token=1)), 0.0)
    costs = StepCosts(samples=60, rounds=80)
    found = measured(meter, of_lengths(4), range(5), due={1}, last=4, costs=costs)
    assert [(each.num_steps, each.cost, each.round_cost, each.num_rounds) for each in found] == [
        (2, 120, 160, 2),
        (3, 180, 240, 3),
    ]
    assert {each.efficiency for each in found} == {0.75}
    (other,) = measured(meter, of_lengths(4), [5], due=(), last=5)
    assert other.efficiency == 0.0
    assert not {"cost", "round_cost", "num_rounds"} & other.model_dump().keys()


@pytest.mark.usefixtures("process_group")
def test_a_worker_without_a_known_peak_makes_it_unknown():
    """Then there is no MFU."""
    meter = Meter(World.join(cpu_device), StepFlops(samples=PassFlops(per_token=1)), 0.0)
    (found,) = measured(meter, of_lengths(4), [0], due=(), last=0)
    assert (found.flops, found.peak_flops_per_s, found.mfu) == (3.0, 0.0, 0.0)


@pytest.mark.usefixtures("process_group")
def test_large_runs_do_not_overflow(monkeypatch):
    """16 million tokens of a 400B model in sequences of 128k, on 2^14 GPUs of 2.5 PFLOP/s each, in one step."""
    counts = TokenCounts(inputs=2**24, padded=2**25, squares=2**41)
    monkeypatch.setattr(SampleBatch, "token_counts", property(lambda _batch: counts))
    flops = StepFlops(samples=PassFlops(per_token=6 * 400 * 10**9, per_square=12 * 126 * 16384))
    meter = Meter(World.join(cpu_device), flops, 2.5e15)
    (found,) = measured(meter, batch_of([], []), [0], due=(), last=0)
    assert found.flops == flops.of(counts) > 4e19
    assert found.peak_flops_per_s == 2.5e15
    assert 2**14 * 2.5e15 / meters._FLOP_PER_S < 2**63


def test_counts_add_up():
    """Field by field."""
    names = [each.name for each in dataclasses.fields(TokenCounts)]
    one = TokenCounts(**{name: i for i, name in enumerate(names)})
    assert dataclasses.asdict(one + one) == {name: 2 * i for i, name in enumerate(names)}

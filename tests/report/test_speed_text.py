"""Speed, memory and the division of a step's time in the terminal and in `planner show`."""

import dataclasses
import json

import pytest
from test_runs import BEGAN_S, commit, header, segment, steps, survey

from planner.report.run_table import detail_json, detail_text, run_detail
from planner.report.run_view import speed_texts, step_line
from planner.report.speed import Speed, size_text
from planner.store.records import MeasurementRecord
from planner.story.run_story import RunStory, story_of


def measurement(step, **changes):
    """8 steps in 2 s on devices of 1 TFLOP/s together."""
    fields = {
        "step": step,
        "num_steps": 8,
        "seconds": 2.0,
        "input_tokens": 9000,
        "padded_tokens": 10000,
        "flops": 8e11,
        "peak_flops_per_s": 1e12,
        "peak_memory_bytes": 3 * 2**30,
        "data_s": 0.01,
        "forward_s": 0.5,
        "backward_s": 1.0,
        "update_s": 0.4,
        "communication_s": 0.2,
        "time_s": BEGAN_S + step,
        **changes,
    }
    return MeasurementRecord.model_validate(fields)


def shown(*records):
    """The lines of `planner show`, by their names."""
    text = detail_text(run_detail(survey(segment(1, 0, *records))), BEGAN_S)
    return {line.partition(" ")[0]: line for line in text if line}


def test_a_step_line_has_speed_and_memory():
    """Between the samples and the commit. Without a measurement there is no hole."""
    story = story_of([header(1, 0), *steps(0), measurement(8)])
    assert step_line(story).endswith("8.0 samples/s  4,500 tokens/s  MFU 40%  3.0 GiB  durable 0")
    assert speed_texts(RunStory()) == []


def test_what_is_not_known_is_left_out():
    """A CPU has no peak, and a user's own samples have no tokens."""
    own = measurement(8, input_tokens=0, padded_tokens=0, flops=0.0, peak_flops_per_s=0.0)
    story = story_of([header(1, 0), own])
    assert speed_texts(story) == ["3.0 GiB"]
    assert "tokens" not in shown(*steps(0), own)["speed"]
    assert "MFU not known here" in shown(*steps(0), own)["speed"]


def test_waiting_is_told_where_lengths_are_known():
    """The part of the rounds in which workers wait for the longest micro-batch."""
    speed = Speed.of([measurement(8, cost=60, round_cost=80, num_rounds=9), measurement(16, cost=30, round_cost=40)])
    assert speed.waiting == 0.25
    assert speed.rate_text == "4,500 tokens/s (10% padding, 25% waiting), MFU 40%"
    assert "waiting" not in Speed.of([measurement(8)]).rate_text


def test_the_last_measurements_count_together():
    """Weighted by their time. One of a short last step changes little, and a new generation begins anew."""
    last = measurement(9, num_steps=1, seconds=0.5, input_tokens=100, padded_tokens=200, flops=0.0)
    records = [header(1, 0), *(measurement(8) for _ in range(9)), last]
    speed = Speed.of(story_of(records).measured)
    assert speed.tokens_per_s == pytest.approx((4 * 9000 + 100) / 8.5)
    assert speed.mfu == pytest.approx(4 * 8e11 / 8.5e12)
    assert speed.padding == pytest.approx(1 - 36100 / 40200)
    assert speed.step_s == pytest.approx(8.5 / 33)
    assert not story_of([*records, header(2, 9)]).measured


def test_show_divides_the_time_of_a_step():
    """In percent of a step, with the collectives inside and the last commit beside it."""
    lines = shown(*steps(0), measurement(8), commit(8))
    assert lines["speed"].endswith("8.0 samples/s over the last steps, 4,500 tokens/s (10% padding), MFU 40%")
    assert lines["memory"].endswith("3.0 GiB at most, on the fullest worker")
    division = "0.25 s: data 0.5%, forward 25%, backward 50%, update 20%. Of it 10% in collectives"
    assert [line for line in lines.values() if f"{division}. The last commit paused training for 1 s" in line]
    assert shown(*steps(0)).keys().isdisjoint({"memory"})


def test_show_says_when_the_last_commit_was_durable():
    """If that is on record: commits of earlier versions do not have it."""
    record = commit(8).model_copy(update={"seconds": 0.1, "write_s": 5.4})
    lines = shown(*steps(0), measurement(8), record)
    said = "The last commit paused training for 0.1 s and was durable after 5.4 s"
    assert [line for line in lines.values() if said in line]


def test_show_has_the_same_in_json():
    """None before the first measurement."""
    detail = run_detail(survey(segment(1, 0, *steps(0), measurement(8))))
    found = json.loads(detail_json(detail))
    assert found["speed"] == dataclasses.asdict(Speed.of([measurement(8)]))
    assert found["commit_s"] == 0.0
    assert json.loads(detail_json(run_detail(survey(segment(1, 0)))))["speed"] is None


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, ""), (361185280, "344 MiB"), (2**30, "1.0 GiB"), (150 * 2**30, "150.0 GiB")]
)
def test_a_size_has_a_unit(size_bytes, text):
    """Powers of 1,024."""
    assert size_text(size_bytes) == text


def test_a_damaged_record_divides_by_nothing():
    """A file may hold anything."""
    nothing = measurement(0, num_steps=0, seconds=0.0, peak_flops_per_s=0.0, padded_tokens=0)
    speed = Speed.of([nothing])
    assert (speed.tokens_per_s, speed.mfu, speed.padding) == (0.0, 0.0, 0.0)
    assert speed.division_text(1.0) == ""

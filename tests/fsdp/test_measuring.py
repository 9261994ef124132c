"""Measurements in real FSDP processes: tokens, FLOPs, memory and times of every step, at any world size."""

import json
from pathlib import Path

import pytest
from sample_sets import write_rows
from worker_functions import TWO_BLOCKS, make_job, records, run_job

pytestmark = pytest.mark.fsdp

STEPS = 12
PARTS = ("data_s", "forward_s", "backward_s", "update_s")


def measured(workers, world_size, job, url, *more):
    workers.run(run_job, world_size, job, str(url), *more)
    return records(url, "measurement")


def total(found, name):
    return sum(each[name] for each in found)


@pytest.fixture(scope="module")
def by_world_size(workers, texts, tmp_path_factory):
    """World size -> (steps, measurements) of the same job."""
    found = {}
    for world_size in (1, 2, 3):
        url = tmp_path_factory.mktemp("measured")
        job = make_job(texts, steps=STEPS, model=TWO_BLOCKS)
        found[world_size] = measured(workers, world_size, job, url), records(url)
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_step_is_measured_once(by_world_size, world_size):
    """None is missing or measured twice, and they took as long as the steps did. Every figure is there."""
    found, steps = by_world_size[world_size]
    ends = [each["step"] for each in found]
    assert ends[-1] == STEPS
    assert [each["num_steps"] for each in found] == [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    assert total(found, "seconds") == pytest.approx(total(steps, "seconds"))
    for each in found:
        assert min(each[part] for part in PARTS) >= 0
        assert each["communication_s"] >= 0
        assert each["forward_s"] > 0
        assert each["backward_s"] > 0
        assert each["peak_memory_bytes"] > 0
        assert each["peak_flops_per_s"] == 0.0  # not known for a CPU


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_tokens_and_flops_do_not_depend_on_the_split(by_world_size, world_size):
    """Tokens as counted by hand from the rows, whose every token bears loss. Padding does depend on it."""
    found, steps = by_world_size[world_size]
    assert total(found, "input_tokens") == total(steps, "tokens")
    assert all(each["padded_tokens"] >= each["input_tokens"] for each in found)
    assert total(found, "flops") == total(by_world_size[1][0], "flops")
    # 2 layers of width 32, 12 D^2 each, and the head: matrices of 2 * 12 * 32^2 + 32 * 256 weights.
    num_weights = 2 * 12 * 32**2 + 32 * 256
    assert total(found, "flops") > 6 * num_weights * total(found, "input_tokens")
    longest = 12 * 2 * 32 * 24 * total(found, "input_tokens")
    assert total(found, "flops") <= 6 * num_weights * total(found, "input_tokens") + longest


def test_one_epoch_has_the_tokens_of_the_file(workers, texts, tmp_path):
    """Each row once: a begin and its bytes, cut to the context. The end is only predicted."""
    job = make_job(texts, global_batch=20, max_micro=4, steps=10, model=TWO_BLOCKS)
    found = measured(workers, 3, job, tmp_path)
    lengths = [min(len(json.loads(row)["text"]) + 1, 24) for row in Path(texts).read_text().splitlines()]
    assert total(found, "input_tokens") == sum(lengths)
    num_weights = 2 * 12 * 32**2 + 32 * 256
    squares = sum(length * length for length in lengths)
    assert total(found, "flops") == 6 * num_weights * sum(lengths) + 12 * 2 * 32 * squares


@pytest.mark.parametrize(
    ("objective", "data"),
    [
        ({"kind": "sft"}, "chat"),
        ({"kind": "dpo"}, "pairs"),
        ({"kind": "dpo", "reference": "cached"}, "pairs"),
        ({"kind": "kto"}, "feedback"),
    ],
    ids=["sft", "dpo", "dpo cached", "kto"],
)
def test_objectives_over_samples_are_measured(workers, tmp_path, objective, data):
    """FLOPs of the reference and of passes without gradient included, in bitwise runs too."""
    path = write_rows(tmp_path / "rows.jsonl", data)
    costs = []
    for world_size in (1, 3):
        job = make_job(
            "",
            global_batch=7,
            max_micro=2,
            steps=3,
            objective=objective,
            data={"kind": data, "path": path},
            batch={"equality": "bitwise"},
        )
        found = measured(workers, world_size, job, tmp_path / str(world_size))
        assert total(found, "num_steps") == 3
        assert total(found, "padded_tokens") > total(found, "input_tokens") > 0
        costs.append((total(found, "input_tokens"), total(found, "flops")))
    assert costs[0] == costs[1]


def test_a_stop_measures_up_to_the_last_step(workers, texts, tmp_path):
    """And the next generation goes on from there."""
    job = make_job(texts, steps=8)
    first = measured(workers, 2, job, tmp_path, 3)
    both = measured(workers, 3, job, tmp_path)
    assert first[-1]["step"] == 3
    assert total(first, "num_steps") == 3
    assert both[-1]["step"] == total(both, "num_steps") == 8


def reports(_rank, job, url):
    """The metrics that a worker reports."""
    from planner.train.generation import train
    from planner.train.hooks import Hooks
    from planner.train.setup import Launch
    from planner.train.world import cpu_device

    found = []
    train(Launch(job=job, url=url), cpu_device, Hooks(report=found.append))
    return found


def test_reports_have_the_newest_measurement(workers, texts, tmp_path):
    """On every worker, beside the step's own figures. It is of earlier steps, at the last step of that one too."""
    by_rank = workers.run(reports, 2, make_job(texts, steps=6), str(tmp_path))
    for found in by_rank:
        first, last = found[0], found[-1]
        assert (first["step"], first["tokens_per_s"], last["step"]) == (0, 0, 5)
        assert last["tokens_per_s"] > 0
        assert last["peak_memory_bytes"] > 0
        assert last["forward_s"] > 0
        assert last["mfu"] == 0

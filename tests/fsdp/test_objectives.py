"""Objectives over prompts and completions in real FSDP processes: exact, bitwise, and held to the first weights."""

import pytest
from sample_sets import open_in_memory
from test_bitwise import result
from worker_functions import make_job, records, run_job

pytestmark = pytest.mark.fsdp

# objective, data
KINDS = {
    "sft": ({"kind": "sft"}, "chat"),
    "sft over samples": ({"kind": "sft", "mean_over": "samples"}, "chat"),
    "dpo": ({"kind": "dpo", "beta": 0.5}, "pairs"),
    "ipo": ({"kind": "ipo"}, "pairs"),
    "simpo": ({"kind": "simpo"}, "pairs"),
    "kto": ({"kind": "kto", "beta": 0.5}, "feedback"),
}


def sample_job(path, name, *, steps=5, equality="batches", **sections):
    objective, data = KINDS[name]
    return make_job(
        path,
        steps=steps,
        global_batch=7,
        max_micro=2,
        **{
            "objective": objective,
            "eval": {"samples": 4, "every_steps": 2},
            **sections,
            # Large steps: first weights find all completions nearly alike.
            "train": {"optimizer": {"kind": "sgd", "lr": 0.3}, "clip_norm": None, **sections.get("train", {})},
            "data": {"kind": data, "path": str(path)},
            "batch": {"equality": equality},
        },
    )


def run_samples(rank, job, url, *arguments, **more):
    """`run_job` on data that is made in memory."""
    from planner import identity

    before = identity.open_dataset
    identity.open_dataset = open_in_memory
    try:
        return run_job(rank, job, url, *arguments, **more)
    finally:
        identity.open_dataset = before


@pytest.fixture
def path(tmp_path):
    """A file to name: what is read is made in memory."""
    file = tmp_path / "rows.json"
    file.write_text("[]")
    return file


def measured(url):
    """Losses and metrics, of steps and of held-out samples."""
    steps = {("step", s["step"]): {"loss": s["loss"], **s["metrics"]} for s in records(url)}
    return steps | {("eval", s["step"]): {"loss": s["loss"], **s["metrics"]} for s in records(url, "eval")}


@pytest.mark.parametrize("name", KINDS)
def test_losses_and_metrics_do_not_depend_on_the_workers(workers, tmp_path, path, name):
    """W = 1, 2, 3 with a prime batch: equal to rounding, the samples exactly."""
    job = sample_job(path, name)
    for world_size in (1, 2, 3):
        workers.run(run_samples, world_size, job, str(tmp_path / str(world_size)))
    one = measured(tmp_path / "1")
    assert len(one) == 5 + 4
    for other in ("2", "3"):
        found = measured(tmp_path / other)
        assert found.keys() == one.keys()
        for key, values in one.items():
            assert found[key] == pytest.approx(values, rel=1e-4, abs=1e-4), key
        assert [(s["checksum"], s["tokens"]) for s in records(tmp_path / other)] == [
            (s["checksum"], s["tokens"]) for s in records(tmp_path / "1")
        ]


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_every_bit_is_equal_through_a_history(workers, tmp_path, path, name):
    """W = 1 and 2, and 3, 2, 1 with a resize in between: weights, losses and metrics."""
    job = sample_job(path, name, equality="bitwise")
    for world_size in (1, 2):
        workers.run(run_samples, world_size, job, str(tmp_path / str(world_size)))
    history = str(tmp_path / "history")
    for world_size, stop_at in ((3, 2), (2, 2), (1, None)):
        workers.run(run_samples, world_size, job, history, stop_at)
    expected = result(tmp_path / "1")
    assert len(expected[0]) > 20
    assert result(tmp_path / "2") == expected
    assert result(history) == expected
    assert measured(history) == measured(tmp_path / "1")
    assert [g["world_size"] for g in records(history, "generation")] == [3, 2, 1]

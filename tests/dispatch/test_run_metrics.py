"""The values of a run's metrics, from records that no run has written."""

import pytest
from made_up_records import commit, header, measurement, step

from planner.dispatch.run_metrics import METRICS, RunMetrics
from planner.store.records import EvalRecord


def values_of(*records, is_training=True):
    """name -> value, and `name/label` -> value."""
    metrics = RunMetrics("ours")
    for record in records:
        metrics.add(record)
    found = metrics.values(is_training=is_training)
    return {
        "/".join(filter(None, (name.removeprefix("planner_"), label))): value for (name, label), value in found.items()
    }


def test_a_generation_shows_its_plan():
    """13 samples on 3 workers of at most 4: shares of 5 and 4 in two rounds."""
    found = values_of(header(2, world_size=3, step=7))
    assert found["workers"] == 3
    assert found["generation"] == 2
    assert found["global_batch_samples"] == 13
    assert found["rounds"] == 2
    assert (found["largest_share_samples"], found["smallest_share_samples"]) == (5, 4)
    assert found["plan_efficiency_ratio"] == pytest.approx(13 / (3 * 5))
    assert (found["step"], found["committed_step"], found["total_steps"]) == (7, 7, 100)


def test_a_plan_of_another_version_is_left_out():
    """A run that another version began has its other metrics."""
    found = values_of(header(1, world_size=3, step=7).model_copy(update={"layout_version": 99}), step(7))
    assert (found["workers"], found["step"]) == (3, 8)
    assert "rounds" not in found


def test_a_plan_by_length_has_no_numbers_of_an_earlier_plan():
    """A run that `batch.max_tokens` was added to. Rounds and efficiency come with the first measurement."""
    by_length = header(2, world_size=3, step=1).model_copy(update={"layout_version": 2, "max_tokens": 512})
    records = [header(1, world_size=3), step(0), by_length, step(1)]
    names = {"rounds", "largest_share_samples", "smallest_share_samples", "plan_efficiency_ratio"}
    assert not names & values_of(*records).keys()
    costs = {"cost": 30, "round_cost": 40, "num_rounds": 8}
    found = values_of(*records, measurement(**costs))
    assert {name: found[name] for name in names & found.keys()} == {"rounds": 2, "plan_efficiency_ratio": 0.75}


def test_an_idle_worker_has_the_smallest_share():
    """14 workers for 13 samples."""
    assert values_of(header(1, world_size=14))["smallest_share_samples"] == 0


def test_a_step_shows_its_loss_and_what_the_objective_measures():
    """A metric without a value at a step keeps its last one."""
    found = values_of(header(1, world_size=1), step(0, margin=0.25, accuracy=0.5), step(1, loss=1.25, margin=0.75))
    assert (found["loss"], found["grad_norm"], found["learning_rate"]) == (1.25, 0.5, 0.1)
    assert found["objective_metric/margin"] == 0.75
    assert found["objective_metric/accuracy"] == 0.5
    assert found["step"] == 2
    assert found["step_seconds"] == 2.0
    assert found["samples_per_second"] == pytest.approx(6.5)


def test_held_out_losses_stand_beside_those_of_training():
    """With the metrics of the evaluation."""
    record = EvalRecord(step=0, samples=5, tokens=50, loss=2.5, metrics={"margin": 0.125}, seconds=1.0)
    found = values_of(header(1, world_size=1), record)
    assert found["eval_loss"] == 2.5
    assert found["eval_metric/margin"] == 0.125
    assert "loss" not in found


def test_a_commit_has_a_step_a_duration_and_a_time():
    """Its time is that of the header and of what happened since."""
    found = values_of(header(1, world_size=1, time_s=1000.0), step(0), step(1), commit(2, seconds=0.5))
    assert found["committed_step"] == 2
    assert found["commit_seconds"] == 0.5
    assert "commit_write_seconds" not in found  # not known
    assert found["commit_timestamp_seconds"] == pytest.approx(1004.5)
    assert found["commits_total"] == 1


def test_a_measurement_is_shown_per_step_and_per_second():
    """4 steps in 8 s."""
    found = values_of(header(1, world_size=1), measurement())
    assert found["tokens_per_second"] == 500.0
    assert found["mfu_ratio"] == pytest.approx(0.25)
    assert found["peak_memory_bytes"] == 2**30
    parts = [found[f"step_{part}_seconds"] for part in ("data", "forward", "backward", "update", "communication")]
    assert parts == pytest.approx([0.1, 0.5, 1.0, 0.2, 0.3])


def test_what_is_not_known_has_no_series():
    """A peak that is in no table, and tokens that were not counted."""
    found = values_of(header(1, world_size=1), measurement(peak_flops_per_s=0.0, input_tokens=0, peak_memory_bytes=0))
    assert not {"mfu_ratio", "tokens_per_second", "peak_memory_bytes"} & set(found)
    assert found["step_data_seconds"] == pytest.approx(0.1)


def test_lost_steps_are_redone_and_counted():
    """Steps 2 and 3 are lost with their workers: the step falls, counters do not."""
    steps = [step(number) for number in range(4)]
    records = [header(1, world_size=2), *steps[:2], commit(2), *steps[2:], header(2, world_size=1, step=2)]
    before = values_of(*records)
    assert (before["step"], before["steps_done_total"], before["steps_redone_total"]) == (2, 4, 0)
    found = values_of(*records, step(2), step(3), step(4))
    assert found["step"] == 5
    assert found["steps_done_total"] == 7
    assert found["steps_redone_total"] == 2
    assert found["samples_total"] == 7 * 13
    assert found["loss_tokens_total"] == 700
    assert found["resizes_total"] == 1
    assert found["time_seconds/lost"] == 4.0
    assert found["time_seconds/redone"] == 4.0


def test_counters_begin_with_each_launch_and_gauges_go_on():
    """A resumed driver has counted nothing yet, and its first group is no resize. What was done before is known."""
    first = [header(1, world_size=2, launch="theirs"), *(step(number) for number in range(4)), commit(2)]
    found = values_of(*first, header(2, world_size=1, step=2, time_s=1020.0), step(2))
    assert found["steps_done_total"] == 1
    assert found["steps_redone_total"] == 1
    assert found["resizes_total"] == found["commits_total"] == 0
    assert found["committed_step"] == 2
    assert found["time_seconds/trained"] == 6.0


def test_counters_keep_the_last_steps_of_a_launch_that_another_replaces():
    """A look may read them together with the header of the launch that took the run over."""
    found = values_of(header(1, world_size=2), commit(0), step(0), step(1), header(2, world_size=2, launch="theirs"))
    assert (found["commits_total"], found["steps_done_total"]) == (1, 2)


@pytest.mark.parametrize(
    ("launch", "is_training"), [("ours", False), ("theirs", True)], ids=["no group trains", "none has begun"]
)
def test_without_a_group_there_are_no_workers_and_no_speed(launch, is_training):
    """Everything else keeps its last value."""
    records = [header(1, world_size=2, launch=launch), step(0), measurement()]
    found = values_of(*records, is_training=is_training)
    assert found["workers"] == found["samples_per_second"] == found["tokens_per_second"] == found["mfu_ratio"] == 0
    assert found["loss"] == 1.5
    assert found["step"] == 1


def test_speed_follows_a_resize_at_once():
    """The moving average begins again: it would hide what the resize did."""
    records = [header(1, world_size=2), step(0, seconds=1.0), header(2, world_size=1, step=1)]
    assert values_of(*records)["samples_per_second"] == 0
    assert values_of(*records, step(1, seconds=2.0))["samples_per_second"] == pytest.approx(6.5)


def test_a_run_that_waits_for_nodes_has_no_workers():
    """Before its first generation. Counters are there, so that their first event is a rise."""
    found = values_of()
    assert found["workers"] == 0
    assert found["resizes_total"] == found["steps_done_total"] == 0
    assert "step" not in found


COMMIT = commit(1).model_copy(update={"write_s": 5.0})


def test_all_metrics_have_a_value_after_all_kinds_of_records():
    """And none is without a name in the table."""
    evaluation = EvalRecord(step=1, samples=5, tokens=50, loss=2.5, metrics={"margin": 0.1}, seconds=1.0)
    metrics = RunMetrics("ours")
    for record in (header(1, world_size=2), step(0, margin=0.5), evaluation, COMMIT, measurement()):
        metrics.add(record)
    assert {name for name, _label in metrics.values(is_training=True)} == {each.name for each in METRICS}
    with_label = {name for name, label in metrics.values(is_training=True) if label}
    assert with_label == {each.name for each in METRICS if each.label}


def test_names_and_units_follow_prometheus():
    """Base units in names, and `_total` for counters and for nothing else."""
    assert len({each.name for each in METRICS}) == len(METRICS)
    for each in METRICS:
        assert (each.kind == "counter") == each.name.endswith("_total")
        for unit in ("seconds", "bytes", "samples", "tokens"):
            assert unit not in each.unit or unit in each.name, each.name
        assert "planner" not in each.name.removeprefix("planner_")
        assert each.help[0].isupper()
        assert not each.help.endswith(".")

"""Which rows are final: each step once, by rising number, as the committed lineage has it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledgers import commit, evaluation, header, loss, measurement, step

from planner.tracking.final_steps import FinalSteps


def rows_of(history, *, flush=True):
    """The rows that become final: `history` is a list of (generation, record)."""
    steps = FinalSteps()
    found = [row for generation, record in history for row in steps.add(generation, record)]
    return [*found, *steps.flush()] if flush else found


def numbers(rows):
    return [row.step for row in rows]


def first(generation=1):
    return generation, header(generation, 0)


def done(generation, *steps):
    return [(generation, step(generation, number)) for number in steps]


def test_a_step_appears_with_its_commit():
    """Not before. The row of the newest step waits for its evaluation. A later step shows that there is none."""
    steps = FinalSteps()
    assert list(steps.add(*first())) == []
    assert [row for record in done(1, 0, 1, 2) for row in steps.add(*record)] == []
    assert steps.live == {"live/step": 3, "live/loss": loss(1, 2), "live/world_size": 2}
    assert numbers(steps.add(1, commit(1, 2))) == [1, 2]
    assert numbers(steps.add(1, step(1, 3))) == []
    assert numbers(steps.flush()) == []
    assert numbers(steps.add(1, commit(1, 4))) == [3]
    assert numbers(steps.flush()) == [4]
    assert steps.live == {}


def test_a_commit_on_record_after_later_steps_makes_its_own_steps_final():
    """It was written beside those steps, which may still be undone. Its evaluation came before it."""
    steps = FinalSteps()
    history = [first(), *done(1, 0, 1), (1, evaluation(2, 3.0)), *done(1, 2, 3)]
    assert [row for record in history for row in steps.add(*record)] == []
    rows = list(steps.add(1, commit(1, 2)))
    assert numbers(rows) == [1, 2]
    assert (rows[1].values["eval/loss"], rows[1].values["speed/commit_s"]) == (3.0, 0.5)
    assert steps.live["live/step"] == 4
    assert numbers(steps.flush()) == []
    assert numbers(row for record in [(2, header(2, 2)), *done(2, 2)] for row in steps.add(*record)) == []
    [row] = [*steps.add(2, commit(2, 3)), *steps.flush()]
    assert (row.step, row.values["train/loss"]) == (3, loss(2, 2))


def test_a_step_is_final_when_it_is_durable_not_when_it_is_held():
    """The commit's record comes behind later steps and the evaluation of its own step. Its row has both times."""
    steps = FinalSteps()
    history = [first(), *done(1, 0, 1), (1, evaluation(2, 3.0)), *done(1, 2, 3)]
    assert [row for record in history for row in steps.add(*record)] == []
    record = commit(1, 2).model_copy(update={"write_s": 4.0})
    rows = list(steps.add(1, record))
    assert numbers(rows) == [1, 2]
    assert (rows[1].values["speed/commit_s"], rows[1].values["speed/commit_write_s"]) == (0.5, 4.0)
    assert rows[1].values["eval/loss"] == 3.0
    assert numbers(steps.add(1, commit(1, 4))) == [3]


def test_a_header_below_later_steps_still_waits_for_the_repeated_evaluation():
    """The next generation evaluates its first step again, although the one before had done later steps."""
    steps = FinalSteps()
    history = [first(), *done(1, 0, 1, 2, 3), (2, header(2, 2))]
    assert numbers(row for record in history for row in steps.add(*record)) == [1]
    rows = list(steps.add(2, evaluation(2, 3.0)))
    assert numbers(rows) == [2]
    assert rows[0].values["eval/loss"] == 3.0


def test_the_rows_of_a_long_interval_are_looked_at_once():
    """Not all pending rows at each step: their number may be that of all steps."""

    class Counted(dict):
        looks = 0

        def __iter__(self):
            Counted.looks += 1
            return super().__iter__()

    steps = FinalSteps()
    steps._pending = Counted()
    history = [first(), *done(1, *range(100)), (1, commit(1, 100))]
    assert numbers(row for record in history for row in steps.add(*record)) == list(range(1, 100))
    assert Counted.looks < 10


def test_an_evaluation_stands_in_the_row_of_its_step():
    """It is written after the commit of the step. One before the first step is a row of its own."""
    history = [first(), (1, evaluation(0, 9.0)), *done(1, 0, 1), (1, commit(1, 2)), (1, evaluation(2, 3.0))]
    rows = rows_of(history, flush=False)
    assert numbers(rows) == [0, 1, 2]
    assert rows[0].values == {"eval/loss": 9.0, "eval/accuracy": 0.5}
    assert "eval/loss" not in rows[1].values
    assert (rows[2].values["eval/loss"], rows[2].values["train/loss"]) == (3.0, loss(1, 1))
    assert rows[2].values["speed/commit_s"] == 0.5


def test_undone_steps_do_not_appear():
    """The next generation's do. A header makes final what it resumed from, also where the commit's record is lost."""
    history = [first(), *done(1, 0, 1, 2, 3), (2, header(2, 2)), *done(2, 2, 3), (2, commit(2, 4))]
    rows = rows_of(history)
    assert numbers(rows) == [1, 2, 3, 4]
    assert [row.values["train/loss"] for row in rows] == [loss(1, 0), loss(1, 1), loss(2, 2), loss(2, 3)]
    assert [row.values["batch/generation"] for row in rows] == [1, 1, 2, 2]
    assert rows[-1].values["time/lost_s"] == 4.0


def test_a_commit_that_was_passed_over_brings_no_step_again():
    """It was damaged, so the next generation resumed from an older one. Only row 4 still waited."""
    history = [
        first(),
        *done(1, 0, 1, 2, 3),
        (1, commit(1, 4)),
        (2, header(2, 2)),
        *done(2, 2, 3, 4),
        (2, commit(2, 5)),
    ]
    rows = rows_of(history)
    assert numbers(rows) == [1, 2, 3, 4, 5]
    assert [row.values["batch/generation"] for row in rows] == [1, 1, 1, 2, 2]


def test_a_generation_that_was_replaced_is_ignored():
    """Its driver may still write. So is a segment without a header."""
    history = [
        first(),
        *done(1, 0, 1),
        (2, header(2, 0)),
        *done(1, 2, 3),
        (1, commit(1, 4)),
        *done(2, 0),
        (2, commit(2, 1)),
    ]
    rows = rows_of(history)
    assert [(row.step, row.values["train/loss"]) for row in rows] == [(1, loss(2, 0))]
    assert rows_of([*done(1, 0), (1, commit(1, 1))]) == []


def test_a_measurement_belongs_to_the_steps_that_it_covers():
    """Per step. A step without one of its own has the last one's."""
    history = [first(), *done(1, 0, 1), (1, measurement(2, 2)), *done(1, 2), (1, commit(1, 3))]
    values = [row.values for row in rows_of(history)]
    assert [each["speed/tokens_per_s"] for each in values] == [200.0, 200.0, 200.0]
    assert [each["speed/mfu"] for each in values] == [0.5, 0.5, 0.5]
    assert values[0]["speed/forward_s"] == pytest.approx(0.5)
    assert [each["speed/samples_per_s"] for each in values] == [6.0, 6.0, 6.0]


def test_a_row_has_the_plan_of_its_generation():
    """By the arithmetic of `planner plan`. One of another version has only what the header names."""
    (row,) = rows_of([first(), *done(1, 0), (1, commit(1, 1))])
    names = ("world_size", "rounds", "largest_share", "smallest_share", "efficiency", "samples", "tokens")
    assert [row.values[f"batch/{name}"] for name in names] == [2, 2, 6, 6, 1.0, 12, 100]
    (row,) = rows_of([(1, header(1, 0, layout_version=99)), *done(1, 0), (1, commit(1, 1))])
    assert row.values["batch/world_size"] == 2
    assert "batch/efficiency" not in row.values


def test_a_row_of_a_run_by_length_has_what_was_measured():
    """Each step has a split of its own, so the plan alone has no shares."""
    began = (1, header(1, 0, layout_version=2, max_tokens=100))
    costs = {"cost": 90, "round_cost": 100, "num_rounds": 5}
    *_, row = rows_of([began, *done(1, 0, 1), (1, measurement(2, 2, **costs)), (1, commit(1, 2))])
    assert (row.values["batch/rounds"], row.values["batch/efficiency"]) == (2.5, 0.9)
    assert (row.values["batch/world_size"], "batch/largest_share" in row.values) == (2, False)


# -- any history

ACTS = st.lists(
    st.tuples(
        st.sampled_from(["step", "step", "step", "commit", "eval", "measure", "lose", "damage", "stale"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


def history_of(acts):
    """Records of a run to which that happened, its last commit, and the lineage of that: step -> loss."""
    generation, at, weights, commits = 1, 0, [], [(0, [])]
    history = [first()]
    for act, count in acts:
        if act == "step":
            history.append((generation, step(generation, at)))
            weights = [*weights, loss(generation, at)]
            at += 1
        elif act == "commit" and commits[-1][0] < at:
            history.append((generation, commit(generation, at)))
            commits.append((at, weights))
        elif act == "eval":
            history.append((generation, evaluation(at)))
        elif act == "measure":
            history.append((generation, measurement(at, min(count, at))))
        elif act == "stale" and generation > 1:
            history.append((generation - 1, step(generation - 1, at + count)))
        elif act in {"lose", "damage"}:
            if act == "damage":
                del commits[max(len(commits) - count, 1) :]
            generation += 1
            at, weights = commits[-1]
            history.append((generation, header(generation, at)))
    return history, commits


@given(ACTS)
def test_steps_rise_whatever_happens(acts):
    """Strictly, also over damaged commits. Evaluations too."""
    rows = rows_of(history_of(acts)[0])
    assert numbers(rows) == sorted(set(numbers(rows)))
    assert all("train/loss" in row.values for row in rows if row.step)


@given(ACTS.map(lambda acts: [act for act in acts if act[0] != "damage"]))
def test_rows_are_the_committed_lineage(acts):
    """Each of its steps, with the loss that its weights had, and no other step. Also in two parts."""
    history, commits = history_of(acts)
    rows = [row for row in rows_of(history) if "train/loss" in row.values]
    assert [row.values["train/loss"] for row in rows] == commits[-1][1]
    assert numbers(rows) == list(range(1, commits[-1][0] + 1))


@given(ACTS)
def test_cumulative_seconds_never_fall_short(acts):
    """They are those of the run up to the row, so all of them are finite and not negative."""
    rows = [row for row in rows_of(history_of(acts)[0]) if "train/loss" in row.values]
    assert all(value >= 0 for row in rows for name, value in row.values.items() if name.startswith("time/"))

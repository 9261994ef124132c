"""`bench/resize.py`: how its rows, bounds and phases follow from what workers wrote down. No cluster is started."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch):
    """Imports a module of the bench."""
    paths = [str(ROOT / "bench"), str(ROOT / "bench" / "_in_workers"), *sys.path]
    monkeypatch.setattr(sys, "path", paths)
    return importlib.import_module


def row(**changed):
    known = {"event": "grow", "policy": "ours", "parameters_m": 3, "storage": "local", "path": "memory"}
    figures = {"seconds_to_first_step": 5.0, "pause_s": 1.0, "steps_lost": 0, "step_s": 0.25, "from_memory": True}
    found = {**known, **figures, **changed}
    return {**found, "net_pause_s": found["pause_s"] - found["step_s"]}


def test_a_pause_is_the_longest_wait_around_the_change(bench):
    """Steps at 2 until second 10, the first one at 3 in second 14. Nothing is lost."""
    steps = [(float(second), 2, second) for second in range(11)] + [(14.0 + n, 3, 11 + n) for n in range(5)]
    found = bench("_resize_case").row_of("grow", steps, 8.5, 2, 3)
    figures = {"seconds_to_first_step": 5.5, "pause_s": 4.0, "steps_lost": 0, "step_s": 1.0, "net_pause_s": 3.0}
    assert found == {"event": "grow", **figures}


def test_steps_done_again_are_lost(bench):
    """Resumed at step 6 after step 10."""
    steps = [(float(second), 2, second) for second in range(11)] + [(14.0, 1, 6), (15.0, 1, 7)]
    assert bench("_resize_case").row_of("kill", steps, 10.5, 2, 1)["steps_lost"] == 5


def test_phases_are_told_from_the_last_step_on(bench):
    """Of the slowest worker, and nothing from before."""
    lines = [
        {"kind": "span", "name": "early", "began_s": 1.0, "at_s": 2.0},
        {"kind": "step", "rank": 0, "at_s": 10.0, "world_size": 2},
        {"kind": "span", "name": "join", "began_s": 11.0, "at_s": 11.5},
        {"kind": "span", "name": "join", "began_s": 11.2, "at_s": 12.2},
        {"kind": "step", "rank": 0, "at_s": 14.0, "world_size": 3},
    ]
    found = bench("_resize_case").spans_of(lines, 9.0, 2, 3)
    assert found == {"join": [1.0, 1.0], "first step": [4.0, 0.0]}


@pytest.mark.parametrize(
    ("before", "after", "part"), [(2, 3, 1 / 2), (3, 2, 1 / 2), (2, 2, 0), (1, 2, 1 / 2), (2, 1, 1 / 2)]
)
def test_bytes_that_a_new_cut_moves(bench, before, after, part):
    """By hand: of 2 to 3, the second worker lacks a sixth and the third one has nothing."""
    assert bench("_loopback").moved_bytes(12.0, before, after) == pytest.approx(12 * part)


def test_the_bound_adds_the_moved_bytes_to_the_pause_of_the_small_model(bench):
    """151 M: 906 MB at 1 GB/s. Slow storage may take a fifth more than local disk."""
    resize = bench("resize")
    rows = [row(), row(parameters_m=151, pause_s=2.3), row(storage="20 MB/s, 20 ms", pause_s=1.3)]
    rows += [row(parameters_m=151, path="storage", pause_s=9.0)]
    small, large, slow, old = resize.bounded(rows, 1000.0)
    assert "bound_s" not in small
    assert large["moved_mb"] == pytest.approx(903, abs=1)
    assert large["bound_s"] == pytest.approx(0.75 + 1.5 * 0.903, abs=0.002)
    assert slow["bound_s"] == 0.9
    assert "bound_s" not in old
    assert [text.split(":")[0] for text in resize.missed([small, large, slow, old])] == [
        "grow, 3 M parameters, 20 MB/s, 20 ms, memory"
    ]


def test_a_death_at_the_small_size_has_a_bound(bench):
    """Eight seconds, whatever the pause."""
    resize = bench("resize")
    [fast] = resize.bounded([row(event="kill", seconds_to_first_step=8.0, pause_s=9.0)], 1000.0)
    assert resize.missed([fast]) == []
    assert len(resize.missed([{**fast, "seconds_to_first_step": 8.1}])) == 1


def test_repeats_become_medians_and_other_rows_stay(bench):
    """A row from before these keys is of the demo, through storage."""
    resize = bench("resize")
    [found] = resize.medians([row(pause_s=pause) for pause in (3.0, 1.0, 2.0)])
    assert (found["pause_s"], found["pause_range_s"], found["repeats"]) == (2.0, [1.0, 3.0], 3)
    assert found["net_pause_s"] == 1.75
    old = [{"event": "grow", "policy": "ours", "pause_s": 7.0}, row(path="storage")]
    first, *others = resize.merged(old, [found])
    assert (first["parameters_m"], first["storage"], first["path"], first["pause_s"]) == (0.4, "local", "storage", 7.0)
    assert others == [row(path="storage"), found]


def test_all_cases_are_known_by_their_sizes(bench):
    """And paths take turns."""
    cases = bench("resize").all_cases()
    assert len(set(cases)) == len(cases)
    ours = [case.path for case in cases if case.policy == "ours"]
    assert ours == ["memory", "storage"] * (len(ours) // 2)
    sizes = bench("_resize_case")
    assert [sizes.parameters_m(size) for size in sizes.SIZES] == [0.4, 3, 42, 151]


def test_slow_storage_is_slow_for_all_together(bench, tmp_path, monkeypatch):
    """Two file systems share a line: 0.4 MB at 20 MB/s take 20 ms, and each call takes 20 ms more.

    On a clock of the test's own, which goes on while somebody sleeps.
    """
    monkeypatch.setenv("PLANNER_BENCH_BUCKET", str(tmp_path / "bucket"))
    slow, now_s = bench("slow_storage"), [0.0]
    sleeps = SimpleNamespace(monotonic=lambda: now_s[0], sleep=lambda seconds: now_s.append(now_s.pop() + seconds))
    monkeypatch.setattr(slow, "time", sleeps)
    one, other = slow.SlowFileSystem(), slow.SlowFileSystem()
    one.pipe_file(f"slow://{tmp_path}/a", bytes(400_000))
    with other.open(f"{tmp_path}/b", "wb") as stream:
        stream.write(bytes(400_000))
    assert now_s == [pytest.approx(0.08)]
    assert one.cat_file(f"{tmp_path}/b", start=10, end=14) == bytes(4)
    with pytest.raises(FileExistsError):
        other.pipe_file(f"{tmp_path}/a", b"again", mode="create")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "bucket"]

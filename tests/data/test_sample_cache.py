"""Tokenized rows that are kept: the same samples, made once, and nothing trusted that is not what was written."""

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from byte_models import gpt
from events import ended
from rows_of import all_parts, opened

from planner.data import ahead_sets, sample_cache
from planner.data.sample_sets import PairSet
from planner.errors import DataError

PAIRS = [{"prompt": "a", "chosen": "bc", "rejected": "d"}, {"prompt": "e", "chosen": "f" * 30, "rejected": "g"}]


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Cache everything in a folder of the test, and count how often rows are tokenized."""
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sample_cache, "LEAST_BYTES", 0)
    calls, tokenized = [], ahead_sets._tokenized

    def counted(*args):
        calls.append(args)
        return tokenized(*args)

    monkeypatch.setattr(ahead_sets, "_tokenized", counted)
    return calls


def folders(tmp_path):
    return sorted(place for place in (tmp_path / "cache" / "samples").iterdir() if place.is_dir())


@pytest.mark.parametrize(
    ("kind", "settings"), [("pairs", {}), ("feedback", {}), ("chat", {}), ("chat", {"packing": True})]
)
def test_cached_samples_equal_new_ones(kind, settings, tmp_path, made):
    """Samples, fingerprint and notes. The second time nothing is tokenized."""
    first = opened(kind, PAIRS, tmp_path, model=gpt(20), **settings)
    path = tmp_path / "rows.jsonl"
    stamp = path.stat().st_mtime_ns
    second = opened(kind, PAIRS, tmp_path, model=gpt(20), **settings)
    assert len(made) == 2  # the file was written anew, so it is another one
    os.utime(path, ns=(stamp, stamp))
    third = _again(kind, path, settings)
    assert len(made) == 2
    for dataset in (second, third):
        assert dataset.fingerprint == first.fingerprint
        assert dataset.notes == first.notes != ()
        assert type(dataset) is type(first)
        rows = range(first.num_rows)
        assert [dataset.sample(row).parts() for row in rows] == [first.sample(row).parts() for row in rows]


def _again(kind, path, settings=None):
    from rows_of import job_data

    from planner.data.open import open_dataset

    return open_dataset(job_data(kind, path, **(settings or {})), gpt(20))


def test_other_settings_are_other_samples(tmp_path, made):
    """Of the same file: another kind, context or cut is made by itself."""
    opened("pairs", PAIRS, tmp_path, model=gpt(20))
    _again("pairs", tmp_path / "rows.jsonl")
    _again("pairs", tmp_path / "rows.jsonl", {"max_prompt": 1})
    _again("chat", tmp_path / "rows.jsonl")
    assert len(made) == 3


@pytest.mark.parametrize("harm", ["altered", "shortened", "lost", "no json", "another format", "none of ours"])
def test_a_damaged_cache_is_made_anew(harm, tmp_path, made, caplog):
    """And is whole afterwards."""
    first = all_parts(opened("pairs", PAIRS, tmp_path, model=gpt(20)))
    [place] = folders(tmp_path)
    tokens = place / "tokens"
    match harm:
        case "altered":
            tokens.write_bytes(tokens.read_bytes()[:-4] + b"\1\0\0\0")
        case "shortened":
            tokens.write_bytes(tokens.read_bytes()[:-3])
        case "lost":
            tokens.unlink()
        case "no json":
            (place / "set.json").write_text("{")
        case "another format":
            facts = json.loads((place / "set.json").read_text())
            (place / "set.json").write_text(json.dumps({**facts, "format": 2}))
        case _:
            (place / "set.json").write_text("[]")
    again = _again("pairs", tmp_path / "rows.jsonl")
    assert all_parts(again) == first
    _again("pairs", tmp_path / "rows.jsonl")
    assert len(made) == 2
    if harm == "another format":
        assert "(format 2, this one reads 1), so rows are tokenized again" in caplog.text


def test_without_a_place_rows_are_tokenized_each_time(tmp_path, made, monkeypatch):
    """A home that cannot be written to does not stop a run."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "file"))
    opened("pairs", PAIRS, tmp_path, model=gpt(20))
    assert _again("pairs", tmp_path / "rows.jsonl").num_rows == 2
    assert len(made) == 2


def test_bad_rows_are_refused_each_time(tmp_path, made):
    """Nothing is kept of them."""
    for _ in range(2):
        with pytest.raises(DataError, match="1 of 1 rows cannot be used"):
            opened("pairs", [{}], tmp_path)
    assert folders(tmp_path) == []
    assert len(made) == 2


@pytest.mark.usefixtures("made")
def test_the_ones_used_last_are_kept(tmp_path, monkeypatch):
    """The others are removed. A process that reads one continues to read it."""
    monkeypatch.setattr(sample_cache, "_MOST", 2)
    sets = []
    for age_s, most in ((300, 1), (200, 2), (100, 3)):
        sets.append(opened("pairs", PAIRS, tmp_path, model=gpt(20), max_prompt=most))
        newest = max(folders(tmp_path), key=lambda place: place.stat().st_mtime)
        os.utime(newest, (time.time() - age_s,) * 2)
    assert len(folders(tmp_path)) == 2
    assert [len(all_parts(dataset)) for dataset in sets] == [2, 2, 2]


def test_what_killed_processes_left_goes(tmp_path):
    """A day after they wrote to it. A file that is being written stays."""
    for name, age_s in (("old", 90_000), ("new", 60)):
        (tmp_path / f".planner-prepare-{name}").touch()
        os.utime(tmp_path / f".planner-prepare-{name}", (time.time() - age_s,) * 2)
    sample_cache.forget_old(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [".planner-prepare-new"]


# Which process has asked for the lock stands in the folder `at_the_lock`. The one that has it waits for the other.
TOKENIZES = """
import os, sys
from pathlib import Path
from events import wait_for
from planner.data import ahead_sets, sample_cache
from planner.data.open import open_dataset
from planner.job import GptModel, PairsData

rows, at_the_lock = map(Path, sys.argv[1:])
lock, tokenized = sample_cache._lock, ahead_sets._tokenized

def counted(*arguments):
    (at_the_lock / str(os.getpid())).touch()
    return lock(*arguments)

def held(*arguments):
    print("made")
    wait_for(lambda: len(list(at_the_lock.iterdir())) == 2)
    return tokenized(*arguments)

sample_cache.LEAST_BYTES, sample_cache._lock, ahead_sets._tokenized = 0, counted, held
model = GptModel(kind="gpt", layers=1, width=2, heads=1, context=21)
print(open_dataset(PairsData(kind="pairs", path=str(rows)), model).num_rows)
"""


@pytest.mark.process
def test_two_processes_tokenize_once(tmp_path, made):
    """The other one waits, and then finds it made."""
    first = opened("pairs", PAIRS, tmp_path, model=gpt(20))
    del made[:]
    (tmp_path / "at_the_lock").mkdir()
    command = [sys.executable, "-c", TOKENIZES, str(tmp_path / "rows.jsonl"), str(tmp_path / "at_the_lock")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "harness")}
    processes = [subprocess.Popen(command, env=environment, **pipes) for _ in range(2)]
    found = [ended(process) for process in processes]
    assert sorted(out.split() for _, out, _ in found) == [["2"], ["made", "2"]], found
    assert first.num_rows == 2


@pytest.mark.usefixtures("made")
def test_the_cache_is_private(tmp_path):
    """It is the user's data."""
    opened("pairs", PAIRS, tmp_path, model=gpt(20))
    cache = tmp_path / "cache"
    found = {oct(place.stat().st_mode & 0o777) for place in (cache, *cache.rglob("*")) if place.is_dir()}
    assert found == {"0o700"}
    assert {oct(place.stat().st_mode & 0o777) for place in cache.rglob("*") if place.is_file()} == {"0o600"}


def test_cached_samples_name_no_other_file(tmp_path, made):
    """A user who can write to a shared cache changed it: the file is not mapped, and rows are tokenized again."""
    first = all_parts(opened("pairs", PAIRS, tmp_path, model=gpt(20)))
    [place] = folders(tmp_path)
    (place / "tokens").rename(tmp_path / "cache" / "elsewhere")
    facts = json.loads((place / "set.json").read_text())
    facts["columns"] = {"../../elsewhere": facts["columns"]["tokens"], "ends": facts["columns"]["ends"]}
    (place / "set.json").write_text(json.dumps(facts))
    assert sample_cache._load(place, [PairSet]) is None
    assert all_parts(_again("pairs", tmp_path / "rows.jsonl")) == first
    assert len(made) == 2


def test_small_data_is_not_kept(tmp_path, made, monkeypatch):
    """It is tokenized in less time than a file takes to be looked for."""
    monkeypatch.setattr(sample_cache, "LEAST_BYTES", 10_000)
    opened("pairs", PAIRS, tmp_path, model=gpt(20))
    assert not (tmp_path / "cache").exists()
    assert len(made) == 1


@pytest.mark.usefixtures("made")
def test_nobody_waits_for_ever_for_a_process_that_hangs(tmp_path, monkeypatch, caplog):
    """On a clock of the test's own. It holds the lock: that is said, and then the rows are tokenized without it."""
    opened("pairs", PAIRS, tmp_path, model=gpt(20))
    (place,) = folders(tmp_path)
    now_s = [0.0]
    sleeps = SimpleNamespace(monotonic=lambda: now_s[0], sleep=lambda seconds: now_s.append(now_s.pop() + seconds))
    monkeypatch.setattr(sample_cache, "time", sleeps)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waited = []
        with sample_cache.locked(place, lambda: waited.append(1)):
            assert waited  # a group of workers that waits like this is not hung
            assert now_s[0] >= sample_cache._LOCK_MOST_S
    assert "another process of this machine tokenizes the same rows" in caplog.text

"""The place in the data, in the trainer's own checkpoint."""

import json
from dataclasses import asdict, replace

import pytest

from planner.errors import ResumeRefused, StoreError
from planner.trl.position import CALLBACK, STATE_FILE, Position, fingerprint, newest_whole, read_position, require_same

HERE = Position(global_batch=16, seed=1, num_rows=100, fingerprint="abc", cursor=160, world_size=3)


def checkpoint(folder, step, stored=None, without=()):
    """As transformers leaves it."""
    made = folder / f"checkpoint-{step}"
    made.mkdir(parents=True)
    state = {"global_step": step, "stateful_callbacks": {CALLBACK: {"args": stored or asdict(HERE), "attributes": {}}}}
    for name in {"scheduler.pt", "optimizer.pt", STATE_FILE} - set(without):
        (made / name).write_text(json.dumps(state) if name == STATE_FILE else "")
    return made


def test_the_newest_whole_one_is_found(tmp_path):
    """By its number, not as text, and past what a death in the midst of a save has left."""
    for step in (9, 80, 100):
        checkpoint(tmp_path, step)
    for step, missing in ((110, STATE_FILE), (120, "optimizer.pt"), (130, "scheduler.pt")):
        checkpoint(tmp_path, step, without=[missing])
    (checkpoint(tmp_path, 140) / STATE_FILE).write_text('{"global_step": 14')
    (tmp_path / "checkpoint-best").mkdir()
    assert newest_whole(str(tmp_path)) == str(tmp_path / "checkpoint-100")


def test_nothing_is_found_where_nothing_is(tmp_path):
    assert newest_whole(str(tmp_path)) is None
    assert newest_whole(str(tmp_path / "missing")) is None


def test_a_position_is_read_as_it_was_written(tmp_path):
    assert read_position(str(checkpoint(tmp_path, 10))) == HERE


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        ({**asdict(HERE), "format": 2}, "written by another version of planner"),
        ({key: value for key, value in asdict(HERE).items() if key != "cursor"}, "damaged"),
        ({**asdict(HERE), "more": 1}, "damaged"),
    ],
)
def test_another_position_is_refused(tmp_path, stored, why):
    with pytest.raises(StoreError, match=why):
        read_position(str(checkpoint(tmp_path, 10, stored)))


@pytest.mark.parametrize("state", ["{}", "[]", '{"stateful_callbacks": {"TrainerControl": {}}}', "torn"])
def test_a_checkpoint_of_a_plain_trainer_is_refused(tmp_path, state):
    made = checkpoint(tmp_path, 10)
    (made / STATE_FILE).write_text(state)
    with pytest.raises(StoreError, match="has no position of planner"):
        read_position(str(made))


@pytest.mark.parametrize(
    "change", [{"global_batch": 8}, {"seed": 2}, {"num_rows": 99}, {"fingerprint": "abd"}], ids=str
)
def test_other_data_or_another_batch_is_refused(change):
    (name,) = change
    with pytest.raises(ResumeRefused, match=f"{name} {getattr(HERE, name)} -> {change[name]}"):
        require_same(HERE, replace(HERE, **change), "x")


def test_another_number_of_processes_is_not():
    require_same(HERE, replace(HERE, world_size=5, cursor=0), "x")


def test_the_fingerprint_is_of_what_enters_the_model():
    """Not of columns that are computed, nor of their order. A changed token changes it."""
    rows = [{"input_ids": [n, n + 1], "labels": [-100, n]} for n in range(100)]
    assert fingerprint(rows) == fingerprint([{**row, "ref_chosen_logps": 0.1 * n} for n, row in enumerate(rows)])
    assert fingerprint(rows) == fingerprint([dict(reversed(row.items())) for row in rows])
    assert fingerprint(rows) != fingerprint([*rows[:-1], {"input_ids": [1, 2], "labels": [-100, 1]}])
    assert fingerprint(rows) != fingerprint(rows[:-1])

"""The longest sample of a job's data must fit into a micro-batch of `batch.max_tokens`."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from byte_models import gpt
from rows_of import job_data, opened

from planner.data.evaluation import WithEvaluation
from planner.data.longest import require_fitting
from planner.data.open import open_dataset
from planner.errors import DataError
from planner.job import ChatData, Job, TextData
from planner.train.setup import set_up

CHATS = [{"prompt": "abc", "completion": "d" * n} for n in range(1, 9)]


def job(max_tokens, data, model):
    return SimpleNamespace(batch=SimpleNamespace(max_tokens=max_tokens), data=data, model=model)


@pytest.mark.parametrize("rows_per_read", [1, 3, 100])
def test_the_longest_sample_must_fit(tmp_path, monkeypatch, rows_per_read):
    """The error says how many tokens it has, so the next try fits."""
    monkeypatch.setattr("planner.data.longest._ROWS_PER_READ", rows_per_read)
    rows = [CHATS[0], CHATS[7], CHATS[3], CHATS[7]]
    found, model = opened("chat", rows, tmp_path), gpt(1000)
    data = job_data("chat", tmp_path / "rows.jsonl")
    most = int(found.lengths([1]).tokens[0])
    require_fitting(job(None, data, model), found)
    require_fitting(job(most, data, model), found)
    with pytest.raises(DataError) as refused:
        require_fitting(job(most - 1, data, model), found)
    assert str(refused.value) == (
        f"batch.max_tokens: row 1 of data (the first is row 0) has {most} tokens, the most of all, and a micro-batch "
        f"takes {most - 1}. Write at least batch.max_tokens: {most}, or lower model.context"
    )
    both = WithEvaluation(training=opened("chat", CHATS[:2], tmp_path), evaluation=found, chosen=np.array([0, 3]))
    with pytest.raises(DataError, match=r"row 1 of those of eval\.data \(the first is row 0\) has"):
        require_fitting(job(most - 1, data, model), both)


def test_a_row_of_a_mixture_is_named_by_its_file(tmp_path):
    """Rows of the second set count from 0 again."""
    for name, rows in (("short", CHATS[:3]), ("long", CHATS[3:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    sets = [{"path": str(tmp_path / "short.jsonl")}, {"path": str(tmp_path / "long.jsonl")}]
    data, model = ChatData.model_validate({"kind": "chat", "mixture": sets}), gpt(1000)
    found = open_dataset(data, model)
    with pytest.raises(DataError, match=r"row 4 of \S*long\.jsonl in data\.mixture \(the first is row 0\) has"):
        require_fitting(job(1, data, model), found)


def test_a_class_from_before_there_were_lengths_is_refused(tmp_path):
    """A package wrote it. It is refused in words, also beside an evaluation that has lengths."""
    found = opened("chat", CHATS, tmp_path)
    data, model = job_data("chat", tmp_path / "rows.jsonl"), gpt(1000)
    both = WithEvaluation(training=SimpleNamespace(num_rows=3), evaluation=found, chosen=np.array([0]))
    for each in (SimpleNamespace(num_rows=3), both):
        require_fitting(job(None, data, model), each)
        with pytest.raises(DataError, match=r"SimpleNamespace has no method lengths\(rows\)"):
            require_fitting(job(1000, data, model), each)


@pytest.mark.parametrize(("max_tokens", "asked"), [(8, 1), (7, 100)])
def test_lengths_of_windows_are_not_taken_if_the_context_fits(tmp_path, max_tokens, asked):
    """There may be thousands of millions of them. One row shows that lengths are known."""
    (tmp_path / "text.txt").write_text("a" * 800)
    data, model, seen = TextData(kind="text", path=str(tmp_path / "text.txt")), gpt(8), []
    found = open_dataset(data, model)

    class Asked:
        num_rows, sets = found.num_rows, ()

        def lengths(self, rows):
            seen.extend(rows)
            return found.lengths(rows)

    try:
        require_fitting(job(max_tokens, data, model), Asked())
    except DataError as error:
        assert max_tokens < 8, error  # noqa: PT017
    assert len(seen) == asked


def test_a_worker_checks_it_too(tmp_path):
    """A driver on another machine may not see the data. Another limit is checked anew in the same process."""
    rows = tmp_path / "rows.jsonl"
    most = int(opened("chat", CHATS, tmp_path).lengths([7]).tokens[0])

    def worker(max_tokens):
        sections = {
            "name": "test",
            "model": gpt(1000),
            "data": job_data("chat", rows),
            "objective": "sft",
            "batch": {"global": 3, "max_micro": 2, "max_tokens": max_tokens},
            "train": {"steps": 3, "optimizer": {"kind": "adamw", "lr": 1e-3}},
        }
        return set_up(Job.model_validate(sections), 1)

    for limit in (most, None, most):
        worker(limit)
    with pytest.raises(DataError, match=rf"batch.max_tokens: row 7 of data \(the first is row 0\) has {most} tokens"):
        worker(most - 1)

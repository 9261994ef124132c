"""Rows of `eval.data` behind the rows to train on."""

import json
import pickle

import numpy as np
import pytest
from rows_of import all_parts, parts

from planner.data.evaluation import WithEvaluation
from planner.errors import DataError
from planner.job import Job
from planner.provenance.data_facts import data_facts
from planner.provenance.identity import identity_of, open_data


def write(path, words):
    path.write_text("".join(json.dumps({"prompt": word, "completion": f"{word}!"}) + "\n" for word in words))
    return str(path)


def make_job(data, evaluation, **sections):
    job = {
        "name": "test",
        "model": {"kind": "gpt", "layers": 1, "width": 8, "heads": 1, "context": 12},
        "data": {"kind": "chat", **data},
        "objective": "sft",
        "batch": {"global": 3, "max_micro": 2},
        "train": {"steps": 3, "optimizer": {"kind": "adamw", "lr": 1e-3}},
        "eval": evaluation,
    }
    return Job.model_validate({**job, **sections})


@pytest.fixture
def files(tmp_path):
    return {
        "train": {"path": write(tmp_path / "train.jsonl", "abcdefghij")},
        "test": {"path": write(tmp_path / "test.jsonl", "vwxyz")},
    }


def test_rows_for_evaluation_follow_the_rows_to_train_on(files):
    """All rows of both are there, and only those of the first are in the order of training."""
    dataset, order = open_data(make_job(files["train"], {"data": files["test"]}))
    words = [prompt[1:].decode() for prompt, _ in all_parts(dataset)]
    assert words == [*"abcdefghij", *"vwxyz"]
    assert sorted(order.rows(0, 10).tolist()) == list(range(10))
    assert order.held_out_rows(0, 5).tolist() == [10, 11, 12, 13, 14]


def test_a_choice_of_rows_does_not_depend_on_the_seed(files):
    """The same two rows at both seeds, and none of the others is in the data set."""
    found = []
    for seed in (0, 1):
        train = {"steps": 3, "seed": seed, "optimizer": {"kind": "adamw", "lr": 1e-3}}
        dataset, order = open_data(make_job(files["train"], {"data": files["test"], "samples": "21%"}, train=train))
        assert (dataset.num_rows, order.num_held_out) == (12, 2)
        found.append([parts(dataset.sample(int(row))) for row in order.held_out_rows(0, 2)])
    assert found[0] == found[1]


def test_samples_of_training_are_those_without_an_evaluation(files):
    """Neither the identity of the data nor the evidence of a row changes."""
    plain, with_evaluation = (make_job(files["train"], each) for each in ({}, {"data": files["test"]}))
    (first, first_order), (second, second_order) = open_data(plain), open_data(with_evaluation)
    assert identity_of(plain, first, first_order) == identity_of(with_evaluation, second, second_order)
    assert [first.evidence(row) for row in range(10)] == [second.evidence(row) for row in range(10)]
    assert isinstance(second, WithEvaluation)
    assert second.fingerprint != first.fingerprint


def test_a_part_and_its_number_are_the_same_data(files):
    """A part of the rows is resolved before the data is identified."""
    jobs = [make_job(files["train"], {"samples": samples}) for samples in ("25%", 3)]
    (first, first_order), (second, second_order) = map(open_data, jobs)
    assert first_order == second_order
    assert identity_of(jobs[0], first, first_order) == identity_of(jobs[1], second, second_order)


def test_rows_for_evaluation_are_packed_too(files):
    """A packed row is a sample, also in the evaluation."""
    dataset, order = open_data(make_job({**files["train"], "packing": True}, {"data": files["test"]}))
    assert order.num_held_out < 5
    sample = dataset.sample(order.num_rows)
    assert sample.documents is not None
    assert len(set(sample.documents.tolist())) > 1


def test_another_process_maps_both(files):
    """Loader processes get the data set by pickle."""
    dataset, _ = open_data(make_job(files["train"], {"data": files["test"], "samples": 2}))
    again = pickle.loads(pickle.dumps(dataset))
    assert all_parts(again) == all_parts(dataset)
    assert np.array_equal(again.chosen, dataset.chosen)


def test_the_sets_of_an_evaluation_are_chosen_in_proportion(tmp_path, files):
    """The facts name each set of the evaluation with its part."""
    more = {"path": write(tmp_path / "more.jsonl", "0123456789klmno")}
    job = make_job(files["train"], {"data": {"mixture": [files["test"], more]}, "samples": 8})
    fact = data_facts(*open_data(job))["evaluation"]
    assert (fact["samples"], fact["rows"]) == (8, 20)
    assert [(each["name"], each["rows"], each["evaluated"]) for each in fact["sets"]] == [
        (files["test"]["path"], 5, 2),
        (more["path"], 15, 6),
    ]


def test_errors_name_the_keys_of_the_evaluation(tmp_path, files):
    """What is wrong with the rows of `eval.data` is not said of `data`."""
    with pytest.raises(DataError, match=r"^eval.samples: eval.data has 5 samples, and 6 are to be evaluated"):
        open_data(make_job(files["train"], {"data": files["test"], "samples": 6}))
    (tmp_path / "bad.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"^eval.data.path: 1 of 1 rows cannot be used"):
        open_data(make_job(files["train"], {"data": {"path": str(tmp_path / "bad.jsonl")}}))
    with pytest.raises(DataError, match=r"^eval.data.split"):
        open_data(make_job(files["train"], {"data": {**files["test"], "split": "test"}}))


def test_notes_say_which_rows_were_changed(tmp_path, files):
    """A cut in the evaluation is not taken for one in the training."""
    long = {"path": write(tmp_path / "long.jsonl", ["x" * 8])}
    dataset, _ = open_data(make_job(files["train"], {"data": long}))
    assert [note.startswith("rows of eval.data: 1 of 1 samples were cut") for note in dataset.notes] == [True]

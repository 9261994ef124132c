"""A job's data sets and its evaluation in the words of TRL and of the alignment-handbook, and back."""

import json

import pytest
import yaml

from planner.recipes import RecipeOptions, job_of, read_recipe, rewrite

JOB = """
name: mine
model: {kind: hf, path: org/model, context: 512}
objective: sft
batch: {global: 64, max_micro: 8}
train: {epochs: 1, optimizer: {kind: adamw, lr: 1e-5}}
"""
SHARED = {"columns": ["messages"], "split": "train_sft"}
MIXTURE = [{"path": "org/a", **SHARED, "fraction": 0.25}, {"path": "org/b", **SHARED, "config": "all"}]


def written(folder, data, evaluation=None, job=JOB, at=4):
    """The command with its file for a job on some GPUs, and what it does not say about the data."""
    sections = {"data": {"kind": "chat", **data}, **({"eval": evaluation} if evaluation else {})}
    file = folder / "job.yaml"
    file.write_text(job + "".join(f"{key}: {json.dumps(value)}\n" for key, value in sections.items()))
    made = rewrite(read_recipe(str(file)), "trl", at)
    return made, [str(each) for each in made.unsaid if str(each).startswith(("name", "data", "eval"))]


def read_back(folder, made, method="sft"):
    """The job of the command that was written, with the file beside it."""
    (folder / "data.yaml").write_text(made.file)
    command = made.command.replace("--config data.yaml", f"--config {folder}/data.yaml")
    return job_of(read_recipe(command, (), RecipeOptions(method=method)))[0]


def test_one_set_and_its_test_split_are_options(tmp_path):
    data = {"path": "org/a", "config": "all", "split": "train_sft"}
    evaluation = {"data": {**data, "split": "test_sft"}, "every": "20 steps"}
    made, unsaid = written(tmp_path, data, evaluation)
    assert "--dataset_name org/a --dataset_config all --dataset_train_split train_sft" in made.command
    assert "--eval_strategy steps --eval_steps 20 --dataset_test_split test_sft" in made.command
    assert not made.file
    assert [text.partition(":")[0] for text in unsaid if text.startswith(("data.p", "data.s", "eval"))] == []
    job = read_back(tmp_path, made)
    assert (job.data.path, job.data.config, job.data.split) == ("org/a", "all", "train_sft")
    assert (job.eval.data.split, job.eval.samples, job.eval.every) == ("test_sft", 0, "20 steps")


@pytest.mark.parametrize(("samples", "size"), [("5%", 0.05), (500, 500), (0, None)])
def test_a_mixture_with_parts_is_that_of_the_handbook(tmp_path, samples, size):
    evaluation = {"samples": samples, "every": "1 epoch"}
    made, _ = written(tmp_path, {"mixture": MIXTURE, "seed": 7}, evaluation)
    assert " scripts/sft.py --config data.yaml " in made.command
    assert any("write the lines below the command into data.yaml" in note for note in made.notes)
    mixture = yaml.safe_load(made.file)["dataset_mixture"]
    named = [{"id": "org/a", **SHARED, "weight": 0.25}, {"id": "org/b", "config": "all", **SHARED}]
    assert (mixture["datasets"], mixture["seed"], mixture.get("test_split_size")) == (named, 7, size)
    job = read_back(tmp_path, made)
    assert [each.fraction for each in job.data.sets] == [0.25, None]
    assert (job.data.seed, job.eval.samples) == (7, samples)
    assert ("--eval_strategy epoch" in made.command) == bool(samples)


def test_shares_of_a_mixture_are_those_of_trl(tmp_path):
    """Which only TRL's own script reads."""
    sets = [{"path": "org/a", "weight": 3.0}, {"path": "rows.jsonl", "weight": 1.0}]
    made, unsaid = written(tmp_path, {"mixture": sets}, {"samples": "2%", "every": "640 examples"})
    assert " trl/scripts/sft.py --config data.yaml " in made.command
    listed = [{"path": "org/a", "fraction": 3.0}, {"path": "json", "data_files": "rows.jsonl", "fraction": 1.0}]
    assert yaml.safe_load(made.file) == {"datasets": listed, "test_split_size": 0.02}
    assert "--eval_strategy steps --eval_steps 10" in made.command
    assert "data.seed 0: TRL takes the first rows of a set" in unsaid
    assert [each.weight for each in read_back(tmp_path, made).data.sets] == [3.0, 1.0]


def test_a_folder_within_a_data_set_is_an_entry_of_trls_list(tmp_path):
    made, _ = written(tmp_path, {"path": "org/a", "folder": "f"})
    assert yaml.safe_load(made.file) == {"datasets": [{"path": "org/a", "data_dir": "f"}]}
    assert read_back(tmp_path, made).data.folder == "f"


def test_rows_held_out_of_one_set_need_a_mixture_of_one(tmp_path):
    made, _ = written(tmp_path, {"path": "org/a", "split": "s"}, {"samples": 64})
    assert yaml.safe_load(made.file)["dataset_mixture"]["datasets"] == [{"id": "org/a", "split": "s"}]
    assert read_back(tmp_path, made).data.path == "org/a"


def test_trackers_stand_in_the_same_file(tmp_path):
    job = f"{JOB}tracking: [{{kind: tensorboard}}, {{kind: wandb}}]\n"
    made, _ = written(tmp_path, {"mixture": MIXTURE}, job=job)
    assert set(yaml.safe_load(made.file)) == {"dataset_mixture", "report_to"}
    assert " --config data.yaml " in made.command


@pytest.mark.parametrize(
    ("data", "evaluation", "said"),
    [
        ({"path": "org/a", "loader": "dpo/shp"}, None, "data.path org/a, data.loader dpo/shp: write your data set"),
        (
            {"path": "org/a", "folder": "f"},
            {"data": {"path": "org/a", "folder": "g", "split": "test"}},
            "eval.data.folder g",
        ),
        ({"mixture": [{"path": "org/a", "rows": 10}]}, None, "data.mixture [{path: org/a, rows: 10}]"),
        ({"mixture": [{"path": "a.jsonl", "fraction": 0.5}]}, None, "data.mixture [{path: a.jsonl, fraction: 0.5}]"),
        ({"mixture": [{"path": "org/a", "fraction": 2}]}, None, "data.mixture [{path: org/a, fraction: 2}]"),
        ({"path": "org/a", "columns": {"messages": "talk"}}, None, "data.columns.messages talk"),
        ({"path": "/nowhere/rows"}, None, "data.path /nowhere/rows: write your data set for DATA"),
        ({"path": "org/a", "revision": "v1"}, None, "data.revision v1: TRL reads the newest revision"),
        ({"mixture": [{"path": "org/a", "revision": "v1"}]}, None, "data.mixture, revision v1: TRL reads"),
        (
            {"mixture": [{"path": "org/a", "columns": ["messages"]}]},
            {"data": {"path": "org/a", "split": "test", "columns": ["messages"]}},
            "data.mixture, columns messages: TRL reads",
        ),
        ({"path": "org/a"}, {"data": {"path": "org/b", "split": "test"}}, "eval.data.path org/b"),
        ({"path": "org/a"}, {"data": {"path": "org/a"}}, "eval.data.path org/a"),
        (
            {"path": "org/a"},
            {"data": {"path": "org/a", "split": "t"}, "samples": 9},
            "eval.samples 9: TRL evaluates all",
        ),
        ({"path": "org/a"}, {"samples": 9, "every": "0.5 epochs"}, "eval.every 0.5 epochs: TRL evaluates a test split"),
        ({"mixture": MIXTURE}, {"data": {"path": "org/a", "split": "test"}}, "eval.data.path org/a"),
    ],
)
def test_what_trl_cannot_say_is_listed(tmp_path, data, evaluation, said):
    _, unsaid = written(tmp_path, data, evaluation)
    assert [text for text in unsaid if said in text], unsaid


@pytest.mark.parametrize("target", ["dpo", "halos"])
def test_systems_with_data_sets_of_their_own_list_the_jobs(tmp_path, target):
    file = tmp_path / "job.yaml"
    file.write_text(f"{JOB}data: {json.dumps({'kind': 'chat', 'mixture': MIXTURE})}\n")
    unsaid = " ".join(str(each) for each in rewrite(read_recipe(str(file)), target, 4).unsaid)
    assert "data.mixture [{path: org/a, split: train_sft, columns: {messages: messages}, fraction: 0.25}, {" in unsaid
    assert "data.seed 0: write" in unsaid

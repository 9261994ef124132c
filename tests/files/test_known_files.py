"""A file of another kind in a job's place: one line says what it is and what takes it. A wrong job keeps its list."""

import json
from pathlib import Path

import pytest

from planner.errors import ClusterError, JobError, RecipeError, StoreError
from planner.files.cluster_file import read_cluster
from planner.files.known_files import known_file
from planner.recipes import read_recipe
from planner.runner.job_argument import read_job
from planner.store.run_folder import no_run_error
from planner.store.storage import Storage

ROOT = Path(__file__).parents[2]
JOB = (ROOT / "jobs/own_loop.yaml").read_text()
RAY_UP = "base: &base {a: 1}\ncluster_name: x\nprovider: {type: aws}\navailable_node_types: {head: *base}\n"
HELM = "apiVersion: ray.io/v1\nkind: RayCluster\nspec:\n  {{- toYaml .Values.spec | nindent 2 }}\n"
TWO = "apiVersion: v1\nkind: Service\n---\napiVersion: apps/v1\nkind: Deployment\n"
TAKES_CLUSTER = "Write a job, and give this file beside it: planner plan JOB --cluster FILE"
LEDGER = '{"head":"3c","record":{"changed":[],"format":2,"generation":1}}\n'
SEALED = json.dumps({"sha256": "eb", "value": {"format": 1, "run_id": "a3"}})
MODEL = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 9})

# file -> (content, what it is, what to do). FILE stands for its path.
OTHERS = {
    "up.yaml": (RAY_UP, "a cluster file of `ray up`", TAKES_CLUSTER),
    "pods.yaml": ((ROOT / "docs/cluster-kuberay.yaml").read_text(), "a RayCluster of KubeRay", TAKES_CLUSTER),
    "helm.yaml": (HELM, "a RayCluster of KubeRay", TAKES_CLUSTER),
    "rayjob.yaml": ("apiVersion: ray.io/v1\nkind: RayJob\n", "a RayJob of KubeRay", TAKES_CLUSTER),
    "service.yaml": (
        "apiVersion: ray.io/v1\nkind: RayService\nspec: {}\n",
        "a RayService of KubeRay",
        "Of KubeRay's files, planner plan --cluster reads a RayCluster or a RayJob",
    ),
    "two.yaml": (TWO, "a Kubernetes file of kind Service", "Write the path of a job"),
    "compose.yml": ("services: {web: {image: x}}\n", "a Docker Compose file", "Write the path of a job"),
    "config.json": (MODEL, "the config.json of a model", "A job names its folder as model.path"),
    "run.json": (SEALED, "a file of a run's folder", "Write RUN, the folder itself: planner show RUN"),
    "000001.jsonl": (LEDGER * 2, "the ledger of a run", "Write RUN, the run's folder: planner show RUN"),
    "one.jsonl": (LEDGER, "the ledger of a run", "Write RUN, the run's folder: planner show RUN"),
    "rows.jsonl": ('{"messages": []}\n' * 2, "rows of data", "A job names their file as data.path"),
    "row.json": ('{"prompt": "a", "completion": "b"}', "rows of data", "A job names their file as data.path"),
    "requirements.txt": ("torch==2.13\nray[default]>=2\n# why\nnumpy\n", "a list of Python packages", "Write the path"),
    "pyproject.toml": ('[project]\nname = "x"\n', "a TOML file", "Write the path of a job"),
    "my_loop.py": ('"""Like train.py."""\nimport torch\n', "a Python file", "A job names a training loop of your own"),
    "run.sh": (
        "#!/bin/bash\nmake all\n",
        "a shell script",
        "If it starts a training, make a job of it: planner convert",
    ),
    "nb.json": ('{"cells": [], "nbformat": 4}', "a notebook", "Write the code of its training into a Python file"),
}
RECIPES = {
    "a trl recipe.yaml": "model_name_or_path: m\nper_device_train_batch_size: 8\nlearning_rate: 1e-6\n",
    "ds.json": '{"train_batch_size": 64, "zero_optimization": {"stage": 3}}',
    "train.sh": "accelerate launch --num_processes 2 dpo.py --per_device_train_batch_size 2\n",
}


def lines_of(path):
    with pytest.raises(JobError) as caught:
        read_job(path)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_of_another_kind_is_named_in_one_line_with_what_takes_it(name, tmp_path):
    text, what, fix = OTHERS[name]
    (file := tmp_path / name).write_text(text)
    (line,) = lines_of(file)
    assert line.startswith(f"{file}: found {what}, not a job. {fix.replace('FILE', str(file))}")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_sent_to_convert(name, tmp_path, monkeypatch):
    """In one line, not one for each of its keys. The command can be typed as it stands."""
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(RECIPES[name])
    (line,) = lines_of(name)
    what = "a DeepSpeed configuration" if name == "ds.json" else "a recipe of TRL"
    quoted = f"'{name}'" if " " in name else name
    assert line == f"{name}: found {what}, not a job. Make a job of it: planner convert {quoted}"


def test_a_recipe_of_a_system_that_planner_does_not_read_is_named(tmp_path):
    (file := tmp_path / "config.yaml").write_text("pipe_parallel_size: 1\nmodel_parallel_size: 2\n")
    (line,) = lines_of(file)
    assert "this looks like GPT-NeoX (pipe_parallel_size, model_parallel_size), which planner does not read" in line


def test_an_accelerate_file_is_sent_beside_its_recipe(tmp_path):
    (file := tmp_path / "acc.yaml").write_text("distributed_type: FSDP\nnum_processes: 8\nnum_machines: 1\n")
    (line,) = lines_of(file)
    assert line.endswith(f"planner convert RECIPE --accelerate {file}")


def test_a_binary_file_is_named(tmp_path):
    (file := tmp_path / "rows.parquet").write_bytes(b"PAR1\xff\xff")
    assert lines_of(file) == [f"{file}: found a parquet file, not a job. Write the path of a job"]


def test_folders_of_runs_and_models_are_named(tmp_path):
    run, model = tmp_path / "run", tmp_path / "model"
    for file, text in ((run / "run.json", SEALED), (run / "jobs/ab.json", "{}"), (model / "config.json", MODEL)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (line,) = lines_of(run)
    assert line.endswith(f"not a job. To see the run: planner show {run}. Its job is {run}/jobs/ab.json")
    assert lines_of(model) == [f"{model}: found the folder of a model, not a job. A job names it as model.path"]
    assert lines_of(tmp_path) == [f"{tmp_path}: found a directory. Write the path of a job file in it"]


@pytest.mark.parametrize(
    "mistake",
    [
        "batch: &b {global: 8, max_micro: 4}",
        "batch: {global: eight, max_micro: 4}",
        "batch: {global: 8, max_micro: 4}\nkind: sft\nservices: {a: {image: x}}\nmessages: []",
        "batch: {global: 8, max_micro: 4}\nper_device_train_batch_size: 8\nmodel_name_or_path: m",
        "batch: {global: 8, max_micro: 4}\nprovider: {type: aws}\nmax_workers: 3",
    ],
)
def test_a_job_with_mistakes_keeps_its_list_of_mistakes(mistake, tmp_path):
    """Keys of other systems among its own do not make it something else."""
    head, _, rest = JOB.partition("batch:")
    text = f"{head}{mistake}\n" + rest.partition("\n")[2]
    assert text != JOB
    assert known_file("job.yaml", text) is None
    (file := tmp_path / "job.yaml").write_text(text)
    lines = lines_of(file)
    assert not any("not a job" in line for line in lines)
    assert all(line.startswith(f"{file}: ") for line in lines)


@pytest.mark.parametrize("keys", ["train_batch_size: 8", "per_device_train_batch_size: 8\nlearning_rate: 1.0e-6"])
def test_a_job_with_keys_of_a_recipe_in_place_of_its_batch_keeps_its_mistakes(keys, tmp_path):
    """The kind of its model, or of its data, shows that it is a job."""
    for section in ("model: {kind: hf, path: m, context: 8}", "data: {kind: chat, path: rows.jsonl}"):
        (file := tmp_path / "job.yaml").write_text(f"name: x\n{section}\n{keys}\n")
        lines = lines_of(file)
        assert len(lines) > 1
        assert not any("not a job" in line for line in lines)


@pytest.mark.parametrize("name", ["", "name: x\n", "a: [\n", "name: x\nmodel: {kind: gpt}\n", "kind: sft\nname: x\n"])
def test_what_is_not_known_keeps_its_mistakes(name, tmp_path):
    (file := tmp_path / "job.yaml").write_text(name)
    assert not any("not a job" in line for line in lines_of(file))


def test_our_own_jobs_are_never_taken_for_anything_else():
    for file in sorted(ROOT.glob("jobs/*.yaml")):
        assert known_file(str(file), file.read_text()) is None
        read_job(file)


def test_overrides_do_not_hide_what_a_file_is(tmp_path):
    (file := tmp_path / "up.yaml").write_text(RAY_UP)
    with pytest.raises(JobError, match="found a cluster file of `ray up`, not a job"):
        read_job(file, ["train.steps=4"])


@pytest.mark.parametrize("name", ["up.yaml", "pods.yaml", "two.yaml", "config.json", "requirements.txt"])
def test_a_file_of_another_kind_is_no_recipe_either(name, tmp_path):
    text, what, _ = OTHERS[name]
    (file := tmp_path / name).write_text(text)
    with pytest.raises(RecipeError) as caught:
        read_recipe(str(file))
    assert str(caught.value).startswith(f"{file}: found {what}, not a recipe. ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["service.yaml", "config.json", "compose.yml"])
def test_a_file_of_another_kind_is_no_cluster_either(name, tmp_path):
    text, what, _ = OTHERS[name]
    (file := tmp_path / name).write_text(text)
    with pytest.raises(ClusterError) as caught:
        read_cluster(file)
    assert str(caught.value).startswith(f"{file}: found {what}, not a cluster. Write a file for `ray up`")


def test_a_job_in_a_clusters_place_is_named(tmp_path):
    (file := tmp_path / "job.yaml").write_text(JOB)
    with pytest.raises(ClusterError, match=r"found a job of planner\. Write a file for `ray up`"):
        read_cluster(file)


def test_a_path_below_a_file_is_no_run_and_names_the_file(tmp_path):
    (tmp_path / "mine").write_text("x")
    run = tmp_path / "mine/run"
    with pytest.raises(StoreError) as caught:
        Storage(str(run)).names("manifests")
    assert str(caught.value) == f"{run}: no folder here, because {tmp_path}/mine is not one. Check the path"


def test_a_file_in_a_runs_place_says_which_folder_to_write(tmp_path):
    (tmp_path / "run/manifests").mkdir(parents=True)
    for name in ("job.yaml", "run/run.json", "run/manifests/1.json"):
        (tmp_path / name).write_text("{}")
    told = {
        name: str(no_run_error(str(tmp_path / name))) for name in ("job.yaml", "run/run.json", "run/manifests/1.json")
    }
    assert isinstance(no_run_error("x"), StoreError)
    assert told["job.yaml"].endswith("(this is a file). Write the run's folder, which a job names as checkpoint.path")
    assert told["run/run.json"].endswith(f"Write the folder of its run, {tmp_path}/run")
    assert told["run/manifests/1.json"].endswith(f"Write the folder of its run, {tmp_path}/run")

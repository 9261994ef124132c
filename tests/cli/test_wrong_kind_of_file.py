"""Each command that takes a job says in one line that a cluster's file is none."""

import pytest


@pytest.mark.parametrize("command", ["plan", "run", "submit", "verify"])
def test_a_cluster_file_in_a_jobs_place_is_one_line(command, cli, tmp_path):
    (tmp_path / "pods.yaml").write_text("apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: &m {name: x}\nspec: *m\n")
    address = ["--address", "http://127.0.0.1:1"] if command == "submit" else []
    answer = cli(command, "pods.yaml", *address)
    takes = "Write a job, and give this file beside it: planner plan JOB --cluster pods.yaml"
    assert answer.err == f"planner: pods.yaml: found a RayCluster of KubeRay, not a job. {takes}\n"
    assert (answer.code, answer.out) == (2, "")

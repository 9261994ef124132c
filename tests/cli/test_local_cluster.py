"""The local cluster of a job: as many nodes as the run uses. The dry run and the start say the same."""

import pytest

from planner.errors import UserError
from planner.files import read_job
from planner.job import batch_sizes, workers_of
from planner.plan.revise import useful_workers
from planner.runner import local
from planner.runner.local import MOST_NODES, local_cluster


@pytest.fixture
def machine(monkeypatch):
    """`machine(cores, gpus)` -> this machine, as planner sees it."""

    def of(cores, gpus=0):
        monkeypatch.setattr(local.os, "cpu_count", lambda: cores)
        monkeypatch.setattr(local, "_num_gpus", lambda: gpus)

    return of


@pytest.mark.parametrize(
    ("settings", "nodes"),
    [
        (["batch.global=2"], 2),  # no worker without a sample
        (["workers.max=3"], 3),
        (["batch.global=10"], 5),  # as fast as 8: the time of 2 samples
        (["batch.global=64"], 8),  # workers.max
        (["batch.global=64", "workers.max=64"], 16),  # the cores
        (["batch.global=64", "workers.max=64", "workers.cpus=8"], 2),
        (["batch.global=64", "workers.max=64", "workers.cpus=2.5"], 5),
        (["batch.global=64", "workers.max=64", "workers.cpus=0.5"], 16),
        (["batch.global=64", "workers.cpus=32"], 1),
        (["batch.global=12", "batch.equality=bitwise"], 3),  # three micro-batches of 4
        (["batch.global=2", "workers.min=2"], 2),
    ],
)
def test_sixteen_cores_start_as_many_nodes_as_the_run_uses(job, machine, settings, nodes):
    """The controller would use no more of them."""
    machine(cores=16)
    found = read_job(job, settings)
    shape = local_cluster(found, 0)
    assert (shape.num_workers, shape.unused) == (nodes, "")
    assert useful_workers(batch_sizes(found), workers_of(found), nodes) == nodes


def test_gpus_that_the_run_does_not_use_get_no_worker(job, machine):
    """One node has the places of all workers. Its cores do not count."""
    machine(cores=2, gpus=8)
    shape = local_cluster(read_job(job, ["workers.gpus=1", "batch.global=2"]), 0)
    assert (shape.num_workers, shape.gpus, shape.shape.gpus) == (2, 2, 2)
    machine(cores=2, gpus=0)
    assert local_cluster(read_job(job, ["workers.gpus=1", "batch.global=2"]), 0).num_workers == 2


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        (["batch.global=2"], "of which the run uses 2 (batch.global is 2)"),
        (["workers.max=3"], "of which the run uses 3 (workers.max is 3)"),
        (["batch.global=10"], "of which the run uses 5 (5 are as fast as 8)"),
        (["batch.global=64"], ""),
    ],
)
def test_the_users_own_number_of_nodes_stands_and_what_is_not_used_is_said(job, machine, settings, unused):
    """By the start and by the dry run, in the same words."""
    machine(cores=2)
    shape = local_cluster(read_job(job, settings), 8)
    assert (shape.num_workers, shape.unused) == (8, unused)


def test_the_dry_run_and_the_start_agree(cli, job, machine, monkeypatch):
    """In the number of nodes, in the text, and in the plan that the run begins with."""
    machine(cores=16)
    arguments = ("--set", "batch.global=10")
    lines = cli("run", job, *arguments, "--nodes", "8", "--dry-run").out.splitlines()
    assert lines[1] == "cluster   local Ray cluster, 8 workers (CPU), of which the run uses 5 (5 are as fast as 8)"
    assert "   5     5  5 x 2" in "\n".join(lines)
    lines = cli("run", job, *arguments, "--dry-run").out.splitlines()
    assert lines[1] == "cluster   local Ray cluster, 5 workers (CPU)"

    started, said = [], []

    class Cluster:
        def __init__(self, num_nodes, **_):
            started.append(num_nodes)

        def start(self):
            pass

        def close(self):
            pass

    monkeypatch.setattr(local, "EmbeddedCluster", Cluster)
    for nodes in (8, 0):
        with local.embedded(local_cluster(read_job(job, ["batch.global=10"]), nodes), said.append):
            pass
    assert started == [8, 5]
    room = "starting a local Ray cluster with room for"
    assert said == [f"{room} 8 workers, of which the run uses 5 (5 are as fast as 8)", f"{room} 5 workers"]


@pytest.mark.parametrize(
    ("settings", "nodes", "says"),
    [
        (["workers.min=3"], 2, "has 2 places. Write a workers.min of at most 2, or write planner run --nodes 3"),
        (["workers.min=20", "workers.max=20", "workers.cpus=8", "batch.global=20"], 0, r"places \(16 cores\). Write a"),
        (
            ["workers.min=70", "workers.max=80", "batch.global=80"],
            64,
            "has 64 places. Write a workers.min of at most 64$",
        ),
        (["workers.min=70", "workers.max=80", "batch.global=80"], 0, r"has 16 places \(16 cores\). .*at most 16$"),
    ],
)
def test_too_few_places_are_refused_with_what_can_be_written(job, machine, settings, nodes, says):
    """No more nodes are advised than a local cluster may have."""
    machine(cores=16)
    with pytest.raises(UserError, match=says):
        local_cluster(read_job(job, settings), nodes)


def test_more_nodes_than_gpus_get_no_more_places(job, machine):
    """A worker without a GPU of its own could not train."""
    machine(cores=16, gpus=2)
    shape = local_cluster(read_job(job, ["workers.gpus=1", "batch.global=64"]), 8)
    assert (shape.num_workers, shape.gpus, shape.shape.gpus, shape.unused) == (2, 2, 2, "")


@pytest.mark.parametrize("nodes", [0, 8])
def test_too_few_gpus_are_refused_without_the_advice_to_write_more_nodes(job, machine, nodes):
    """Nodes bring no GPUs."""
    machine(cores=16, gpus=2)
    with pytest.raises(UserError, match=r"has 2 places \(2 GPUs\). Write a workers.min of at most 2$"):
        local_cluster(read_job(job, ["workers.gpus=1", "workers.min=3", "batch.global=64"]), nodes)


@pytest.mark.parametrize("cpus", [2, 8, 300])
def test_workers_min_starts_if_each_of_its_workers_has_a_core(job, machine, cpus):
    """However many cores a worker asks for: Ray only counts them. Beyond `workers.min`, each worker gets its cores."""
    machine(cores=2)
    settings = ["workers.min=2", f"workers.cpus={cpus}", "batch.global=64"]
    assert local_cluster(read_job(job, settings), 0).num_workers == 2


def test_a_large_machine_refuses_more_than_the_most_nodes_without_blaming_its_cores(job, machine):
    machine(cores=192)
    settings = ["workers.min=70", "workers.max=80", "batch.global=80"]
    with pytest.raises(UserError, match=r"has 64 places. Write a workers.min of at most 64$"):
        local_cluster(read_job(job, settings), 0)


def test_a_large_machine_starts_no_more_nodes_than_one_may_ask_for(job, machine):
    machine(cores=256)
    settings = ["workers.max=256", "batch.global=256"]
    assert local_cluster(read_job(job, settings), 0).num_workers == MOST_NODES


def test_a_resource_that_probably_means_another_is_warned_of(cli, job):
    """The local cluster has every custom resource, so nothing else would show the mistake."""
    out = cli("run", job, "--set", "workers.resources={gpu: 1}", "--dry-run").out
    assert (
        "warning   workers.resources.gpu is a custom resource, which the local cluster makes up: GPUs belong in "
        "workers.gpus\n"
    ) in out
    assert "warning" not in cli("run", job, "--set", "workers.resources={fast_disk: 1}", "--dry-run").out


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("model.attention=varlen", "model.attention varlen needs GPUs, and this machine has none. Write model.attent"),
        ("model.attention=flash_attention_2", "model.attention flash_attention_2 needs GPUs, and this machine has n"),
        ("train.kernels=liger", "train.kernels liger needs GPUs, and this machine has none. Write train.kernels: own"),
    ],
)
def test_what_works_on_gpus_alone_is_refused_where_workers_would_train_on_the_cpu(job, machine, setting, says):
    """Before a cluster starts, so that a dry run says it, too."""
    hf = ["model={kind: hf, path: m, context: 8}", "data={kind: chat, path: rows}", "objective=sft"]
    asked = read_job(job, [*hf, "workers.gpus=1", "train.precision=bf16", setting])
    machine(cores=2)
    with pytest.raises(UserError, match=f"^{says}"):
        local_cluster(asked, 0)
    machine(cores=2, gpus=1)
    assert local_cluster(asked, 0).gpus == 1

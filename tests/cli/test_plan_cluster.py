"""`planner plan --cluster`: the counts that a cluster reaches, their nodes, and what is refused."""

import json
import re
import subprocess
import sys

import pytest
from test_plan_command import on_a_terminal

from planner.base.disk import size_text

CLUSTER = """\
cluster_name: small
max_workers: 6
provider: {type: gcp}
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0}, node_config: {}}
  one: {resources: {CPU: 8, GPU: 1}, max_workers: 3, node_config: {}}
  four: {resources: {CPU: 32, GPU: 4}, max_workers: 2, node_config: {}}
"""


@pytest.fixture
def gpu_job(job):
    """64 samples, at most 8 in a micro-batch, 1 to 8 workers with a GPU each, and a cluster file."""
    text = job.read_text().replace("{global: 6, max_micro: 4}", "{global: 64, max_micro: 8}")
    job.write_text(text.replace("workers: {gpus: 0}", "workers: {gpus: 1}"))
    (job.parent / "cluster.yaml").write_text(CLUSTER)
    return job


def nodes(answer):
    """Return count -> the cell of the nodes column."""
    assert (answer.code, answer.err) == (0, "")
    lines = [re.split(r" {2,}", line.strip()) for line in answer.out.splitlines() if re.match(r" *\d+  ", line)]
    return {int(cells[0]): cells[7] for cells in lines}


ALL = {
    1: "1 x one",
    2: "2 x one",
    3: "3 x one",
    4: "1 x four",
    5: "1 x one + 1 x four",
    6: "2 x one + 1 x four",
    7: "3 x one + 1 x four",
    8: "2 x four",
}


def test_a_floor_needs_nodes_with_the_label(cli, gpu_job):
    """The plan says what it is, and what its cluster lacks."""
    floor = ["--set", "workers.min=2", "--set", "workers.min_on=on-demand"]
    answer = cli("plan", gpu_job, "--cluster", "cluster.yaml", *floor)
    assert answer.out.splitlines()[1] == (
        "workers.min: 2 workers on on-demand nodes (workers.min_on): losing all spot nodes leaves these"
    )
    assert "no node of cluster small with room for a worker has the label ray.io/market-type: on-demand" in answer.out
    lasting = "labels: {ray.io/market-type: on-demand}, min_workers: 2, max_workers: 3"
    (gpu_job.parent / "cluster.yaml").write_text(CLUSTER.replace("max_workers: 3", lasting))
    answer = cli("plan", gpu_job, "--cluster", "cluster.yaml", *floor)
    assert (answer.code, "The run waits" in answer.out, "on-demand nodes (one)" in answer.out) == (0, False, False)


def test_every_count_of_the_job_that_the_cluster_reaches_is_a_row(cli, gpu_job):
    """With the fewest nodes. The plans are those without a cluster."""
    answer = cli("plan", gpu_job, "--cluster", "cluster.yaml")
    assert nodes(answer) == ALL
    plain = cli("plan", gpu_job).out
    for line in plain.splitlines():
        assert line.partition("%")[0] in answer.out


def test_the_second_line_says_how_the_file_was_read(cli, gpu_job):
    """Every group, how many nodes it can have, and how many workers fit on one."""
    assert cli("plan", gpu_job, "--cluster", "cluster.yaml").out.splitlines()[:2] == [
        "tiny: global batch 64, at most 8 in a micro-batch",
        (
            "cluster small: 1 x head (no room), 0-3 x one (1 worker each), 0-2 x four (4 workers each); "
            "at most 6 nodes beside the head"
        ),
    ]


def test_what_the_cluster_has_beyond_the_job_is_said(cli, gpu_job):
    """The cluster has eleven GPUs, and the job takes eight workers."""
    out = cli("plan", gpu_job, "--cluster", "cluster.yaml").out
    assert out.endswith(
        "\n\nThe cluster has room for 11 workers. This job takes at most 8 (workers.max, batch.global).\n"
    )
    assert "room for 11" not in cli("plan", gpu_job, "--cluster", "cluster.yaml", "--set", "workers.max=11").out


def test_the_jobs_most_is_a_row_though_some_gpus_are_idle(cli, gpu_job):
    """Only fours: eight is the most below ten, and ten workers leave two of twelve GPUs idle."""
    text = CLUSTER.replace("max_workers: 3", "max_workers: 0").replace("max_workers: 2", "max_workers: 3")
    (gpu_job.parent / "cluster.yaml").write_text(text)
    answer = cli("plan", gpu_job, "--cluster", "cluster.yaml", "--set", "workers.max=10")
    assert nodes(answer) == {4: "1 x four", 8: "2 x four", 10: "3 x four (2 idle)"}


def test_gpus_chooses_among_what_is_reached(cli, gpu_job):
    """In the given order. A note names the counts out of reach."""
    answer = cli("plan", gpu_job, "--cluster", "cluster.yaml", "--gpus", "11,3,10-20")
    assert nodes(answer) == {11: "3 x one + 2 x four", 3: "3 x one", 10: "2 x one + 2 x four"}
    assert "\nOut of the cluster's reach: 12-20.\n" in answer.out
    assert "Other rows are what-if" in answer.out


def test_cpu_jobs_count_cpus(cli, gpu_job):
    """Four workers of eight CPUs on the larger node, one on the smaller."""
    overrides = ("--set", "workers.gpus=0", "--set", "workers.cpus=8")
    assert nodes(cli("plan", gpu_job, "--cluster", "cluster.yaml", *overrides)) == ALL
    sixteen = ("--set", "workers.gpus=0", "--set", "workers.cpus=16")
    assert nodes(cli("plan", gpu_job, "--cluster", "cluster.yaml", *sixteen)) == {2: "1 x four", 4: "2 x four"}


def test_a_head_with_gpus_is_a_node_as_any_other(cli, gpu_job):
    """It always exists."""
    (gpu_job.parent / "cluster.yaml").write_text(CLUSTER.replace("{CPU: 0}", "{CPU: 8, GPU: 2}"))
    found = nodes(cli("plan", gpu_job, "--cluster", "cluster.yaml", "--gpus", "2,3"))
    assert found == {2: "1 x head", 3: "1 x head + 1 x one"}


def test_json_has_the_nodes_only_with_a_cluster(cli, gpu_job):
    """As pairs of number and name, like the shares."""
    plans = json.loads(cli("plan", gpu_job, "--cluster", "cluster.yaml", "--json").out)
    assert [(plan["world_size"], plan["nodes"]) for plan in plans][4] == (5, [[1, "one"], [1, "four"]])
    plain = json.loads(cli("plan", gpu_job, "--json").out)
    only_with = {"nodes", "node_state_bytes"}
    assert [{key: plan[key] for key in plan if key not in only_with} for plan in plans] == plain


def test_the_copy_of_a_commit_is_on_the_fullest_node(cli, gpu_job):
    """Four workers share a node of the larger kind. With one worker there, it is that one's part."""
    answer = cli("plan", gpu_job, "--cluster", "cluster.yaml")
    plans = {
        plan["world_size"]: plan for plan in json.loads(cli("plan", gpu_job, "--cluster", "cluster.yaml", "--json").out)
    }
    assert plans[1]["node_state_bytes"] == plans[1]["worker_state_bytes"]
    assert plans[4]["node_state_bytes"] > 3 * plans[4]["worker_state_bytes"]
    assert plans[8]["node_state_bytes"] < plans[4]["node_state_bytes"]
    most = 4 * max(plan["node_state_bytes"] for plan in plans.values())
    assert f"\nhost memory for copies: at most {size_text(most)} on a node\n" in answer.out


def test_no_line_ends_in_blanks(cli, gpu_job):
    """Also with the nodes column, with and without notes."""
    for gpus in ("1-11", "4"):
        out = cli("plan", gpu_job, "--cluster", "cluster.yaml", "--gpus", gpus).out
        assert not [line for line in out.splitlines() if line != line.rstrip()]


def test_thousands_of_counts_are_a_table(cli, gpu_job):
    """A cluster of 20,000 GPUs reaches every count, one row each."""
    text = CLUSTER.replace("max_workers: 6", "max_workers: 9999").replace("max_workers: 3", "max_workers: 4000")
    (gpu_job.parent / "cluster.yaml").write_text(text.replace("max_workers: 2", "max_workers: 4000"))
    overrides = ("--set", "batch.global=100000", "--set", "workers.max=4096")
    found = nodes(cli("plan", gpu_job, "--cluster", "cluster.yaml", *overrides))
    assert list(found) == list(range(1, 4097))
    assert found[4095] == "3 x one + 1023 x four"


@pytest.mark.process
@pytest.mark.parametrize("columns", [80, 200])
def test_a_cluster_table_fits_the_terminal(gpu_job, columns):
    """A column of nodes that does not fit moves to the notes."""
    shown = on_a_terminal(columns, "plan", gpu_job, "--cluster", gpu_job.parent / "cluster.yaml", "--gpus", "1-11")
    assert max(map(len, shown.splitlines())) <= columns
    assert ("nodes: 3 x one + 2 x four" in shown) == (columns == 80)
    assert "3 x one + 2 x four" in shown
    text = " ".join(shown.split())
    assert "four (4 workers each); at most 6 nodes beside the head" in text
    assert "Other rows are what-if." in text


@pytest.mark.parametrize(
    ("edit", "arguments", "says"),
    [
        (None, ("--cluster", "missing.yaml"), "missing.yaml: found no such file. Write the path of a cluster file"),
        (None, ("--cluster", ""), "found a directory. Write the path of a cluster file in it"),
        (None, ("--cluster", "job.yaml"), "Write a file for `ray up`"),
        (None, ("--cluster", "text.txt"), "Write a file for `ray up`"),
        (("max_workers: 3", "max_workers: -3"), (), "available_node_types.one.max_workers: found -3"),
        (("max_workers: 3", "min_workers: 4, max_workers: 3"), (), "Write at most the type's max_workers, 3"),
        (("GPU: 1", "GPU: many"), (), 'available_node_types.one.resources.GPU: found "many" (text)'),
        (
            None,
            ("--set", "workers.cpus=64"),
            (
                "cluster small has no node with room for a worker, which takes 64 CPU, 1 GPU (workers.cpus, "
                "workers.gpus, workers.resources). The nodes offer: head nothing; one 8 CPU, 1 GPU; four 32 CPU, 4 GPU"
            ),
        ),
        (None, ("--set", "workers.resources={slot: 1}"), "which takes 1 CPU, 1 GPU, 1 slot"),
        (
            None,
            ("--set", "workers.min=12", "--set", "workers.max=20"),
            (
                "this job runs on 12 to 20 workers, and cluster small has room for 1-11. Change its numbers of "
                "nodes, or workers.min and workers.max"
            ),
        ),
        (None, ("--gpus", "14-12"), "runs backwards"),
        (
            None,
            ("--gpus", "20,12-14"),
            "you asked for 12-14, 20, and cluster small has room for 1-11. Change its numbers of nodes, or --gpus",
        ),
    ],
)
def test_an_impossible_cluster_is_refused_with_a_sentence(cli, gpu_job, edit, arguments, says):
    """Exit code 2, and nothing on stdout."""
    if edit:
        assert CLUSTER.count(edit[0]) == 1
        (gpu_job.parent / "cluster.yaml").write_text(CLUSTER.replace(*edit))
    cluster = () if "--cluster" in arguments else ("--cluster", "cluster.yaml")
    answer = cli("plan", gpu_job, *cluster, *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert says in answer.err
    assert "Traceback" not in answer.err


def test_a_long_list_of_counts_is_cut():
    """The first ranges and the last number stay."""
    from planner.report.text_columns import spans

    assert spans([1, 2, 3, 5, 7, 8]) == "1-3, 5, 7-8"
    assert spans(range(2, 101, 2)) == "2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, ..., 100"


@pytest.mark.process
def test_a_plan_with_a_cluster_loads_nothing_heavy(gpu_job):
    """Reading a cluster file needs no Ray."""
    code = (
        "import sys; from planner.cli import main\n"
        f"sys.argv = ['planner', 'plan', {str(gpu_job)!r}, '--cluster', {str(gpu_job.parent / 'cluster.yaml')!r}]\n"
        "try: main()\nexcept SystemExit: pass\n"
        "assert not {'ray', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

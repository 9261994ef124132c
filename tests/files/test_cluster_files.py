"""What a `ray up` or KubeRay file says of a cluster, and what a wrong one is told."""

import os
import select
import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from events import EVENT_S
from hypothesis import given
from hypothesis import strategies as st

from planner.cluster.nodes import Cluster, NodeGroup
from planner.cluster.reachable_counts import Reach
from planner.errors import ClusterError
from planner.files.cluster_file import read_cluster
from planner.files.cluster_section import CheckedMapping
from planner.files.ec2_types import known_resources
from planner.files.quantities import amount, check_limits
from planner.report.clusters import floor_note

ROOT = Path(__file__).parents[2]
RAY_UP_FILES = [ROOT / "cluster.yaml", ROOT / "docs" / "cluster-gcp.yaml"]
KUBERAY_FILE = ROOT / "docs" / "cluster-kuberay.yaml"

RAY_UP = """\
cluster_name: small
max_workers: 6
provider: {type: gcp, region: here}
head_node_type: head
available_node_types:
  head:
    resources: {CPU: 4}
    node_config: {}
  one:
    resources: {CPU: 8, GPU: 1, slot: 2}
    min_workers: 1
    max_workers: 4
    node_config: {}
  four:
    resources: {CPU: 32, GPU: 4}
    node_config: {}
"""

KUBERAY = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: pods}
spec:
  enableInTreeAutoscaling: true
  headGroupSpec:
    rayStartParams: {num-cpus: "0"}
    template: {spec: {containers: [{name: head, resources: {limits: {cpu: 2}}}]}}
  workerGroupSpecs:
    - groupName: gpus
      replicas: 2
      minReplicas: 1
      maxReplicas: 3
      rayStartParams: {}
      template: {spec: {containers: [{name: worker, resources: {limits: {cpu: 3500m, nvidia.com/gpu: "2"}}}]}}
"""


@pytest.fixture
def read(tmp_path):
    """Reads a text as a cluster file."""

    def read_text(text):
        path = tmp_path / "cluster.yaml"
        path.write_text(text)
        return read_cluster(path)

    return read_text


@pytest.fixture
def told(read, tmp_path):
    """The lines that a wrong text is told, without the file's name."""

    def lines(text):
        with pytest.raises(ClusterError) as caught:
            read(text)
        return str(caught.value).replace(f"{tmp_path}/cluster.yaml: ", "").split("\n")

    return lines


def changed(text, old, new):
    assert text.count(old) == 1, old
    return text.replace(old, new)


def sizes(cluster):
    return {group.name: (group.min_nodes, group.max_nodes) for group in cluster.groups if group.max_nodes}


# --- ray up -----------------------------------------------------------------------------------------------


def test_a_ray_up_file_is_its_head_and_its_types(read):
    """Without max_workers a type may have as many as the cluster. A head of its own type has no workers."""
    assert read(RAY_UP) == Cluster(
        name="small",
        head=NodeGroup(name="head", min_nodes=1, max_nodes=1, resources={"CPU": 4, "GPU": 0}),
        groups=(
            NodeGroup(name="head", min_nodes=0, max_nodes=0, resources={"CPU": 4, "GPU": 0}),
            NodeGroup(name="one", min_nodes=1, max_nodes=4, resources={"CPU": 8, "GPU": 1, "slot": 2}),
            NodeGroup(name="four", min_nodes=0, max_nodes=6, resources={"CPU": 32, "GPU": 4}),
        ),
        max_nodes=6,
    )


def test_without_max_workers_there_are_as_many_as_ray_fills_in(read):
    """Two, for every provider."""
    cluster = read(changed(RAY_UP, "max_workers: 6\n", ""))
    assert (cluster.max_nodes, sizes(cluster)) == (2, {"one": (1, 4), "four": (0, 2)})


def test_the_heads_type_may_have_workers_too(read):
    """The head, and as many again."""
    cluster = read(changed(RAY_UP, "CPU: 4}\n", "CPU: 4}\n    max_workers: 3\n"))
    assert sizes(cluster)["head"] == (0, 3)


AWS = changed(RAY_UP, "type: gcp", "type: aws")
ON_AWS = changed(AWS, "resources: {CPU: 4}\n    node_config: {}", "node_config: {InstanceType: m7i.2xlarge}")
ON_AWS = changed(
    ON_AWS, "resources: {CPU: 32, GPU: 4}\n    node_config: {}", "node_config: {InstanceType: g6.12xlarge}"
)


def test_on_aws_well_known_types_need_no_resources(read):
    """Ray asks AWS. planner knows the usual ones."""
    cluster = read(ON_AWS)
    assert cluster.head.resources == {"CPU": 8, "GPU": 0}
    assert cluster.groups[2].resources == {"CPU": 48, "GPU": 4}


def test_what_is_written_counts_before_what_is_known(read):
    """As in Ray: resources are laid over what AWS says."""
    text = changed(ON_AWS, "node_config: {InstanceType: g6", "resources: {GPU: 2}\n    node_config: {InstanceType: g6")
    assert read(text).groups[2].resources == {"CPU": 48, "GPU": 2}


@pytest.mark.parametrize(
    ("instance", "resources"),
    [
        ("p5.48xlarge", {"CPU": 192, "GPU": 8}),
        ("g6e.xlarge", {"CPU": 4, "GPU": 1}),
        ("m5.large", {"CPU": 2, "GPU": 0}),
        ("c7i-flex.xlarge", {"CPU": 4, "GPU": 0}),
        ("r6gd.16xlarge", {"CPU": 64, "GPU": 0}),
        ("m5.metal", {}),
        ("g9.xlarge", {}),
        ("trn1.2xlarge", {}),
        ("m5.xlarge ", {}),
        (None, {}),
        (["m5.large"], {}),
    ],
)
def test_only_well_known_instance_types_are_known(instance, resources):
    """No guess: what is not in the table has to be written."""
    assert known_resources(instance) == resources


def test_anchors_and_foreign_keys_are_rays_business(read):
    """What is legal for Ray is read, whatever else stands there."""
    text = RAY_UP.replace("resources: {CPU: 8, GPU: 1, slot: 2}", "resources: &r {CPU: 8, GPU: 1}\n    x-mine: [1]")
    text = text.replace("resources: {CPU: 32, GPU: 4}", "resources: {<<: *r, GPU: 8}")
    assert read(text + "nobody_knows: 2024-01-01\n").groups[2].resources == {"CPU": 8, "GPU": 8}


def test_names_that_would_steer_a_terminal_are_written_out(read):
    """They end up in a table."""
    assert read(changed(RAY_UP, "  one:", '  "o\\e[31mne":')).groups[1].name == r"o\x1b[31mne"


def test_memory_is_counted_in_bytes(read):
    """More of them than Kubernetes' largest whole number."""
    assert read(changed(RAY_UP, "slot: 2", "memory: 34359738368")).groups[1].resources["memory"] == 2**35


WRONG_RAY_UP = [
    ("cluster_name: small\n", "", "cluster_name: found nothing. Write a name"),
    ("cluster_name: small", "cluster_name: 3", "cluster_name: found 3 (a whole number). Write a name"),
    ("{type: gcp, region: here}", "gcp", 'provider: found "gcp" (text). Write the cloud, such as {type: aws'),
    ("{type: gcp, region: here}", "{region: here}", "provider.type: found nothing. Write the cloud, such as aws"),
    ("max_workers: 6", "max_workers: -1", "max_workers: found -1 (a whole number). Write a whole number from 0"),
    ("max_workers: 6", "max_workers: yes", "max_workers: found true (a boolean)"),
    ("max_workers: 6", "max_workers:", "max_workers: found null"),
    ("max_workers: 6", "max_workers: 2024-01-01", 'max_workers: found "2024-01-01" (text)'),
    ("max_workers: 6", "max_workers: 0", "max_workers: found 0 (a whole number). Write at least 1, the sum of all"),
    ("head_node_type: head\n", "", "head_node_type: found nothing. Write the name of one of available_node_types"),
    ("head_node_type: head", "head_node_type: x", 'head_node_type: found "x" (text). Write one of head, one, four'),
    (
        "min_workers: 1",
        "min_workers: 5",
        "available_node_types.one.min_workers: found 5 (a whole number). Write at most",
    ),
    ("max_workers: 4", "max_workers: 2.5", "available_node_types.one.max_workers: found 2.5 (a decimal number). Write"),
    ("GPU: 1,", "GPU: one,", 'available_node_types.one.resources.GPU: found "one" (text). Write a whole number'),
    ("GPU: 1,", "GPU: 1.5,", "available_node_types.one.resources.GPU: found 1.5 (a decimal number)"),
    ("slot: 2", "slot: -2", "available_node_types.one.resources.slot: found -2"),
    ("{CPU: 4}", "{}", "available_node_types.head.resources.CPU: found nothing. Write how many a node has"),
    ("{CPU: 4}", "4", "available_node_types.head.resources: found 4 (a whole number). Write a section of keys"),
    ("  four:\n", "  four: 3\n  5:\n", "available_node_types: found the key 5 (a whole number). Write a name that is"),
    ("  four:\n", "  four:\n  five:\n", "available_node_types.four: found null. Write a section of keys and values"),
]


@pytest.mark.parametrize(("old", "new", "says"), WRONG_RAY_UP)
def test_a_mistake_is_a_line_with_its_path_and_what_to_write(told, old, new, says):
    """Of a `ray up` file."""
    assert any(line.startswith(says) for line in told(changed(RAY_UP, old, new)))


def test_an_unknown_instance_type_is_not_guessed(told):
    """The line names the key to write."""
    assert told(changed(ON_AWS, "g6.12xlarge", "g9.12xlarge")) == [
        f"available_node_types.four.resources.{name}: found nothing. "
        'Write how many a node has of the type "g9.12xlarge", which planner does not know'
        for name in ("CPU", "GPU")
    ]


def test_a_type_that_never_has_nodes_may_be_unknown(read):
    """Switched off by max_workers: 0."""
    text = changed(ON_AWS, "g6.12xlarge}", "g9.12xlarge}\n    max_workers: 0")
    assert sizes(read(text)) == {"one": (1, 4)}


def test_all_mistakes_are_told_at_once(told):
    """One reading, one line each."""
    text = changed(changed(RAY_UP, "min_workers: 1", "min_workers: -1"), "cluster_name: small", "cluster_name: [x]")
    assert len(told(text)) == 2


def test_without_node_types_nothing_is_known(told):
    """Machines of one's own (`provider: local`) say what they have only when they run."""
    text = "cluster_name: mine\nprovider: {type: local, head_ip: 10.0.0.1}\n"
    assert told(text)[0] == (
        "available_node_types: found nothing. Write the node types, each with the resources of a node"
    )


# --- KubeRay ----------------------------------------------------------------------------------------------


def test_a_kuberay_file_is_its_pods(read):
    """CPUs round up, as Ray rounds them."""
    assert read(KUBERAY) == Cluster(
        name="pods",
        head=NodeGroup(name="head", min_nodes=1, max_nodes=1, resources={"CPU": 0, "GPU": 0}),
        groups=(NodeGroup(name="gpus", min_nodes=1, max_nodes=3, resources={"CPU": 4, "GPU": 2}),),
        max_nodes=3,
    )


def test_a_rayjob_has_its_cluster_within(read):
    """Under rayClusterSpec."""
    document = yaml.safe_load(KUBERAY)
    document.update(kind="RayJob", spec={"entrypoint": "planner run", "rayClusterSpec": document["spec"]})
    assert read(yaml.safe_dump(document)) == read(KUBERAY)


def test_other_objects_may_stand_in_the_file(read):
    """A secret before, an empty document between, a config map behind."""
    text = f"kind: Secret\ndata: {{}}\n---\n---\n{KUBERAY}---\nkind: ConfigMap\n"
    assert read(text) == read(KUBERAY)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("      minReplicas: 1\n", "", (0, 3)),
        ("      maxReplicas: 3\n", "", (1, 2**31 - 1)),
        ("      minReplicas: 1\n", "      minReplicas: null\n", (0, 3)),
        ("      maxReplicas: 3\n", "      maxReplicas: null\n", (1, 2**31 - 1)),
        ("      replicas: 2\n", "      replicas: null\n      numOfHosts: null\n", (1, 3)),
        ("  enableInTreeAutoscaling: true\n", "  enableInTreeAutoscaling: null\n", (2, 2)),
        ("      replicas: 2", "      numOfHosts: 4", (4, 12)),
        ("  enableInTreeAutoscaling: true\n", "", (2, 2)),
        ("  enableInTreeAutoscaling: true\n", "  enableInTreeAutoscaling: false\n", (2, 2)),
    ],
)
def test_replicas_count_where_nobody_scales(read, old, new, expected):
    """With the autoscaler from minReplicas to maxReplicas, without it `replicas`. Each has numOfHosts pods.

    A key that is missing or null has KubeRay's default.
    """
    assert sizes(read(changed(KUBERAY, old, new))) == {"gpus": expected}


@pytest.mark.parametrize(("replicas", "expected"), [(0, (1, 1)), (9, (3, 3))])
def test_the_operator_keeps_replicas_within_their_bounds(read, replicas, expected):
    """minReplicas and maxReplicas hold without an autoscaler, too."""
    text = changed(KUBERAY, "  enableInTreeAutoscaling: true\n", "").replace("replicas: 2", f"replicas: {replicas}")
    assert sizes(read(text)) == {"gpus": expected}


def kuberay_resources(**places):
    """A worker group's own resources, its rayStartParams, its container's limits and requests -> a document."""
    document = yaml.safe_load(KUBERAY)
    group = document["spec"]["workerGroupSpecs"][0]
    group["rayStartParams"] = places.get("start", {})
    if "group" in places:
        group["resources"] = places["group"]
    container = group["template"]["spec"]["containers"][0]
    container["resources"] = {name: places[name] for name in ("limits", "requests") if name in places}
    return document


@pytest.mark.parametrize(
    "places",
    [
        {"limits": {"cpu": "4", "nvidia.com/gpu": "2"}},
        {"limits": {"cpu": 4, "amd.com/gpu": 2}, "requests": {"cpu": 3, "amd.com/gpu": "2"}},
        {"limits": {"cpu": 4, "amd.com/gpu": 0, "nvidia.com/gpu": 2}},
        {"requests": {"cpu": "1500m"}},
        {"limits": {"cpu": "5e-1", "nvidia.com/gpu": "2e0"}, "group": {"memory": "0.5Gi"}},
        {"limits": {"cpu": "2k", "example.com/cpu": 9}},
        {"limits": {"cpu": 4}, "group": {"CPU": "8", "disk": "1500Gi"}},
        {"limits": {"cpu": 4, "nvidia.com/gpu": 2}, "start": {"num-cpus": "7", "num-gpus": "1"}},
        {"limits": {"cpu": 4}, "group": {"CPU": "8", "GPU": "3", "slot": "2"}, "start": {"num-cpus": "7"}},
        {"limits": {"cpu": 4}, "start": {"resources": '"{\\"slot\\": 1, \\"other\\": 5}"'}},
    ],
)
def test_a_pod_offers_what_rays_autoscaler_finds(read, places):
    """The same places in the same order: the group's own, the start's, the container's limits, its requests."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    document = kuberay_resources(**places)
    found = read(yaml.safe_dump(document)).groups[0].resources
    document["metadata"]["namespace"] = "default"
    theirs = _derive_autoscaling_config_from_ray_cr(document)["available_node_types"]["gpus"]["resources"]
    assert found == {"GPU": 0, **theirs}


GROUP = "spec.workerGroupSpecs[0]"
CONTAINER = f"{GROUP}.template.spec.containers[0].resources"
LIMITS = f"{CONTAINER}.limits"
WRONG_KUBERAY = [
    (
        "minReplicas: 1",
        "minReplicas: 4",
        f"{GROUP}.minReplicas: found 4 (a whole number). Write at most",
    ),
    ("minReplicas: 1", "minReplicas: -4", f"{GROUP}.minReplicas: found -4 (a whole number). Write a"),
    ("minReplicas: 1", 'minReplicas: "1"', f'{GROUP}.minReplicas: found "1" (text). Write a whole'),
    ("replicas: 2", "numOfHosts: 0", f"{GROUP}.numOfHosts: found 0 (a whole number). Write at least 1"),
    ("groupName: gpus", "name: gpus", f"{GROUP}.groupName: found nothing. Write the group's name"),
    ("kind: RayCluster", "kind: RayJob", "spec.rayClusterSpec: found nothing. Write the cluster: with clusterSelector"),
    ("Autoscaling: true", "Autoscaling: maybe", 'spec.enableInTreeAutoscaling: found "maybe" (text). Write true or'),
    (
        '"2"',
        "two",
        f'{LIMITS}."nvidia.com/gpu": found "two" (text). Write a quantity, such as 4 or 3500m',
    ),
    *(('"2"', wrong, f'{LIMITS}."nvidia.com/gpu": found {wrong}') for wrong in ('"4.5"', '"4500m"', "4.5", '"1Ki "')),
    ('"2"', '"20E"', f'{LIMITS}."nvidia.com/gpu": found "20E" (text). Write at most 2**63 - 1'),
    (
        'limits: {cpu: 3500m, nvidia.com/gpu: "2"}',
        "limits: {cpu: 3500m}, requests: {nvidia.com/gpu: 2}",
        f'{CONTAINER}.requests."nvidia.com/gpu": found 2 (a whole number). Write the same number under limits',
    ),
    (
        '"2"}',
        '"2"}, requests: {nvidia.com/gpu: 1}',
        f'{CONTAINER}.requests."nvidia.com/gpu": found 1 (a whole number). Write the same number under limits',
    ),
    (
        '"2"}',
        '"2"}, requests: {cpu: 4}',
        f"{CONTAINER}.requests.cpu: found 4 (a whole number). Write at most what limits has",
    ),
    *(
        (
            "      rayStartParams: {}",
            f"      rayStartParams: {{num-gpus: {wrong}}}",
            f"{GROUP}.rayStartParams.num-gpus: found",
        )
        for wrong in ("2", '"2.5"', '"2500m"', '"-2"', '"1_0"', "null")
    ),
    *(
        ("      rayStartParams: {}", f"      resources: {{GPU: {wrong}}}", f"{GROUP}.resources.GPU: found")
        for wrong in ("2", '"2.5"', '"2500m"', '"-2"', "null")
    ),
    ("replicas: 2", "numOfHosts: 2147483648", f"{GROUP}.numOfHosts: found 2147483648 (a whole number). Write a whole"),
    (
        "  headGroupSpec",
        "  suspend: true\n  headGroupSpec",
        "spec.suspend: found true (a boolean). KubeRay keeps no pods of a",
    ),
    ("  headGroupSpec", "  suspend: 1\n  headGroupSpec", "spec.suspend: found 1 (a whole number). Write true or false"),
    ("  headGroupSpec", "  suspend: 0\n  headGroupSpec", "spec.suspend: found 0 (a whole number). Write true or false"),
    ("replicas: 2", "suspend: true", f"{GROUP}.suspend: found true (a boolean). KubeRay keeps no pods of a suspended"),
    ('"2"', "-1", f'{LIMITS}."nvidia.com/gpu": found -1'),
    (
        '"2"',
        "true",
        f'{LIMITS}."nvidia.com/gpu": found true',
    ),
    (
        "cpu: 3500m",
        "memory: 1Gi",
        f"{LIMITS}.cpu: found nothing. Write the CPUs",
    ),
    (
        "      rayStartParams: {}",
        "      rayStartParams: {resources: slot=1}",
        f'{GROUP}.rayStartParams.resources: found "slot=1" (text). Write JSON',
    ),
    (
        "[{name: head, resources: {limits: {cpu: 2}}}]",
        "[]",
        "spec.headGroupSpec.template.spec.containers: found an empty list",
    ),
    ("    rayStartParams: {num-cpus", "    rayStartParamz: {num-cpus", None),
]


@pytest.mark.parametrize(("old", "new", "says"), WRONG_KUBERAY)
def test_a_mistake_in_a_kuberay_file_is_a_line(told, read, old, new, says):
    """With the path down to the container."""
    text = KUBERAY.replace("      replicas: 2", f"      {new}") if old == "replicas: 2" else changed(KUBERAY, old, new)
    if says is None:  # an unknown key is KubeRay's business
        assert read(text).head.resources == {"CPU": 2, "GPU": 0}
    else:
        assert any(line.startswith(says) for line in told(text))


@pytest.mark.parametrize("place", ["spec", "rayClusterSpec"])
def test_a_suspended_ray_job_has_no_cluster(told, place):
    document = yaml.safe_load(KUBERAY)
    document["kind"], document["spec"] = "RayJob", {"rayClusterSpec": document["spec"]}
    (document["spec"] if place == "spec" else document["spec"]["rayClusterSpec"])["suspend"] = True
    (line,) = told(yaml.safe_dump(document))
    assert line.startswith(("spec.suspend: found true", "spec.rayClusterSpec.suspend: found true"))


@pytest.mark.parametrize("value", ["false", "null"])
def test_a_cluster_that_is_not_suspended_is_read(read, value):
    text = changed(KUBERAY, "  headGroupSpec", f"  suspend: {value}\n  headGroupSpec")
    assert sizes(read(text)) == {"gpus": (1, 3)}


def test_a_wrong_amount_is_one_line(told):
    assert len(told(changed(KUBERAY, "3500m", "four"))) == 1


DIGITS = st.from_regex(r"\A(?:[0-9]{1,9}\.?[0-9]{0,4}|\.[0-9]{1,4})\Z")
SUFFIXES = st.sampled_from(["", *"numkMG", "Ki", "Mi", "Gi", "e0", "E2", "e+3", "e-2"])


@given(sign=st.sampled_from(["", "+"]), number=DIGITS, suffix=SUFFIXES)
def test_cpus_are_the_number_that_rays_autoscaler_finds(sign, number, suffix):
    """For each quantity in the grammar of Kubernetes."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _round_up_k8s_quantity

    mistakes = []
    section = CheckedMapping(values={"cpu": f"{sign}{number}{suffix}"}, mistakes=mistakes, path=("limits",))
    check_limits(section, CheckedMapping(values={}, mistakes=mistakes))
    assert (amount(section, "cpu"), mistakes) == (_round_up_k8s_quantity(section.values["cpu"]), [])


NO_QUANTITIES = [
    "",
    "e3",
    ".",
    "1K",
    "1ki",
    "1ni",
    "1_0",
    " 4",
    "4 ",
    "NaN",
    "Infinity",
    "1e1.5",
    "1e",
    "1kk",
    "-1",
    "\u0664",
]


@pytest.mark.parametrize("text", NO_QUANTITIES)
def test_what_kubernetes_does_not_read_is_no_quantity(told, text):
    """Ray's own function takes some of them."""
    document = kuberay_resources(limits={"cpu": text})
    (line,) = told(yaml.safe_dump(document))
    assert line.startswith(f"{LIMITS}.cpu: found ")
    assert line.endswith("Write a quantity, such as 4 or 3500m")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "found null. Write a file for `ray up` (with provider and available_node_types) or for KubeRay"),
        ("- 1\n", "found a list of 1. Write a file for `ray up`"),
        ("kind: RayService\nspec: {}\n", "found a section with the keys kind, spec. Write a file for `ray up`"),
        (f"{KUBERAY}---\n{KUBERAY}", "found 2 clusters. Write one per file"),
        (f"{KUBERAY}---\n{RAY_UP}", "found 2 clusters. Write one per file"),
        ("a: [\n", "line 2, column 1: found a YAML mistake"),
        ("a: \x01\n", "found what YAML cannot read"),
        ("a: !!int x\n", "found what YAML cannot read"),
        ("a: !!timestamp x\n", "found what YAML cannot read"),
        ("a: 2024-99-99\n", "found what YAML cannot read"),
        ("a: !mine x\n", "line 1, column 4: found a YAML mistake (could not determine a constructor"),
        ("[" * 1100, "line 1, column 41: found a YAML mistake (more than 40 levels)"),
        ("? [a]\n: b\n", "line 1, column 3: found a YAML mistake"),
        ("kind: RayCluster\n", "spec: found nothing. Write the cluster"),
    ],
)
def test_what_is_no_cluster_file_is_one_line(told, text, says):
    """Nothing that PyYAML stumbles over is a traceback."""
    lines = told(text)
    assert len(lines) == 1
    assert lines[0].startswith(says)


@given(data=st.binary(max_size=100), start=st.sampled_from(["", RAY_UP, KUBERAY, "provider: ", "kind: RayJob\nspec: "]))
def test_any_bytes_are_a_cluster_or_a_cluster_error(data, start, tmp_path_factory):
    """One printable line per mistake, whatever the file holds."""
    path = tmp_path_factory.mktemp("fuzz") / "cluster.yaml"
    path.write_bytes(start.encode() + data)
    try:
        read_cluster(path)
    except ClusterError as error:
        lines = str(error).split("\n")
        assert all(line.startswith((f"{path}: ", "... and ")) for line in lines)
        assert all(line.isprintable() for line in lines)


# --- the files that we ship -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RAY_UP_FILES, ids=lambda path: path.name)
def test_ray_accepts_our_ray_up_files(path):
    """Its schema and its own checks, before it would ask a cloud. None of its own set-up commands are added."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load(path.read_text())
    prepared = prepare_config(config)
    validate_config(prepared)
    assert prepared["head_setup_commands"] == prepared["worker_setup_commands"] == config["setup_commands"]


def test_rays_autoscaler_accepts_our_kuberay_file():
    """What the autoscaler derives from the object passes its schema, and has the sizes that we read."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    document = yaml.safe_load(KUBERAY_FILE.read_text())
    document["metadata"]["namespace"] = "default"
    types = _derive_autoscaling_config_from_ray_cr(document)["available_node_types"]
    theirs = {name: (kind["min_workers"], kind["max_workers"]) for name, kind in types.items() if kind["max_workers"]}
    assert sizes(read_cluster(KUBERAY_FILE)) == theirs == {"gpu-1": (0, 8), "gpu-4": (0, 2)}


@pytest.mark.parametrize("path", [*RAY_UP_FILES, KUBERAY_FILE], ids=lambda path: path.name)
def test_our_clusters_train_on_spot_nodes_of_several_sizes(path):
    """A head without room for workers, node groups of different sizes, none of them kept without a job."""
    cluster = read_cluster(path)
    workers = [group for group in cluster.groups if group.max_nodes]
    assert cluster.head.resources["CPU"] == cluster.head.resources["GPU"] == 0
    assert len({group.resources["GPU"] for group in workers}) >= 2
    assert all(group.min_nodes == 0 and group.resources["CPU"] >= 4 * group.resources["GPU"] for group in workers)


@pytest.mark.parametrize("path", RAY_UP_FILES, ids=lambda path: path.name)
def test_our_ray_up_files_are_closed_to_strangers(path):
    """A token on every node, the dashboard on loopback. Workers are spot nodes with a label that says so."""
    config = yaml.safe_load(path.read_text())
    assert "~/.ray/auth_token" in config["file_mounts"]
    assert any("RAY_AUTH_MODE=token" in command for command in config["setup_commands"])
    start = " ".join(config["head_start_ray_commands"])
    assert "--dashboard-host=127.0.0.1" in start
    assert all(f"RAY_health_check_{name}=" in start for name in ("period_ms", "timeout_ms", "failure_threshold"))
    types = config["available_node_types"]
    assert types.pop("head")["labels"] == {"ray.io/market-type": "on-demand"}
    for kind in types.values():
        assert kind["labels"] == {"ray.io/market-type": "spot"}
        assert "spot" in str(kind["node_config"]).lower()


def with_floor(path):
    """Our file with its on-demand nodes, which are commented out."""
    first = "# - groupName: on-demand-1" if path == KUBERAY_FILE else "# on-demand-1:"
    head, line, floor = path.read_text().partition(first)
    indent = head.rpartition("\n")[2]
    lines = f"{indent}{line}{floor}".split("\n")
    end = next(number for number, each in enumerate(lines) if not each.startswith(f"{indent}#"))
    opened = [each.replace(f"{indent}# ", indent, 1) for each in lines[:end]]
    return "\n".join([head[: -len(indent)], *opened, *lines[end:]])


@pytest.mark.parametrize("path", [*RAY_UP_FILES, KUBERAY_FILE], ids=lambda path: path.name)
def test_the_on_demand_nodes_of_our_files_are_a_floor_of_one_worker(path, tmp_path):
    """As they stand in comments. planner has nothing to say against a floor of one, and without them the run waits."""
    taken = {"CPU": 4, "GPU": 1}
    assert "has the label" in floor_note(Reach(cluster=read_cluster(path), taken=taken), 1)
    file = tmp_path / path.name
    file.write_text(with_floor(path))
    reach = Reach(cluster=read_cluster(file), taken=taken)
    assert sizes(reach.cluster) == {**sizes(read_cluster(path)), "on-demand-1": (1, 1)}
    assert floor_note(reach, 1) == floor_note(reach, 0) == ""
    assert "have room for 1 worker, and workers.min is 2" in floor_note(reach, 2)


@pytest.mark.parametrize("path", RAY_UP_FILES, ids=lambda path: path.name)
def test_the_on_demand_nodes_of_our_ray_up_files_are_no_spot_nodes(path):
    """And else like ours with as many GPUs."""
    types = yaml.safe_load(with_floor(path))["available_node_types"]
    assert types["on-demand-1"]["resources"] == types["gpu-1"]["resources"]
    assert "spot" not in str(types["on-demand-1"]).lower()


def test_a_floor_that_is_not_always_there_is_said(read):
    """Ray's older autoscaler may start spot nodes in its place."""
    text = RAY_UP.replace("min_workers: 1", "labels: {ray.io/market-type: on-demand}")
    note = floor_note(Reach(cluster=read(text), taken={"GPU": 1}), 2)
    assert "The cluster keeps on-demand nodes (one) for 0 workers, and workers.min is 2." in note


def test_a_label_that_is_no_text_is_refused(told):
    text = RAY_UP.replace("min_workers: 1", "labels: {ray.io/market-type: 1}")
    (line,) = told(text)
    assert line.startswith('available_node_types.one.labels."ray.io/market-type": found 1')
    assert line.endswith("Write a text, such as on-demand or spot")


GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text):
    """What stands between fences."""
    return text.split("```")[1::2]


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_our_guides_start_no_cluster_without_a_token(path):
    """Blocks that make a cluster use token mode. Blocks that make a token keep it private."""
    for block in blocks(path.read_text()):
        lines = block.splitlines()
        assert not any("--dashboard-host=0" in line or "--dashboard-host 0" in line for line in lines)
        assert all("umask 077" in line for line in lines if "get-auth-token --generate" in line)
        started = [
            at for at, line in enumerate(lines) if line.startswith(("ray start --head", "ray up", "kubectl port"))
        ]
        told = [at for at, line in enumerate(lines) if "RAY_AUTH_MODE=token" in line or "ray down" in line]
        assert not started or told, block


def test_the_guides_that_start_clusters_are_looked_at():
    """The test above would pass if it found none."""
    found = "".join(block for path in GUIDES for block in blocks(path.read_text()))
    assert all(word in found for word in ("ray start --head", "ray up", "kubectl port-forward", "get-auth-token"))


@pytest.mark.parametrize("path", RAY_UP_FILES, ids=lambda path: path.name)
def test_what_our_ray_up_files_start_writes_for_its_user_alone(path):
    """Every process that stays: Ray's on the head and the workers, and the agent."""
    config = yaml.safe_load(path.read_text())
    started = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    staying = [command for command in started if "ray start" in command or "notice-agent" in command]
    assert len(staying) == 3
    assert all("umask 077; " in command for command in staying)


def test_our_kuberay_file_is_closed_to_strangers_and_runs_on_spot_nodes():
    """Token auth, the autoscaler on, selectors and tolerations of spot nodes."""
    spec = yaml.safe_load(KUBERAY_FILE.read_text())["spec"]
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["enableInTreeAutoscaling"] is True
    for group in spec["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        assert group["labels"] == {"ray.io/market-type": "spot"}
        assert set(pod["nodeSelector"]) <= {toleration["key"] for toleration in pod["tolerations"]}


@pytest.mark.parametrize("path", RAY_UP_FILES, ids=lambda path: path.name)
def test_our_ray_up_files_pass_notices_on(path):
    """After `ray start` on every worker, and never before `ray up` has its prompt back."""
    *_, start, agent = yaml.safe_load(path.read_text())["worker_start_ray_commands"]
    assert "ray start --address=$RAY_HEAD_IP:6379" in start
    # The log's folder is the one of the node that the line before has started.
    assert agent == (
        "umask 077; setsid --fork planner notice-agent --address=$RAY_HEAD_IP:6379"
        " < /dev/null > /tmp/ray/session_latest/logs/notice-agent.log 2>&1"
    )


@pytest.mark.process
def test_our_kuberay_file_passes_notices_on(tmp_path):
    """KubeRay joins a container's command and its own with `&&`: the agent starts, and Ray does not wait for it."""
    started = tmp_path / "started"
    (gate := tmp_path / "gate").touch()  # the agent runs while it is there
    agent = f"#!/bin/sh\necho $1 >> {started}; while test -e {gate}; do sleep 0.05; done\n"
    (tmp_path / "planner").write_text(agent)
    (tmp_path / "planner").chmod(0o700)
    ray_start = f"ulimit -n 64; until test -s {started}; do sleep 0.05; done; exec cat {started}"
    commands = {
        str(group["template"]["spec"]["containers"][0]["command"][0])
        for group in yaml.safe_load(KUBERAY_FILE.read_text())["spec"]["workerGroupSpecs"]
    }
    (command,) = commands
    shell = subprocess.Popen(
        ["bash", "-c", "--", f" {command}  && {ray_start}"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert select.select([shell.stdout], [], [], EVENT_S)[0]
        assert shell.stdout.readline() == "notice-agent\n"
    finally:
        gate.unlink()
        os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate()


def test_the_resources_on_aws_are_those_of_the_instance_types():
    """What cluster.yaml says beside the type is what AWS would say."""
    for kind in yaml.safe_load((ROOT / "cluster.yaml").read_text())["available_node_types"].values():
        if kind["resources"] != {"CPU": 0}:
            assert kind["resources"] == known_resources(kind["node_config"]["InstanceType"])


def test_a_file_of_thousands_of_node_types_is_refused(tmp_path):
    """Their mixes are counted one type after another, for minutes."""
    types = "".join(f"  t{i}: {{resources: {{CPU: 1}}, max_workers: 1}}\n" for i in range(301))
    head, _, _ = RAY_UP.partition("available_node_types:")
    file = tmp_path / "cluster.yaml"
    file.write_text(f"{head}available_node_types:\n{types}")
    with pytest.raises(ClusterError, match="Write at most 300 types, not 301"):
        read_cluster(file)

"""The kind of GPU of a cluster file's nodes, by the names of each provider."""

from pathlib import Path

import pytest

from planner.cluster.nodes import NodeGpu
from planner.files.cluster_file import read_cluster
from planner.files.ec2_types import known_resources
from planner.files.node_gpus import ray_up_gpu
from planner.plan.gpu_kinds import gpu_kind

ROOT = Path(__file__).parents[2]
POD = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: pods}
spec:
  headGroupSpec:
    rayStartParams: {num-cpus: "0"}
    template: {spec: {containers: [{name: head, resources: {limits: {cpu: 2}}}]}}
  workerGroupSpecs:
    - groupName: gpus
      replicas: 2
      rayStartParams: {START}
      template:
        spec:
          nodeSelector: SELECTOR
          containers: [{name: worker, resources: {limits: {cpu: 4, nvidia.com/gpu: "2"}}}]
"""


def found(gpu):
    """The kinds, and what is said of their source."""
    return None if gpu is None else (gpu.kinds, f"{gpu.key} {gpu.value}")


def pod(tmp_path, selector, start=""):
    file = tmp_path / "pods.yaml"
    file.write_text(POD.replace("SELECTOR", selector).replace("START", start))
    (group,) = read_cluster(file).groups
    return found(group.gpu)


@pytest.mark.parametrize(
    ("instance", "kind"),
    [
        ("g4dn.12xlarge", "t4-16g"),
        ("g5.xlarge", "a10g-24g"),
        ("g6.2xlarge", "l4-24g"),
        ("g6e.xlarge", "l40s-48g"),
        ("p3.2xlarge", "v100-16g"),
        ("p3dn.24xlarge", "v100-32g"),
        ("p4d.24xlarge", "a100-40g"),
        ("p4de.24xlarge", "a100-80g"),
        ("p5.48xlarge", "h100-80g"),
        ("p5en.48xlarge", "h200-141g"),
        ("p6-b200.48xlarge", "b200-180g"),
    ],
)
def test_aws(instance, kind):
    """Each family has one kind. Each instance type with known GPUs has a known kind, too."""
    gpu = ray_up_gpu("aws", {"InstanceType": instance}, known_resources(instance))
    assert found(gpu) == ((kind,), f"InstanceType {instance}")
    assert gpu_kind(kind).name == kind


def test_each_instance_type_with_gpus_has_a_kind():
    """So that no table is forgotten when the other one grows."""
    from planner.files import ec2_types

    assert all(ray_up_gpu("aws", {"InstanceType": name}, {"GPU": 1}) for name in ec2_types._WITH_GPUS)


@pytest.mark.parametrize(
    ("config", "kind", "source"),
    [
        ({"machineType": "g2-standard-8"}, "l4-24g", "machineType g2-standard-8"),
        ({"machineType": "a2-highgpu-1g"}, "a100-40g", "machineType a2-highgpu-1g"),
        ({"machineType": "zones/here/machineTypes/a2-ultragpu-4g"}, "a100-80g", "machineType a2-ultragpu-4g"),
        ({"machineType": "a3-highgpu-8g"}, "h100-80g", "machineType a3-highgpu-8g"),
        ({"machineType": "a3-ultragpu-8g"}, "h200-141g", "machineType a3-ultragpu-8g"),
        (
            {
                "machineType": "n1-standard-8",
                "guestAccelerators": [
                    {"acceleratorType": "projects/p/zones/z/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 1}
                ],
            },
            "t4-16g",
            "acceleratorType nvidia-tesla-t4",
        ),
        ({"guestAccelerators": [{"acceleratorType": "nvidia-l4-vws"}]}, "l4-24g", "acceleratorType nvidia-l4-vws"),
    ],
)
def test_google_cloud(config, kind, source):
    """By the machine, or by what is added to it."""
    assert found(ray_up_gpu("gcp", config, {"GPU": 1})) == ((kind,), source)


@pytest.mark.parametrize("second", ["nvidia-tesla-v100", "a-new-one"])
def test_two_types_of_added_accelerators_tell_no_kind(second):
    """A worker may get either. Two entries of one type are one kind."""
    types = ("nvidia-tesla-t4", second)
    assert ray_up_gpu("gcp", {"guestAccelerators": [{"acceleratorType": name} for name in types]}, {"GPU": 2}) is None
    same = {"guestAccelerators": 2 * [{"acceleratorType": "nvidia-tesla-t4"}]}
    assert found(ray_up_gpu("gcp", same, {"GPU": 2})) == (("t4-16g",), "acceleratorType nvidia-tesla-t4")


@pytest.mark.parametrize(
    ("selector", "kind"),
    [
        ("{cloud.google.com/gke-accelerator: nvidia-tesla-a100}", "a100-40g"),
        ("{cloud.google.com/gke-accelerator: nvidia-h100-80gb}", "h100-80g"),
        ("{nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}", "a100-80g"),
        ("{nvidia.com/gpu.product: Tesla-T4}", "t4-16g"),
        ("{node.kubernetes.io/instance-type: g5.12xlarge}", "a10g-24g"),
        ("{node.kubernetes.io/instance-type: a2-highgpu-1g, spot: 'true'}", "a100-40g"),
    ],
)
def test_kubernetes(tmp_path, selector, kind):
    """By the labels of the nodes that a pod selects."""
    kinds, source = pod(tmp_path, selector)
    assert kinds == (kind,)
    assert source.partition(" ")[0] in selector


@pytest.mark.parametrize(
    "selector",
    [
        "null",
        "{}",
        "text",
        "{nvidia.com/gpu.product: [1]}",
        "{nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB-SHARED}",
        "{nvidia.com/gpu.product: NVIDIA-A100-SXM4-40GB-MIG-1g.5gb}",
        "{cloud.google.com/gke-accelerator: nvidia-new}",
        "{node.kubernetes.io/instance-type: m5.large}",
        "{cloud.google.com/gke-accelerator: nvidia-tesla-a100, cloud.google.com/gke-gpu-partition-size: 1g.5gb}",
        "{cloud.google.com/gke-accelerator: nvidia-l4, cloud.google.com/gke-max-shared-clients-per-gpu: '2'}",
    ],
)
def test_what_is_not_known_is_not_guessed(tmp_path, selector):
    """Among them parts of GPUs."""
    assert pod(tmp_path, selector) is None


def test_rays_own_resource_may_leave_the_memory_open(tmp_path):
    """Ray's names have no sizes. On any provider."""
    both = ("a100-40g", "a100-80g")
    assert found(ray_up_gpu("azure", {}, {"GPU": 1, "accelerator_type:A100": 1})) == (
        both,
        "resource accelerator_type:A100",
    )
    start = 'resources: \'"{\\\\"accelerator_type:L4\\\\": 1}"\''
    assert pod(tmp_path, "{}", start) == (("l4-24g",), "resource accelerator_type:L4")
    assert ray_up_gpu("azure", None, {"GPU": 1, "accelerator_type:TPU-V4": 1}) is None
    assert ray_up_gpu("aws", {"InstanceType": 3}, {"GPU": 1}) is None
    # A machine is more exact than Ray's name.
    gpu = ray_up_gpu("aws", {"InstanceType": "p4de.24xlarge"}, {"GPU": 8, "accelerator_type:A100": 1})
    assert gpu == NodeGpu(kinds=("a100-80g",), key="InstanceType", value="p4de.24xlarge")


@pytest.mark.parametrize("name", [7, None, True, 1.5])
def test_a_resource_whose_name_is_no_text_says_nothing(name):
    """YAML has such keys, and files are not checked for them."""
    assert ray_up_gpu("aws", {}, {"GPU": 1, name: 1}) is None
    assert found(ray_up_gpu("gcp", {}, {name: 1, "accelerator_type:L4": 1})) == (
        ("l4-24g",),
        "resource accelerator_type:L4",
    )


def test_the_shipped_files():
    """Two clouds name their machines. The nodes of a Kubernetes cluster are not known here."""
    kinds = {
        name: {group.gpu and group.gpu.kinds for group in read_cluster(ROOT / name).groups if group.resources["GPU"]}
        for name in ("cluster.yaml", "docs/cluster-gcp.yaml", "docs/cluster-kuberay.yaml")
    }
    assert kinds == {
        "cluster.yaml": {("l4-24g",)},
        "docs/cluster-gcp.yaml": {("l4-24g",)},
        "docs/cluster-kuberay.yaml": {None},
    }

"""The kind of GPU of a cluster's nodes, by the names that clouds, Kubernetes and Ray have for it. No guess.

Names of kinds are those of `planner.plan.gpu_kinds`. A cluster file need not say what GPUs its nodes have.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from planner.cluster.nodes import NodeGpu
from planner.errors import printable
from planner.plan.gpu_kinds import kinds_named

# Families of EC2's instance types, from its list.
_EC2 = {
    "g4dn": "t4-16g",
    "g5": "a10g-24g",
    "g6": "l4-24g",
    "gr6": "l4-24g",
    "g6e": "l40s-48g",
    "p3": "v100-16g",
    "p3dn": "v100-32g",
    "p4d": "a100-40g",
    "p4de": "a100-80g",
    "p5": "h100-80g",
    "p5e": "h200-141g",
    "p5en": "h200-141g",
    "p6-b200": "b200-180g",
}
# Machine types of Google Cloud that have GPUs, from its documentation of GPU machine types, without their sizes.
_GCP = {
    "g2-standard": "l4-24g",
    "g2-custom": "l4-24g",
    "a2-highgpu": "a100-40g",
    "a2-megagpu": "a100-40g",
    "a2-ultragpu": "a100-80g",
    "a3-edgegpu": "h100-80g",
    "a3-highgpu": "h100-80g",
    "a3-megagpu": "h100-80g",
    "a3-ultragpu": "h200-141g",
    "a4-highgpu": "b200-180g",
}
# Accelerator types of Google Cloud, which GKE's label has, too.
_GCP_ACCELERATORS = {
    "nvidia-tesla-t4": "t4-16g",
    "nvidia-tesla-v100": "v100-16g",
    "nvidia-l4": "l4-24g",
    "nvidia-tesla-a100": "a100-40g",
    "nvidia-a100-80gb": "a100-80g",
    "nvidia-h100-80gb": "h100-80g",
    "nvidia-h100-mega-80gb": "h100-80g",
    "nvidia-h200-141gb": "h200-141g",
    "nvidia-b200": "b200-180g",
}
_WORKSTATION = "-vws"
_GKE, _GPU_FEATURES, _INSTANCE = (
    "cloud.google.com/gke-accelerator",
    "nvidia.com/gpu.product",
    "node.kubernetes.io/instance-type",
)
# Labels of nodes on which a pod's GPU is a part of one, or is shared with other pods.
_PARTS = frozenset(
    {
        "cloud.google.com/gke-gpu-partition-size",
        "cloud.google.com/gke-gpu-sharing-strategy",
        "cloud.google.com/gke-max-shared-clients-per-gpu",
    }
)
_RAYS = "accelerator_type:"


def ray_up_gpu(cloud: str, node_config: Any, resources: Mapping[Any, float]) -> NodeGpu | None:
    """The GPU of a node type of a `ray up` file. None if the file does not say it, or planner does not know its name.

    Args:
        cloud: the provider's type. Names of machines are those of AWS and of Google Cloud.
        node_config: the cloud's settings of the type, not checked.
        resources: what a node offers. Names are not checked.
    """
    found = {"aws": _on_aws, "gcp": _on_gcp}.get(cloud, _nowhere)(_mapping(node_config))
    return next(found, None) or _by_rays_resource(resources)


def pod_gpu(group: Mapping[Any, Any], resources: Mapping[Any, float]) -> NodeGpu | None:
    """The GPU of a pod, by the labels of nodes that it selects. None if they do not say it, or say that it is shared.

    Args:
        group: a head or a group of workers with the pod's `template`, not checked.
        resources: what a pod offers to Ray.
    """
    selector = _mapping(_mapping(_mapping(group.get("template")).get("spec")).get("nodeSelector"))
    if _PARTS & selector.keys():  # a whole GPU's memory would be too much
        return None
    ways = {_GKE: _gcp_accelerator, _GPU_FEATURES: _product, _INSTANCE: _machine}
    for label, kinds_of in ways.items():
        value = selector.get(label)
        if isinstance(value, str) and (kinds := kinds_of(value)):
            return NodeGpu(kinds=kinds, key=label, value=printable(value))
    return _by_rays_resource(resources)


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}


def _nowhere(_: Mapping[Any, Any]) -> Iterator[NodeGpu]:
    yield from ()


def _on_aws(node_config: Mapping[Any, Any]) -> Iterator[NodeGpu]:
    instance = node_config.get("InstanceType")
    if isinstance(instance, str) and (kinds := _ec2(instance)):
        yield NodeGpu(kinds=kinds, key="InstanceType", value=printable(instance))


def _on_gcp(node_config: Mapping[Any, Any]) -> Iterator[NodeGpu]:
    machine, added = node_config.get("machineType"), node_config.get("guestAccelerators")
    if isinstance(machine, str) and (kinds := _gcp_machine(machine)):
        yield NodeGpu(kinds=kinds, key="machineType", value=machine.rpartition("/")[2])
    entries = added if isinstance(added, list) else []
    types = {
        name.rpartition("/")[2] for each in entries if isinstance(name := _mapping(each).get("acceleratorType"), str)
    }
    name = types.pop() if len(types) == 1 else ""  # of two, a worker may get either
    if kinds := _gcp_accelerator(name):
        yield NodeGpu(kinds=kinds, key="acceleratorType", value=name)


def _by_rays_resource(resources: Mapping[Any, float]) -> NodeGpu | None:
    """By a resource such as `accelerator_type:A100`, which does not tell sizes of memory apart."""
    names = [name for name, amount in resources.items() if str(name).startswith(_RAYS) and amount]
    kinds = kinds_named(names[0].removeprefix(_RAYS)) if len(names) == 1 else ()
    return NodeGpu(kinds=kinds, key="resource", value=printable(names[0])) if kinds else None


def _machine(name: str) -> tuple[str, ...]:
    return _ec2(name) or _gcp_machine(name)


def _ec2(instance: str) -> tuple[str, ...]:
    family, dot, _ = instance.partition(".")
    return (_EC2[family],) if dot and family in _EC2 else ()


def _gcp_machine(name: str) -> tuple[str, ...]:
    """Google Cloud takes a name, or a URL that ends with it: `a2-highgpu-1g`."""
    found = re.fullmatch(r"([a-z]\d-[a-z]+)-[a-z0-9-]+", name.rpartition("/")[2])
    return (_GCP[found[1]],) if found and found[1] in _GCP else ()


def _gcp_accelerator(name: str) -> tuple[str, ...]:
    kind = _GCP_ACCELERATORS.get(name.rpartition("/")[2].removesuffix(_WORKSTATION))
    return (kind,) if kind else ()


def _product(name: str) -> tuple[str, ...]:
    """By the label of NVIDIA's feature discovery: CUDA's name. Parts of a GPU, and shared ones, have longer names."""
    return kinds_named(name)

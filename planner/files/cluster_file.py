"""A cluster file of Ray (`ray up`) or KubeRay -> the `Cluster`.

Keys that planner does not need are not checked. YAML is read as Ray reads it, with anchors and aliases.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.cluster.nodes import Cluster, NodeGroup
from planner.errors import ClusterError, printable
from planner.files.cluster_section import CheckedMapping, market_of, shown
from planner.files.ec2_types import known_resources
from planner.files.known_files import KINDS, is_job, is_ray_up, known_file
from planner.files.kuberay import read_kuberay
from planner.files.loader import Unreadable, YamlMistake, documents, read_text
from planner.files.messages import Mistake, cut, listed, quote
from planner.files.node_gpus import ray_up_gpu

# Ray's default (autoscaler/<provider>/defaults.yaml).
_MAX_WORKERS = 2
# Mixes are counted type by type. Real clusters have less than a tenth of this.
_MOST_TYPES = 300
_WRITE_CLUSTER = (
    "Write a file for `ray up` (with provider and available_node_types) or for KubeRay "
    f"(with kind: {' or '.join(KINDS)})"
)


def read_cluster(path: str | Path) -> Cluster:
    """The cluster in a `ray up` file of any provider, or in a KubeRay RayCluster or RayJob.

    The file may also hold other Kubernetes objects.

    Raises:
        ClusterError: the file cannot be read, is neither kind, or is wrong. The message has one line per mistake.
    """
    source = str(path)
    mistakes: list[Mistake] = []
    try:
        root = CheckedMapping(values=_document(read_text(path, "cluster file"), source), mistakes=mistakes)
    except Unreadable as error:
        raise ClusterError(listed(source, [Mistake(text=str(error))])) from None
    cluster = read_kuberay(root) if root.values.get("kind") in KINDS else _read_ray_up(root)
    if mistakes:
        raise ClusterError(listed(source, mistakes))
    assert cluster is not None
    return cluster


def _document(text: str, path: str) -> dict[Any, Any]:
    """The one document that describes a cluster."""
    try:
        all_documents = documents(text)
    except YamlMistake as error:
        if error.line:
            where = f"line {error.line}, column {error.column}: "
            raise Unreadable(f"{where}found a YAML mistake ({cut(error.problem, 200)}). Correct it") from None
        raise Unreadable(
            f"found what YAML cannot read ({printable(error.problem[:100])}). Correct it, or write the path of a "
            "cluster file"
        ) from None
    found = [document for document in all_documents if isinstance(document, dict)]
    clusters = [document for document in found if is_ray_up(document) or document.get("kind") in KINDS]
    if len(clusters) == 1:
        return clusters[0]
    if clusters:
        raise Unreadable(f"found {len(clusters)} clusters. Write one per file")
    if known := known_file(path, text):
        raise Unreadable(f"found {known.what}, not a cluster. {_WRITE_CLUSTER}")
    what = "a job of planner" if any(map(is_job, found)) else shown((found or all_documents or [None])[0])
    raise Unreadable(f"found {what}. {_WRITE_CLUSTER}")


def _read_ray_up(root: CheckedMapping) -> Cluster | None:
    name = root.text("cluster_name", "Write a name, such as my-cluster")
    cloud = root.section("provider", "Write the cloud, such as {type: aws, region: us-west-2}").text(
        "type", "Write the cloud, such as aws"
    )
    types = root.section("available_node_types", "Write the node types, each with the resources of a node")
    if len(types.values) > _MOST_TYPES:
        root.refuse("available_node_types", f"Write at most {_MOST_TYPES} types, not {len(types.values)}")
        return None
    head_name = root.text("head_node_type", "Write the name of one of available_node_types")
    if head_name and types.values and head_name not in types.values:
        root.refuse("head_node_type", f"Write one of {cut(', '.join(map(str, types.values)))}")
    max_nodes = root.whole("max_workers", _MAX_WORKERS)
    head, groups = None, []
    for type_name, node_type in types.named():
        is_head = type_name == head_name
        least = node_type.whole("min_workers", 0)
        most = node_type.whole("max_workers", 0 if is_head else max_nodes)
        if least > most:
            node_type.refuse("min_workers", f"Write at most the type's max_workers, {most}")
        resources = _resources(node_type, cloud) if is_head or most else {}
        gpu = ray_up_gpu(cloud, node_type.values.get("node_config"), resources) if resources.get("GPU") else None
        group = NodeGroup(
            name=printable(type_name),
            min_nodes=min(least, most),
            max_nodes=most,
            resources=resources,
            gpu=gpu,
            market=market_of(node_type),
        )
        groups.append(group)
        if is_head:
            head = replace(group, min_nodes=1, max_nodes=1)
    least = sum(group.min_nodes for group in groups)
    if least > max_nodes:
        root.refuse("max_workers", f"Write at least {least}, the sum of all min_workers")
    if root.mistakes or head is None:
        return None
    return Cluster(name=printable(name), head=head, groups=tuple(groups), max_nodes=max_nodes)


def _resources(node_type: CheckedMapping, cloud: str) -> dict[str, float]:
    """What a node of the type offers: the amounts in the file, and on AWS also those of its known instance types."""
    written = node_type.optional("resources")
    instance = node_type.optional("node_config").values.get("InstanceType")
    # Ray asks only AWS. Elsewhere a file without GPU means no GPU.
    known = known_resources(instance) if cloud == "aws" else {"GPU": 0}
    resources: dict[str, float] = {**known, **{name: written.whole(name) for name in written.values}}
    for name in ("CPU", "GPU"):
        if name not in resources:
            of = f" of the type {quote(instance)}, which planner does not know" if isinstance(instance, str) else ""
            written.refuse(name, f"Write how many a node has{of}")
    return resources

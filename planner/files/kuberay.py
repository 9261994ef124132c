"""A KubeRay RayCluster, or the one in a RayJob -> the `Cluster`. A pod is a node.

A pod's resources are found as Ray's autoscaler finds them (autoscaler/_private/kuberay/autoscaling_config.py).
"""

import json
import math
import re
from decimal import Decimal
from typing import Any

from planner.cluster.nodes import Cluster, NodeGroup
from planner.files.cluster_section import CheckedMapping
from planner.files.messages import escape

KINDS = ("RayCluster", "RayJob")

_QUANTITY = re.compile(r"(?P<number>\d{1,18}(?:\.\d{1,18})?)(?P<unit>m|[kMGT]|[KMGT]i)?")
_UNITS = {
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
}


def read_kuberay(root: CheckedMapping) -> Cluster | None:
    """The cluster, or None if something is wrong. `root.mistakes` then says what."""
    spec = root.section("spec", "Write the cluster")
    if root.values["kind"] == "RayJob":
        fix = "Write the cluster: with clusterSelector, the job does not say how large it is"
        spec = spec.section("rayClusterSpec", fix)
    autoscaling = spec.values.get("enableInTreeAutoscaling", False)
    if not isinstance(autoscaling, bool):
        spec.refuse("enableInTreeAutoscaling", "Write true or false")
    head = _node_group(spec.section("headGroupSpec", "Write the head's pod"), "head", (1, 1, 1))
    workers = spec.sections("workerGroupSpecs", "Write a list of groups") if spec.values.get("workerGroupSpecs") else []
    groups = []
    for worker in workers:
        name = worker.text("groupName", "Write the group's name")
        groups.append(_node_group(worker, escape(name), _sizes(worker, autoscaling=bool(autoscaling))))
    if root.mistakes:
        return None
    metadata = root.optional("metadata").values
    return Cluster(
        name=escape(str(metadata.get("name", root.values["kind"]))),
        head=head,
        groups=tuple(groups),
        max_nodes=sum(group.max_nodes for group in groups),
    )


def _sizes(worker: CheckedMapping, *, autoscaling: bool) -> tuple[int, int, int]:
    """`(least replicas, most replicas, pods per replica)`. Without an autoscaler, least and most are `replicas`."""
    hosts = worker.whole("numOfHosts", 1)
    if hosts == 0:
        worker.refuse("numOfHosts", "Write at least 1")
    least = worker.whole("minReplicas", 0)
    replicas = max(worker.whole("replicas", least), least)
    most = worker.whole("maxReplicas", None if autoscaling else replicas)
    if least > most:
        worker.refuse("minReplicas", f"Write at most maxReplicas, {most}")
    if not autoscaling:
        least = most = min(replicas, most)
    return min(least, most), most, max(hosts, 1)


def _node_group(group: CheckedMapping, name: str, sizes: tuple[int, int, int]) -> NodeGroup:
    least, most, hosts = sizes
    return NodeGroup(
        name=name,
        min_nodes=least * hosts,
        max_nodes=most * hosts,
        resources=_resources(group),
        nodes_per_step=hosts,
    )


def _resources(group: CheckedMapping) -> dict[str, float]:
    """What a pod offers: the group's `resources`, else `rayStartParams`, else the limits of its first container."""
    written, start = group.optional("resources"), group.optional("rayStartParams")
    pod = group.section("template", "Write the pod").section("spec", "Write the pod's containers")
    containers = pod.sections("containers", "Write a list of containers, Ray's first")
    container = containers[0] if containers else CheckedMapping(values={}, mistakes=[])
    offered = container.optional("resources")
    limits, requests = offered.optional("limits"), offered.optional("requests")
    gpus = [
        (section, key)
        for section in (limits, requests)
        for key in section.values
        if isinstance(key, str) and key.endswith("gpu")
    ]
    places = [(written, "CPU"), (start, "num-cpus"), (limits, "cpu"), (requests, "cpu")]
    if not any(key in section.values for section, key in places):
        limits.refuse("cpu", "Write the CPUs of Ray's container")
    cpu, gpu = _first(places), _first([(written, "GPU"), (start, "num-gpus"), *gpus])
    return {**_custom(written, start), "CPU": cpu, "GPU": gpu}


def _first(places: list[tuple[CheckedMapping, str]]) -> float:
    """The amount at the first of `places` that has one, else 0."""
    return next((_amount(section, key) for section, key in places if key in section.values), 0)


def _custom(written: CheckedMapping, start: CheckedMapping) -> dict[str, float]:
    """Custom resources: those in the group's `resources`, else those in `rayStartParams.resources`."""
    if written.values:
        return {key: _amount(written, key) for key in written.values if isinstance(key, str)}
    text = start.values.get("resources")
    if text is None:
        return {}
    custom = _parsed(text)
    if custom is None:
        start.refuse("resources", """Write JSON in two pairs of quotes, such as '"{\\\\"name\\\\": 1}"'""")
        return {}
    return custom


def _parsed(text: Any) -> dict[str, float] | None:
    """The JSON in `rayStartParams.resources`, or None. By Ray's rule, outer quotes and all backslashes are removed."""
    try:
        custom = json.loads(str(text)[1:-1].replace("\\", ""))
    except (ValueError, RecursionError):
        return None
    if not isinstance(custom, dict) or not all(
        type(amount) is int and 0 <= amount < 2**63 for amount in custom.values()
    ):
        return None
    return {name: float(amount) for name, amount in custom.items()}


def _amount(section: CheckedMapping, key: str) -> float:
    """A Kubernetes quantity, `4` or `3500m`, rounded up."""
    value = section.values[key]
    quantity = _QUANTITY.fullmatch(str(value)) if isinstance(value, str | int | float) else None
    if quantity is None or isinstance(value, bool):
        section.refuse(key, "Write a quantity, such as 4 or 3500m")
        return 0
    return math.ceil(Decimal(quantity["number"]) * _UNITS.get(quantity["unit"], Decimal(1)))

"""A KubeRay RayCluster, or the one in a RayJob -> the `Cluster`. A pod is a node.

A pod's resources are found as Ray's autoscaler finds them (autoscaler/_private/kuberay/autoscaling_config.py). What
Kubernetes or the KubeRay operator refuses is refused here.
"""

from dataclasses import replace
from typing import Any

from planner.base.json_text import NoJson, json_object
from planner.cluster.nodes import Cluster, NodeGroup
from planner.errors import printable
from planner.files.cluster_section import CheckedMapping, market_of
from planner.files.node_gpus import pod_gpu
from planner.files.quantities import amount, check_amount, check_limits

# Numbers of pods are int32 in KubeRay's definition. A group without maxReplicas has the largest one.
_POD_BITS = 31
_MOST_PODS = 2**_POD_BITS - 1
_MOST_DIGITS = 18
# Resources that Ray knows by their own options.
_USUAL = ("CPU", "GPU")


def read_kuberay(root: CheckedMapping) -> Cluster | None:
    """The cluster, or None if something is wrong. `root.mistakes` then says what."""
    spec = root.section("spec", "Write the cluster")
    if root.values["kind"] == "RayJob":
        _refuse_suspended(spec, "KubeRay starts no cluster for a suspended job")
        fix = "Write the cluster: with clusterSelector, the job does not say how large it is"
        spec = spec.section("rayClusterSpec", fix)
    spec = _without_nulls(spec)
    _refuse_suspended(spec, "KubeRay keeps no pods of a suspended cluster")
    autoscaling = spec.values.get("enableInTreeAutoscaling", False)
    if not isinstance(autoscaling, bool):
        spec.refuse("enableInTreeAutoscaling", "Write true or false")
    head = _node_group(spec.section("headGroupSpec", "Write the head's pod"), "head", (1, 1, 1))
    workers = spec.sections("workerGroupSpecs", "Write a list of groups") if spec.values.get("workerGroupSpecs") else []
    groups = []
    for worker in map(_without_nulls, workers):
        name = worker.text("groupName", "Write the group's name")
        _refuse_suspended(worker, "KubeRay keeps no pods of a suspended group")
        groups.append(_node_group(worker, printable(name), _sizes(worker, autoscaling=bool(autoscaling))))
    if root.mistakes:
        return None
    metadata = root.optional("metadata").values
    return Cluster(
        name=printable(str(metadata.get("name", root.values["kind"]))),
        head=head,
        groups=tuple(groups),
        max_nodes=sum(group.max_nodes for group in groups),
    )


def _without_nulls(section: CheckedMapping) -> CheckedMapping:
    """The section without its keys that are null: Kubernetes drops them, and then sets the defaults."""
    return replace(section, values={key: value for key, value in section.values.items() if value is not None})


def _refuse_suspended(section: CheckedMapping, reason: str) -> None:
    """Refuse `suspend: true`, since its section offers no workers."""
    value = section.values.get("suspend")
    if value is True:
        section.refuse("suspend", f"{reason}. Write false to see what it offers otherwise")
    elif value is not None and value is not False:
        section.refuse("suspend", "Write true or false")


def _sizes(worker: CheckedMapping, *, autoscaling: bool) -> tuple[int, int, int]:
    """`(least replicas, most replicas, pods per replica)`. Without an autoscaler, least and most are `replicas`."""
    hosts = worker.whole("numOfHosts", 1, num_bits=_POD_BITS)
    if hosts == 0:
        worker.refuse("numOfHosts", "Write at least 1")
    least = worker.whole("minReplicas", 0, num_bits=_POD_BITS)
    replicas = max(worker.whole("replicas", least, num_bits=_POD_BITS), least)
    most = worker.whole("maxReplicas", _MOST_PODS, num_bits=_POD_BITS)
    if least > most:
        worker.refuse("minReplicas", f"Write at most maxReplicas, {most}")
    if not autoscaling:
        least = most = min(replicas, most)
    return min(least, most), most, max(hosts, 1)


def _node_group(group: CheckedMapping, name: str, sizes: tuple[int, int, int]) -> NodeGroup:
    least, most, hosts = sizes
    resources = _resources(group)
    return NodeGroup(
        name=name,
        min_nodes=least * hosts,
        max_nodes=most * hosts,
        resources=resources,
        nodes_per_step=hosts,
        gpu=pod_gpu(group.values, resources) if resources["GPU"] else None,
        market=market_of(group),
    )


def _resources(group: CheckedMapping) -> dict[str, float]:
    """What a pod offers: the group's `resources`, else `rayStartParams`, else the limits of its first container."""
    written, start = group.optional("resources"), group.optional("rayStartParams")
    pod = group.section("template", "Write the pod").section("spec", "Write the pod's containers")
    containers = pod.sections("containers", "Write a list of containers, Ray's first")
    container = containers[0] if containers else CheckedMapping(values={}, mistakes=[])
    offered = container.optional("resources")
    limits, requests = offered.optional("limits"), offered.optional("requests")
    check_limits(limits, requests)
    places = [(written, "CPU"), (start, "num-cpus"), (limits, "cpu"), (requests, "cpu")]
    if not any(key in section.values for section, key in places):
        limits.refuse("cpu", "Write the CPUs of Ray's container")
    cpus = (_offer(section, key) for section, key in places if key in section.values)
    return {**_custom(written, start), "CPU": next(cpus, 0), "GPU": _gpus(written, start, limits)}


def _gpus(written: CheckedMapping, start: CheckedMapping, limits: CheckedMapping) -> float:
    """The GPUs of a pod. Of several kinds of GPUs in `limits`, Ray counts the first one that the pod has."""
    for section, key in ((written, "GPU"), (start, "num-gpus")):
        if key in section.values:
            return _offer(section, key)
    kinds = (key for key in limits.values if isinstance(key, str) and key.endswith("gpu"))
    return next(filter(None, (amount(limits, key) for key in kinds)), 0)


def _offer(section: CheckedMapping, key: str) -> float:
    """The amount at `key` of a group's `resources`, `rayStartParams`, or a container's limits or requests.

    The first two are maps of texts in KubeRay's definition. Ray reads `num-cpus` and `num-gpus` as whole numbers.
    """
    value, place = section.values[key], section.path[-1]
    if place in {"limits", "requests"}:  # they are checked already
        return amount(section, key)
    if not isinstance(value, str):
        section.refuse(key, "Write it in quotes: KubeRay takes only text here")
    elif place == "rayStartParams" and not (value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS):
        section.refuse(key, "Write a whole number in quotes, which is all that `ray start` takes")
    else:
        check_amount(section, key, is_whole=key == "GPU")
        return amount(section, key)
    return 0


def _custom(written: CheckedMapping, start: CheckedMapping) -> dict[str, float]:
    """Custom resources: those in the group's `resources`, else those in `rayStartParams.resources`."""
    if written.values:
        return {key: _offer(written, key) for key in written.values if isinstance(key, str) and key not in _USUAL}
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
        custom = json_object(str(text)[1:-1].replace("\\", ""))
    except NoJson:
        return None
    if not all(type(amount) is int and 0 <= amount < 2**63 for amount in custom.values()):
        return None
    return {name: float(amount) for name, amount in custom.items()}

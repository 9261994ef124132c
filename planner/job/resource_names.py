"""The names that `workers.resources` cannot have: Ray gives them another meaning, or does not take them.

tests/dispatch/test_resource_names.py compares these names with those of the installed Ray.
"""

import re

OTHER_ACCELERATORS = frozenset({"FURIOSA", "HPU", "MBLT", "NPU", "RBLN", "TPU", "TTNPU", "neuron_cores"})
"""the accelerators that Ray knows beside GPUs. planner trains on none of them"""

_CORES, _GPUS = "CPU cores belong in workers.cpus", "GPUs belong in workers.gpus"
# Name -> what it is, and what to write.
_PLACES = {
    "CPU": (_CORES, "Write them there"),
    "GPU": (_GPUS, "Write them there"),
    "memory": (
        "planner reserves no memory for a worker",
        "Remove it, or raise workers.cpus for fewer workers per node",
    ),
    "object_store_memory": ("workers take nothing of Ray's object store", "Remove it"),
    "bundle": ("Ray keeps the name bundle for itself", "Write the name of a custom resource"),
    **{
        name: (f"{name} names an accelerator, and planner trains only on GPUs (workers.gpus) and CPUs", "Remove it")
        for name in OTHER_ACCELERATORS
    },
}
# CPU_group_<id> and CPU_group_<bundle>_<id>, with an id in lower hexadecimal digits. Ray takes team_group_red.
_HELD = re.compile(r".*_group_([0-9]+_)?[0-9a-f]+")
NOT_CUSTOM = tuple(sorted(_PLACES))
"""names that an editor can refuse by the job file's schema"""
# Ray takes these as custom resources, but people write them when they mean others.
_NEAR = {
    **{name.lower(): _PLACES[name][0] for name in (*OTHER_ACCELERATORS, "memory")},
    **dict.fromkeys(("cpu", "cpus", "num_cpus"), _CORES),
    **dict.fromkeys(("gpu", "gpus", "num_gpus", "nvidia.com/gpu"), _GPUS),
}


def refusal(name: str) -> str:
    """Why Ray does not take `name` as a custom resource, and what to write. Empty if Ray takes it."""
    if name in _PLACES:
        return ". ".join(_PLACES[name])
    if name.startswith("node:"):
        return f"{name} is Ray's own resource of one node. Remove it, because a run moves between nodes"
    if _HELD.fullmatch(name):
        return f"Ray names what a placement group holds like {name}. Write a name without _group_"
    # A comma ends a name on the raylet's command line. Others end the driver or fail when a worker starts.
    if not (name.isascii() and name.isprintable()) or name != name.strip() or not name or "," in name:
        return (
            f"Ray cannot use the name {name!r}. Write printable ASCII characters without a comma and without "
            "spaces at the ends"
        )
    return ""


def hint(name: str) -> str:
    """Where the amount belongs that a custom resource of this name probably stands for. Empty for other names."""
    return _NEAR.get(name.lower(), "") if not refusal(name) else ""

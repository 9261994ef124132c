"""CPUs and GPUs of well-known EC2 instance types. If a cluster file omits them, Ray asks AWS. planner does not."""

import re

# vCPUs and GPUs, from EC2's list of instance types.
_WITH_GPUS = {
    "g4dn.xlarge": (4, 1),
    "g4dn.2xlarge": (8, 1),
    "g4dn.4xlarge": (16, 1),
    "g4dn.8xlarge": (32, 1),
    "g4dn.12xlarge": (48, 4),
    "g4dn.16xlarge": (64, 1),
    "g5.xlarge": (4, 1),
    "g5.2xlarge": (8, 1),
    "g5.4xlarge": (16, 1),
    "g5.8xlarge": (32, 1),
    "g5.12xlarge": (48, 4),
    "g5.16xlarge": (64, 1),
    "g5.24xlarge": (96, 4),
    "g5.48xlarge": (192, 8),
    "g6.xlarge": (4, 1),
    "g6.2xlarge": (8, 1),
    "g6.4xlarge": (16, 1),
    "g6.8xlarge": (32, 1),
    "g6.12xlarge": (48, 4),
    "g6.16xlarge": (64, 1),
    "g6.24xlarge": (96, 4),
    "g6.48xlarge": (192, 8),
    "g6e.xlarge": (4, 1),
    "g6e.2xlarge": (8, 1),
    "g6e.4xlarge": (16, 1),
    "g6e.8xlarge": (32, 1),
    "g6e.12xlarge": (48, 4),
    "g6e.16xlarge": (64, 1),
    "g6e.24xlarge": (96, 4),
    "g6e.48xlarge": (192, 8),
    "p3.2xlarge": (8, 1),
    "p3.8xlarge": (32, 4),
    "p3.16xlarge": (64, 8),
    "p3dn.24xlarge": (96, 8),
    "p4d.24xlarge": (96, 8),
    "p4de.24xlarge": (96, 8),
    "p5.4xlarge": (16, 1),
    "p5.48xlarge": (192, 8),
    "p5e.48xlarge": (192, 8),
    "p5en.48xlarge": (192, 8),
    "p6-b200.48xlarge": (192, 8),
}
# The general, compute and memory families of the fifth generation and later: four vCPUs per "xlarge", no GPU.
_WITHOUT = re.compile(r"[cmr][5-8][a-z]*(?:-flex)?\.(?:(?P<large>large)|(?P<times>\d*)xlarge)")


def known_resources(instance_type: object) -> dict[str, int]:
    """CPU and GPU of an instance type, empty if planner does not know it."""
    if not isinstance(instance_type, str):
        return {}
    if instance_type in _WITH_GPUS:
        cpus, gpus = _WITH_GPUS[instance_type]
        return {"CPU": cpus, "GPU": gpus}
    if size := _WITHOUT.fullmatch(instance_type):
        return {"CPU": 2 if size["large"] else 4 * int(size["times"] or 1), "GPU": 0}
    return {}

"""Kubernetes quantities, such as `4`, `3500m` or `2e3`, and what Kubernetes demands of those in a container.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/ has the grammar.
"""

import math
import re
from fractions import Fraction
from typing import Any

from planner.files.cluster_section import CheckedMapping

_QUANTITY = re.compile(
    r"\+?(?P<number>[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})"
    r"(?:(?P<unit>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,3}))?"
)
_UNITS = {
    **{unit: Fraction(1000) ** power for power, unit in zip(range(-3, 0), "num", strict=True)},
    **{unit: Fraction(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Fraction(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
# Kubernetes' quantities are 64 bits wide.
_MOST = 2**63 - 1


def check_limits(limits: CheckedMapping, requests: CheckedMapping) -> None:
    """Check the amounts in a container's limits and requests by the rules of Kubernetes for a pod.

    Devices are counted in whole numbers, and are requested by their limit.
    https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/
    """
    for section in (limits, requests):
        for key in _names(section):
            check_amount(section, key, is_whole=_is_device(key))
    for key in _names(requests):
        request, limit = _exact(requests.values[key]), _exact(limits.values.get(key))
        if request is None or (limit is None and key in limits.values):
            continue  # it is refused already
        if _is_device(key) and request != limit:
            requests.refuse(key, "Write the same number under limits, which Kubernetes demands for devices")
        elif limit is not None and request > limit:
            requests.refuse(key, "Write at most what limits has: Kubernetes refuses more")


def check_amount(section: CheckedMapping, key: str, *, is_whole: bool) -> None:
    """Check the quantity at `key`. `is_whole`: a fraction is a mistake."""
    exact = _exact(section.values[key])
    if exact is None:
        section.refuse(key, "Write a quantity, such as 4 or 3500m")
    elif exact > _MOST:
        section.refuse(key, "Write at most 2**63 - 1")
    elif is_whole and exact.denominator != 1:
        section.refuse(key, "Write a whole number: Kubernetes gives no parts of a device")


def amount(section: CheckedMapping, key: str) -> int:
    """The checked quantity at `key`, rounded up as Ray does. 0 if it is wrong."""
    return math.ceil(_exact(section.values[key]) or 0)


def _names(section: CheckedMapping) -> list[str]:
    return [key for key in section.values if isinstance(key, str)]


def _is_device(name: str) -> bool:
    """Whether a resource is an extended one, such as `nvidia.com/gpu`. Those of Kubernetes have no other domain."""
    domain, slash, _ = name.rpartition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


def _exact(value: Any) -> Fraction | None:
    """A quantity as Kubernetes reads it, None if it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        return None
    number = Fraction(found["number"].removesuffix("."))
    return number * _UNITS[found["unit"]] if found["unit"] else number * Fraction(10) ** int(found["exponent"] or 0)

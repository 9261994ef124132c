"""The peak speed of a device by its name and by the type in which it multiplies matrices, for MFU.

All figures are dense: half of those that NVIDIA prints "with sparsity". Tensor cores add in float32. A device or a type
that is not in the table is not known, and then there is no MFU. CPUs are not in it, because their peak depends on clock
and instructions. The tensor cores of V100 and T4 multiply only float16, which no job uses (`train.precision`), so these
two have only float32.
"""

import re
from dataclasses import dataclass
from typing import Literal

import torch

Kind = Literal["bf16", "tf32", "fp32"]
"""the type of the factors of a matrix product"""


@dataclass(frozen=True, kw_only=True)
class DevicePeak:
    """One device's dense peaks, in TFLOP/s. 0: it has no hardware for this type."""

    words: tuple[str, ...]
    """words of `torch.cuda.get_device_name`, in lower case. A name has all of them"""
    bf16: float
    tf32: float
    fp32: float
    source: str


def _peak(words: str, bf16: float, tf32: float, fp32: float, source: str) -> DevicePeak:
    return DevicePeak(words=tuple(words.split()), bf16=bf16, tf32=tf32, fp32=fp32, source=source)


DEVICE_PEAKS = (
    # A device with more words comes before one with fewer: the first whose words are all in the name counts.
    _peak("v100s", 0, 0, 16.4, "NVIDIA V100 datasheet (2020)"),
    _peak("v100 pcie", 0, 0, 14.0, "NVIDIA V100 datasheet (2020)"),
    _peak("v100", 0, 0, 15.7, "NVIDIA V100 datasheet (2020)"),
    _peak("t4", 0, 0, 8.1, "NVIDIA T4 datasheet (2019)"),
    _peak("a10", 125, 62.5, 31.2, "NVIDIA A10 datasheet (2021)"),
    _peak("a10g", 70, 35, 31.52, "NVIDIA A10G datasheet for AWS (2022)"),
    _peak("a30", 165, 82, 10.3, "NVIDIA A30 datasheet (2021)"),
    _peak("a40", 149.7, 74.8, 37.4, "NVIDIA A40 datasheet (2021)"),
    _peak("a6000", 154.8, 77.4, 38.7, "NVIDIA RTX A6000 datasheet (2021)"),
    _peak("a100", 312, 156, 19.5, "NVIDIA A100 datasheet (2021), equal for PCIe and SXM"),
    _peak("l4", 121, 60, 30.3, "NVIDIA L4 datasheet (2023)"),
    _peak("l40", 181.05, 90.5, 90.5, "NVIDIA L40 datasheet (2022)"),
    _peak("l40s", 362.05, 183, 91.6, "NVIDIA L40S datasheet (2023)"),
    _peak("gh200", 990, 494, 67, "NVIDIA GH200 datasheet (2023)"),
    _peak("h100 nvl", 835.5, 417.5, 60, "NVIDIA H100 datasheet (2024)"),
    _peak("h100 pcie", 756, 378, 51, "NVIDIA H100 datasheet (2023)"),
    _peak("h100", 989.5, 494.5, 67, "NVIDIA H100 datasheet (2024), SXM"),
    _peak("h200 nvl", 835.5, 417.5, 60, "NVIDIA H200 datasheet (2024)"),
    _peak("h200", 989.5, 494.5, 67, "NVIDIA H200 datasheet (2024), SXM"),
    _peak("gb200", 2500, 1250, 80, "NVIDIA GB200 NVL72 datasheet (2024), per GPU"),
    _peak("b200", 2250, 1125, 75, "NVIDIA HGX B200 datasheet (2024), per GPU"),
    _peak("rtx 3090 ti", 80, 40, 40, "NVIDIA Ampere GA102 whitepaper (2022)"),
    _peak("rtx 3090", 71, 35.6, 35.6, "NVIDIA Ampere GA102 whitepaper (2021)"),
    _peak("rtx 4090", 165.2, 82.6, 82.6, "NVIDIA Ada GPU architecture whitepaper (2022)"),
    _peak("rtx 6000 ada", 364.2, 182.1, 91.1, "NVIDIA RTX 6000 Ada datasheet (2022)"),
    _peak("rtx 5090", 209.5, 104.8, 104.8, "NVIDIA RTX Blackwell GPU architecture whitepaper (2025)"),
)

# A part of a GPU, or a slower one of the same name.
_OTHERS = {"mig", "laptop", "mobile", "max-q", "d", "super"}


def peak_of(name: str, kind: Kind) -> float:
    """The dense peak of a GPU in FLOP/s. 0 if it is not known.

    Args:
        name: as CUDA names it, such as "NVIDIA A100-SXM4-80GB".
        kind: the type of the factors of its matrix products.
    """
    # Cut in two ways: "A100-SXM4-80GB" at hyphens, and "max-q" only at spaces.
    words = set(re.split(r"[\s-]+", name.lower())) | set(name.lower().split())
    if words & _OTHERS:
        return 0.0
    found = (device for device in DEVICE_PEAKS if words.issuperset(device.words))
    device = next(found, None)
    return 0.0 if device is None else getattr(device, kind) * 1e12


def peak_flops_per_s(device: torch.device, precision: Literal["fp32", "bf16"]) -> float:
    """The dense peak of this worker's device in FLOP/s for a job's `train.precision`. 0 if it is not known."""
    if device.type != "cuda":
        return 0.0
    return peak_of(torch.cuda.get_device_name(device), "bf16" if precision == "bf16" else _kind_of_float32())


def _kind_of_float32() -> Kind:
    """How CUDA multiplies float32 matrices in this process."""
    # Not `get_float32_matmul_precision`, which raises an error if a model has set this newer name.
    precision = torch.backends.cuda.matmul.fp32_precision
    if precision == "none":
        precision = torch.backends.fp32_precision  # type: ignore[attr-defined]
    return "tf32" if precision == "tf32" else "fp32"

"""The environment variables of an embedded cluster's processes, and of their driver."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

LOOPBACK = "127.0.0.1"
# One token per process: Ray reads it once, and a process may start several clusters.
_TOKEN = secrets.token_hex(32)
# Ray notices a dead node after about period * threshold = 3 s. Its defaults take 20 s and more.
QUICK_HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
# With these values Ray starts no node with a GPU, not even where a CPU stands for it. Programs see no GPU with
# -1 either, and Ray counts it as one.
_HIDES_ALL, _HIDES_ALL_FROM_CUDA = ("", "NoDevFiles"), "-1"
# How long Ray waits for a gcs_server to start. Its default of 20 to 30 s is too short on a busy machine.
START_TIMEOUT = {"RAY_gcs_server_port_wait_time_s": "120"}


def driver_environment() -> dict[str, str]:
    """The variables that a driver needs **before it imports ray** to reach the embedded clusters that it starts."""
    return {**loopback_environment(), **token_environment()}


def loopback_environment() -> dict[str, str]:
    """The variables that a client of any cluster on loopback needs.

    Without the first, `ray.init("127.0.0.1:port")` replaces the address by the machine's outer one, where nothing
    listens. With it, the process can reach only clusters on this machine.
    """
    return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def token_environment() -> dict[str, str]:
    """The variables with the token of this process's clusters. Loopback alone does not keep out other users.

    Ray reads these variables before it looks for a token file, so another cluster's file does not matter.
    """
    # KubeRay may configure Ray to check tokens with Kubernetes, which does not know this one.
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN, "RAY_ENABLE_K8S_TOKEN_AUTH": "false"}


def supervisor_environment(home: Path, health_checks: Mapping[str, str]) -> dict[str, str]:
    """The environment that the GCS, the raylets and the workers inherit."""
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    if inherited.get("CUDA_VISIBLE_DEVICES") in _HIDES_ALL:
        inherited["CUDA_VISIBLE_DEVICES"] = _HIDES_ALL_FROM_CUDA
    package_root = str(Path(__file__).resolve().parents[2])
    search_path = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **inherited,
        **driver_environment(),
        **START_TIMEOUT,
        **health_checks,
        "RAY_TMPDIR": str(home),
        "GLOO_SOCKET_IFNAME": "lo",  # otherwise gloo binds the address that the host name resolves to
        "NCCL_SOCKET_IFNAME": "lo",  # otherwise NCCL listens on another interface, and asks nobody for a password
        "PYTHONPATH": os.pathsep.join(search_path),
    }

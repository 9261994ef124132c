"""What the processes of an embedded cluster find in their environment, and what their driver must have in its own."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

LOOPBACK = "127.0.0.1"
# One for a process: Ray reads it once, and several clusters may follow each other.
_TOKEN = secrets.token_hex(32)
# A dead node is noticed after about period * threshold = 3 s; Ray's own defaults take 20 s and more.
QUICK_HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
# How long Ray waits for a gcs_server to start. Its default of 20 to 30 s is short on a busy machine.
PATIENCE = {"RAY_gcs_server_port_wait_time_s": "120"}


def driver_environment() -> dict[str, str]:
    """The variables a driver must have **before it imports ray** to reach the embedded clusters that it starts."""
    return {**loopback_environment(), **token_environment()}


def loopback_environment() -> dict[str, str]:
    """What a client of any cluster on loopback must have.

    Without the first, `ray.init("127.0.0.1:port")` rewrites the address to the machine's outer one, where
    nobody listens. With it, that process can reach clusters on this machine only.
    """
    return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def token_environment() -> dict[str, str]:
    """The token of this process's clusters: for the machine's other users, loopback is no wall.

    Ray looks here before it looks for a file, so another cluster's token is no obstacle.
    """
    # KubeRay may tell Ray to ask Kubernetes about tokens, and Kubernetes does not know ours.
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN, "RAY_ENABLE_K8S_TOKEN_AUTH": "false"}


def supervisor_environment(home: Path, health_checks: Mapping[str, str]) -> dict[str, str]:
    """What gcs, raylets and workers inherit."""
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    package_root = str(Path(__file__).resolve().parents[2])
    search_path = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **inherited,
        **driver_environment(),
        **PATIENCE,
        **health_checks,
        "RAY_TMPDIR": str(home),
        "GLOO_SOCKET_IFNAME": "lo",  # else gloo binds whatever address the host's name resolves to
        "PYTHONPATH": os.pathsep.join(search_path),
    }

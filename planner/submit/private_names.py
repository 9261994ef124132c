"""The private names of Ray's job client that planner uses (listed in `planner.dispatch.ray_internal.private_api`)."""

from functools import partial
from typing import Any


def limit_waits(client: Any, timeout_s: float) -> None:
    """Give all requests of the client a timeout. Ray sets none."""
    if (ask := getattr(client, "_do_request", None)) is not None:
        client._do_request = partial(ask, timeout=timeout_s)  # noqa: SLF001


def server_version(client: Any) -> str:
    """The Ray version that the client found on its cluster, or the empty string."""
    return getattr(client, "_server_ray_version", None) or ""

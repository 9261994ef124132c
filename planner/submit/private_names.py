"""What is not public of Ray's job client (`planner.dispatch.ray_internal.contract` lists it)."""

from functools import partial
from typing import Any


def limit_waits(client: Any, timeout_s: float) -> None:
    """Let no request wait longer than so for the server: Ray's client sets no limit of its own."""
    if (ask := getattr(client, "_do_request", None)) is not None:
        client._do_request = partial(ask, timeout=timeout_s)  # noqa: SLF001


def server_version(client: Any) -> str:
    """The Ray version that the client has found on its cluster, or the empty string."""
    return getattr(client, "_server_ray_version", None) or ""

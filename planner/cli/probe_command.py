"""`planner probe PATH`: measures storage, network and GPU copies, on this machine or on a cluster."""

import secrets
import socket
from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from planner.base.disk import absolute_url
from planner.cli.activity import doing
from planner.cli.options import JsonOption, address_option, terminal_width, warn_of_open_token
from planner.errors import RunError, UserError
from planner.probe.figures import MB, Probed
from planner.probe.measure import measure
from planner.probe.node import LOOPBACK, NodeProbe, ThisMachine
from planner.report.probe_table import probe_json, probe_text
from planner.runner.signals import ended_like_ctrl_c

_TOKEN_BYTES = 32
_MOST_MB = 10**6


def probe(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="a folder that exists, or a URL such as s3://bucket/runs")
    ],
    address: Annotated[str, address_option("this machine is measured")] = "",
    size: Annotated[
        int,
        typer.Option(
            metavar="MB",
            min=0,
            max=_MOST_MB,
            help="megabytes of a file or a transfer, at most what ten seconds take",
            show_default="what half a second takes",
        ),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure the storage at PATH, the network between nodes, and copies to and from GPUs.

    It writes to a new folder in PATH, removes it at the end, and touches nothing else there.
    Example: planner probe /shared/runs --address auto
    """
    if not path:
        raise UserError("PATH is empty. Write a folder or a URL")
    url, folder = absolute_url(path), f"probe-{secrets.token_hex(6)}"
    warn = _Warnings()
    with ended_like_ctrl_c(), doing("measuring") as now:
        ask = partial(_on_cluster, address) if address else _here
        probed = ask(url, folder, size * MB, lambda text: now(f"measuring: {text}"), warn)
    typer.echo(probe_json(probed) if as_json else "\n".join(probe_text(probed, terminal_width())))
    if warn.number:
        raise RunError(f"the probe left files behind on {warn.number} nodes, as said above")


class _Warnings:
    """Prints warnings on stderr, and counts them."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, text: str) -> None:
        self.number += 1
        typer.echo(f"planner: {text}", err=True)


def _here(url: str, folder: str, size_bytes: int, say: Callable[[str], None], warn: Callable[[str], None]) -> Probed:
    token = secrets.token_bytes(_TOKEN_BYTES)
    node = NodeProbe(url=url, folder=folder, node="0", address=LOOPBACK, token=token)
    try:
        return measure(ThisMachine(socket.gethostname(), node), url, size_bytes=size_bytes, say=say)
    finally:
        if left := node.clean():
            warn(left)


def _on_cluster(
    address: str, url: str, folder: str, size_bytes: int, say: Callable[[str], None], warn: Callable[[str], None]
) -> Probed:
    # Not at the top, because these import Ray's policies and all that training needs.
    from planner.dispatch import connection, launch
    from planner.dispatch.probe_actors import on_cluster

    warn_of_open_token()
    say(f"connecting to {address}")
    launch.set_environment(launch.CLUSTER, embedded=False)
    token = secrets.token_bytes(_TOKEN_BYTES)
    with connection.connected(address, verbose=False):
        say("starting on each node")
        with on_cluster(url=url, folder=folder, token=token, warn=warn) as nodes:
            return measure(nodes, url, size_bytes=size_bytes, say=say)

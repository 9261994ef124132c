"""`planner notice-agent`: forwards the cloud's preemption notice to Ray. It runs on every node that may be taken."""

import contextlib
import time
from typing import Annotated

import typer

from planner.base.text import enumerated
from planner.cli.options import warn_of_open_token
from planner.dispatch.ray_internal.node_drainer import NodeDrainer
from planner.errors import RunError
from planner.notice.agent import Agent
from planner.notice.clouds import cloud_names, find_cloud
from planner.notice.fetch import Endpoint, Unreachable
from planner.notice.notice import Cloud, Trouble

# A metadata server may start later than the machine, or later than a pod on it.
_CLOUD_TRIES = 4
_CLOUD_AGAIN_S = 5.0
_RAY_WAIT_S = 900.0
_RAY_AGAIN_S = 2.0


def notice_agent(
    address: Annotated[
        str,
        typer.Option(
            envvar="RAY_ADDRESS",
            show_default=False,
            help="the address of Ray's head, host:port (by default the cluster of this machine)",
        ),
    ] = "",
    node_id: Annotated[
        str,
        typer.Option(metavar="HEX", show_default=False, help="the Ray node to drain, if this machine has several"),
    ] = "",
    endpoint: Annotated[
        str,
        typer.Option(envvar="PLANNER_METADATA_ENDPOINT", metavar="URL", help="the cloud's metadata server"),
    ] = "http://169.254.169.254",
    rebalance: Annotated[
        bool,
        typer.Option("--rebalance", help="AWS: treat a rebalance recommendation as a notice without a deadline"),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="look once, print what was found and would be done, and do nothing")
    ] = False,
) -> None:
    """Watch the cloud for a preemption notice for this machine, and drain its Ray node.

    It knows {clouds}.
    Start it beside `ray start` on every node. It ends when its node ends, or at once if no cloud answers.
    """
    warn_of_open_token()
    server = Endpoint(url=endpoint)
    if dry_run:
        _look_once(server, address, node_id)
        return
    cloud = _find_cloud(server)
    if cloud is None:
        return
    node = _find_node(address, node_id)
    _say(f"watching {cloud.name} for node {node.node_id}, every {cloud.poll_s:g} s")
    with contextlib.suppress(KeyboardInterrupt):
        Agent(cloud, node, _say, follow_advice=rebalance).run()


notice_agent.__doc__ = str(notice_agent.__doc__).format(clouds=enumerated(cloud_names()))


def _find_cloud(server: Endpoint) -> Cloud | None:
    why = ""
    for again in range(_CLOUD_TRIES):
        cloud, why = find_cloud(server)
        if cloud is not None:
            return cloud
        if again == 0:
            _say(f"no cloud's metadata server at {server.url} so far: {why}")
        if again < _CLOUD_TRIES - 1:
            time.sleep(_CLOUD_AGAIN_S)
    asked = enumerated(cloud_names())
    _say(f"no cloud answers at {server.url} ({why}): {asked} were asked. No notice can come, so the agent ends")
    return None


def _find_node(address: str, node_id: str) -> NodeDrainer:
    """Wait for this machine's Ray node.

    Raises:
        RunError: Ray did not start in time.
        UserError: there is no node that can be drained.
    """
    began_s, said = time.monotonic(), ""
    while True:
        try:
            return NodeDrainer.find(address, node_id)
        except RunError as error:
            why = str(error)
        if time.monotonic() - began_s > _RAY_WAIT_S:
            raise RunError(f"Ray did not start within {_RAY_WAIT_S / 60:.0f} minutes: {why}")
        if why != said:
            _say(f"waiting for this machine's Ray node: {why}")
            said = why
        time.sleep(_RAY_AGAIN_S)


def _look_once(server: Endpoint, address: str, node_id: str) -> None:

    cloud, why = find_cloud(server)
    typer.echo(f"cloud   {cloud.name if cloud else f'none at {server.url}: {why}'}")
    if cloud is not None:
        typer.echo(f"notice  {_seen(cloud)}")
    try:
        node = NodeDrainer.find(address, node_id)
        typer.echo(f"node    {node.node_id} of the cluster at {node.address}: it would be drained")
    except RunError as error:
        typer.echo(f"node    {error}")
    typer.echo("nothing was done")


def _seen(cloud: Cloud) -> str:
    now_s = time.time()
    try:
        seen = cloud.look(now_s)
    except Unreachable as error:
        return f"no answer: {error}"
    if seen is None:
        return "none"
    if isinstance(seen, Trouble):
        return f"{seen.what}{f': {seen.detail}' if seen.detail else ''}"
    return seen.what if seen.is_advice else f"{seen.what}, {max(seen.deadline_s - now_s, 0.0):.0f} s left"


def _say(line: str) -> None:
    """Print a line of the log. A full disk must not stop the agent."""
    with contextlib.suppress(OSError):
        typer.echo(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}")

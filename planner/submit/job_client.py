"""Connects Ray's job client to a dashboard, and checks that it answers in time and runs a supported Ray."""

import contextlib
import importlib.util
import logging
import os
from collections.abc import Iterator
from http.client import HTTPException

import requests
from ray.job_submission import JobSubmissionClient
from urllib3.exceptions import HTTPError

from planner.base.text import how_to_install
from planner.errors import ClusterUnreachable, UserError
from planner.submit.client_errors import first_line, readable_errors, root_cause, short_text, unreachable
from planner.submit.private_names import limit_waits, server_version
from planner.submit.submission import OLDEST_RAY

# Ray's client sets no timeout. An address that drops packets would block it for minutes.
_CONNECT_S = 10.0
# Limit between two bytes, while the dashboard receives an upload or starts a job's supervisor.
_ANSWER_S = 120.0


def connect(address: str) -> tuple[JobSubmissionClient, str]:
    """The client, and the cluster's Ray version (empty if the cluster does not report it).

    Raises:
        ClusterUnreachable: no dashboard answers there.
        UserError: what answers is no dashboard, it refuses the token, its Ray is too old, or aiohttp is not installed.
        RunError: the dashboard failed.
    """
    _require_aiohttp()
    _require_server(address)
    with readable_errors(address), _only_this_address(), quiet():
        client = _client(address)
    limit_waits(client, _ANSWER_S)
    version = server_version(client)
    _require_version(address, version)
    return client, version


def _require_aiohttp() -> None:
    if importlib.util.find_spec("aiohttp") is None:
        raise UserError(f"planner submit needs Ray's job client, which is not installed: {how_to_install('submit')}")


def _client(address: str) -> JobSubmissionClient:
    try:
        return JobSubmissionClient(address)
    except (requests.exceptions.HTTPError, RuntimeError, ValueError, LookupError, TypeError) as error:
        # The client asked for the version and got another status, no JSON, or JSON of another form.
        reason = first_line(str(error))
        raise UserError(f"{address} is not a Ray dashboard ({reason}). Check --address") from error


def _require_server(address: str) -> None:
    """Check that an HTTP server answers in time, with any status. Ray's client would ask without a timeout.

    Raises:
        ClusterUnreachable: nothing answers there.
        UserError: the address is malformed, or the answer is not HTTP.
    """
    try:
        requests.get(f"{address}/api/version", timeout=_CONNECT_S, stream=True).close()
    except requests.exceptions.Timeout as error:
        raise ClusterUnreachable(unreachable(address, f"no answer within {_CONNECT_S:g} s")) from error
    except (HTTPError, UnicodeError) as error:  # requests does not wrap these for a malformed address
        raise UserError(unreachable(address, short_text(error))) from error
    except requests.exceptions.RequestException as error:
        cause = root_cause(error)
        if isinstance(cause, HTTPException):
            raise UserError(unreachable(address, "it does not speak HTTP")) from error
        raise ClusterUnreachable(unreachable(address, short_text(cause))) from error


def _require_version(address: str, version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if version and numbers < OLDEST_RAY:
        oldest = ".".join(map(str, OLDEST_RAY))
        raise UserError(f"{address} runs Ray {version}, but planner needs {oldest} or newer. Update Ray on the cluster")


@contextlib.contextmanager
def _only_this_address() -> Iterator[None]:
    """Hide the variables that Ray's client prefers to the address that it is given."""
    names = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the log of Ray's client. planner prints what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)

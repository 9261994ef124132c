"""A cluster's dashboard, by Ray's job client: send a job, follow its log, learn how it ended.

The driver runs on the cluster's head and continues if this connection closes.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import requests
from ray.job_submission import JobSubmissionClient
from urllib3.exceptions import HTTPError

from planner.base.text import how_to_install
from planner.dispatch.ray_internal import cluster_names
from planner.dispatch.ray_internal.compatibility import require
from planner.errors import ClusterUnreachable, UserError
from planner.submit.client_errors import first_line, readable_errors, root_cause, short_text, unreachable
from planner.submit.shipment import write_archive
from planner.submit.submission import OLDEST_RAY, Submission

_CONNECT_S = 10.0
# Limit between two bytes, while the dashboard receives an upload or starts a job's supervisor.
_ANSWER_S = 120.0
_EXIT_CODES = (0, 1, 2, 130)
"""the exit codes of `planner run`"""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended."""

    status: str
    """SUCCEEDED, FAILED or STOPPED"""
    exit_code: int
    reason: str
    """one line. Empty if the log says it"""


class JobsApi:
    """A connection to a cluster's dashboard.

    Raises:
        UserError: (from every method) the dashboard refuses the request or the token.
        RunError: (from every method) the connection was lost, or the dashboard failed.
    """

    def __init__(self, address: str, client: JobSubmissionClient, ray_version: str) -> None:
        self.ray_version = ray_version
        """of the cluster. Empty if it does not report it"""
        self._address = address
        self._client = client

    @classmethod
    def connect(cls, address: str) -> "JobsApi":
        """Connect to the dashboard. Checks the token, and that planner supports the cluster's Ray.

        Raises:
            ClusterUnreachable: no dashboard answers there.
            UserError: what answers is no dashboard, its Ray is too old, or aiohttp or Ray 2.60 is not installed.
        """
        if importlib.util.find_spec("aiohttp") is None:
            install = how_to_install("submit")
            raise UserError(f"planner submit needs Ray's job client, which is not installed: {install}")
        require(cluster_names)
        with readable_errors(address), _only_this_address(), _quiet():
            client = _client(address)
        version = client._server_ray_version or ""  # noqa: SLF001  # listed in `cluster_names`
        _require_version(address, version)
        return cls(address, client, version)

    def submit(self, submission: Submission) -> None:
        """Send the files and start the job."""
        with tempfile.TemporaryDirectory(prefix="planner-submit-") as folder, readable_errors(self._address), _quiet():
            archive = Path(folder) / "planner-job.zip"
            write_archive(submission.shipment, archive)
            self._client.submit_job(
                entrypoint=submission.entrypoint,
                submission_id=submission.submission_id,
                runtime_env={"working_dir": str(archive), "env_vars": submission.env},
            )

    def follow(self, submission_id: str, show: Callable[[str], None]) -> Ended | None:
        """Show the log until the job has ended. None if the log broke off before."""
        import aiohttp

        # The job's status says whether the job ended or only the log.
        with contextlib.suppress(aiohttp.ClientError, RuntimeError), _quiet():
            asyncio.run(_show_all(self._client.tail_job_logs(submission_id), show))
        with readable_errors(self._address):
            details = self._client.get_job_info(submission_id)
        return _ended(details) if details.status.is_terminal() else None


class _TimedClient(JobSubmissionClient):  # type: ignore[misc]
    """Ray's client, with timeouts."""

    def _do_request(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        """Do a request. Ray passes no timeout (ray/dashboard/modules/dashboard_sdk.py:326, Ray 2.60).

        An address that drops packets would block it for minutes, and a dashboard that hangs would do so for ever.
        """
        answer_s = _CONNECT_S if endpoint == "/api/version" else _ANSWER_S
        return super()._do_request(method, endpoint, timeout=(_CONNECT_S, answer_s), **options)


def _client(address: str) -> JobSubmissionClient:
    """Ray's client, which asks the dashboard for its version at once.

    Raises:
        ClusterUnreachable: nothing answers there.
        UserError: the address is malformed, or the answer is not a dashboard's.
    """
    try:
        return _TimedClient(address)
    except requests.exceptions.ReadTimeout as error:
        raise ClusterUnreachable(unreachable(address, f"no answer within {_CONNECT_S:g} s")) from error
    except ConnectionError as error:  # Ray's, for any error of the connection
        cause = root_cause(error)
        if isinstance(cause, HTTPException):
            raise UserError(unreachable(address, "it does not speak HTTP")) from error
        text = f"no answer within {_CONNECT_S:g} s" if isinstance(cause, TimeoutError) else short_text(cause)
        raise ClusterUnreachable(unreachable(address, text)) from error
    except (HTTPError, UnicodeError, requests.exceptions.InvalidURL) as error:  # a malformed address
        raise UserError(unreachable(address, short_text(error))) from error
    except (requests.exceptions.HTTPError, RuntimeError, ValueError, LookupError, TypeError) as error:
        # The client asked for the version and got another status, no JSON, or JSON of another form.
        reason = first_line(str(error))
        raise UserError(f"{address} is not a Ray dashboard ({reason}). Check --address") from error


def _require_version(address: str, version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if version and numbers < OLDEST_RAY:
        oldest = ".".join(map(str, OLDEST_RAY))
        raise UserError(f"{address} runs Ray {version}, but planner needs {oldest} or newer. Update Ray on the cluster")


async def _show_all(log: AsyncIterator[str], show: Callable[[str], None]) -> None:
    async for text in log:
        show(text)


def _ended(details: Any) -> Ended:
    """How a job ended, from Ray's `JobDetails`."""
    status = str(details.status.value)
    if status == "STOPPED":
        return Ended(status=status, exit_code=130, reason="")
    code = details.driver_exit_code
    if code is None:  # it did not start, or Ray lost it
        return Ended(status=status, exit_code=1, reason=first_line(details.message or "Ray gives no reason"))
    return Ended(
        status=status, exit_code=code if code in _EXIT_CODES else 1, reason=f"exit code {code}" if code else ""
    )


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
def _quiet() -> Iterator[None]:
    """Silence the log of Ray's client. planner prints what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)

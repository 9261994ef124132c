"""The job API of a Ray cluster's dashboard: send a job, follow its log, learn how it ended.

The driver runs on the cluster's head; closing this end of the line does nothing to it.
"""

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import shlex
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from planner.base.extras import how_to_install
from planner.base.text import last_line
from planner.errors import RunError, UserError
from planner.job import Job
from planner.submit.shipment import Shipment, package_folder, write_archive

_DASHBOARD_PORT = 8265
_GCS_PORT = 6379
_OLDEST_RAY = (2, 60)
# Ray's client sets no limit of its own: an address that swallows packets would hold it for minutes.
_CONNECT_S = 10.0
_RETRY_S = 1.0
# Between two bytes: a dashboard takes in an upload, or starts a job's supervisor.
_ANSWER_S = 120.0
# A log without a line for so long is asked for again: a line that was cut without a word looks the same.
_SILENT_LOG_S = 300.0
# Ray kills a stopped job after 3 s. Ending its workers in order may take longer, and what is killed leaves its
# reservation behind, which for three minutes is missing to the next run.
_STOP_WAIT = {"RAY_JOB_STOP_WAIT_TIME_S": "60"}
_EXIT_CODES = (0, 1, 2, 130)
"""planner's own"""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job as it goes to a cluster."""

    address: str
    submission_id: str
    words: tuple[str, ...]
    """of the command that the cluster runs"""
    env: Mapping[str, str]
    shipment: Shipment

    @property
    def entrypoint(self) -> str:
        """The command that the cluster runs, in the shipment's folder."""
        return shlex.join(self.words)

    @property
    def log_command(self) -> str:
        """Follows the log."""
        return self._ray("logs", "--follow", self.submission_id)

    @property
    def stop_command(self) -> str:
        """Stops the job."""
        return self._ray("stop", self.submission_id)

    @property
    def command_by_hand(self) -> str:
        """Ray's own command that does the same, but sends all of the current folder that .gitignore leaves."""
        package = package_folder()
        modules = {} if package.parent == Path.cwd() else {"py_modules": [str(package)]}
        environment = json.dumps({"env_vars": _STOP_WAIT, **modules})
        return self._ray("submit", "--working-dir", ".", "--runtime-env-json", environment, "--", *self.words)

    def _ray(self, command: str, *words: str) -> str:
        return shlex.join(["ray", "job", command, "--address", self.address, *words])


def new_submission(
    address: str, job: Job, shipment: Shipment, options: Sequence[str], env: Mapping[str, str]
) -> Submission:
    """`planner run` with these options, under an id of its own."""
    return Submission(
        address=address,
        submission_id=f"{job.name}-{uuid.uuid4().hex[:8]}",
        # `exec`: else a shell stands between Ray and the driver, hears the stop first, and leaves an orphan.
        words=("exec", "python", "-m", "planner.cli", "run", shipment.job, *options),
        env={**_STOP_WAIT, **env},
        shipment=shipment,
    )


def dashboard_address(address: str) -> str:
    """The address, without slashes at its end.

    Raises:
        UserError: it is not the address of a dashboard.
    """
    scheme, _, rest = address.rpartition("://")
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UserError(f"--address {address}: {error}; write http://HOST:{_DASHBOARD_PORT}") from error
    likely = _DASHBOARD_PORT if port in {None, _GCS_PORT} else port
    fix = f"write that of the cluster's dashboard, such as http://{host if port else 'HOST'}:{likely}"
    if scheme not in {"http", "https"} or not host:
        raise UserError(f"--address {address}: found no http://HOST:PORT; {fix}")
    if port == _GCS_PORT:
        raise UserError(f"--address {address}: {_GCS_PORT} is the port that nodes and drivers join by; {fix}")
    return address.rstrip("/")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended."""

    status: str
    """SUCCEEDED, FAILED or STOPPED"""
    exit_code: int
    reason: str
    """one line, where its log does not say it"""


class JobServer:
    """A cluster's dashboard, connected to.

    Raises:
        UserError: (from every method) it does not take what it is asked, or us.
        RunError: (from every method) it cannot be reached any more, or fails.
    """

    def __init__(self, address: str, client: Any, ray_version: str) -> None:
        self.ray_version = ray_version
        self._address = address
        self._client = client

    @classmethod
    def connect(cls, address: str) -> "JobServer":
        """Find the dashboard, and check that it lets us in and that its Ray is one that planner runs on."""
        _require_client()
        _require_server(address)
        from planner.dispatch.ray_internal import limit_waits, server_version

        with _in_words(address), _only_this_address(), _quiet():
            client = _client(address)
        limit_waits(client, _ANSWER_S)
        version = server_version(client)
        _require_version(address, version)
        return cls(address, client, version)

    def submit(self, submission: Submission) -> None:
        """Send the files, and start the job."""
        with tempfile.TemporaryDirectory(prefix="planner-submit-") as folder, _in_words(self._address), _quiet():
            archive = Path(folder) / "planner-job.zip"
            write_archive(submission.shipment, archive)
            self._client.submit_job(
                entrypoint=submission.entrypoint,
                submission_id=submission.submission_id,
                runtime_env={"working_dir": str(archive), "env_vars": submission.env},
            )

    def follow(self, submission_id: str, show: Callable[[str], None]) -> Ended:
        """Show the log until the job has ended, across broken lines."""
        shown = 0
        while True:
            shown = asyncio.run(self._tail(submission_id, shown, show))
            with _in_words(self._address):
                details = self._client.get_job_info(submission_id)
            if details.status.is_terminal():
                return _ended(details)
            time.sleep(_RETRY_S)

    async def _tail(self, submission_id: str, shown: int, show: Callable[[str], None]) -> int:
        """Show what the log has after its first `shown` characters; how many have been shown then."""
        import aiohttp

        seen = 0
        # Whether the job or only the line has ended is for its status to tell.
        with contextlib.suppress(aiohttp.ClientError, RuntimeError, TimeoutError), _quiet():
            log = aiter(self._client.tail_job_logs(submission_id))
            while (text := await asyncio.wait_for(anext(log, None), _SILENT_LOG_S)) is not None:
                show(text[max(0, shown - seen) :])
                seen += len(text)
        return max(shown, seen)


def _ended(details: Any) -> Ended:
    status = str(details.status.value)
    if status == "STOPPED":
        return Ended(status=status, exit_code=130, reason="")
    code = details.driver_exit_code
    if code is None:  # it never began, or Ray lost it
        return Ended(status=status, exit_code=1, reason=_first_line(details.message or "Ray does not say why"))
    return Ended(
        status=status, exit_code=code if code in _EXIT_CODES else 1, reason=f"exit code {code}" if code else ""
    )


def _client(address: str) -> Any:
    import requests
    from ray.job_submission import JobSubmissionClient

    try:
        return JobSubmissionClient(address)
    except (requests.exceptions.HTTPError, RuntimeError, ValueError, LookupError, TypeError) as error:
        # It has asked for the version, and got another status, no JSON, or JSON of another form.
        reason = _first_line(str(error))
        raise UserError(f"{address} answers, but not as Ray's dashboard does ({reason}); check --address") from error


def _require_client() -> None:
    if importlib.util.find_spec("aiohttp") is None:
        raise UserError(f"planner submit needs Ray's job client, which is not installed: {how_to_install('submit')}")


def _require_server(address: str) -> None:
    """Whoever answers at all within a while, be it with an error, is asked again by Ray's client."""
    import requests
    from urllib3.exceptions import HTTPError

    try:
        requests.get(f"{address}/api/version", timeout=_CONNECT_S, stream=True).close()
    except requests.exceptions.Timeout as error:
        raise UserError(_unreachable(address, f"no answer within {_CONNECT_S:g} s")) from error
    except (HTTPError, UnicodeError) as error:  # of an address that is none, requests lets these through
        raise UserError(_unreachable(address, _short(error))) from error
    except requests.exceptions.RequestException as error:
        cause = _root_cause(error)
        reason = "it does not speak HTTP" if isinstance(cause, HTTPException) else _short(cause)
        raise UserError(_unreachable(address, reason)) from error


def _unreachable(address: str, reason: str) -> str:
    return (
        f"no Ray dashboard at {address}: {reason}; check --address (a dashboard on the head's loopback is reached "
        "through `ray dashboard CLUSTER.yaml`), and that the head has ray[default]"
    )


def _require_version(address: str, version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if version and numbers < _OLDEST_RAY:
        oldest = ".".join(map(str, _OLDEST_RAY))
        raise UserError(f"{address} runs Ray {version}; planner needs {oldest} or newer there: update the cluster")


@contextlib.contextmanager
def _in_words(address: str) -> Iterator[None]:
    """What goes wrong between Ray's client and the dashboard, as a sentence."""
    import requests
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        raise UserError(f"{address}: {_why_not_let_in(str(error))}") from error
    except (requests.exceptions.RequestException, ConnectionError) as error:
        reason = f"the connection was lost: {_short(_root_cause(error))}"
        raise RunError(f"{address}: {reason}; see what became of the job: ray job list --address {address}") from error
    except RuntimeError as error:  # another status than 200, and behind it what the server says, often a traceback
        status, _, words = str(error).rstrip(". \n").partition(": ")
        raise RunError(f"{address}: {status}: {last_line(words)}") from error


def _why_not_let_in(text: str) -> str:
    if text.startswith("Authentication required"):
        return (
            "the cluster wants a token; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a file that holds it "
            "(ray get-auth-token, on the head)"
        )
    if text.startswith("Authentication failed"):
        return f"the cluster does not take the token {_token_source()}; its own: ray get-auth-token, on the head"
    return text.partition(". ")[0]  # a file that cannot be read; more than advice does not follow


def _token_source() -> str:
    """Where Ray has looked for it, in its order."""
    if "RAY_AUTH_TOKEN" in os.environ:
        return "in RAY_AUTH_TOKEN"
    return f"in {os.environ.get('RAY_AUTH_TOKEN_PATH', '~/.ray/auth_token')}"


@contextlib.contextmanager
def _only_this_address() -> Iterator[None]:
    """Ray's client lets these variables win over the address that it is given."""
    names = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray's client logs each of its steps; what matters is said by us."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _root_cause(error: BaseException) -> BaseException:
    while error.__context__ is not None:
        error = error.__context__
    return error


def _short(error: BaseException) -> str:
    return getattr(error, "strerror", None) or _first_line(str(error)) or type(error).__name__


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]

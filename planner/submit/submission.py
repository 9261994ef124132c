"""A job as it is sent to a cluster: its id, command, environment and files, decided before anything is sent."""

import json
import shlex
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from planner.errors import UserError
from planner.job import Job
from planner.submit.shipment import Shipment, package_folder

OLDEST_RAY = (2, 60)
"""the oldest Ray that a cluster may run. Older ones are not tested (docs/elastic.md)"""
_DASHBOARD_PORT = 8265
_GCS_PORT = 6379
# By default Ray kills a stopped job after 3 s. An orderly end waits for a durable commit, and a killed driver leaves a
# reservation that blocks the next run for three minutes.
_STOP_WAIT = {"RAY_JOB_STOP_WAIT_TIME_S": "3600"}


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job as it is sent to a cluster."""

    address: str
    submission_id: str
    arguments: tuple[str, ...]
    """the command that the cluster runs"""
    env: Mapping[str, str]
    shipment: Shipment

    @property
    def entrypoint(self) -> str:
        """The command that the cluster runs, as a shell line. It runs in the shipment's folder."""
        return shlex.join(self.arguments)

    @property
    def log_command(self) -> str:
        """The shell line that follows the job's log."""
        return self._ray("logs", "--follow", self.submission_id)

    @property
    def stop_command(self) -> str:
        """The shell line that stops the job."""
        return self._ray("stop", self.submission_id)

    @property
    def command_by_hand(self) -> str:
        """The shell line that submits the job with Ray alone. It sends the whole folder except for .gitignore."""
        package = package_folder()
        modules = {} if package.parent == Path.cwd() else {"py_modules": [str(package)]}
        environment = json.dumps({"env_vars": _STOP_WAIT, **modules})
        return self._ray("submit", "--working-dir", ".", "--runtime-env-json", environment, "--", *self.arguments)

    def _ray(self, command: str, *arguments: str) -> str:
        return shlex.join(["ray", "job", command, "--address", self.address, *arguments])


def new_submission(
    address: str, job: Job, shipment: Shipment, options: Sequence[str], env: Mapping[str, str]
) -> Submission:
    """A submission of `planner run` with these options, under a new id."""
    return Submission(
        address=address,
        submission_id=f"{job.name}-{uuid.uuid4().hex[:8]}",
        # Without `exec`, a shell between Ray and the driver receives the stop first and leaves the driver running.
        arguments=("exec", "python", "-m", "planner.cli", "run", shipment.job, *options),
        env={**_STOP_WAIT, **env},
        shipment=shipment,
    )


def dashboard_address(address: str) -> str:
    """The address without trailing slashes.

    Raises:
        UserError: it is not a dashboard's address.
    """
    scheme, _, rest = address.rpartition("://")
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UserError(f"--address {address}: {error}. Write http://HOST:{_DASHBOARD_PORT}") from error
    likely = _DASHBOARD_PORT if port in {None, _GCS_PORT} else port
    fix = f"Give the address of the cluster's dashboard, such as http://{host if port else 'HOST'}:{likely}"
    if scheme not in {"http", "https"} or not host:
        raise UserError(f"--address {address}: this is not http://HOST:PORT. {fix}")
    if port == _GCS_PORT:
        raise UserError(f"--address {address}: {_GCS_PORT} is the port for nodes and drivers. {fix}")
    return address.rstrip("/")

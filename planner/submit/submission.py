"""A job as it goes to a cluster: its id, its command, its environment; decided before anything is sent."""

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
"""that a cluster may run: older ones were not tried (docs/elastic.md)"""
_DASHBOARD_PORT = 8265
_GCS_PORT = 6379
# Ray kills a stopped job after 3 s. Ending its workers in order may take longer, and what is killed leaves its
# reservation behind, which for three minutes is missing to the next run.
_STOP_WAIT = {"RAY_JOB_STOP_WAIT_TIME_S": "60"}


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

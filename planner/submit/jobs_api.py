"""A cluster's dashboard: send a job, follow its log, learn how it ended.

The driver runs on the cluster's head and continues if this connection closes.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.job_submission import JobSubmissionClient

from planner.submit.client_errors import first_line, readable_errors
from planner.submit.job_client import connect, quiet
from planner.submit.shipment import write_archive
from planner.submit.submission import Submission

_RETRY_S = 1.0
# After this long without output, planner requests the log again: a lost connection looks like a silent job.
_SILENT_LOG_S = 300.0
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
        self._address = address
        self._client = client

    @classmethod
    def connect(cls, address: str) -> "JobsApi":
        """Connect to the dashboard. Checks the token, and that planner supports the cluster's Ray."""
        client, version = connect(address)
        return cls(address, client, version)

    def submit(self, submission: Submission) -> None:
        """Send the files and start the job."""
        with tempfile.TemporaryDirectory(prefix="planner-submit-") as folder, readable_errors(self._address), quiet():
            archive = Path(folder) / "planner-job.zip"
            write_archive(submission.shipment, archive)
            self._client.submit_job(
                entrypoint=submission.entrypoint,
                submission_id=submission.submission_id,
                runtime_env={"working_dir": str(archive), "env_vars": submission.env},
            )

    def follow(self, submission_id: str, show: Callable[[str], None]) -> Ended:
        """Show the log until the job has ended. Reconnects if the connection breaks."""
        shown = 0
        while True:
            shown = asyncio.run(self._tail(submission_id, shown, show))
            with readable_errors(self._address):
                details = self._client.get_job_info(submission_id)
            if details.status.is_terminal():
                return _ended(details)
            time.sleep(_RETRY_S)

    async def _tail(self, submission_id: str, shown: int, show: Callable[[str], None]) -> int:
        """Show the log after its first `shown` characters. Returns how many characters are shown in all."""
        import aiohttp

        seen = 0
        # The job's status tells whether the job ended or only the connection.
        with contextlib.suppress(aiohttp.ClientError, RuntimeError, TimeoutError), quiet():
            log = aiter(self._client.tail_job_logs(submission_id))
            while (text := await asyncio.wait_for(anext(log, None), _SILENT_LOG_S)) is not None:
                show(text[max(0, shown - seen) :])
                seen += len(text)
        return max(shown, seen)


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

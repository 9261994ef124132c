"""The live status of a run, which its driver writes to `status.json`: what the controller does and decides next.

It is for people only. Nothing that trains, resumes or audits reads it, and every failure to write it is ignored.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import ClassVar, Literal, Self

from pydantic import Field, ValidationError

from planner.base.format_versions import STORED
from planner.store.records import Count, Sealed, StoredModel, seal, unseal_if_whole
from planner.store.storage import Storage

STATUS_FILE = "status.json"
FRESH_S = 15.0
"""a status that is younger is live. The controller publishes at least every 5 s while it does not start a group"""
# On an object store, each write is a request.
_LOCAL_S, _REMOTE_S = 1.0, 5.0
# A store that hangs must not delay the end of a run for longer.
_LAST_S = 5.0

ControllerState = Literal["Idle", "Running", "Warming", "Stopping", "Waiting", "Ending"]
"""the states of `planner.elastic.states`"""
WorkerState = Literal["starting", "training", "leaving", "stopping", "parked", "warming"]


class NodeStatus(StoredModel):
    """A node of the cluster."""

    node: str
    """Ray's id of the node"""
    host: str
    """its name or its address"""
    room: Count
    """how many workers of this run fit there, those that run included. 0 on a node with notice"""
    has_notice: bool = False
    leaves_s: float | None = None
    """when it goes, in seconds since the epoch. None without a deadline"""


class WorkerStatus(StoredModel):
    """A worker of the group, or a newcomer that is not in the group yet."""

    rank: int | None
    """None for a newcomer"""
    node: str
    """Ray's id of its node. Empty for a newcomer without a place"""
    state: WorkerState


class RunStatus(Sealed):
    """What the controller of a run does, as it published it."""

    stored_as: ClassVar[str] = "status"

    format: int = STORED["status"]
    launch: str
    """id of the driver's launch"""
    time_s: float
    """when the controller published it, in seconds since the epoch"""
    state: ControllerState
    why: str
    """what the controller does while no worker writes the ledger. May be empty"""
    next: str
    """the next decision, and what it waits for"""
    next_s: float | None = None
    """when it is due, in seconds since the epoch. None if it waits for an event"""
    least: Count
    """`workers.min`"""
    most: Count
    """the most workers that the run can use"""
    held_step: Count = 0
    """the newest step that is in memory or durable. 0 if none is known"""
    durable_step: Count = 0
    """step of the newest durable commit, as the group has reported. 0 if none is known"""
    stop: str = ""
    """what a stop now would wait for, and how long that usually takes"""
    nodes: tuple[NodeStatus, ...] = Field(strict=False)
    workers: tuple[WorkerStatus, ...] = Field(strict=False)


def read_status(storage: Storage) -> RunStatus | None:
    """The live status of a run. None if there is none, or if it cannot be read.

    Raises:
        StoreError: the store does not answer.
    """
    return unseal_if_whole(storage.read_first(STATUS_FILE, 2**24), RunStatus, STATUS_FILE)


class StatusWriter:
    """A context manager that copies the status of a launch into the run's folder while it is open.

    A thread does it. Every failure is ignored: the status is only shown. Leaving removes the file.
    """

    def __init__(self, storage: Storage, published: Callable[[], str], *, every_s: float = 0.0) -> None:
        """Prepare the copy.

        Args:
            storage: of the run's folder.
            published: returns the status as JSON, or an empty text if there is none.
            every_s: seconds between two writes. 0: 1 s on this machine's disks, 5 s on a remote store.
        """
        self._storage, self._published = storage, published
        self._every_s = every_s or (_LOCAL_S if storage.is_local else _REMOTE_S)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="planner-status", daemon=True)
        self._written = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join(_LAST_S)

    def _run(self) -> None:
        # The outer edge of a thread: a store or a cluster that is away may raise anything.
        while not self._ended.wait(self._every_s):
            with contextlib.suppress(Exception):
                self._copy()
        with contextlib.suppress(Exception):
            self._storage.delete(STATUS_FILE)

    def _copy(self) -> None:
        text = self._published()
        if not text or text == self._written:
            return
        with contextlib.suppress(ValidationError):
            self._storage.write(STATUS_FILE, seal(RunStatus.model_validate_json(text)))
            self._written = text

"""The child process that sends a run's rows while its driver trains.

    the driver                          `python -m planner.tracking`
    TrackingChild  -- stdin: one JSON line, then EOF at the end -->  main: one thread per tracker
                   <-- stdout: one message per line --

EOF also comes if the driver is killed. Then the child sends the rest, and ends within a minute.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from planner.base.text import counted
from planner.base.version import VERSION
from planner.base.wait_reports import WaitReports
from planner.errors import StoreError
from planner.job import Job
from planner.store.newest import newest_named
from planner.store.run_folder import RunFolder, commit_of
from planner.store.storage import Storage
from planner.tracking.sender import Sender, Subject
from planner.tracking.state import state_name

END_LIMIT_S = 60.0
"""how long the rest may take after the end of the run"""
_LOOK_S = 0.25
_HANGS_S = 60.0
_BRIEF_S = 1.0
_GOES_ON = "Training goes on, and planner tries again"

Say = Callable[[str], None]


def flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted keys. Lists are JSON text."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            found.update(flat(item, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = json.dumps(item) if isinstance(item, list) else item
    return found


def subjects_of(job: Job, url: str) -> list[Subject]:
    """What is sent to each tracker of a job. Two sections that name one place are one tracker."""
    # One tracker is not told where the others are.
    settings = job.model_dump(mode="json", by_alias=True, exclude={"tracking"})
    config = {**flat(settings), "planner_version": VERSION}
    sections = {state_name(section): section for section in job.tracking}.values()
    return [Subject(url=url, section=section, name=job.name, config=config) for section in sections]


@dataclass(frozen=True, kw_only=True)
class End:
    """How the rest is sent after the end."""

    limit_s: float = END_LIMIT_S
    """how long it may take"""
    is_patient: bool = False
    """whether the limit begins again with each batch that was sent or that the tracker had"""
    is_over: bool = True
    """whether no driver runs the run, so that its last row waits for no evaluation"""


def follow(senders: Sequence[Sender], say: Say, ending: threading.Event, end: End = End()) -> bool:
    """Send to all trackers at once until `ending` is set, then send the rest. Say what is slow.

    Returns:
        Whether every tracker has all rows.
    """
    stopped = threading.Event()
    threads = [
        threading.Thread(
            target=sender.follow, args=(ending, stopped, end.is_over), name=f"planner-{sender.label}", daemon=True
        )
        for sender in senders
    ]
    for thread in threads:
        thread.start()
    hangs = {sender: WaitReports(_HANGS_S) for sender in senders}
    while not ending.wait(_LOOK_S):
        for sender in senders:
            _report_hang(sender, hangs[sender], say)
    _wait_for_rest(senders, threads, say, end)
    stopped.set()
    return all(sender.is_done for sender in senders)


def _wait_for_rest(senders: Sequence[Sender], threads: Sequence[threading.Thread], say: Say, end: End) -> None:
    began_s = moved_s = time.monotonic()
    num_passed, spoke = -1, end.is_patient
    while alive := [thread for thread in threads if thread.is_alive()]:
        now_s, passed = time.monotonic(), sum(sender.num_passed for sender in senders)
        if end.is_patient and passed != num_passed:
            moved_s, num_passed = now_s, passed
        if now_s - moved_s > end.limit_s:
            return
        if not spoke and now_s - began_s > _BRIEF_S:
            spoke = True
            say(_rest_text([sender for sender in senders if not sender.is_done]))
        alive[0].join(_LOOK_S)


def _rest_text(senders: Sequence[Sender]) -> str:
    first, *others = [(_num_unsent(sender), sender.label) for sender in senders] or [(0, "trackers")]
    more = "".join(f", {number} to {label}" for number, label in others)
    return f"sending the last {counted(first[0], 'step')} to {first[1]}{more}"


def _num_unsent(sender: Sender) -> int:
    """Committed steps that a tracker lacks. 0 if the run's folder cannot be read."""
    try:
        name = newest_named(RunFolder(Storage(sender.url)))
    except StoreError:
        return 0
    return max((commit_of(name)[0] if name else 0) - max(sender.state.step, 0), 0)


def _report_hang(sender: Sender, reports: WaitReports, say: Say) -> None:
    since_s = sender.busy_since_s
    if since_s is None:
        reports.reset()
    elif reports.due(waited_s := time.monotonic() - since_s):
        say(f"{sender.label}: has not answered for {waited_s:.0f} s. Training goes on")


def unsent_text(sender: Sender) -> str:
    """What a tracker lacks, as text. Empty if it has all rows."""
    if sender.is_done:
        return ""
    why = "" if sender.problem else ", because it did not answer in time"
    return f"{sender.label}: {counted(_num_unsent(sender), 'step')} not sent{why}"


def sent_text(sender: Sender) -> str:
    """What was sent to a tracker, as text."""
    if sender.state.step < 0:
        return f"{sender.label}: the run has no committed step yet"
    return f"{sender.label}: {counted(sender.num_sent, 'row')} sent, up to step {sender.state.step}"


def main() -> int:
    """Read the settings from stdin, and send until stdin ends."""
    os.nice(10)
    say = _own_stdout()
    settings = json.loads(sys.stdin.readline() or "{}")
    if not settings:
        return 0  # the driver ended at once
    url, end = settings["url"], End(**settings.get("end", {}))
    job = Job.model_validate(settings["job"])
    ending = threading.Event()
    threading.Thread(target=_set_at_end, args=(ending,), name="planner-stdin", daemon=True).start()
    senders = [Sender(subject, say, goes_on="" if end.is_patient else _GOES_ON) for subject in subjects_of(job, url)]
    is_done = follow(senders, say, ending, end)
    for sender in senders:
        if text := unsent_text(sender):
            say(text)
        elif end.is_patient:
            say(sent_text(sender))
    return 0 if is_done else 1


def _set_at_end(ending: threading.Event) -> None:
    while sys.stdin.read(1):
        pass
    ending.set()


def _own_stdout() -> Say:
    """Take stdout for messages alone. What libraries print goes nowhere."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    lock = threading.Lock()

    def say(text: str) -> None:
        with lock:
            try:
                own.write(" ".join(text.split()) + "\n")
                own.flush()
            except OSError:  # the driver has ended, and nobody reads it
                pass

    return say

"""Azure: Scheduled Events that end this virtual machine.

https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

from planner.notice.fetch import Answer, Endpoint, Unreachable
from planner.notice.notice import Notice, Seen, json_object, malformed, trouble_of, unix_seconds

_MACHINE_PATH = "/metadata/instance/compute?api-version=2021-02-01"
_EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
_HEADERS = {"Metadata": "true"}
# Freeze, Reboot and Redeploy keep the machine or bring it back.
_TAKEN = ("Preempt", "Terminate")
_COMING = ("Scheduled", "Started")


def read_events(answer: Answer, machine: str, now_s: float) -> Seen:
    """The earliest end of `machine` among the events, or None. Events of neighbouring machines are ignored.

    A started event has no `NotBefore`. Its deadline is `now_s`.
    """
    if answer.status != 200:
        return trouble_of(answer.status)
    events = json_object(answer.body).get("Events")
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        return malformed(answer.body)
    found: list[Notice] = []
    for event in events:
        if not _is_end_of(machine, event):
            continue
        not_before = event.get("NotBefore") or ""
        deadline_s = unix_seconds(not_before) if not_before else now_s
        if deadline_s is None or (not not_before and event["EventStatus"] != "Started"):
            return malformed(answer.body)
        found.append(Notice(what=f"scheduled event ({event['EventType']})", deadline_s=deadline_s))
    return min(found, key=lambda notice: notice.deadline_s, default=None)


def _is_end_of(machine: str, event: dict[str, object]) -> bool:
    """Whether an event ends this machine. Azure's names ignore case."""
    resources = event.get("Resources")
    named = resources if isinstance(resources, list) else []
    is_meant = any(isinstance(name, str) and name.casefold() == machine.casefold() for name in named)
    return is_meant and event.get("EventType") in _TAKEN and event.get("EventStatus") in _COMING


class Azure:
    """Azure by Scheduled Events: it asks for the machine's name, then for events that name it."""

    name = "Azure"
    poll_s = 1.0  # as its documentation recommends

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._machine = ""

    def answers(self) -> bool:
        """Whether the endpoint gives the machine's name and id."""
        answer = self._endpoint.fetch(_MACHINE_PATH, _HEADERS)
        found = json_object(answer.body) if answer.status == 200 else {}
        name = found.get("name")
        if isinstance(name, str) and name and isinstance(found.get("vmId"), str):
            self._machine = name
        return bool(self._machine)

    def look(self, now_s: float) -> Seen:
        """Ask for the events. The first request switches Scheduled Events on, which may take two minutes."""
        if not self._machine and not self.answers():
            raise Unreachable("the server did not give this machine's name")
        return read_events(self._endpoint.fetch(_EVENTS_PATH, _HEADERS), self._machine, now_s)

"""AWS: spot interruption notices and rebalance recommendations, by IMDSv2.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
"""

import math
import re
import time
from collections.abc import Callable

from planner.notice.fetch import Answer, Endpoint, Unreachable
from planner.notice.notice import Notice, Seen, json_object, malformed, trouble_of, unix_seconds

_TOKEN_PATH = "/latest/api/token"  # noqa: S105  # a path
_ACTION_PATH = "/latest/meta-data/spot/instance-action"
_REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
_TOKEN_TTL_S = 21600  # six hours, the most that AWS gives
# The answer of a captive portal or another server to a PUT does not match.
_TOKEN = re.compile(r"[A-Za-z0-9+/=_.-]{16,1024}")
_ACTIONS = ("terminate", "stop", "hibernate")


def read_action(answer: Answer) -> Seen:
    """Read `spot/instance-action`: 404 while there is no notice, else JSON with the action and its time."""
    if answer.status == 404:
        return None
    if answer.status != 200:
        return trouble_of(answer.status)
    found = json_object(answer.body)
    deadline_s = unix_seconds(found.get("time"))
    if found.get("action") not in _ACTIONS or deadline_s is None:
        return malformed(answer.body)
    return Notice(what=f"spot interruption ({found['action']})", deadline_s=deadline_s)


def read_rebalance(answer: Answer) -> Seen:
    """Read `events/recommendations/rebalance`: 404 while there is none, else JSON with the time of the advice."""
    if answer.status == 404:
        return None
    if answer.status != 200:
        return trouble_of(answer.status)
    if unix_seconds(json_object(answer.body).get("noticeTime")) is None:
        return malformed(answer.body)
    return Notice(what="rebalance recommendation", deadline_s=math.inf)


class Aws:
    """AWS by IMDSv2: it fetches a token, and sends it with each request."""

    name = "AWS"
    poll_s = 5.0  # as its documentation recommends

    def __init__(self, endpoint: Endpoint, clock: Callable[[], float] = time.monotonic) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._token = ""
        self._renew_s = 0.0

    def answers(self) -> bool:
        """Whether the endpoint gives an IMDSv2 token."""
        return self._new_token().status == 200 and bool(self._token)

    def look(self, now_s: float) -> Seen:  # noqa: ARG002  # AWS names its times
        """Ask for the interruption notice, and if there is none, for the rebalance recommendation."""
        action = self._ask(_ACTION_PATH, read_action)
        return action if action is not None else self._ask(_REBALANCE_PATH, read_rebalance)

    def _ask(self, path: str, read: Callable[[Answer], Seen]) -> Seen:
        if not self._token or self._clock() >= self._renew_s:
            self._renew()
        answer = self._get(path)
        if answer.status == 401:  # the token has expired, or the server has forgotten it
            self._renew()
            answer = self._get(path)
        return read(answer)

    def _get(self, path: str) -> Answer:
        return self._endpoint.fetch(path, {"X-aws-ec2-metadata-token": self._token})

    def _renew(self) -> None:
        status = self._new_token().status
        if not self._token:
            raise Unreachable(f"the server gave no token (HTTP status {status})")

    def _new_token(self) -> Answer:
        self._token = ""
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
        answer = self._endpoint.fetch(_TOKEN_PATH, headers, "PUT")
        if answer.status == 200 and _TOKEN.fullmatch(answer.text):
            self._token = answer.text
            self._renew_s = self._clock() + _TOKEN_TTL_S / 2
        return answer

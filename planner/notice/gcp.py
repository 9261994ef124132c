"""Google Cloud: whether this machine is being preempted.

https://cloud.google.com/compute/docs/instances/create-use-spot (detect preemption)
https://cloud.google.com/compute/docs/metadata/querying-metadata
"""

from planner.notice.fetch import Answer, Endpoint
from planner.notice.notice import Notice, Seen, Trouble, malformed, trouble_of

_PATH = "/computeMetadata/v1/instance/preempted"
_FLAVOR = "metadata-flavor"
# From the notice to the end: best effort, says Google.
_NOTICE_S = 30.0


def is_google(answer: Answer) -> bool:
    """Google's server says so in every answer."""
    return answer.headers.get(_FLAVOR) == "Google"


def read_preempted(answer: Answer, now_s: float) -> Seen:
    """`instance/preempted`: FALSE, or TRUE from the notice on, whose moment is not said: the look's is taken."""
    if not is_google(answer):
        return Trouble(what="an answer that is not Google's", detail=f"HTTP status {answer.status}", is_outage=True)
    if answer.status == 404:
        return Trouble(what="this metadata server does not say whether the machine is preempted", is_outage=True)
    if answer.status != 200:
        return trouble_of(answer.status)
    match answer.text.upper():
        case "FALSE":
            return None
        case "TRUE":
            return Notice(what="preemption", deadline_s=now_s + _NOTICE_S)
    return malformed(answer.body)


class Gcp:
    """One question, with the header without which nothing is answered."""

    name = "Google Cloud"
    poll_s = 1.0  # of thirty

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._noticed_s: float | None = None

    def answers(self) -> bool:
        """Whether the answer bears Google's header."""
        return is_google(self._ask())

    def look(self, now_s: float) -> Seen:
        """Whether the machine is being preempted; its end does not move while the answer stays."""
        seen = read_preempted(self._ask(), now_s if self._noticed_s is None else self._noticed_s)
        if isinstance(seen, Notice):
            self._noticed_s = seen.deadline_s - _NOTICE_S
        elif seen is None:
            self._noticed_s = None
        return seen

    def _ask(self) -> Answer:
        return self._endpoint.fetch(_PATH, {"Metadata-Flavor": "Google"})

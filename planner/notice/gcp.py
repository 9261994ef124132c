"""Google Cloud: whether this machine is being preempted.

https://cloud.google.com/compute/docs/instances/create-use-spot (detect preemption)
https://cloud.google.com/compute/docs/metadata/querying-metadata
"""

from planner.notice.fetch import Answer, Endpoint
from planner.notice.notice import Notice, Seen, Trouble, malformed, trouble_of

_PATH = "/computeMetadata/v1/instance/preempted"
_FLAVOR = "metadata-flavor"
# From the notice to the end. Google calls it best effort.
_NOTICE_S = 30.0


def is_google(answer: Answer) -> bool:
    """Whether the answer has the header that Google's server sends with every answer."""
    return answer.headers.get(_FLAVOR) == "Google"


def read_preempted(answer: Answer, now_s: float) -> Seen:
    """Read `instance/preempted`: FALSE, or TRUE after the notice.

    Google does not give the time of the notice, so the deadline counts from `now_s`.
    """
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
    """Google Cloud. Its server answers only requests with the header `Metadata-Flavor`."""

    name = "Google Cloud"
    poll_s = 1.0  # a notice comes 30 s ahead

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._noticed_s: float | None = None

    def answers(self) -> bool:
        """Whether the endpoint answers with Google's header."""
        return is_google(self._ask())

    def look(self, now_s: float) -> Seen:
        """Ask whether the machine is being preempted. The deadline stays fixed while the answer does."""
        seen = read_preempted(self._ask(), now_s if self._noticed_s is None else self._noticed_s)
        if isinstance(seen, Notice):
            self._noticed_s = seen.deadline_s - _NOTICE_S
        elif seen is None:
            self._noticed_s = None
        return seen

    def _ask(self) -> Answer:
        return self._endpoint.fetch(_PATH, {"Metadata-Flavor": "Google"})

"""Which cloud this machine is in, by asking each in its own way: all of them answer at the same address."""

from planner.notice.aws import Aws
from planner.notice.azure import Azure
from planner.notice.fetch import Endpoint, Unreachable
from planner.notice.gcp import Gcp
from planner.notice.notice import Cloud

METADATA_URL = "http://169.254.169.254"
"""link-local: what is asked there does not leave the machine's host"""


def find_cloud(endpoint: Endpoint) -> tuple[Cloud | None, str]:
    """The cloud that answers at the endpoint, or None; and in words why none does."""
    clouds: tuple[Cloud, ...] = (Gcp(endpoint), Aws(endpoint), Azure(endpoint))
    why = "what answers there is none of them"
    for cloud in clouds:
        try:
            if cloud.answers():
                return cloud, ""
        except Unreachable as error:
            why = str(error)
    return None, why

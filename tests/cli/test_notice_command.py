"""`planner notice-agent` without a cloud, and its --dry-run."""

from functools import partial

import pytest
from events import EVENT_S
from metadata_server import AwsMetadata, AzureMetadata, GcpMetadata

from planner.cli import notice_agent_command
from planner.notice.fetch import Endpoint


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    """A cloud that answers is waited for, and one that does not is asked again at once."""
    monkeypatch.setattr(notice_agent_command, "Endpoint", partial(Endpoint, timeout_s=EVENT_S))
    monkeypatch.setattr(notice_agent_command, "_CLOUD_AGAIN_S", 0.0)


def test_without_a_cloud_it_says_so_and_ends_well(cli):
    """A mixed cluster starts it on every node."""
    answer = cli("notice-agent", "--endpoint", "http://127.0.0.1:1")
    assert answer.code == 0
    assert "no cloud answers at http://127.0.0.1:1 (" in answer.out


def test_an_invalid_url_is_refused(cli):
    answer = cli("notice-agent", "--endpoint", "169.254.169.254")
    assert answer.code == 2


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (AwsMetadata, "spot interruption (terminate), "),
        (GcpMetadata, "preemption, 30 s left"),
        (AzureMetadata, "scheduled event (Preempt), "),
    ],
)
def test_a_dry_run_says_what_it_sees(cli, make, says):
    """The cloud, its notice, and that there is no Ray node at this address."""
    with make() as server:
        arguments = ("notice-agent", "--dry-run", "--endpoint", server.url, "--address", "127.0.0.1:1")
        assert "notice  none\n" in cli(*arguments).out
        server.take(30)
        answer = cli(*arguments)
    assert answer.code == 0
    assert f"notice  {says}" in answer.out
    assert "node    nothing listens at 127.0.0.1:1" in answer.out
    assert answer.out.endswith("nothing was done\n")

"""Clouds that installed packages add: the example of docs/extending.md, and packages that are broken."""

import json
import re

import pytest
from events import EVENT_S
from metadata_server import GcpMetadata, Metadata, iso
from plugin_package import install, install_example

from planner.notice.agent import Agent
from planner.notice.clouds import find_cloud
from planner.notice.fetch import Endpoint


class CentreMetadata(Metadata):
    """The metadata server of the example's data centre."""

    def answer(self, method, path, headers):
        if (method, path, headers.get("Accept")) != ("GET", "/maintenance", "application/json"):
            return 404, {}, b""
        return (200 if self.notice else 204), {"X-Centre": "ours"}, self.notice or b""

    def take(self, in_s):
        self.notice = json.dumps({"ends": iso(in_s)}).encode()


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_documents_example_is_a_cloud(site, cli):
    """`planner notice-agent` sees no notice, a notice with its deadline, and a malformed answer."""
    install_example(site, "A cloud")
    with CentreMetadata() as server:
        arguments = ("notice-agent", "--dry-run", "--endpoint", server.url, "--address", "127.0.0.1:1")
        answer = cli(*arguments)
        assert "cloud   our data centre\nnotice  none\n" in answer.out
        server.take(600)
        assert re.search(r"notice  maintenance, (59\d|600) s left", cli(*arguments).out)
        server.notice = b"tomorrow"
        assert "notice  a malformed answer: b'tomorrow'" in cli(*arguments).out


def test_without_the_package_nobody_answers(cli):
    with CentreMetadata() as server:
        answer = cli("notice-agent", "--dry-run", "--endpoint", server.url, "--address", "127.0.0.1:1")
    assert f"cloud   none at {server.url}: a server answers, but not as a known cloud does\n" in answer.out


@pytest.mark.parametrize(
    ("text", "says"),
    [("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"), ("MAKE = 3", "not a func")],
)
def test_a_broken_package_is_named_only_where_no_other_cloud_answers(site, text, says):
    """Clouds that planner knows still give their notices."""
    module = f"broken_cloud_{len(text)}"
    install(site, "planner.clouds", {"broken": f"{module}:MAKE"}, {module: text}, name="planner-broken")
    with GcpMetadata() as google:
        cloud, why = find_cloud(Endpoint(url=google.url, timeout_s=EVENT_S))
        assert (cloud.name, why) == ("Google Cloud", "")
    with CentreMetadata() as nobodys:
        cloud, why = find_cloud(Endpoint(url=nobodys.url, timeout_s=EVENT_S))
        assert cloud is None
        assert "planner.clouds: broken of planner-broken 1.0 cannot be used" in why
        assert says in why


FAULTY = """
class Cloud:
    name, poll_s = "Faulty", 1.0

    def __init__(self, endpoint):
        {making}

    def answers(self):
        {answering}

    def look(self, now_s):
        {looking}
"""
FINE = {"making": "pass", "answering": "return True", "looking": "return None"}


@pytest.mark.parametrize("part", FINE)
def test_whatever_a_package_raises_is_no_answer(site, cli, part):
    """Otherwise the agent would die, and its node would get no notice."""
    text = FAULTY.format(**FINE | {part: "raise KeyError(part)".replace("part", f"'{part}'")})
    install(site, "planner.clouds", {"faulty": f"faulty_{part}:Cloud"}, {f"faulty_{part}": text}, name="planner-faulty")
    with CentreMetadata() as server:
        answer = cli("notice-agent", "--dry-run", "--endpoint", server.url, "--address", "127.0.0.1:1")
    told = f"planner.clouds: faulty of planner-faulty 1.0 cannot be used (KeyError: '{part}')"
    assert (answer.code, answer.out.count(told)) == (0, 1)


def test_an_agent_outlives_what_a_package_raises_or_returns(site):
    """It asks again less often, and says why."""
    looking = "self.n = vars(self).get('n', 0) + 1; return {} if self.n == 1 else {}['no'] if self.n < 4 else None"
    text = FAULTY.format(**FINE | {"looking": looking})
    install(site, "planner.clouds", {"faulty": "faulty_agent:Cloud"}, {"faulty_agent": text}, name="planner-faulty")
    with CentreMetadata() as server:
        cloud, _ = find_cloud(Endpoint(url=server.url, timeout_s=EVENT_S))
    said = []
    agent = Agent(cloud, None, said.append, follow_advice=False)
    for _ in range(4):
        agent.turn()
    first, second = said
    assert "(TypeError: look returned dict)" in first
    assert second == "Faulty answers again"

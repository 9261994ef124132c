"""Clouds that installed packages add: the example of docs/extending.md, and packages that are broken."""

import json

import pytest
from metadata_server import GcpMetadata, Metadata, iso
from plugin_package import install, install_example

from planner.notice.clouds import find_cloud
from planner.notice.fetch import Endpoint


class CentreMetadata(Metadata):
    """The data centre of the example."""

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
    """As `planner notice-agent` sees it: nothing, the notice with its deadline, and an answer that is none."""
    install_example(site, "A cloud")
    with CentreMetadata() as server:
        words = ("notice-agent", "--dry-run", "--endpoint", server.url, "--address", "127.0.0.1:1")
        answer = cli(*words)
        assert "cloud   our data centre\nnotice  none\n" in answer.out
        server.take(600)
        assert "notice  maintenance, 5" in cli(*words).out  # five hundred and some seconds
        server.notice = b"tomorrow"
        assert "notice  a malformed answer: b'tomorrow'" in cli(*words).out


def test_without_the_package_nobody_answers(cli):
    with CentreMetadata() as server:
        answer = cli("notice-agent", "--dry-run", "--endpoint", server.url, "--address", "127.0.0.1:1")
    assert f"cloud   none at {server.url}: what answers there is none of them\n" in answer.out


@pytest.mark.parametrize(
    ("text", "says"),
    [("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"), ("MAKE = 3", "no function")],
)
def test_a_broken_package_is_named_only_where_no_other_cloud_answers(site, text, says):
    """It costs nobody the notice of a cloud that planner knows."""
    module = f"broken_cloud_{len(text)}"
    install(site, "planner.clouds", {"broken": f"{module}:MAKE"}, {module: text}, name="planner-broken")
    with GcpMetadata() as google:
        cloud, why = find_cloud(Endpoint(url=google.url, timeout_s=2.0))
        assert (cloud.name, why) == ("Google Cloud", "")
    with CentreMetadata() as nobodys:
        cloud, why = find_cloud(Endpoint(url=nobodys.url, timeout_s=2.0))
        assert cloud is None
        assert "planner.clouds: broken of planner-broken 1.0 cannot be used" in why
        assert says in why

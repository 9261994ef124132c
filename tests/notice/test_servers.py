"""The clouds against local servers that behave as documented, and against servers that do not behave."""

import pytest
from events import EVENT_S
from metadata_server import MACHINE, AwsMetadata, AzureMetadata, GcpMetadata, Metadata, drip

from planner.errors import UserError
from planner.notice.aws import Aws
from planner.notice.azure import Azure
from planner.notice.clouds import find_cloud
from planner.notice.fetch import Endpoint, Unreachable
from planner.notice.gcp import Gcp
from planner.notice.notice import Notice, Trouble

CLOUDS = [(AwsMetadata, Aws), (GcpMetadata, Gcp), (AzureMetadata, Azure)]
NOW_S = 1_790_000_000.0
every_cloud = pytest.mark.parametrize(("make", "cloud_class"), CLOUDS, ids=["aws", "gcp", "azure"])


def endpoint(server, timeout_s=EVENT_S):
    return Endpoint(url=server.url, timeout_s=timeout_s)


def look(cloud):
    return cloud.look(NOW_S)


@every_cloud
def test_a_cloud_is_found_and_its_notice_is_seen(make, cloud_class):
    """Which of them it is, nothing at first, and then the deadline."""
    with make(clock=lambda: NOW_S) as server:
        cloud, _ = find_cloud(endpoint(server))
        assert type(cloud) is cloud_class
        assert look(cloud) is None
        server.take(30)
        seen = look(cloud)
    assert isinstance(seen, Notice)
    assert seen.deadline_s == NOW_S + 30


@every_cloud
def test_no_question_goes_through_a_proxy(make, cloud_class, monkeypatch):
    """Whatever the environment says: a proxy would answer for a machine of its own."""
    with Metadata() as proxy, make() as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert type(find_cloud(endpoint(server))[0]) is cloud_class
        assert not proxy.asked


@every_cloud
def test_a_redirect_is_not_followed(make, cloud_class):
    """With the token in it, to a place that the server names."""
    with Metadata() as elsewhere, make() as server:
        cloud = cloud_class(endpoint(server))
        assert cloud.answers()
        server.trouble = lambda handler: handler.say(302, b"", {"Location": f"{elsewhere.url}/"})
        assert isinstance(look(cloud), Trouble)
        assert not elsewhere.asked


@every_cloud
@pytest.mark.parametrize("status", [400, 403, 429, 500, 503])
def test_an_error_is_a_trouble_and_passes(make, cloud_class, status):
    """5xx and 429 are outages, after which one asks less often."""
    with make() as server:
        cloud = cloud_class(endpoint(server))
        assert cloud.answers()
        headers = {"Metadata-Flavor": "Google"}
        server.trouble = lambda handler: handler.say(status, b"busy", headers)
        seen = look(cloud)
        assert isinstance(seen, Trouble)
        assert seen.is_outage == (status >= 429)
        server.trouble = None
        assert look(cloud) is None


@every_cloud
def test_a_malformed_notice_is_a_trouble(make, cloud_class):
    with make() as server:
        cloud = cloud_class(endpoint(server))
        assert cloud.answers()
        server.notice = b'{"action": "term'
        assert isinstance(look(cloud), Trouble)


def hang(handler):
    """Until the other one hangs up."""
    handler.connection.recv(1)


def hang_up(_handler):
    pass


def not_http(handler):
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")


@every_cloud
@pytest.mark.parametrize("trouble", [hang, drip, hang_up, not_http])
def test_a_slow_server_is_not_waited_for(make, cloud_class, trouble):
    """Silence, an answer that drips, a connection that is closed, another protocol."""
    with make() as server:
        cloud = cloud_class(endpoint(server))
        assert cloud.answers()
        server.trouble, cloud._endpoint = trouble, endpoint(server, timeout_s=0.2)
        with pytest.raises(Unreachable):
            look(cloud)


def test_without_a_metadata_server_no_cloud_is_found():
    """A port that is closed."""
    with Metadata() as server:
        pass
    cloud, why = find_cloud(endpoint(server))
    assert cloud is None
    assert "refused" in why


@pytest.mark.parametrize("body", [b"", b"ok", b"<html>Please log in to the network</html>", b"{}"])
def test_a_server_that_says_yes_to_everything_is_no_cloud(body):
    """A captive portal, a development server."""
    with Metadata() as server:
        server.trouble = lambda handler: handler.say(200, body)
        cloud, why = find_cloud(endpoint(server))
    assert cloud is None
    assert why == "a server answers, but not as a known cloud does"


class TestAws:
    def test_the_token_is_asked_for_once_and_renewed_before_it_ends(self):
        clock = [0.0]
        with AwsMetadata() as server:
            cloud = Aws(endpoint(server), clock=lambda: clock[0])
            assert cloud.answers()
            for clock[0] in (0, 5, 10_799, 10_801, 10_806):
                assert look(cloud) is None
        assert [method for method, _, _ in server.asked].count("PUT") == 2

    def test_a_token_that_is_no_longer_taken_is_replaced(self):
        """The server has forgotten it: 401, and the same question again."""
        with AwsMetadata() as server:
            cloud = Aws(endpoint(server))
            assert look(cloud) is None
            server.tokens.append("AnotherTokenOfThisServer==")
            server.take()
            assert isinstance(look(cloud), Notice)

    def test_a_notice_comes_before_a_recommendation(self):
        with AwsMetadata() as server:
            cloud = Aws(endpoint(server))
            server.recommend()
            assert look(cloud).is_advice
            server.take()
            assert not look(cloud).is_advice


class TestGcp:
    def test_the_deadline_does_not_move_while_the_answer_stays(self):
        with GcpMetadata() as server:
            cloud = Gcp(endpoint(server))
            server.take()
            assert cloud.look(1000.0) == cloud.look(1020.0) == Notice(what="preemption", deadline_s=1030.0)
            server.notice = None
            assert cloud.look(1025.0) is None
            server.take()
            assert cloud.look(2000.0).deadline_s == 2030.0

    def test_a_server_of_google_that_does_not_know_is_named(self):
        """A pod may have such a server: it is Google's, and does not report preemption."""
        with GcpMetadata() as server:
            server.trouble = lambda handler: handler.say(404, b"", {"Metadata-Flavor": "Google"})
            cloud, _ = find_cloud(endpoint(server))
            assert "does not say whether the machine is preempted" in look(cloud).what


def test_azures_machine_is_found_out_first():
    with AzureMetadata() as server:
        cloud = Azure(endpoint(server))
        server.take()
        assert isinstance(look(cloud), Notice)
        server.notice = server.notice.replace(MACHINE.encode(), b"somebody-else")
        assert look(cloud) is None


@pytest.mark.parametrize(
    "url", ["", "169.254.169.254", "https://host", "http://", "http://h:x", "http://h\n/", "http://h:0", "http://h h"]
)
def test_an_invalid_endpoint_is_refused(url):
    with pytest.raises(UserError, match="Write one such as"):
        Endpoint(url=url)


def test_requests_bear_no_more_than_they_need():
    """No user's name, no proxy's header: IMDS refuses what was forwarded."""
    with AzureMetadata() as server:
        assert Azure(endpoint(server)).answers()
    (_, _, headers), *_ = server.asked
    assert set(headers) <= {"host", "accept-encoding", "connection", "metadata"}

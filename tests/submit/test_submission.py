"""What comes back from a dashboard, and from what is none: a web server in this process answers as Ray does."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from events import EVENT_S

from planner.errors import RunError, UserError
from planner.submit.shipment import Shipment
from planner.submit.submission import Submission

VERSION = (200, json.dumps({"version": "4", "ray_version": "2.60.0", "ray_commit": "x", "session_name": "x"}))
# As the dashboard of Ray 2.60 was seen to answer.
NO_TOKEN = (401, "Unauthorized: Missing authentication token")
WRONG_TOKEN = (403, "Forbidden: Invalid authentication token")
CONFLICT = (
    500,
    """Traceback (most recent call last):
  File x
RuntimeError: Request failed with status code 400: Traceback (most recent call last):
ValueError: Job with submission_id tiny-1 already exists. Please use a different submission_id.
.
""",
)


SILENT = -1


def connect(address):
    """Ray reads its token when it is imported, so no test module may do that while tests are collected."""
    from planner.submit.jobs_api import JobsApi

    return JobsApi.connect(address)


@contextmanager
def server(answers):
    """Its address; `answers` has what it says by method and beginning of the path, and 404 is the rest."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            place = f"{self.command} {self.path}"
            status, body = next((a for key, a in answers.items() if place.startswith(key)), (404, "no such page"))
            if status == SILENT:
                self.connection.recv(1)  # until the other one hangs up
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST = do_PUT = answer  # noqa: N815 the names are http.server's

        def log_message(self, *_):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}"
    finally:
        httpd.shutdown()
        thread.join(EVENT_S)
        assert not thread.is_alive()
        httpd.server_close()


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (NO_TOKEN, r"the cluster requires a token. Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a file"),
        (WRONG_TOKEN, r"the cluster rejected the token in .*. Run ray get-auth-token on the head"),
        ((200, "<html>a web page</html>"), r"is not a Ray dashboard \(.*\). Check --address"),
        ((200, '{"version": "4"}'), r"is not a Ray dashboard"),
        ((200, "[]"), r"is not a Ray dashboard"),
        ((404, "nothing here"), r"is not a Ray dashboard"),
        ((502, "bad gateway"), r"is not a Ray dashboard \(502 Server Error"),
        ((200, '{"ray_version": "1.13.0"}'), r"Ray version 1.13.0 is running on the cluster"),
        ((200, '{"ray_version": "2.59.0"}'), r"runs Ray 2.59.0, but planner needs 2.60 or newer"),
    ],
)
def test_a_server_that_cannot_be_used_is_told_in_a_line(version, says):
    """Whatever it answers to the first question."""
    with server({"GET /api/version": version}) as address, pytest.raises(UserError, match=says) as raised:
        connect(address)
    assert str(raised.value).startswith(address)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("variable", ["RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"])
def test_the_address_that_is_written_is_the_one_that_is_used(monkeypatch, variable):
    """Ray's client lets these variables win, and a job would go to another cluster."""
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    with server({"GET /api/version": VERSION}) as address:
        assert connect(address).ray_version == "2.60.0"


def submission(address, tmp_path):
    (tmp_path / "job.yaml").write_text("name: tiny")
    shipment = Shipment(package={"job.yaml": tmp_path / "job.yaml"}, job="job.yaml", data=())
    return Submission(address=address, submission_id="tiny-1", arguments=("true",), env={}, shipment=shipment)


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({"POST /api/jobs/": CONFLICT}, "status code 500: ValueError: Job with submission_id tiny-1 already exists"),
        ({"POST /api/jobs/": (500, "No available agent to submit job")}, "status code 500: No available agent"),
        ({"PUT /api/packages": (413, "Maximum request body size exceeded")}, "status code 413: Maximum request body"),
        ({"GET /api/packages": (403, "")}, "rejected the token"),
    ],
)
def test_a_refused_submission_is_told_in_a_line(tmp_path, monkeypatch, answers, says):
    """The last line of what the server says, which may be a traceback."""
    monkeypatch.chdir(tmp_path)
    defaults = {"GET /api/version": VERSION, "PUT /api/packages": (200, "")}
    with server({**defaults, **answers}) as address:
        connected = connect(address)
        with pytest.raises((RunError, UserError), match=says) as raised:
            connected.submit(submission(address, tmp_path))
    assert "\n" not in str(raised.value)


def ended(**details):
    """A job that ended like this, without a log; and how it is told."""
    job = json.dumps({"type": "SUBMISSION", "submission_id": "tiny-1", "entrypoint": "x", **details})
    log = {"GET /api/jobs/tiny-1/": (404, "")}
    with server({"GET /api/version": VERSION, **log, "GET /api/jobs/tiny-1": (200, job)}) as address:
        return connect(address).follow("tiny-1", lambda _text: None)


@pytest.mark.parametrize(
    ("details", "exit_code", "reason"),
    [
        ({"status": "SUCCEEDED", "driver_exit_code": 0}, 0, ""),
        ({"status": "FAILED", "driver_exit_code": 2}, 2, "exit code 2"),
        ({"status": "FAILED", "driver_exit_code": 130}, 130, "exit code 130"),
        ({"status": "FAILED", "driver_exit_code": 127}, 1, "exit code 127"),
        ({"status": "FAILED", "driver_exit_code": -9}, 1, "exit code -9"),
        (
            {"status": "FAILED", "message": "runtime_env setup failed: no space\nmore"},
            1,
            "runtime_env setup failed: no space",
        ),
        ({"status": "FAILED"}, 1, "Ray gives no reason"),
        ({"status": "STOPPED"}, 130, ""),
    ],
)
def test_how_a_job_ended_becomes_an_exit_code(details, exit_code, reason):
    """planner's own codes pass through; whatever else a driver ends with is a failure."""
    found = ended(**details)
    assert (found.exit_code, found.reason) == (exit_code, reason)


def test_the_end_of_a_job_whose_log_broke_off_is_not_known():
    """The job goes on."""
    assert ended(status="RUNNING") is None


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("http://127.0.0.1:1", "Connection refused"),
        ("http://a..b:8265", "label empty or too long"),
        ("http://no-such-host.invalid:8265", "(Name or service not known|[Ff]ailure in name resolution)"),
    ],
)
def test_an_address_where_no_dashboard_is_says_why(address, says):
    """And what to check."""
    with pytest.raises((UserError, RunError), match=rf"no Ray dashboard at {address}: .*{says}.* Check --address"):
        connect(address)


def test_a_lost_connection_says_that_the_job_may_run_on():
    """The dashboard went away while the log was followed."""
    with server({"GET /api/version": VERSION}) as address:
        connected = connect(address)
    with pytest.raises(
        RunError, match=r"the connection was lost: Connection refused. To see the job's status: ray job list"
    ):
        connected.follow("tiny-1", lambda _text: None)


def test_a_dashboard_that_falls_silent_is_not_waited_for_for_ever(monkeypatch):
    """It was there, and then takes connections and says nothing of the job."""
    monkeypatch.setattr("planner.submit.jobs_api._ANSWER_S", 0.3)
    log = {"GET /api/jobs/tiny-1/": (404, "")}
    with server({"GET /api/version": VERSION, **log, "GET /api/jobs/tiny-1": (SILENT, "")}) as address:
        connected = connect(address)
        with pytest.raises(RunError, match=r"the connection was lost: .*timed out.*ray job list --address"):
            connected.follow("tiny-1", lambda _text: None)

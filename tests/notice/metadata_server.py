"""Metadata servers of three clouds on loopback, as their documentation has them, and all that can go wrong with one."""

import json
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "AQAEAFakeTokenOfAMetadataServer0123456789=="
MACHINE = "gpu-worker_7"


def iso(in_s, clock=time.time):
    return datetime.fromtimestamp(clock() + in_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def http_date(in_s, clock=time.time):
    return datetime.fromtimestamp(clock() + in_s, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")


class Handler(BaseHTTPRequestHandler):
    """Answers as `server.cloud` does, unless `server.trouble` has a say."""

    def do_GET(self):
        self._answer("GET")

    def do_PUT(self):
        self._answer("PUT")

    def log_message(self, *_):
        pass

    def _answer(self, method):
        metadata = self.server.metadata
        metadata.asked.append((method, self.path, {name.lower(): value for name, value in self.headers.items()}))
        if metadata.trouble is not None and metadata.trouble(self) is not False:
            return
        status, headers, body = metadata.answer(method, self.path, self.headers)
        self.say(status, body, headers)

    def say(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    metadata = None

    def handle_error(self, *_):
        """Who asks may hang up."""


class Metadata:
    """A context manager. `notice` is the body of the cloud's notice, once there is one."""

    def __init__(self, clock=time.time):
        self.clock = clock
        self.asked = []
        self.trouble = None
        self.notice = None
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.metadata = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method, path, headers):
        """(status, headers, body)"""
        raise NotImplementedError


class AwsMetadata(Metadata):
    """IMDSv2, with the token required."""

    def __init__(self, clock=time.time):
        super().__init__(clock)
        self.tokens = [TOKEN]
        self.rebalance = None

    def answer(self, method, path, headers):
        if path == "/latest/api/token":
            if method != "PUT" or not 1 <= int(headers.get("X-aws-ec2-metadata-token-ttl-seconds", 0)) <= 21600:
                return 400, {}, b""
            return 200, {}, self.tokens[-1].encode()
        if headers.get("X-aws-ec2-metadata-token") != self.tokens[-1]:
            return 401, {}, b""
        bodies = {
            "/latest/meta-data/spot/instance-action": self.notice,
            "/latest/meta-data/events/recommendations/rebalance": self.rebalance,
        }
        found = bodies.get(path)
        return (404, {}, b"<html>Not Found</html>") if found is None else (200, {}, found)

    def take(self, in_s=120, action="terminate"):
        self.notice = json.dumps({"action": action, "time": iso(in_s, self.clock)}).encode()

    def recommend(self):
        self.rebalance = json.dumps({"noticeTime": iso(0, self.clock)}).encode()


class GcpMetadata(Metadata):
    """Nothing without the header; with it, the header in every answer."""

    def answer(self, method, path, headers):
        if headers.get("Metadata-Flavor") != "Google" or method != "GET":
            return 403, {}, b""
        flavor = {"Metadata-Flavor": "Google", "Content-Type": "application/text"}
        if path != "/computeMetadata/v1/instance/preempted":
            return 404, flavor, b""
        return 200, flavor, self.notice or b"FALSE"

    def take(self, in_s=30):
        assert in_s == 30, "Google does not say when"
        self.notice = b"TRUE"


class AzureMetadata(Metadata):
    """Its events are those of the neighbours as well."""

    def answer(self, method, path, headers):
        if headers.get("Metadata") != "true" or method != "GET":
            return 400, {}, b'{"error": "Bad request"}'
        where, _, query = path.partition("?")
        if "api-version=" not in query:
            return 400, {}, b'{"error": "Bad request"}'
        if where == "/metadata/instance/compute":
            machine = {
                "azEnvironment": "AzurePublicCloud",
                "name": MACHINE,
                "vmId": "13f56399-bd52-4150-9748-7190aae1ff21",
            }
            return 200, {"Content-Type": "application/json"}, json.dumps(machine).encode()
        if where == "/metadata/scheduledevents":
            return 200, {"Content-Type": "application/json"}, self.notice or events()
        return 404, {}, b""

    def take(self, in_s=30, kind="Preempt"):
        self.notice = events(event(kind, NotBefore=http_date(in_s, self.clock)))


def event(kind, machine=MACHINE, status="Scheduled", **more):
    return {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": ["another-machine", machine],
        "EventStatus": status,
        "NotBefore": http_date(30),
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
        **more,
    }


def events(*found):
    return json.dumps({"DocumentIncarnation": 2, "Events": found}).encode()


def drip(handler):
    """Never late by a socket's own timeout, and never done: it ends when the other one hangs up."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.05)

"""One HTTP request to a metadata server, without proxies and redirects, and with a timeout for the whole answer.

`http.client` ignores proxy variables and returns a redirect as an answer.
"""

import contextlib
import http.client
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from planner.errors import UserError

# Link-local servers answer within milliseconds.
TIMEOUT_S = 3.0
# The longest documented answer has a few KiB.
_MOST_BYTES = 256 * 1024


class Unreachable(Exception):
    """There was no answer, or it was not HTTP, or it came too late."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """names in lower case"""
    body: bytes = b""

    @property
    def text(self) -> str:
        """The body as text, without leading and trailing white space."""
        return self.body.decode(errors="replace").strip()


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """The address of a metadata server.

    Raises:
        UserError: `url` is not an `http://` URL.
    """

    url: str
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        """Check the URL."""
        try:
            parts = urlsplit(self.url)
            usable = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable or not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise UserError(f"--endpoint {self.url} is not an http URL. Write one such as http://169.254.169.254")

    def fetch(self, path: str, headers: Mapping[str, str], method: str = "GET") -> Answer:
        """Send one request, and wait at most `timeout_s` seconds for the whole answer.

        Raises:
            Unreachable: there was no whole answer in that time.
        """
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=self.timeout_s)
        try:
            connection.connect()
            with _Deadline(connection.sock, self.timeout_s) as deadline:
                answer = _request(connection, method, parts.path.rstrip("/") + path, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        finally:
            connection.close()
        # Without a length in its header, a body that was cut off looks like a whole one.
        if deadline.passed:
            raise Unreachable(f"no whole answer within {self.timeout_s:g} s")
        return answer


def _request(connection: http.client.HTTPConnection, method: str, path: str, headers: Mapping[str, str]) -> Answer:
    connection.request(method, path, headers={"Connection": "close", **headers})
    response = connection.getresponse()
    body = response.read(_MOST_BYTES)
    return Answer(
        status=response.status,
        headers={name.lower(): value for name, value in response.getheaders()},
        body=body,
    )


class _Deadline:
    """Closes a socket when its time is up. The socket's own timeout would restart with every byte."""

    def __init__(self, connected: socket.socket, timeout_s: float) -> None:
        self.passed = False
        self._socket = connected
        self._timer = threading.Timer(timeout_s, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        self.passed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

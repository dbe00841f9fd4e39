"""The page on this computer: the loopback only, behind a token, with certificates from Python for many points.

What is served is read once, at the start: no request names a path of the disk. Requests whose `Host` is another one are refused:
no other page can reach this server by a name of its own. A request that does not arrive in time is cut off, and one that no
page waits for any more is not solved.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from widemargin.types import Dataset, InputError

from .bundle import PAGE
from .links import FARTHEST, POINTS

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
BODY = 64_000  # bytes that a request may bring
SECONDS = 30.0  # for one certificate
ARRIVAL = 10.0  # seconds that a request may take to arrive
POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'"


def points_of(body: bytes) -> tuple[Dataset, bool]:
    """The points of a request, {"points": [[x, y, label], ...], "bias": true}, and whether neurons have a bias."""
    try:
        asked = json.loads(body)
        rows = np.array(asked["points"], dtype=np.float64)
        bias = asked["bias"]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # 10^400, or brackets in brackets
        raise InputError("the request is not a list of points and a bias") from None
    if rows.ndim != 2 or rows.shape[1] != 3 or not 1 <= len(rows) <= POINTS or not isinstance(bias, bool):
        raise InputError(f"the request must have 1 to {POINTS} points with two coordinates and a label each")
    if not (np.isfinite(rows).all() and np.abs(rows).max() <= FARTHEST and np.isin(rows[:, 2], (-1.0, 1.0)).all()):
        raise InputError("a coordinate or a label of the request is out of range")
    return Dataset(rows[:, :2], rows[:, 2], "playground"), bias


def certified(data: Dataset, bias: bool) -> str:
    """The text of a certificate of F1."""
    from widemargin import margins

    return json.dumps(margins.f1(data, bias=bias, time_limit=SECONDS).payload(), allow_nan=False)


class Server(ThreadingHTTPServer):
    """The page at `address`, on a `port` of the loopback (0: any that is free), until `shutdown`; `run` is one to replay.

    >>> from urllib.request import urlopen
    >>> import threading
    >>> from widemargin.play import Server
    >>> with Server() as server:
    ...     threading.Thread(target=server.serve_forever).start()
    ...     head = urlopen(server.address).read(15)
    ...     server.shutdown()
    >>> head
    b'<!doctype html>'
    """

    daemon_threads = True
    request_queue_size = 128  # a page asks for thirty files at once; beyond five, connections would wait for a second

    def __init__(self, port: int = 0, run: Mapping[str, Any] | None = None) -> None:
        self.token = secrets.token_urlsafe(16)
        self.solving = threading.Lock()  # one certificate at a time
        self.arriving: dict[socket.socket, float] = {}  # requests that are not whole yet, and until when they may take
        self.files = {
            file.name: (file.read_bytes(), TYPES[file.suffix])
            for file in sorted(PAGE.iterdir())
            if file.suffix in TYPES
        }
        html, kind = self.files["index.html"]
        self.files["index.html"] = html.replace(b'<html lang="en">', b'<html lang="en" data-server="yes">'), kind
        if run is not None:
            self.files["run.json"] = json.dumps(run, allow_nan=False).encode(), "application/json"
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise InputError(f"port {port} cannot be used ({error.strerror}); give another, or none") from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that is closed while it loads is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def service_actions(self) -> None:
        """Cut off clients that send a byte now and then and never end: each has a thread and a file of this process."""
        now = time.monotonic()
        for connection, until in list(self.arriving.items()):
            if now > until:
                self.arriving.pop(connection, None)
                with contextlib.suppress(OSError):  # it may have ended by itself
                    connection.shutdown(socket.SHUT_RDWR)

    @property
    def address(self) -> str:
        """Where the page is, token included."""
        return f"http://127.0.0.1:{self.server_address[1]}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "widemargin", ""
    timeout = 60

    def handle(self) -> None:
        self.server.arriving[self.connection] = time.monotonic() + ARRIVAL
        try:
            super().handle()
        finally:
            self.server.arriving.pop(self.connection, None)

    def log_message(self, *_: Any) -> None:
        """Nothing: requests are those of one's own page."""

    def do_GET(self) -> None:
        self._answered(self._file)

    def do_HEAD(self) -> None:
        self._answered(self._file)

    def do_POST(self) -> None:
        self._answered(self._certificate)

    def _answered(self, work: Callable[[str], tuple[int, bytes, str]]) -> None:
        hosts = [f"{name}:{self.server.server_address[1]}" for name in ("127.0.0.1", "localhost")]
        if self.headers.get("Host") not in hosts:
            return self._send(403, b"not for this host", "text/plain")
        if self.headers.get("Origin") not in (None, *(f"http://{host}" for host in hosts)):
            return self._send(403, b"not for this page", "text/plain")
        token, _, name = self.path.split("?")[0].removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return self._send(403, b"the token is missing or wrong", "text/plain")
        self._send(*work(name))

    def _file(self, name: str) -> tuple[int, bytes, str]:
        file = self.server.files.get(name or "index.html")
        return (404, b"no such file", "text/plain") if file is None else (200, *file)

    def _certificate(self, name: str) -> tuple[int, bytes, str]:
        length = self.headers.get("Content-Length", "")
        if name != "certify":
            return 404, b"no such file", "text/plain"
        if not (length.isascii() and length.isdigit()):
            return 411, b"the length is missing", "text/plain"
        if len(length) > 9 or int(length) > BODY:
            self.close_connection = True
            return 413, b"the request is too long", "text/plain"
        body = self.rfile.read(int(length))
        self.server.arriving.pop(self.connection, None)
        try:
            if len(body) < int(length):
                raise InputError("the request is shorter than it says")
            asked = points_of(body)
            with self.server.solving:
                if self._gone():  # a page that was dragged on asks again; nobody waits for this one
                    return 408, b"nobody waits for this", "text/plain"
                return 200, certified(*asked).encode(), "application/json"
        except InputError as error:
            return 400, str(error).encode(), "text/plain"

    def _gone(self) -> bool:
        """Whether the page has closed the connection while its request waited."""
        self.connection.settimeout(0)
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:  # nothing to read, and nothing closed
            return False
        except OSError:
            return True
        finally:
            self.connection.settimeout(self.timeout)

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

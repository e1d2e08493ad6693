"""Server: the parent's one HTTP port: a page for people, its figures as JSON, /metrics, /healthz and /readyz."""

from __future__ import annotations

import errno
import ipaddress
import json
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Self
from urllib.parse import urlsplit

from prometheus_client.exposition import choose_encoder

from eos.base.addresses import address
from eos.base.printable import printable_values
from eos.errors import ConfigError
from eos.ops.observe import page
from eos.ops.observe.aggregator import Aggregator
from eos.ops.observe.job_status import HealthVerdict
from eos.ops.observe.log_lines import write
from eos.settings.tables import ObserveSettings

REQUEST_DEADLINE_S = 10.0
CLIENT_THREAD = "eos-http-client"
_PATHS = ["/", "/status.json", "/metrics", "/healthz", "/readyz"]
# More clients than that at once are no probes and no people: the one that has been connected longest is hung up. Each has a thread.
_MOST_CLIENTS = 64
_ROOM_S = 1.0  # for the thread of one that was hung up to end
# Connections that the kernel takes before they are accepted. With Python's 5 a burst of clients costs each of them a second and more.
_BACKLOG = 128
_POLL_S = 0.1
_STOP_WAIT_S = 5.0


_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Server:
    """A running server; ``with`` stops it at the end.

    Attributes:
        host, port: where it listens; the port is the real one if 0 was asked for.
    """

    def __init__(self, http: _Http) -> None:
        self.host = http.server_name
        self.port = http.server_port
        self._http = http
        self._thread = threading.Thread(
            target=http.serve_forever, args=(_POLL_S,), name="eos-http", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where to put the paths."""
        return f"http://{address(self.host, self.port)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it and free the port. May be called again."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join(_STOP_WAIT_S)
        self._http.server_close()


def serve(
    aggregator: Aggregator, settings: ObserveSettings, *, request_timeout_s: float = REQUEST_DEADLINE_S
) -> Server | None:
    """Start answering, in threads of its own; None if no port is set. A client has the deadline for a whole request.

    Raises:
        ConfigError: the address cannot be listened at; the message names the setting.
    """
    if settings.http_port is None:
        return None
    try:
        http = _Http(settings.http_host, settings.http_port, aggregator, request_timeout_s)
    except OSError as error:
        raise _cannot_listen(settings.http_host, settings.http_port, error) from error
    return Server(http)


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    match error.errno:
        case errno.EADDRINUSE:
            text = (
                f"observe.http_port: port {port} on {host} is in use. Fix: another port, or 0 for a free one"
            )
        case errno.EACCES | errno.EPERM:
            text = f"observe.http_port: this user may not listen on port {port}. Fix: a port of 1024 or above"
        case _:
            why = error.strerror or error
            text = f"observe.http_host: cannot listen on {address(host, port)} ({why}). Fix: an address of this machine"
    return ConfigError(text)


class _Http(ThreadingHTTPServer):
    daemon_threads = True  # a client that hangs does not hold up the process's end
    request_queue_size = _BACKLOG

    def __init__(self, host: str, port: int, aggregator: Aggregator, request_timeout_s: float) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self.aggregator = aggregator
        self._request_timeout_s = request_timeout_s
        # Since when; the oldest first. Only the accepting thread adds.
        self._clients: dict[socket.socket, float] = {}
        self._room = threading.BoundedSemaphore(_MOST_CLIENTS)  # for threads of clients
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own asks the name service for this host's name, which can take many seconds.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own. Clients that do not end their requests must not hold up a probe."""
        if not self._room.acquire(blocking=False):
            self._hang_up(next(iter(self._clients.copy()), None))
            if not self._room.acquire(timeout=_ROOM_S):
                self.shutdown_request(request)
                return
        self._clients[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        threading.current_thread().name = CLIENT_THREAD
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def shutdown_request(self, request: Any) -> None:
        self._clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Between two looks for new clients: one that sends or takes a byte now and then is ended, too."""
        latest = time.monotonic() - self._request_timeout_s
        for client, since in self._clients.copy().items():
            if since <= latest:
                self._hang_up(client)

    def server_close(self) -> None:
        super().server_close()
        for client in self._clients.copy():
            self._hang_up(client)

    def _hang_up(self, client: socket.socket | None) -> None:
        """Its thread ends, whatever the client does."""
        if client is not None and self._clients.pop(client, None) is not None:
            with suppress(OSError):  # it has ended meanwhile
                client.shutdown(socket.SHUT_RDWR)

    def is_addressed(self, host: str) -> bool:
        """Whether a request's Host can name this server.

        A page elsewhere can point a name of its own at 127.0.0.1, and a browser then lets it read what this port answers (DNS
        rebinding). Where only this machine can connect, only names of this machine are answered. At any other address the names
        are not known here: a service's, a pod's.
        """
        if not _is_loopback(self.server_name):
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return _is_loopback(name) or f".{name.rstrip('.')}".endswith(".localhost")

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base's signature
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):  # a client that went away is its own affair
            write("error", "http request failed", error=f"{type(error).__name__}: {error}")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    server_version = "eos"
    sys_version = ""

    def do_GET(self) -> None:
        if (host := self.headers.get("Host")) is not None and not self.server.is_addressed(host):
            self._json(
                HTTPStatus.MISDIRECTED_REQUEST, {"ok": False, "why": "the Host is no name of this machine"}
            )
            return
        match self.path.partition("?")[0]:
            case "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, content_type, encode(self.server.aggregator.registry))
            case "/":
                self._answer(
                    HTTPStatus.OK,
                    "text/html; charset=utf-8",
                    page.html(),
                    {"Content-Security-Policy": page.policy()},
                )
            case "/status.json":
                self._json(HTTPStatus.OK, self.server.aggregator.status())
            case "/healthz":
                self._verdict(self.server.aggregator.healthy())
            case "/readyz":
                self._verdict(self.server.aggregator.ready())
            case _:
                self._json(HTTPStatus.NOT_FOUND, {"ok": False, "paths": _PATHS})

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's signature
        """Probes come every few seconds: their lines would hide the decisions."""

    def _verdict(self, verdict: HealthVerdict) -> None:
        if verdict.ok:
            self._json(HTTPStatus.OK, {"ok": True})
        else:
            self._json(HTTPStatus.SERVICE_UNAVAILABLE, {"ok": False, "missing": verdict.missing})

    def _json(self, status: HTTPStatus, body: object) -> None:
        self._answer(status, "application/json", json.dumps(printable_values(body)).encode() + b"\n")

    def _answer(
        self, status: HTTPStatus, content_type: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (_HEADERS | dict(headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

"""A token endpoint on loopback: for client credentials it gives JWTs without a signature, whose subject is the client."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.patience import PATIENCE_S

HOST = "127.0.0.1"


class Asked(NamedTuple):
    """A request, as it came."""

    path: str
    headers: dict[str, str]
    form: str


class Answer(NamedTuple):
    """What is answered in place of a token."""

    status: int
    body: str
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)


class TokenEndpoint:
    """What it has been asked, and how it answers; made by `token_endpoint`.

    Attributes:
        clients: the secret of each client id.
        asked: the requests so far.
        given: the tokens so far.
        answer: instead of a token.
        byte_every_s: how slowly it answers: without an end, where given.
        life_s: of a token.
        principal_claim: of a token.
    """

    def __init__(self, port: int, scheme: str) -> None:
        self.url = f"{scheme}://{HOST}:{port}/token"
        self.clients: dict[str, str] = {}
        self.asked: list[Asked] = []
        self.given: list[str] = []
        self.answer: Answer | None = None
        self.byte_every_s: float | None = None
        self.life_s = 600.0
        self.principal_claim = "sub"
        self.closing = threading.Event()

    def settings(self, client: str, secret: str) -> dict[str, Any]:
        """Settings of a client that gets its tokens here."""
        options = {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": self.url,
            "sasl.oauthbearer.client.id": client,
            "sasl.oauthbearer.client.secret": secret,
        }
        return {"kafka.sasl_mechanism": "OAUTHBEARER"} | {
            f"kafka.client.{name}": value for name, value in options.items()
        }

    def answered(self, asked: Asked) -> Answer:
        """The answer to a request."""
        if self.answer is not None:
            return self.answer
        login = base64.b64decode(asked.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        client, _, secret = login.partition(":")
        form = urllib.parse.parse_qs(asked.form)
        if self.clients.get(client) != secret or not secret:
            return Answer(401, json.dumps({"error": "invalid_client", "error_description": "wrong secret"}))
        if form.get("grant_type") != ["client_credentials"]:
            return Answer(400, json.dumps({"error": "unsupported_grant_type"}))
        now_s = time.time()
        claims = {self.principal_claim: client, "iat": now_s, "exp": now_s + self.life_s}
        self.given.append(unsigned(claims))
        return Answer(200, json.dumps({"access_token": self.given[-1], "token_type": "Bearer"}))


def unsigned(claims: dict[str, Any]) -> str:
    """A JWT without a signature."""
    parts = (json.dumps(one).encode() for one in ({"alg": "none"}, claims))
    return "".join(f"{base64.urlsafe_b64encode(part).decode().rstrip('=')}." for part in parts)


@contextlib.contextmanager
def token_endpoint(certificate: Path | None = None, *, port: int = 0) -> Iterator[TokenEndpoint]:
    """Serve, at a free port if none is given; with a certificate and its key, in one file, by https."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked = Asked(self.path, dict(self.headers.items()), form)
            endpoint.asked.append(asked)
            if endpoint.byte_every_s is not None:
                with contextlib.suppress(OSError):
                    while not endpoint.closing.wait(endpoint.byte_every_s):
                        self.wfile.write(b"X")
                return
            answer = endpoint.answered(asked)
            self.send_response(answer.status)
            for name, value in (*answer.headers, ("Content-Length", str(len(answer.body.encode())))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body.encode())

        def do_GET(self) -> None:
            endpoint.asked.append(Asked(self.path, dict(self.headers.items()), ""))
            self.send_error(405)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that does not trust it, or has gone."""

    with Server((HOST, port), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        endpoint = TokenEndpoint(server.server_port, "http" if certificate is None else "https")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield endpoint
        finally:
            endpoint.closing.set()
            server.shutdown()
            thread.join(PATIENCE_S)

"""A container engine that has some images and nothing else: enough to be asked by eos.testing.engine."""

from __future__ import annotations

import contextlib
import json
import os
import socketserver
import tempfile
import threading
import urllib.parse
from collections.abc import Collection, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.support.patience import PATIENCE_S

_VERSION = "1.44"


@contextlib.contextmanager
def fake_engine(images: Collection[str] = (), ping: int = 200) -> Iterator[str]:
    """Serve on a unix socket; yields its address for ``DOCKER_HOST``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urllib.parse.unquote(self.path).removeprefix(f"/v{_VERSION}")
            if asked == "/version":
                status, answer = ping, {"ApiVersion": _VERSION}
            elif asked.removeprefix("/images/").removesuffix("/json") in images:
                status, answer = 200, {"Id": "sha256:1"}
            else:
                status, answer = 404, {"message": "No such image"}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

        def address_string(self) -> str:
            return "test"

    # Not pytest's own directory: the path of a unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="eos-") as directory:
        path = Path(directory, "engine.sock")
        with socketserver.ThreadingUnixStreamServer(os.fspath(path), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            try:
                yield f"unix://{path}"
            finally:
                server.shutdown()
                thread.join(PATIENCE_S)

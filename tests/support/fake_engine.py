"""A container engine that has some images and nothing else: enough to be asked by eos.testing.engine."""

from __future__ import annotations

import contextlib
import os
import socketserver
import tempfile
import threading
import urllib.parse
from collections.abc import Collection, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path


@contextlib.contextmanager
def fake_engine(images: Collection[str] = (), ping: int = 200) -> Iterator[str]:
    """Serve on a unix socket; yields its address for ``DOCKER_HOST``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = urllib.parse.unquote(self.path).removeprefix("/images/").removesuffix("/json")
            self.send_response(ping if self.path == "/_ping" else 200 if name in images else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

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
                thread.join(5)

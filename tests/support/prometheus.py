"""A Prometheus process for tests: on loopback, on a free port, ended when the block is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eos.local.ports import free_port

# Where `dpkg -x` of Debian's package lays it for whoever may not install it.
_UNPACKED = Path(__file__).parents[2] / ".eos" / "prometheus" / "usr" / "bin"
_READY_S = 60.0
_END_S = 20.0
_STEP_S = 0.1
_ASK_S = 10.0


def find(program: str) -> str | None:
    """The path of ``prometheus`` or ``promtool``; None if it is not here."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), str(_UNPACKED)]))


class Prometheus:
    """A running Prometheus; made by `prometheus`.

    Attributes:
        url: where it answers.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its HTTP API.

        Raises:
            AssertionError: it answered with an error; the message holds it.
        """
        query = urllib.parse.urlencode(parameters)
        try:
            body = json.loads(_get(f"{self.url}/api/v1/{path}?{query}"))
        except urllib.error.HTTPError as error:
            body = json.load(error)
        assert body["status"] == "success", f"{parameters}: {body.get('error')}"
        return body["data"]

    def query(self, expression: str) -> list[float]:
        """The values of an expression now, one per series; none if it is empty."""
        result = self.ask("query", query=expression)["result"]
        return [float(series["value"][1]) for series in result]


@contextmanager
def prometheus(config: Path, data: Path) -> Iterator[Prometheus]:
    """Run Prometheus with a configuration.

    Args:
        config: its file.
        data: a directory for what it scrapes.
    """
    program = find("prometheus")
    assert program is not None
    port = free_port()
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={data}", "--log.level=warn"]
    process = subprocess.Popen(
        [*command, f"--web.listen-address=127.0.0.1:{port}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        _wait_ready(process, f"http://127.0.0.1:{port}")
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        try:
            process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate(timeout=_END_S)


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_ASK_S) as answer:  # noqa: S310 - a server that the test has started
        return bytes(answer.read())


def _is_ready(url: str) -> bool:
    try:
        _get(f"{url}/-/ready")
    except OSError:  # nobody listens yet, or 503
        return False
    return True


def _wait_ready(process: subprocess.Popen[str], url: str) -> None:
    deadline = time.monotonic() + _READY_S
    while not _is_ready(url):
        if process.poll() is not None:
            said = process.stdout.read() if process.stdout else ""
            raise AssertionError(f"Prometheus ended: {said}")
        assert time.monotonic() < deadline, f"Prometheus is not ready after {_READY_S:g} s"
        time.sleep(_STEP_S)

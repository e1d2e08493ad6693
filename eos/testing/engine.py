"""Ask the container engine of this machine a question, without loading its client.

The header of every pytest run says where Kafka would come from; the client of the engine takes 0.3 s to import,
which a run that never touches Kafka need not pay.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import urllib.parse
from pathlib import Path

from eos.errors import ConfigError

_DEFAULT_SOCKET = "/var/run/docker.sock"
_ASK_TIMEOUT_S = 5.0
_OK, _NOT_FOUND = 200, 404


class NoEngineError(ConfigError):
    """No engine answers that could publish ports on this machine's loopback. The message says what was tried."""


def socket_path() -> str:
    """The unix socket of the engine: DOCKER_HOST, else the current docker context, else the default.

    Raises:
        NoEngineError: the engine is on another machine.
    """
    host = os.environ.get("DOCKER_HOST") or _host_of_context()
    if not host:
        return _DEFAULT_SOCKET
    parts = urllib.parse.urlsplit(host)
    if parts.scheme not in {"unix", "http+unix"}:  # docker's contexts spell it the second way
        # Its ports would be published on the loopback of that machine, out of reach.
        raise NoEngineError(f"the engine at {host} is not on this machine (only unix:// is)")
    return parts.path


def has_image(image: str) -> bool:
    """Whether the engine has that image.

    Raises:
        NoEngineError: no engine answers.
    """
    status = _get(f"/images/{urllib.parse.quote(image)}/json")
    if status not in {_OK, _NOT_FOUND}:
        raise NoEngineError(f"the engine at {socket_path()} answered {status} to a question for an image")
    return status == _OK


def check() -> None:
    """Raises NoEngineError if no engine answers."""
    if (status := _get("/_ping")) != _OK:
        raise NoEngineError(f"the engine at {socket_path()} answered {status} to a ping")


def _get(path: str) -> int:
    where = socket_path()
    connection = _UnixConnection(where)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise NoEngineError(f"no container engine answers at {where} ({reason})") from error
    finally:
        connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_ASK_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_ASK_TIMEOUT_S)
        self.sock.connect(self._path)


def _host_of_context() -> str | None:
    """Where the user's docker context points, if it is not the default one; loads the client only then."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        current = json.loads((folder / "config.json").read_text()).get("currentContext")
    except (OSError, ValueError, AttributeError):
        return None
    if current in {None, "", "default"}:
        return None
    from docker.context import ContextAPI

    context = ContextAPI.get_context(current)
    return None if context is None else str(context.Host)

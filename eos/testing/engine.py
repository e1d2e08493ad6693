"""Ask the container engine of this machine which images it has.

The engine's client takes half a second to import, so this is done when it is asked: runs that never touch Kafka do not.
"""

from __future__ import annotations

import contextlib
import socket
from urllib.parse import urlsplit

from eos.errors import ConfigError

_DEFAULT_HOST = "unix:///var/run/docker.sock"
_ASK_TIMEOUT_S = 5


class NoEngineError(ConfigError):
    """No engine answers that could publish ports on this machine's loopback. The message says what was tried."""


def socket_path() -> str:
    """The unix socket of the engine that testcontainers will use: DOCKER_HOST's, else the current docker context's.

    Raises:
        NoEngineError: the engine is on another machine.
    """
    from testcontainers.core.docker_client import get_docker_host

    host = urlsplit(get_docker_host() or _DEFAULT_HOST)
    if host.scheme not in {"unix", "http+unix"}:  # docker's contexts spell it the second way
        # Its ports would be published on the loopback of that machine, out of reach.
        raise NoEngineError(f"the engine at {host.geturl()} is not on this machine (only unix:// is)")
    return host.path


def find_image(*images: str) -> str | None:
    """The first of these images that the engine has.

    Raises:
        NoEngineError: no engine answers.
    """
    from docker.client import DockerClient
    from docker.errors import DockerException, ImageNotFound

    path = socket_path()
    try:
        with socket.socket(socket.AF_UNIX) as probe:  # the client would leave its own open if nothing answers
            probe.connect(path)
        with contextlib.closing(DockerClient(f"unix://{path}", timeout=_ASK_TIMEOUT_S)) as client:
            for image in images:
                with contextlib.suppress(ImageNotFound):
                    client.images.get(image)
                    return image
            return None
    except (DockerException, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise NoEngineError(f"no container engine answers at {path} ({reason})") from error

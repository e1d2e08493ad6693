"""Removes the containers of a test run once its process is gone, killed or not.

Run as a child process, ``python -m eos.testing.reaper LABEL``, that holds the read end of a pipe of its owner: the
pipe ends with the owner, also when that was killed. An ordered end has removed everything before, and then nothing
is found. (testcontainers has a container for this, Ryuk, whose image would have to be pulled.)
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys

_END_S = 30.0
_ALL_GONE = b"all gone"  # sent by an owner that has removed everything itself


class Reaper:
    """The child process. Everything with the label is removed when this is closed, or its owner's process ends."""

    def __init__(self, label: str) -> None:
        # A session of its own: Ctrl-C in a terminal is for the owner.
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, label],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self, *, all_gone: bool) -> None:
        """Let it end; it removes what is left, unless nothing is."""
        if self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.write(_ALL_GONE if all_gone else b"")
                self._child.stdin.close()
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(_END_S)


def remove_labelled(label: str, *, networks: bool = True) -> None:
    """Remove every container, and network, that carries the label ``name=value``."""
    from docker.errors import NotFound
    from testcontainers.core.docker_client import DockerClient

    client = DockerClient().client
    try:
        for container in client.containers.list(all=True, filters={"label": label}, ignore_removed=True):
            with contextlib.suppress(NotFound):
                container.remove(force=True, v=True)
        for network in client.networks.list(filters={"label": label}) if networks else ():
            with contextlib.suppress(NotFound):
                network.remove()
    finally:
        client.close()


def _main(label: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a signal for the owner's whole session must not end this
    if sys.stdin.buffer.read() != _ALL_GONE:
        remove_labelled(label)


if __name__ == "__main__":
    _main(sys.argv[1])

"""A proxy of one database that cuts a connection when a certain statement passes, or delivers nothing more of it from then on."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from eos.local.ports import listener
from tests.support.patience import PATIENCE_S

_CHUNK = 65_536


class CuttingProxy:
    """Listens on a port of its own, and forwards to another one of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening = listener()
        self.port: int = self._listening.getsockname()[1]
        self._word = b""
        self._arrives = False
        self._swallows = False
        self._swallowed: set[socket.socket] = set()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def cut_at(self, word: bytes, *, arrives: bool) -> None:
        """Cut once, at the next packet that holds the word, before it arrives: with ``arrives`` when the server has answered it."""
        self._arrives, self._swallows = arrives, False
        self._word = word

    def swallow_at(self, word: bytes, *, arrives: bool) -> None:
        """Deliver nothing more of the present connections from then on, and leave them open."""
        self._arrives, self._swallows = arrives, True
        self._word = word

    def _has_word(self, data: bytes) -> bool:
        """Whether this is the packet; once."""
        found = bool(self._word) and self._word in data
        if found:
            self._word = b""
        return found

    def cut(self) -> None:
        """Cut every connection now."""
        while self._sockets:
            with contextlib.closing(self._sockets.pop()) as one, contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _swallow(self) -> bool:
        if self._swallows:
            self._swallowed |= set(self._sockets)
        return self._swallows

    def _start(self, *call: object) -> None:
        thread = threading.Thread(target=call[0], args=call[1:], daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            self._start(self._forward, client, server)
            self._start(self._answer, server, client)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(_CHUNK):
                if not self._arrives and self._has_word(data) and not self._swallow():
                    self.cut()
                    return
                if client not in self._swallowed:
                    server.sendall(data)
            if client not in self._swallowed:
                server.shutdown(socket.SHUT_WR)  # it has ended by itself; the other connections go on

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(_CHUNK):
                # The tag of the command's answer.
                if self._arrives and self._has_word(data) and not self._swallow():
                    self.cut()
                    return
                if server not in self._swallowed:
                    client.sendall(data)
            if server not in self._swallowed:
                client.shutdown(socket.SHUT_WR)

"""Database proxy: stands between a job and its PostgreSQL, knows two statements of a transaction, and loses, delays or cuts them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from eos.local.ports import HOST, listener
from eos.testing.proxy import Edge

_CONNECT_S = 10.0
_PART = 65_536
_SSL, _GSS, _CANCEL = 80_877_103, 80_877_104, 80_877_102  # requests in the place of a startup message
_QUERY, _PARSE, _BIND, _READY, _DONE, _COPY_IN = b"Q", b"P", b"B", b"Z", b"C", b"G"
_WRITES = (b"INSERT", b"UPDATE", b"DELETE", b"MERGE", b"COPY")


class Statement(Enum):
    """A statement of a transaction, where something may happen to who sends it."""

    WRITE = "write"  # the first one of a transaction that changes rows
    COMMIT = "commit"


@dataclass(eq=False)
class Deed:
    """What is done at the next statement, once.

    Attributes:
        statement: at which.
        takes: whether this one is meant, by the port that its connection comes from.
        cut: where the client's connection is cut: before the server has seen the statement, or when it has done it; None: nowhere.
        then: called there with the port.
        reaches: whether the server gets the statement.
        after_s: so much later than it was sent.
        done: whether it was done, and what the server has answered.
    """

    statement: Statement
    takes: Callable[[int], bool]
    cut: Edge | None
    then: Callable[[int], object] = lambda _: None
    reaches: bool = True
    after_s: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)
    answer: str = ""


class DatabaseProxy:
    """Listens in threads of its own; a context manager.

    Attributes:
        observer: is shown each statement, at both edges, with the port that it comes from, if there is one.
        commits: how many commits were answered so far.

    Args:
        upstream: where the server is.
    """

    def __init__(self, upstream: Callable[[], int]) -> None:
        self.observer: Callable[[Statement, int, Edge], object] | None = None
        self.commits = 0
        self._upstream = upstream
        self._deeds: list[Deed] = []
        self._lock = threading.Lock()
        self._connections = set[_Connection]()
        self._listener = listener()
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="eos-prove-database", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()

    @property
    def clients(self) -> Mapping[int, int]:
        """The port of each client, by the port that the server sees."""
        return {one.server_port: one.client_port for one in list(self._connections)}

    def cut_all(self) -> int:
        """Close every connection; returns how many."""
        cut = list(self._connections)
        for one in cut:
            one.close()
        return len(cut)

    @contextlib.contextmanager
    def doing(self, deed: Deed) -> Iterator[None]:
        """That deed is done at the next such statement within the block."""
        with self._lock:
            self._deeds.append(deed)
        try:
            yield
        finally:
            with self._lock:
                if deed in self._deeds:
                    self._deeds.remove(deed)

    def deed_for(self, statement: Statement, port: int) -> Deed | None:
        """What is to be done at this one."""
        with self._lock:
            found = next((one for one in self._deeds if one.statement is statement and one.takes(port)), None)
            if found is not None:
                self._deeds.remove(found)
            return found

    def announce(self, statement: Statement, port: int, edge: Edge) -> None:
        """Show it to the observer."""
        if statement is Statement.COMMIT and edge is Edge.REPLY:
            self.commits += 1
        if (observer := self.observer) is not None:
            observer(statement, port, edge)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # it is closed
                return
            try:
                server = socket.create_connection((HOST, self._upstream()), _CONNECT_S)
            except OSError:  # the client finds its connection closed, as where no server is
                client.close()
                continue
            server.settimeout(None)
            connection = _Connection(self, client, server)
            self._connections.add(connection)
            for pump in (connection.requests, connection.answers):
                threading.Thread(target=self._run, args=(connection, pump), daemon=True).start()

    def _run(self, connection: _Connection, pump: Callable[[], None]) -> None:
        try:
            pump()
        except OSError:
            pass
        finally:
            connection.close()
            self._connections.discard(connection)


class _Connection:
    """The two pumps of a client's connection."""

    def __init__(self, proxy: DatabaseProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self.client_port: int = client.getpeername()[1]
        self.server_port: int = server.getsockname()[1]
        self._plain = 0  # answers of one byte that are to come
        self._prepared: dict[bytes, bytes] = {}
        self._wrote = False  # in the transaction that is open
        self._waits: tuple[Statement, Deed | None] | None = None  # for the answer to a statement
        self._over = threading.Event()
        self._answered = threading.Event()

    def close(self) -> None:
        for one in (self._client, self._server):
            _close(one)

    def requests(self) -> None:
        """From the client to the server."""
        client = _Reader(self._client)
        while True:
            head = client.read(4)
            (length,) = struct.unpack("!i", head)
            body = client.read(length - 4)
            (code,) = struct.unpack_from("!i", body)
            self._plain += code in (_SSL, _GSS)
            self._server.sendall(head + body)
            if code not in (_SSL, _GSS):
                break
        while True:
            kind, body = client.message()
            statement = self._statement(kind, body)
            message = kind + struct.pack("!i", len(body) + 4) + body
            if statement is None:
                self._server.sendall(message)
            else:
                self._send(statement, message)

    def _send(self, statement: Statement, message: bytes) -> None:
        port = self.client_port
        deed = self._proxy.deed_for(statement, port)
        self._proxy.announce(statement, port, Edge.REQUEST)
        if deed is not None and deed.cut is not Edge.REPLY:
            deed.then(port)
            if deed.cut is Edge.REQUEST:
                _close(self._client)
            if not deed.reaches:
                deed.done.set()
                raise OSError("it is lost")
            time.sleep(deed.after_s)
        self._answered.clear()
        self._waits = statement, deed
        self._server.sendall(message)
        if (
            deed is not None and deed.cut is Edge.REQUEST
        ):  # the client is gone, and the answer is still of interest
            self._answered.wait(_CONNECT_S)

    def answers(self) -> None:
        """From the server to the client. What is answered to a statement stays here until all of it is."""
        server, held = _Reader(self._server), b""
        try:
            while True:
                kind = server.read(1)
                if self._plain:
                    self._plain -= 1
                    self._client.sendall(kind)
                    continue
                body = server.body()
                message = kind + struct.pack("!i", len(body) + 4) + body
                if self._waits is None:
                    self._client.sendall(message)
                    continue
                held += message
                statement, deed = self._waits
                if deed is not None and kind in (_DONE, b"E"):
                    deed.answer = body.rstrip(b"\0").decode(errors="replace") if kind == _DONE else "an error"
                if (
                    kind == _COPY_IN
                ):  # the client sends its rows now, and only then there is more of an answer
                    self._client.sendall(held)
                    held = b""
                elif kind == _READY:
                    self._waits = None
                    self._answer(statement, deed, held)
                    held = b""
        finally:
            self._answered.set()
            if self._waits is not None and (deed := self._waits[1]) is not None:
                deed.done.set()
            with contextlib.suppress(OSError):
                self._client.sendall(held)

    def _answer(self, statement: Statement, deed: Deed | None, answer: bytes) -> None:
        port = self.client_port
        self._proxy.announce(statement, port, Edge.REPLY)
        if deed is not None and deed.cut is Edge.REPLY:
            deed.then(port)
            _close(self._client)
        if deed is not None:
            deed.done.set()
        self._answered.set()
        self._client.sendall(answer)

    def _statement(self, kind: bytes, body: bytes) -> Statement | None:
        """What a message does, if that is of interest."""
        text = b""
        if kind == _QUERY:
            text = body
        elif kind == _PARSE:
            name, text, *_ = body.split(b"\0", 2)
            self._prepared[name] = text
            return None
        elif kind == _BIND:
            text = self._prepared.get(body.split(b"\0", 2)[1], b"")
        word = text.lstrip()[:8].upper()
        if word.startswith((b"COMMIT", b"END")):
            self._wrote = False
            return Statement.COMMIT
        if word.startswith(b"ROLLBACK"):
            self._wrote = False
        elif word.startswith(_WRITES) and not self._wrote:
            self._wrote = True
            return Statement.WRITE
        return None


class _Reader:
    """Whole pieces of a stream."""

    def __init__(self, source: socket.socket) -> None:
        self._source, self._rest = source, bytearray()

    def read(self, count: int) -> bytes:
        while len(self._rest) < count:
            if not (part := self._source.recv(_PART)):
                raise OSError("it is closed")
            self._rest += part
        found = bytes(self._rest[:count])
        del self._rest[:count]
        return found

    def body(self) -> bytes:
        (length,) = struct.unpack("!i", self.read(4))
        return self.read(length - 4)

    def message(self) -> tuple[bytes, bytes]:
        return self.read(1), self.body()


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()

"""A TCP proxy that knows Kafka's frames: it holds, repeats, drops, cuts or refuses chosen requests, or edits answers.

It stands between clients and one broker listener whose advertised port is the proxy's, so that every
request through that listener passes here. A held request is a late packet: it keeps its upstream
connection open and reaches the broker when the test releases it, however often the client has given
up, reconnected and sent the request again meanwhile. What the client sent behind it on the same
connection waits behind it, as TCP would have it.

    with HoldProxy(port, upstream) as proxy:
        held = proxy.hold(ApiKey.END_TXN, where=ends_with(committed=False))
        ...
        held.wait_held(5)
        held.release()
        held.wait_answer(5)

Rules are asked in the order in which they were made; each counts the requests that match it and acts
on ``times`` of them from the ``nth`` (1 = the next one) on. A request on which one rule acts is not
shown to the later ones, so two equal rules act on two requests.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar, Unpack

from eos.local.ports import listener
from eos.ops.check.kafka_python import kafka_messages
from eos.testing.proxy.answers import refusal
from eos.testing.proxy.connection import Connection, reset, send_copy
from eos.testing.proxy.frames import ApiKey, Frame
from eos.testing.proxy.proxy_rules import (
    Edge,
    Edit,
    Hold,
    Outcome,
    Rule,
    Then,
    Which,
    WhichOfSeveral,
    ends_with,
)

__all__ = ["ApiKey", "Edge", "Frame", "Hold", "HoldProxy", "Outcome", "Seen", "ends_with"]

T = TypeVar("T")

_STOP_S = 60.0
_ROUND_S = 0.1
_TURNS_TO_CLOSE = 3  # of the loop: a task's callbacks, the transport's last call, one to spare
_LOG_LENGTH = 100_000
_NAME_BROKERS = {ApiKey.METADATA, ApiKey.FIND_COORDINATOR}


@dataclass(frozen=True)
class Seen:
    """A line of the log. ``at`` is in seconds of the monotonic clock."""

    at: float
    connection: int
    client_id: str | None
    api_key: int
    api_version: int
    transactional_id: str | None
    outcome: Outcome


class HoldProxy:
    """A proxy of one broker listener in a thread of its own; a context manager that listens at once.

    Args:
        port: where it listens on 127.0.0.1, the port that the broker's listener advertises; 0 = any free.
        upstream: host and port of the broker's listener.
        advertised: the port that the broker's listener advertises, where it is another one than the proxy's: clients are
            told the proxy's in its place. So each of several proxies of one listener meets its own clients alone.

    Raises:
        OSError: the port is taken.
        ExceptionGroup: from ``stop`` and on leaving the block: what hooks and predicates raised meanwhile
            (each was taken as "no").
    """

    def __init__(self, port: int, upstream: tuple[str, int], *, advertised: int | None = None) -> None:
        kafka_messages()  # a rule may need them, and then every client would wait for it
        self._upstream = upstream
        self._rules: list[Rule] = []
        self._observers: list[Callable[[Frame, Edge], object]] = []
        self._log: deque[Seen] = deque(maxlen=_LOG_LENGTH)
        self._failures: list[Exception] = []
        self._lock = threading.RLock()  # a predicate may look at the log
        self._connections: set[asyncio.Task[None]] = set()
        self._connection_count = 0
        self._listener = listener(port)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._advertised = None if advertised is None else _as_spelt(advertised)
        self._loop = asyncio.new_event_loop()
        self._loop.add_reader(self._listener, self._accept)
        self._thread = threading.Thread(target=self._loop.run_forever, name="hold-proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients that shall go through the proxy."""
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Close every connection, held ones too, and end the thread."""
        if not self._thread.is_alive():
            return
        self._in_loop(self._close())
        self._end_thread()
        if self._failures:
            msg = "hooks of the proxy failed"
            raise ExceptionGroup(msg, self._failures)

    # -- rules ------------------------------------------------------------------------------------

    def hold(
        self,
        api_key: ApiKey,
        *,
        reset_client: bool = False,
        then: Then | None = None,
        **which: Unpack[Which],
    ) -> Hold:
        """Hold one request until ``release``.

        With ``reset_client`` the client's connection is reset at once, so that it sends the request again
        after a reconnect; without, it waits for its own socket.timeout.ms.
        """
        hold = Hold(self._loop, reset_client=reset_client)
        self._add(Rule(api_key, Outcome.HELD, then=then, hold=hold, **which))
        return hold

    def copy(self, api_key: ApiKey, *, reset_client: bool = False, **which: Unpack[Which]) -> Hold:
        """Let one request pass and keep a copy of it, which reaches the broker at ``release``, on a connection of its own.

        With ``reset_client`` the client's connection is reset in place of the answer: it sends the request again, and knows
        that it did. Without, it knows nothing of a copy, which no network does to it. The broker must ask for no login.
        """
        hold = Hold(self._loop, reset_client=reset_client)
        self._add(Rule(api_key, Outcome.COPIED, hold=hold, **which))
        return hold

    def duplicate(self, api_key: ApiKey, **which: Unpack[Which]) -> None:
        """Send one request twice; the client gets the first answer."""
        self._add(Rule(api_key, Outcome.DUPLICATED, **which))

    def swallow(self, api_key: ApiKey, **which: Unpack[WhichOfSeveral]) -> None:
        """Keep a request from the broker and leave the client's connection open: it waits for an answer that never comes."""
        self._add(Rule(api_key, Outcome.SWALLOWED, **which))

    def drop_reply(
        self, api_key: ApiKey, *, then: Then | None = None, **which: Unpack[WhichOfSeveral]
    ) -> None:
        """Let the broker do it and keep its answer from the client, whose connection stays open.

        ``then`` is called when the answer is there.
        """
        self._add(Rule(api_key, Outcome.REPLY_DROPPED, then=then, **which))

    def cut(
        self,
        api_key: ApiKey,
        edge: Edge,
        *,
        then: Then | None = None,
        **which: Unpack[WhichOfSeveral],
    ) -> None:
        """Reset the client's connection before the broker sees the request, or after it has done it.

        ``then`` is called just before the reset, for instance to kill the client's process at this edge.
        """
        outcome = Outcome.CUT_BEFORE if edge is Edge.REQUEST else Outcome.CUT_AFTER
        self._add(Rule(api_key, outcome, then=then, **which))

    def edit_reply(self, api_key: ApiKey, edit: Edit, **which: Unpack[WhichOfSeveral]) -> None:
        """Give the client what ``edit`` makes of a request and the broker's answer to it."""
        self._add(Rule(api_key, Outcome.REPLY_EDITED, edit=edit, **which))

    def refuse(
        self,
        api_key: ApiKey,
        error: int,
        *,
        then: Then | None = None,
        after_s: float = 0.0,
        **which: Unpack[WhichOfSeveral],
    ) -> None:
        """Answer a request of a transaction by an error code, and keep it from the broker. ``then`` is called just before.

        ``after_s``: so many seconds later. What the client sends behind it on the same connection reaches the broker after that.
        """

        def answer(frame: Frame, _: bytes) -> bytes:
            if then is not None:
                then(frame)
            return refusal(frame, error)

        self._add(Rule(api_key, Outcome.REFUSED, edit=answer, after_s=after_s, **which))

    def clear_rules(self) -> None:
        """Let everything pass from now on; what is held stays held."""
        with self._lock:
            self._rules.clear()

    # -- observation ------------------------------------------------------------------------------

    def on_frame(self, callback: Callable[[Frame, Edge], object]) -> None:
        """Call ``callback`` in the proxy's thread for every request and for every answer, before it goes on.

        It must be quick: the whole proxy waits for it.
        """
        with self._lock:
            self._observers.append(callback)

    @property
    def frames(self) -> list[Seen]:
        """Every request so far (the last 100,000), in the order in which they came."""
        with self._lock:
            return list(self._log)

    def requests(self, api_key: ApiKey, *, client_id: str | None = None) -> list[Seen]:
        """Every request so far of this kind, of this client if named."""
        return [
            seen for seen in self.frames if seen.api_key == api_key and client_id in (None, seen.client_id)
        ]

    # -- in the proxy's thread --------------------------------------------------------------------

    def decide(self, connection: int, frame: Frame) -> Rule | None:
        """The rule that acts on this request, if any; logs the request."""
        with self._lock:
            rule = next((one for one in self._rules if self.guarded(partial(one.counts, frame))), None)
            self._log.append(
                Seen(
                    at=time.monotonic(),
                    connection=connection,
                    client_id=frame.client_id,
                    api_key=frame.api_key,
                    api_version=frame.api_version,
                    transactional_id=frame.transactional_id,
                    outcome=rule.outcome if rule else Outcome.FORWARDED,
                )
            )
        return rule

    def announce(self, frame: Frame, edge: Edge) -> None:
        """Tell the observers."""
        with self._lock:
            observers = list(self._observers)
        for observer in observers:
            self.guarded(partial(observer, frame, edge))

    def readdressed(self, frame: Frame, answer: bytes) -> bytes:
        """The answer with this proxy's address where the broker names its listener's."""
        if self._advertised is None or frame.api_key not in _NAME_BROKERS:
            return answer
        return answer.replace(self._advertised, _as_spelt(self.port))

    def send_later(self, frame: Frame, hold: Hold) -> None:
        """Keep a copy of this request until it is released."""
        task = self._loop.create_task(send_copy(self._upstream, frame, hold))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    def guarded(self, hook: Callable[[], object]) -> object:
        """Call test code; what it raises is kept for the end."""
        # A hook is test code: its failure must fail the test (see stop), not hang the client.
        try:
            return hook()
        except Exception as error:  # noqa: BLE001
            self._failures.append(error)
            return None

    def _in_loop(self, coroutine: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_STOP_S)

    def _add(self, rule: Rule) -> None:
        with self._lock:
            self._rules.append(rule)

    def _accept(self) -> None:
        # By hand: asyncio's server accepts in a task of its own, which leaves its socket open where the server is closed meanwhile.
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        client.setblocking(False)
        self._connection_count += 1
        task = self._loop.create_task(self._serve(self._connection_count, client))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: client.close())  # also where it is cancelled before its first line

    async def _serve(self, number: int, client: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client)
        try:
            await Connection(self, number, reader, writer).run(self._upstream)
        finally:
            reset(writer)

    async def _close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        # Again: wait_for swallows a cancellation that comes when what it waits for is done (Python 3.11).
        while self._connections:
            for task in self._connections:
                task.cancel()
            await asyncio.wait(self._connections, timeout=_ROUND_S)
        for _ in range(_TURNS_TO_CLOSE):
            await asyncio.sleep(0)

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)
        self._loop.close()


def _as_spelt(port: int) -> bytes:
    """An address in an answer: the host's text, and behind it the port in four bytes."""
    return b"127.0.0.1" + port.to_bytes(4)

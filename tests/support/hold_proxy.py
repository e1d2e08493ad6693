"""A TCP proxy that knows Kafka's frames: it holds, repeats, drops or cuts chosen requests of a client.

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
import contextlib
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Self, TypeVar

from tests.support.kafka_frames import ApiKey, Frame

__all__ = ["ApiKey", "Edge", "Frame", "Hold", "HoldProxy", "Outcome", "Seen", "ends_with"]

Where = Callable[[Frame], bool]
Then = Callable[[Frame], object]
T = TypeVar("T")

_DRAIN_S = 5.0  # how long answers to requests of a client that is gone are awaited, so that they take effect
_CONNECT_S = 5.0
_STOP_S = 5.0
_LOG_LENGTH = 100_000


class Edge(Enum):
    """A moment in the life of a request."""

    REQUEST = "request"  # the broker has not seen it
    REPLY = "reply"  # the broker has done it, the client does not know


class Outcome(Enum):
    """What became of a request; ``FORWARDED`` unless a rule acted on it."""

    FORWARDED = "forwarded"
    HELD = "held"
    DUPLICATED = "duplicated"
    REPLY_DROPPED = "reply dropped"
    CUT_BEFORE = "cut before the broker saw it"
    CUT_AFTER = "cut after the broker had done it"


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


def ends_with(*, committed: bool) -> Where:
    """A predicate: an EndTxn that commits, or one that aborts."""

    def matches(frame: Frame) -> bool:
        end = frame.end_txn()
        return end is not None and end.committed is committed

    return matches


class HoldProxy:
    """A proxy of one broker listener in a thread of its own; a context manager that listens at once.

    Args:
        port: where it listens on 127.0.0.1, the port that the broker's listener advertises; 0 = any free.
        upstream: host and port of the broker's listener.

    Raises:
        OSError: the port is taken.
        ExceptionGroup: from ``stop`` and on leaving the block: what hooks and predicates raised meanwhile
            (each was taken as "no").
    """

    def __init__(self, port: int, upstream: tuple[str, int]) -> None:
        self.port = port
        self._upstream = upstream
        self._rules: list[_Rule] = []
        self._observers: list[Callable[[Frame, Edge], object]] = []
        self._log: deque[Seen] = deque(maxlen=_LOG_LENGTH)
        self._failures: list[Exception] = []
        self._lock = threading.RLock()  # a predicate may look at the log
        self._connections: set[asyncio.Task[None]] = set()
        self._connection_count = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hold-proxy", daemon=True)
        self._thread.start()
        try:
            self._server = self._in_loop(self._listen())
        except BaseException:
            self._end_thread()
            raise

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
        nth: int = 1,
        client_id: str | None = None,
        where: Where | None = None,
        reset_client: bool = False,
        then: Then | None = None,
    ) -> Hold:
        """Hold one request until ``release``.

        With ``reset_client`` the client's connection is reset at once, so that it sends the request again
        after a reconnect; without, it waits for its own socket.timeout.ms.
        """
        hold = Hold(self._loop, reset_client=reset_client)
        self._add(_Rule(api_key, Outcome.HELD, nth, 1, client_id, where, then, hold))
        return hold

    def duplicate(
        self, api_key: ApiKey, *, nth: int = 1, client_id: str | None = None, where: Where | None = None
    ) -> None:
        """Send one request twice; the client gets the first answer."""
        self._add(_Rule(api_key, Outcome.DUPLICATED, nth, 1, client_id, where))

    def drop_reply(
        self,
        api_key: ApiKey,
        *,
        nth: int = 1,
        times: int = 1,
        client_id: str | None = None,
        where: Where | None = None,
        then: Then | None = None,
    ) -> None:
        """Let the broker do it and keep its answer from the client, whose connection stays open.

        ``then`` is called when the answer is there.
        """
        self._add(_Rule(api_key, Outcome.REPLY_DROPPED, nth, times, client_id, where, then))

    def cut(
        self,
        api_key: ApiKey,
        edge: Edge,
        *,
        nth: int = 1,
        times: int = 1,
        client_id: str | None = None,
        where: Where | None = None,
        then: Then | None = None,
    ) -> None:
        """Reset the client's connection before the broker sees the request, or after it has done it.

        ``then`` is called just before the reset, for instance to kill the client's process at this edge.
        """
        outcome = Outcome.CUT_BEFORE if edge is Edge.REQUEST else Outcome.CUT_AFTER
        self._add(_Rule(api_key, outcome, nth, times, client_id, where, then))

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

    def _decide(self, connection: int, frame: Frame) -> _Rule | None:
        """The rule that acts on this request, if any; logs the request."""
        with self._lock:
            rule = next((one for one in self._rules if self._guarded(partial(one.counts, frame))), None)
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

    def _announce(self, frame: Frame, edge: Edge) -> None:
        with self._lock:
            observers = list(self._observers)
        for observer in observers:
            self._guarded(partial(observer, frame, edge))

    def _guarded(self, hook: Callable[[], object]) -> object:
        # A hook is test code: its failure must fail the test (see stop), not hang the client.
        try:
            return hook()
        except Exception as error:  # noqa: BLE001
            self._failures.append(error)
            return None

    def _in_loop(self, coroutine: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_STOP_S)

    def _add(self, rule: _Rule) -> None:
        with self._lock:
            self._rules.append(rule)

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._connections.add(task)
        self._connection_count += 1
        try:
            await _Connection(self, self._connection_count, reader, writer).run(self._upstream)
        except asyncio.CancelledError:
            pass  # stop() ends what still runs
        finally:
            self._connections.discard(task)
            _reset(writer)

    async def _close(self) -> None:
        self._server.close()
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)
        self._loop.close()


class Hold:
    """One request to hold, made by ``HoldProxy.hold``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, reset_client: bool) -> None:
        self.reset_client = reset_client
        self._loop = loop
        self._go = asyncio.Event()
        self._caught = threading.Event()
        self._answered = threading.Event()
        self._frame: Frame | None = None
        self._answer = b""

    def wait_held(self, timeout_s: float) -> Frame:
        """Wait until the request has come and is held. Raises TimeoutError."""
        if not self._caught.wait(timeout_s) or self._frame is None:
            msg = f"no request to hold came within {timeout_s} s"
            raise TimeoutError(msg)
        return self._frame

    def release(self) -> None:
        """Let the request go to the broker; one that comes later is not held at all."""
        self._loop.call_soon_threadsafe(self._go.set)

    def wait_answer(self, timeout_s: float) -> bytes:
        """Wait until the broker has answered the released request. Raises TimeoutError."""
        if not self._answered.wait(timeout_s):
            msg = f"the released request got no answer within {timeout_s} s"
            raise TimeoutError(msg)
        return self._answer

    async def _hold(self, frame: Frame) -> None:
        self._frame = frame
        self._caught.set()
        await self._go.wait()

    def _take_answer(self, answer: bytes) -> None:
        self._answer = answer
        self._answered.set()


@dataclass
class _Rule:
    api_key: ApiKey
    outcome: Outcome
    nth: int
    times: int
    client_id: str | None = None
    where: Where | None = None
    then: Then | None = None
    hold: Hold | None = None
    matched: int = 0

    def counts(self, frame: Frame) -> bool:
        """Count the request if it matches; true if it is one to act on."""
        if frame.api_key != self.api_key or self.client_id not in (None, frame.client_id):
            return False
        if self.where is not None and not self.where(frame):
            return False
        self.matched += 1
        return self.nth <= self.matched < self.nth + self.times


@dataclass(frozen=True)
class _Pending:
    """A request that waits for its answer."""

    frame: Frame
    rule: _Rule | None = None
    swallow: bool = False


class _Connection:
    """One client connection and its own connection to the broker."""

    def __init__(
        self, proxy: HoldProxy, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._number = number
        self._client_reader = reader
        self._client = writer
        self._pending: defaultdict[int, deque[_Pending]] = defaultdict(deque)
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    async def run(self, upstream: tuple[str, int]) -> None:
        """Pump until the client has gone and its requests are answered, or the broker has gone."""
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(*upstream), _CONNECT_S)
        except (OSError, TimeoutError):
            return  # the client finds its connection closed, as with a broker that is down
        answers = asyncio.ensure_future(self._pump_answers(reader))
        requests = asyncio.ensure_future(self._pump_requests(writer))
        try:
            await asyncio.wait({answers, requests}, return_when=asyncio.FIRST_COMPLETED)
            if requests.done() and not answers.done():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._all_answered.wait(), _DRAIN_S)
        finally:
            answers.cancel()
            requests.cancel()
            writer.close()
            await asyncio.gather(answers, requests, return_exceptions=True)

    async def _pump_requests(self, broker: asyncio.StreamWriter) -> None:
        while (payload := await _read_frame(self._client_reader)) is not None:
            frame = Frame.parse(payload)
            rule = self._proxy._decide(self._number, frame)
            self._proxy._announce(frame, Edge.REQUEST)
            outcome = rule.outcome if rule else Outcome.FORWARDED
            if rule is not None and rule.then and outcome in (Outcome.HELD, Outcome.CUT_BEFORE):
                self._proxy._guarded(partial(rule.then, frame))
            if outcome is Outcome.CUT_BEFORE:
                _reset(self._client)
                return
            if rule is not None and rule.hold is not None:
                if rule.hold.reset_client:
                    _reset(self._client)
                await rule.hold._hold(frame)
            self._expect(_Pending(frame, rule))
            broker.write(_with_length(payload))
            if outcome is Outcome.DUPLICATED:
                self._expect(_Pending(frame, swallow=True))
                broker.write(_with_length(payload))
            try:
                await broker.drain()
            except OSError:
                return

    async def _pump_answers(self, broker: asyncio.StreamReader) -> None:
        while (answer := await _read_frame(broker)) is not None:
            (correlation_id,) = struct.unpack_from(">i", answer)
            waiting = self._pending[correlation_id]  # the broker answers requests only
            pending = waiting.popleft()
            if not waiting:
                del self._pending[correlation_id]
            if self._pass_on(pending, answer):
                self._client.write(_with_length(answer))
                with contextlib.suppress(OSError):  # the client has gone; go on to drain the answers
                    await self._client.drain()
            if not self._pending:
                self._all_answered.set()

    def _pass_on(self, pending: _Pending, answer: bytes) -> bool:
        """Do what the rule says about this answer; whether the client shall get it."""
        self._proxy._announce(pending.frame, Edge.REPLY)
        rule = pending.rule
        if rule is not None and rule.hold is not None:
            rule.hold._take_answer(answer)
        if rule is not None and rule.then and rule.outcome in (Outcome.REPLY_DROPPED, Outcome.CUT_AFTER):
            self._proxy._guarded(partial(rule.then, pending.frame))
        if rule is not None and rule.outcome is Outcome.CUT_AFTER:
            _reset(self._client)
        ends_here = rule is not None and rule.outcome in (Outcome.REPLY_DROPPED, Outcome.CUT_AFTER)
        return not (ends_here or pending.swallow or self._client.is_closing())

    def _expect(self, pending: _Pending) -> None:
        self._pending[pending.frame.correlation_id].append(pending)
        self._all_answered.clear()


async def _read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The payload of the next frame; None at the end of the stream."""
    try:
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, OSError):
        return None


def _with_length(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def _reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with RST, not FIN: the peer must not take it for an orderly close."""
    if writer.is_closing():
        return
    connected: socket.socket | None = writer.get_extra_info("socket")
    if connected is not None:
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

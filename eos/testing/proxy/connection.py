"""One client connection through a HoldProxy, with a connection of its own to the broker."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from eos.testing.proxy.frames import Frame
from eos.testing.proxy.proxy_rules import Edge, Hold, Outcome, Rule

_DRAIN_S = 5.0  # how long answers to requests of a client that is gone are awaited, so that they take effect
_CONNECT_S = 5.0


class Judge(Protocol):
    """What decides on requests: the proxy."""

    def decide(self, connection: int, frame: Frame) -> Rule | None:
        """The rule that acts on this request, if any; logs the request."""

    def announce(self, frame: Frame, edge: Edge) -> None:
        """Tell the observers."""

    def readdressed(self, frame: Frame, answer: bytes) -> bytes:
        """The answer with this proxy's address where the broker names its listener's."""

    def send_later(self, frame: Frame, hold: Hold) -> None:
        """Keep a copy of this request until it is released."""

    def guarded(self, hook: Callable[[], object]) -> object:
        """Call test code; what it raises is kept for the end."""


@dataclass(frozen=True)
class _Pending:
    """A request that waits for its answer."""

    frame: Frame
    rule: Rule | None = None
    swallow: bool = False


class Connection:
    """The two pumps between a client and the broker."""

    def __init__(
        self, proxy: Judge, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._number = number
        self._client_reader = reader
        self._client = writer
        self._client_port: int = (writer.get_extra_info("peername") or ("", 0))[1]
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
            frame = Frame.parse(payload, self._client_port)
            rule = self._proxy.decide(self._number, frame)
            self._proxy.announce(frame, Edge.REQUEST)
            outcome = rule.outcome if rule else Outcome.FORWARDED
            if rule is not None and rule.then and outcome in (Outcome.HELD, Outcome.CUT_BEFORE):
                self._proxy.guarded(partial(rule.then, frame))
            if outcome is Outcome.CUT_BEFORE:
                reset(self._client)
                return
            if outcome in (Outcome.SWALLOWED, Outcome.REFUSED):
                await self._refuse(_Pending(frame, rule))
                continue
            if rule is not None and rule.hold is not None:
                await self._keep(frame, rule.hold, copied=outcome is Outcome.COPIED)
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
                edited = self._edited(pending, answer)
                self._client.write(_with_length(self._proxy.readdressed(pending.frame, edited)))
                with contextlib.suppress(OSError):  # the client has gone; go on to drain the answers
                    await self._client.drain()
            if not self._pending:
                self._all_answered.set()

    def _pass_on(self, pending: _Pending, answer: bytes) -> bool:
        """Do what the rule says about this answer; whether the client shall get it."""
        self._proxy.announce(pending.frame, Edge.REPLY)
        rule = pending.rule
        if rule is not None and rule.hold is not None and rule.outcome is not Outcome.COPIED:
            rule.hold.take_answer(answer)
        if rule is not None and rule.then and rule.outcome in (Outcome.REPLY_DROPPED, Outcome.CUT_AFTER):
            self._proxy.guarded(partial(rule.then, pending.frame))
        cut = rule is not None and (
            rule.outcome is Outcome.CUT_AFTER
            or (rule.outcome is Outcome.COPIED and rule.hold is not None and rule.hold.reset_client)
        )
        if cut:
            reset(self._client)
        ends_here = cut or (rule is not None and rule.outcome is Outcome.REPLY_DROPPED)
        return not (ends_here or pending.swallow or self._client.is_closing())

    def _edited(self, pending: _Pending, answer: bytes) -> bytes:
        if pending.rule is None or pending.rule.edit is None:
            return answer
        edited = self._proxy.guarded(partial(pending.rule.edit, pending.frame, answer))
        return edited if isinstance(edited, bytes) else answer

    async def _keep(self, frame: Frame, hold: Hold, *, copied: bool) -> None:
        if copied:
            self._proxy.send_later(frame, hold)
            return
        if hold.reset_client:
            reset(self._client)
        await hold.hold_back(frame)

    async def _refuse(self, pending: _Pending) -> None:
        """Answer in the broker's place, if the rule does, whatever else is unanswered: clients find a request by its number."""
        if pending.rule is not None and pending.rule.after_s:
            await asyncio.sleep(pending.rule.after_s)
        answer = self._edited(pending, b"")
        if answer:
            self._client.write(_with_length(answer))
            with contextlib.suppress(OSError):
                await self._client.drain()

    def _expect(self, pending: _Pending) -> None:
        self._pending[pending.frame.correlation_id].append(pending)
        self._all_answered.clear()


async def send_copy(upstream: tuple[str, int], frame: Frame, hold: Hold) -> None:
    """Send a request once more, on a connection of its own, when it is released."""
    await hold.hold_back(frame)
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(*upstream), _CONNECT_S)
    except (OSError, TimeoutError):
        return  # the broker is down: the copy is lost
    try:
        writer.write(_with_length(frame.payload))
        if (answer := await _read_frame(reader)) is not None:
            hold.take_answer(answer)
    finally:
        writer.close()


async def _read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The payload of the next frame; None at the end of the stream."""
    try:
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, OSError):
        return None


def _with_length(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with RST, not FIN: the peer must not take it for an orderly close."""
    if writer.is_closing():
        return
    connected: socket.socket | None = writer.get_extra_info("socket")
    if connected is not None:
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

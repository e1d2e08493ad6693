"""What a HoldProxy is told to do: the rules, and the handle on a request that is held."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypedDict

from eos.testing.proxy.frames import ApiKey, Frame

Where = Callable[[Frame], bool]
Then = Callable[[Frame], object]
Edit = Callable[[Frame, bytes], bytes]


class Which(TypedDict, total=False):
    """Which of the requests of a kind a rule acts on: from the ``nth`` on (1 = the next one), of this client, where that holds."""

    nth: int
    client_id: str | None
    where: Where | None


class WhichOfSeveral(Which, total=False):
    """Which requests, and on how many of them."""

    times: int


class Edge(Enum):
    """A moment in the life of a request."""

    REQUEST = "request"  # the broker has not seen it
    REPLY = "reply"  # the broker has done it, the client does not know


class Outcome(Enum):
    """What became of a request; ``FORWARDED`` unless a rule acted on it."""

    FORWARDED = "forwarded"
    HELD = "held"
    DUPLICATED = "duplicated"
    SWALLOWED = "swallowed, and the broker never saw it"
    REPLY_DROPPED = "reply dropped"
    REPLY_EDITED = "reply edited"
    REFUSED = "answered by the proxy, and the broker never saw it"
    COPIED = "a copy kept for later"
    CUT_BEFORE = "cut before the broker saw it"
    CUT_AFTER = "cut after the broker had done it"


def ends_with(*, committed: bool) -> Where:
    """A predicate: an EndTxn that commits, or one that aborts."""

    def matches(frame: Frame) -> bool:
        end = frame.end_txn()
        return end is not None and end.committed is committed

    return matches


class Hold:
    """One request to hold, made by ``HoldProxy.hold``, or the copy of one, made by ``HoldProxy.copy``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, reset_client: bool) -> None:
        self.reset_client = reset_client
        self._loop = loop
        self._go = asyncio.Event()
        self._caught = threading.Event()
        self._answered = threading.Event()
        self._frame: Frame | None = None
        self._answer = b""

    @property
    def is_held(self) -> bool:
        """Whether the request has come."""
        return self._caught.is_set()

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

    def deliver(self, timeout_s: float) -> int:
        """Let the request go once it is held; returns the broker's error code, 0 if it did what it says."""
        frame = self.wait_held(timeout_s)
        self.release()
        return frame.error_in(self.wait_answer(timeout_s))

    async def hold_back(self, frame: Frame) -> None:
        """Wait for the release (in the proxy's loop)."""
        self._frame = frame
        self._caught.set()
        await self._go.wait()

    def take_answer(self, answer: bytes) -> None:
        """The broker's answer is there (in the proxy's loop)."""
        self._answer = answer
        self._answered.set()


@dataclass
class Rule:
    """Which requests to act on, and how."""

    api_key: ApiKey
    outcome: Outcome
    nth: int = 1
    times: int = 1
    client_id: str | None = None
    where: Where | None = None
    then: Then | None = None
    hold: Hold | None = None
    edit: Edit | None = None
    after_s: float = 0.0
    matched: int = 0

    def counts(self, frame: Frame) -> bool:
        """Count the request if it matches; true if it is one to act on."""
        if frame.api_key != self.api_key or self.client_id not in (None, frame.client_id):
            return False
        if self.where is not None and not self.where(frame):
            return False
        self.matched += 1
        return self.nth <= self.matched < self.nth + self.times

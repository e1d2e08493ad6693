"""Strangers in the group, looked for from time to time, and said when they come and when they have gone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import NamedTuple

from eos.base.threads import future_beside
from eos.core.surroundings import Seat, Watch
from eos.events import StrangersInGroup
from eos.group.strangers import strangers
from eos.kafka.admin import Admin
from eos.kafka.consumer import ConsumerClient
from eos.offsets import OffsetVector

_EVERY_S = 20.0
_ANSWER_S = 1.0  # how often to look whether there is one
_CALL_S = 10.0
_GONE_AFTER = 3  # times that the watch which asks has not


class _Asking(NamedTuple):
    watch: object  # a token of it
    at: float


# An instance that owns a hundred partitions without being a member has a hundred consumers, of which one asks.
_asking: dict[str, _Asking] = {}
_choosing = threading.Lock()


class Strangers(Watch):
    """Looks at the members of a group.

    Args:
        seat: the consumer's.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._token = object()
        self.due_at = time.monotonic() + _EVERY_S / 2  # an instance that has just come is a member by then
        self._asked_at = 0.0
        self._admin: Admin | None = None
        self._asked: Future[tuple[str, ...]] | None = None
        self._known: tuple[str, ...] = ()

    def look(self, client: ConsumerClient, owned: OffsetVector) -> str:  # noqa: ARG002 - it asks the group
        """Ask, or take up what was answered since."""
        now, asked = time.monotonic(), self._asked
        self.due_at = now + _ANSWER_S
        if asked is None and not self._asks(now):
            self.due_at = now + _EVERY_S
        elif asked is None:
            self._asked, self._asked_at = future_beside(self._ask, name="eos-strangers"), now
        elif asked.done():
            self._asked, self.due_at = None, self._asked_at + _EVERY_S
            if asked.exception() is None:
                self._say(asked.result())
        return ""

    def _asks(self, now: float) -> bool:
        """Whether this is the watch of its instance that asks: each member does, and one for all partitions of an owner that is none."""
        seat = self._seat
        if seat.given is None:
            return True
        instance = f"{seat.settings.kafka.bootstrap_servers} {seat.group} {seat.settings.ownership}"
        with _choosing:
            last = _asking.get(instance, _Asking(self._token, now))
            if last.watch is not self._token and now < last.at + _GONE_AFTER * _EVERY_S:
                return False
            _asking[instance] = _Asking(self._token, now)
            return True

    def _say(self, found: tuple[str, ...]) -> None:
        if found != self._known:
            self._known = found
            self._seat.listener(StrangersInGroup(self._seat.shard, self._seat.group, found))

    def _ask(self) -> tuple[str, ...]:
        self._admin = self._admin or Admin.of(self._seat.settings)
        members = self._admin.groups.members(self._seat.group, _CALL_S)
        owned_by_members = self._seat.given is None
        found = strangers(self._seat.settings, self._seat.group, members, owned_by_members=owned_by_members)
        return tuple(sorted(map(str, found)))

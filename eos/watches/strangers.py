"""Strangers in the group, looked for from time to time, and said when they come and when they have gone."""

from __future__ import annotations

import time
from concurrent.futures import Future

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


class Strangers(Watch):
    """Looks at the members of a group of which this consumer is one.

    Args:
        seat: the consumer's.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self.due_at = time.monotonic() + _EVERY_S / 2  # an instance that has just come is a member by then
        self._asked_at = 0.0
        self._admin: Admin | None = None
        self._asked: Future[tuple[str, ...]] | None = None
        self._known: tuple[str, ...] = ()

    @classmethod
    def of(cls, seat: Seat) -> Strangers | None:
        """For a member. An owner that is none refuses a group with members at its start."""
        return cls(seat) if seat.given is None else None

    def look(self, client: ConsumerClient, owned: OffsetVector) -> str:  # noqa: ARG002 - it asks the group
        """Ask, or take up what was answered since."""
        now, asked = time.monotonic(), self._asked
        self.due_at = now + _ANSWER_S
        if asked is None:
            self._asked, self._asked_at = future_beside(self._ask, name="eos-strangers"), now
        elif asked.done():
            self._asked, self.due_at = None, self._asked_at + _EVERY_S
            if asked.exception() is None:
                self._say(asked.result())
        return ""

    def _say(self, found: tuple[str, ...]) -> None:
        if found != self._known:
            self._known = found
            self._seat.listener(StrangersInGroup(self._seat.shard, self._seat.group, found))

    def _ask(self) -> tuple[str, ...]:
        self._admin = self._admin or Admin.of(self._seat.settings)
        members = self._admin.groups.members(self._seat.group, _CALL_S)
        found = strangers(self._seat.settings, self._seat.group, members, owned_by_members=True)
        return tuple(sorted(map(str, found)))

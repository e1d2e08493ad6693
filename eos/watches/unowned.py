"""Unowned: notices input partitions that no member of the group has, and says which member has to join anew.

The cooperative protocol moves partitions in two rounds: in the first the group is stable and they belong to no member,
and the members that have given them up ask for the second. A *static* member that was killed by then, or that librdkafka
has let join anew because it had not polled for max.poll.interval.ms, asks for none: it is given its old assignment without a
rebalance (measured with Apache Kafka 4.2 and librdkafka 2.16). The partitions would then stay without an owner until the
group rebalances for another reason. A member of another name is a reason.
"""

from __future__ import annotations

import time
from concurrent.futures import Future

from eos.base.threads import future_beside
from eos.core.surroundings import Seat, Watch
from eos.kafka.admin import Admin
from eos.kafka.consumer import ConsumerClient
from eos.offsets import OffsetVector, Partition

_LOOKS = 3  # in a session timeout: for so long the group has to stand still, as it does not while members come or go
_CALL_S = 10.0

_Assigned = dict[str, frozenset[Partition]]


class Unowned(Watch):
    """Looks after the partitions that a static member's group should have assigned.

    Args:
        seat: the member's; the session timeout.
        instance_id: the name under which the group knows it.
    """

    def __init__(self, seat: Seat, instance_id: str) -> None:
        self._settings = seat.settings
        self._group = seat.group
        self._inputs = frozenset(seat.partitions)
        self._instance_id = instance_id
        self._every_s = seat.settings.ownership.session_timeout_ms / 1000 / _LOOKS
        self.due_at = time.monotonic() + self._every_s
        self._admin: Admin | None = None
        self._asked: Future[_Assigned] | None = None
        self._before: _Assigned = {}
        self._seen = 0

    @classmethod
    def of(cls, seat: Seat) -> Unowned | None:
        """For a static member; a dynamic one that asks for nothing leaves its group."""
        return None if seat.instance_id is None else cls(seat, seat.instance_id)

    def joined_anew(self, seat: Seat) -> None:
        """Its old name is a member until that one's session times out."""
        self._instance_id = seat.instance_id or self._instance_id
        self.due_at = time.monotonic() + self._every_s
        self._asked, self._before, self._seen = None, {}, 0

    def look(self, client: ConsumerClient, owned: OffsetVector) -> str:  # noqa: ARG002 - it asks the group
        """Names the partitions without an owner if this member has to join anew for them.

        Of all members it is the one with the fewest partitions, which wait until its old name's session has timed out.
        Nothing is waited for: it judges the answer to the question of the last look.
        """
        self.due_at = time.monotonic() + self._every_s
        asked = self._asked
        done = asked is not None and asked.done()
        if asked is None or done:
            self._asked = future_beside(self._ask, name="eos-unowned")
        assigned = asked.result() if asked and done and asked.exception() is None else {}
        without = sorted(self._inputs.difference(*assigned.values())) if assigned else []
        self._seen = self._seen + 1 if without and assigned == self._before else 0
        self._before = assigned
        fewest = min(assigned, key=lambda name: (len(assigned[name]), name), default="")
        if self._seen < _LOOKS or self._instance_id != fewest:
            return ""
        self._seen, self._before = 0, {}
        return f"no member of the group {self._group!r} owns {', '.join(map(str, without))}"

    def _ask(self) -> _Assigned:
        self._admin = self._admin or Admin.of(self._settings)
        return self._admin.groups.stable_assignment(self._group, _CALL_S)

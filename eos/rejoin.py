"""Rejoin: whether a static member that the group has fenced may join again: once nobody lives under its name.

Kafka fences a static member by its own late requests too, without a rival (measured: after a broker stood still
for longer than the session timeout, librdkafka's next heartbeat named the instance but no member any more).
A replacement opens its producer first and joins the group after that, and from then on it lives under the name:
its heartbeats keep it there. What our own requests left under it has no heartbeats, and the coordinator drops it
after the session timeout. So:

- nobody lives under the name: no replacement had joined. One that joins from now on fences us again, and one
  that has only opened its producer fences our next transaction.
- somebody is there for longer than a session: it is alive, so it is a replacement, and we stop.

The group is asked, not the transaction coordinator: an init would fence a replacement that has not committed
yet, and without an init librdkafka has no question that leaves nothing behind.
"""

from __future__ import annotations

import time

from eos.errors import FencedError, RetriableError, UnavailableError
from eos.kafka.admin import Admin
from eos.settings import Settings

FENCED_MEMBER = "FENCED_INSTANCE_ID"  # the code of the group coordinator's fence; a producer's is another

_ASK_EVERY_S = 0.5
_CALL_S = 1.0  # the loop turns between two questions
_MARGIN_S = 5.0  # after the session timeout: requests that were under way, and the coordinator's own timers
_MAX_REJOINS = 3
_WITHIN_S = 600.0


class Rejoin:
    """Asks for one static member of one group.

    Args:
        settings: how to reach the cluster, and the session timeout.
        group: the group.
        instance_id: the member's group.instance.id.
    """

    def __init__(self, settings: Settings, group: str, instance_id: str) -> None:
        self._settings = settings
        self._group = group
        self._instance_id = instance_id
        self._fence: FencedError | None = None
        self._fenced_at: list[float] = []
        self._admin: Admin | None = None
        self._give_up_at = 0.0
        self._ask_at = 0.0
        self._seen_since: float | None = None

    @property
    def pending(self) -> bool:
        """Whether the member was fenced and may not join yet."""
        return self._fence is not None

    def fenced(self, error: FencedError) -> int:
        """The group has fenced the member; returns the how-manieth time it is lately.

        Raises:
            FencedError: the same; it has happened too often, so two instances keep fencing each other.
        """
        now = time.monotonic()
        self._fenced_at = [at for at in self._fenced_at if now - at < _WITHIN_S]
        if len(self._fenced_at) >= _MAX_REJOINS:
            raise error
        self._fenced_at.append(now)
        self._fence = error
        self._seen_since = None
        # At once there is only what fenced us.
        self._ask_at = now + _ASK_EVERY_S * 2 ** (len(self._fenced_at) - 1)
        self._give_up_at = now + self._settings.open_deadline_s
        return len(self._fenced_at)

    def may_join(self) -> bool:
        """Whether nobody lives under the member's name any more. Asks the cluster twice a second at most.

        Raises:
            FencedError: somebody does, for longer than a session that nobody keeps alive.
            UnavailableError: the cluster did not answer in time.
        """
        now = time.monotonic()
        if self._fence is None or now < self._ask_at:
            return self._fence is None
        self._ask_at = now + _ASK_EVERY_S
        self._admin = self._admin or Admin(self._settings.client_config())
        try:
            living = self._admin.instance_ids(self._group, _CALL_S)
        except RetriableError as error:
            # The coordinator's clock may have stood still as well.
            self._seen_since = None
            if now >= self._give_up_at:
                raise UnavailableError(
                    f"group {self._group!r}: no answer to who its members are: {error}"
                ) from error
            return False
        self._give_up_at = now + self._settings.open_deadline_s
        if self._instance_id not in living:
            self._fence = self._admin = None
            return True
        self._seen_since = self._seen_since or now
        if now - self._seen_since > self._settings.ownership.session_timeout_ms / 1000 + _MARGIN_S:
            raise self._fence
        return False

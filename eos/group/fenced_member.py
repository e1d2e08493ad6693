"""FencedMember: decides whether a static member that its group has fenced may join again.

Kafka also fences a static member because of its own late requests, without a replacement (measured: after a broker was
paused for longer than the session timeout, librdkafka's next heartbeat carried the instance id but no member id). A
replacement opens its producer first and joins the group after that; from then on its heartbeats keep it in the group. A
member entry that our own requests left has no heartbeats, and the coordinator removes it after the session timeout. So:

- The group has no member with this group.instance.id: no replacement has joined. One that joins later fences us again, and
  one that has only opened its producer fences our next transaction. We join again.
- The group still has one after a session timeout: it is a live replacement. We stop.

The group coordinator is asked, not the transaction coordinator: an init would fence a replacement that has not committed
yet, and librdkafka has no other request to the transaction coordinator that changes nothing.
"""

from __future__ import annotations

import time

from eos.errors import ONE_OWNER, FencedError, RetriableError, UnavailableError
from eos.kafka.admin import Admin
from eos.settings import Settings

FENCED_MEMBER = "FENCED_INSTANCE_ID"  # the code of the group coordinator's fence; a producer's is another

_ASK_EVERY_S = 0.5
_CALL_S = 1.0  # the loop runs between two calls
_MARGIN_S = 5.0  # on top of the session timeout: for requests in flight, and the coordinator's timers
_MAX_REJOINS = 3
_WITHIN_S = 600.0


class FencedMember:
    """One static member of one group, after a fence.

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

    def note_fence(self, error: FencedError) -> int:
        """The group has fenced the member; returns how many times in the last ten minutes.

        Raises:
            FencedError: the same error: after three rejoins, two instances keep fencing each other.
        """
        now = time.monotonic()
        self._fenced_at = [at for at in self._fenced_at if now - at < _WITHIN_S]
        if len(self._fenced_at) >= _MAX_REJOINS:
            raise error
        self._fenced_at.append(now)
        self._fence = error
        self._seen_since = None
        # At once the group would show only the entry that fenced us.
        self._ask_at = now + _ASK_EVERY_S * 2 ** (len(self._fenced_at) - 1)
        self._give_up_at = now + self._settings.open_timeout_s
        return len(self._fenced_at)

    def may_join(self) -> bool:
        """Whether the group has no member with this group.instance.id. Asks at most twice per second.

        Raises:
            FencedError: it has one for longer than the session timeout, which is a live replacement.
            UnavailableError: the cluster did not answer in time.
        """
        now = time.monotonic()
        if self._fence is None or now < self._ask_at:
            return self._fence is None
        self._ask_at = now + _ASK_EVERY_S
        self._admin = self._admin or Admin.of(self._settings)
        try:
            living = {one.instance_id: one for one in self._admin.groups.members(self._group, _CALL_S)}
        except RetriableError as error:
            # The coordinator may have been paused too, so its session timeout starts anew.
            self._seen_since = None
            if now >= self._give_up_at:
                silent = UnavailableError(
                    f"group {self._group!r}: the coordinator did not list its members in time: {error}"
                )
                silent.unanswered = True
                raise silent from error
            return False
        self._give_up_at = now + self._settings.open_timeout_s
        if self._instance_id not in living:
            self._fence = self._admin = None
            return True
        self._seen_since = self._seen_since or now
        if now - self._seen_since > self._settings.ownership.session_timeout_ms / 1000 + _MARGIN_S:
            raise FencedError(
                f"{self._fence}. It is at {living[self._instance_id].host}, with the client.id "
                f"{living[self._instance_id].client_id}. {ONE_OWNER}",
                code=self._fence.code,
            ) from self._fence
        return False

"""Unreached: a watch for brokers, and a group, that a consumer waits for. It says so once, and ends a wait that is too long."""

from __future__ import annotations

import time

from eos.base.calls import Call
from eos.base.listing import listed
from eos.core.surroundings import Seat, Watch
from eos.errors import EosError, UnavailableError
from eos.events import Waiting
from eos.kafka.consumer import AWAY_S, ConsumerClient
from eos.offsets import OffsetVector

_SINCE_LAST_POLL_S = 10.0  # after a longer pause, statistics have not been read
_LOOK_S = 2.0  # as often as statistics come
_MAX_NAMED = 3  # partitions


class Unreached(Watch):
    """Looks at what the client knows of its connections, without a request.

    Args:
        seat: the consumer's; ``input.offline_timeout_ms``.
    """

    def __init__(self, seat: Seat) -> None:
        self._settings = seat.settings
        self._group = seat.group
        self._is_member = seat.given is None
        self._listener = seat.listener
        self._shard = seat.shard
        self._look_at = 0.0  # whether brokers are away …
        self._named = False  # … which was said
        self._polled_at = 0.0
        self._last_error = ""

    def failed(self, error: EosError) -> None:
        """A fetch brought an error that the client goes on after: it may be the group's."""
        self._last_error = str(error)

    def look(self, client: ConsumerClient, owned: OffsetVector) -> str:
        """Before each fetch.

        Raises:
            UnavailableError: for ``input.offline_timeout_ms`` the client has been connected to no broker, or has had no place in its
                group.
        """
        self._name(client, owned)
        polled_at, self._polled_at = self._polled_at, time.monotonic()
        if self._polled_at - polled_at > _SINCE_LAST_POLL_S:
            return ""
        longest_s = self._settings.input.offline_timeout_s
        limit = f"(input.offline_timeout_ms = {self._settings.input.offline_timeout_ms})"
        if client.disconnected_s <= longest_s < self._outside_s(client):
            raise UnavailableError(
                f"this member has had no place in the group {self._group!r} for {self._outside_s(client):.0f} s {limit}: the group "
                "refuses it, or its coordinator is out of reach. Nothing is lost, and the partitions belong to the others. Fix: what the "
                f"group says, and start again; the last error: {self._last_error or 'none'}"
            )
        if client.disconnected_s <= longest_s:
            return ""
        raise UnavailableError(
            f"the consumer of group {self._group!r} has been connected to no broker for {client.disconnected_s:.0f} s "
            f"{limit}: all brokers are down or out of reach, or an "
            "answer without any has made librdkafka forget them all, which it does not come back from (librdkafka issue 5301). "
            "Nothing is lost. Fix: start again; if that does not connect either, look at the brokers and at "
            "kafka.bootstrap_servers"
        )

    def _outside_s(self, client: ConsumerClient) -> float:
        """For how long the group's coordinator has not been reached, or has refused this member."""
        return client.outside_s if self._is_member else 0.0

    def _name(self, client: ConsumerClient, owned: OffsetVector) -> None:
        """Say once that partitions, or the group, are waited for because their brokers are away."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_S
        away = [partition for partition in owned if client.is_away(partition)]
        waited_for = f"the broker that leads {listed(away, _MAX_NAMED)}" if away else ""
        if not away and self._outside_s(client) >= AWAY_S:
            waited_for = f"the coordinator of the group {self._group!r} refuses this member, or"
        if waited_for and not self._named:
            self._listener(
                Waiting(
                    self._shard,
                    Call.CONSUME,
                    f"{waited_for} cannot be reached for {AWAY_S:.0f} s: waiting for it, "
                    f"for {self._settings.input.offline_timeout_s:.0f} s (input.offline_timeout_ms) if no other one can be",
                )
            )
        self._named = bool(waited_for)

"""Membership: an owner's place in its group, after a fence too."""

from __future__ import annotations

import time

from eos.base.calls import Call
from eos.core.consumer import ShardConsumer
from eos.errors import FencedError
from eos.events import Listener, Waiting
from eos.group.fenced_member import FENCED_MEMBER, FencedMember
from eos.group.rivals import named_rivals
from eos.records import InputBatch
from eos.settings import Settings

_REJOIN_PAUSE_S = 0.2


class Membership:
    """Fetches as a member of the group. One that the group has fenced is given up, and joins again if it has no rival.

    Args:
        settings: how to reach the cluster.
        group: the group.
        consumer: the member.
        listener: called with each event; ``shard`` is the name in the events.
    """

    def __init__(
        self, settings: Settings, group: str, consumer: ShardConsumer, *, listener: Listener, shard: str
    ) -> None:
        self._settings = settings
        self._group = group
        self._consumer = consumer
        self._listener = listener
        self._shard = shard
        self._fenced: FencedMember | None = None
        self._rivals: str | None = None  # who they are, once a fence has made this owner ask

    def fetch(self, max_records: int, timeout_s: float, linger_s: float) -> InputBatch:
        """As :meth:`ShardConsumer.fetch`; nothing comes while the member is fenced.

        Raises:
            FencedError: a live replacement has its place.
        """
        if self._fenced is not None and self._fenced.pending:
            if self._fenced.may_join():
                self._consumer.rejoin()
            else:
                time.sleep(min(timeout_s, _REJOIN_PAUSE_S))
            return InputBatch([])
        try:
            return self._consumer.fetch(max_records, timeout_s, linger_s)
        except FencedError as error:
            self._fenced_by_the_group(error)
            return InputBatch([])

    def name_rivals(self, error: FencedError) -> None:
        """After a fence of the owner's producer the error says who is in the group, as `eos run` does at its end."""
        if self._rivals is None:
            self._rivals = named_rivals(self._settings, self._group, own="those of this session")
        if self._rivals not in str(error):  # the producer repeats an error in its own words
            error.args = (f"{error}. At that time the {self._rivals}",)

    def _fenced_by_the_group(self, error: FencedError) -> None:
        """A fence of the member, not of the producer, need not mean a rival: see eos.group.fenced_member."""
        instance_id = self._consumer.instance_id
        if error.code != FENCED_MEMBER or instance_id is None:
            raise error
        self._fenced = self._fenced or FencedMember(self._settings, self._group, instance_id)
        times = self._fenced.note_fence(error)
        self._consumer.lose_all()
        self._listener(Waiting(self._shard, Call.CONSUME, f"{error} (fence {times} within ten minutes)"))

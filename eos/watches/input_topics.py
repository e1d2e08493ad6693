"""InputTopics: notices that an input topic was deleted, or deleted and created anew, while it is read."""

from __future__ import annotations

import time
from contextlib import suppress

from eos.core.surroundings import Seat, Watch
from eos.errors import EosError, RetriableError
from eos.group.topics import TopicIds, deleted, ids_of_owned, refuse_where_agreed
from eos.kafka.consumer import ConsumerClient
from eos.offsets import OffsetVector

_ASK_EVERY_S = 30.0
_ASK_AGAIN_S = 2.0  # after a topic was missing: a broker's metadata may be behind
_CALL_S = 1.0
_NO_TOPIC = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}


class InputTopics(Watch):
    """The input topics of one consumer. librdkafka continues without a deleted one, under assign() silently.

    Args:
        seat: the consumer's.
    """

    def __init__(self, seat: Seat) -> None:
        self._topics = tuple(seat.topics)
        self._topic_ids = TopicIds(seat.settings)
        self.due_at = time.monotonic() + _ASK_EVERY_S
        self._missing_before = False

    def failed(self, error: EosError) -> None:
        """An error that says that a topic may be missing comes once; then the group assigns no partition of the topic."""
        if error.code in _NO_TOPIC:
            self.due_at = min(self.due_at, time.monotonic() + _ASK_AGAIN_S)

    def look(self, client: ConsumerClient, owned: OffsetVector) -> str:  # noqa: ARG002 - it asks with another one
        """Check the topics.

        Raises:
            ConfigError: a topic was deleted.
            OffsetGapError: a topic was deleted and created anew.
        """
        self._check(owned)
        return ""

    def _check(self, owned: OffsetVector) -> None:
        now = time.monotonic()
        self.due_at = now + _ASK_EVERY_S
        try:
            ids = self._topic_ids.now(self._topics, _CALL_S)
        except RetriableError:
            return  # the brokers are away; the consumer waits for them
        with suppress(RetriableError):  # the next commit, or look, says which broker is behind
            refuse_where_agreed(ids_of_owned(owned), ids, lambda: self._topic_ids.now(self._topics, _CALL_S))
        missing = set(self._topics) - ids.keys()
        if missing and self._missing_before:
            raise deleted(missing)
        if missing:
            self.due_at = now + _ASK_AGAIN_S
        self._missing_before = bool(missing)

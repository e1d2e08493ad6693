"""InputTopics: notices that an input topic was deleted, or deleted and created anew, while it is read."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from eos.errors import RetriableError
from eos.group.topic_ids import TopicIds, deleted, refuse_recreated
from eos.settings import Settings

_ASK_EVERY_S = 30.0
_ASK_AGAIN_S = 2.0  # after a topic was missing: a broker's metadata may be behind
_CALL_S = 1.0


class InputTopics:
    """The input topics of one consumer. librdkafka continues without a deleted one, under assign() silently.

    Args:
        settings: how to reach the cluster.
        topics: the topics' names.
    """

    def __init__(self, settings: Settings, topics: Sequence[str]) -> None:
        self._topics = tuple(topics)
        self._topic_ids = TopicIds(settings)
        self._timeout_s = settings.open_timeout_s
        self._ask_at = time.monotonic() + _ASK_EVERY_S
        self._missing_before = False

    def ids_of(self, topics: Collection[str]) -> dict[str, str]:
        """The ids of topics that partitions are taken over of; see `TopicIds.of` for what it raises."""
        return self._topic_ids.of(topics, timeout_s=self._timeout_s)

    def ask_soon(self) -> None:
        """An error says that a topic may be missing. It comes once; then the group assigns no partition of the topic."""
        self._ask_at = min(self._ask_at, time.monotonic() + _ASK_AGAIN_S)

    def check(self, known_ids: Collection[tuple[str, str]]) -> None:
        """Check the topics if it is time to.

        Args:
            known_ids: (topic, id) of the topics that partitions are owned of.

        Raises:
            ConfigError: a topic was deleted.
            OffsetGapError: a topic was deleted and created anew.
        """
        now = time.monotonic()
        if now < self._ask_at:
            return
        self._ask_at = now + _ASK_EVERY_S
        try:
            ids = self._topic_ids.now(self._topics, _CALL_S)
        except RetriableError:
            return  # the brokers are away; the consumer waits for them
        refuse_recreated(known_ids, ids)
        missing = set(self._topics) - ids.keys()
        if missing and self._missing_before:
            raise deleted(missing)
        if missing:
            self._ask_at = now + _ASK_AGAIN_S
        self._missing_before = bool(missing)

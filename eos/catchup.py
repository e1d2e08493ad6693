"""CatchUp: whether a group has processed everything that was in its input when the loop began."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from eos.errors import RetriableError
from eos.kafka.consumer import offsets_reader
from eos.offsets import Partition
from eos.readers import log_span, partitions_of
from eos.settings import Settings

_ASK_EVERY_S = 0.3
_CALL_S = 5.0


class CatchUp:
    """The LSO of each input partition as of its making, held against the group's committed offsets.

    An instance cannot judge by its own partitions: in a rebalance it has none for a moment, and if it left
    then, a static member's partitions would wait for its session timeout.

    Args:
        settings: how to reach the cluster.
        group: whose offsets count.
        topics: the input topics, all partitions of which count …
        only: … or just these.

    Raises:
        UnavailableError: the cluster did not answer in time.
    """

    def __init__(
        self, settings: Settings, group: str, topics: Sequence[str], only: Sequence[Partition] | None = None
    ) -> None:
        # A client of its own: on the loop's, the questions would wait behind its fetches.
        self._client = offsets_reader(settings.client_config(), group, stable=True)
        deadline = time.monotonic() + settings.open_deadline_s

        def left() -> float:
            return deadline - time.monotonic()

        try:
            if only is None:
                only = partitions_of(self._client, topics, timeout_s=left())
            self._ends = {p: log_span(self._client, p, timeout_s=left())[1] for p in only}
        except BaseException:
            self._client.close()
            raise
        self._reached = False
        self._asked_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def reached(self) -> bool:
        """Whether all of it is committed. Asks the cluster a few times per second at most."""
        now = time.monotonic()
        if not self._reached and now - self._asked_at >= _ASK_EVERY_S:
            self._asked_at = now
            try:
                stored = self._client.committed(self._ends, _CALL_S)
            except RetriableError:
                return False  # asked again; also while a transaction is pending on the offsets
            self._reached = all(
                end == 0 or (partition in stored and stored[partition].offset >= end)
                for partition, end in self._ends.items()
            )
        return self._reached

"""ConsumerLog: what the librdkafka of a consumer logs, and the ids of the topics that it reads, which it says nowhere else.

librdkafka fetches by topic id (KIP-516, Fetch 13 and newer): the leader of a partition gives out records of the topic with that id, and of
no other. Of a topic that was created anew librdkafka takes over the new id, and goes on from its old position ("an offset reset must be
triggered", says a FIXME in rdkafka_topic.c). It logs each id, the first too, before it fetches with it, and the lines come by the queue
that the records come by. So who has consumed a record has been given the line with the id of its topic (tests/canaries).

A line is printed into a buffer, which is C throughout: where an exception of a signal handler leaves a callback inside consume(),
librdkafka drops the next record.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from io import StringIO
from types import SimpleNamespace
from typing import Any

from eos.kafka.librdkafka import LogLines
from eos.kafka.positions import as_java_writes

_NEXT_FIELD, _NEXT_LINE = "\x1f", "\x1e"
_FIELDS = 5  # level, template, facility, name of the client, text
_NEW_ID = re.compile(r"Topic (?P<topic>\S+) changed id from \S+ to (?P<id>\S+)")


class ConsumerLog:
    """The log of one consumer. One thread owns it.

    Args:
        secrets: what no line may hold.

    Attributes:
        printed: what waits to be taken.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self.printed = StringIO()
        self._lines = LogLines(secrets)
        self._print = SimpleNamespace(log=partial(print, file=self.printed, sep=_NEXT_FIELD, end=_NEXT_LINE))

    def options(self, *, with_ids: bool) -> Mapping[str, Any]:
        """For the client's configuration."""
        return {"logger": self._print} | ({"debug": "metadata"} if with_ids else {})

    def take(self) -> Sequence[tuple[str, str]]:
        """Take what was printed: (topic, its new id), "" where the brokers have no ids. The other lines go to the log.

        Where an exception leaves this, all of it is taken once more, which does no harm.
        """
        taken: list[tuple[str, str]] = []
        for line in self.printed.getvalue().split(_NEXT_LINE):
            fields = line.split(_NEXT_FIELD, _FIELDS - 1)
            if len(fields) < _FIELDS:  # behind the last one
                continue
            level, template, *about = fields
            if int(level) >= logging.INFO:
                self._lines.log(int(level), template, *about)
            elif new := _NEW_ID.search(about[-1]):
                taken.append((new["topic"], as_java_writes(new["id"])))
        self.printed.seek(0)
        self.printed.truncate()
        return taken

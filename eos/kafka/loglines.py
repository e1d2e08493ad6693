"""LogLines: librdkafka's log lines in Python's logging, without the flood of an outage."""

from __future__ import annotations

import logging
import math
import time

_PAUSE_S = 10.0

_log = logging.getLogger(__name__)


class LogLines:
    """Given to a client as its ``logger``: librdkafka calls :meth:`log` from poll() and consume().

    Without one librdkafka writes to stderr by itself, whatever the log's format: 40 lines a second of a consumer whose
    brokers are all gone (measured with 2.16). Here a facility (FAIL, REQTMOUT, …) has one line in 10 s, which tells how
    many there were.
    """

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def log(self, level: int, template: str, *args: object) -> None:
        """One line of librdkafka; args are (facility, client name, text)."""
        facility = str(args[0]) if args else ""
        now = time.monotonic()
        if now - self._last.get(facility, -math.inf) < _PAUSE_S:
            self._left_out[facility] = self._left_out.get(facility, 0) + 1
            return
        self._last[facility] = now
        left_out = self._left_out.pop(facility, 0)
        more = f" ({left_out} more {facility} lines since the last one)" if left_out else ""
        _log.log(level, "librdkafka: %s%s", template % args, more)

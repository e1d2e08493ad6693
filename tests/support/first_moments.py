"""The first moments of a client of librdkafka: it has left its first connection and has no other one yet."""

from __future__ import annotations

import time

ASKED_AGAIN_S = 0.9  # it asks for topics' leaders every 1,000 ms


def spin(seconds: float) -> None:
    """Wait exactly so long: a sleep is too coarse for a moment that lasts a fraction of a millisecond."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass

"""A batch that its leader refuses, while the next one of the same partition is under way."""

from __future__ import annotations

import threading

from eos.testing.proxy.frames import ApiKey, Frame
from eos.testing.proxy.hold_proxy import HoldProxy

NOT_LEADER_OR_FOLLOWER = 6
ANSWERED_AFTER_S = 1.0  # the next batch is sent meanwhile


def refuse_first_batch(proxy: HoldProxy, error: int = NOT_LEADER_OR_FOLLOWER) -> threading.Event:
    """Refuse the next Produce, once another one can have followed it; the event: it has come."""
    come = threading.Event()

    def is_first(_: Frame) -> bool:
        come.set()
        return True

    proxy.refuse(ApiKey.PRODUCE, error, where=is_first, after_s=ANSWERED_AFTER_S)
    return come

"""Requests that a proxy holds until they come late: the client has sent them again meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import Hold, HoldProxy, ends_with

HOLDS: dict[str, Callable[[HoldProxy], Hold]] = {
    "abort": lambda proxy: proxy.hold(ApiKey.END_TXN, where=ends_with(committed=False), reset_client=True),
    "commit": lambda proxy: proxy.hold(ApiKey.END_TXN, where=ends_with(committed=True), reset_client=True),
    "offsets": lambda proxy: proxy.hold(ApiKey.TXN_OFFSET_COMMIT, reset_client=True),
}

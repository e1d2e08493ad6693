"""Input for the settlement report: one record per merchant, keyed by its id; the last one of a key counts."""

from __future__ import annotations

import json
from collections.abc import Iterator

from jobs.settlements import KeyValue

MERCHANTS = "merchants"

_COUNTRIES = ("DE", "FR", "JP", "US")


def merchants(count: int = 1000) -> Iterator[KeyValue]:
    """The merchants whose ids `jobs.settlements` uses: the same bytes at every call.

    Args:
        count: how many; the first n of a longer run are those of a run of n.
    """
    for number in range(count):
        merchant_id = f"m-{number:04d}"
        merchant = {
            "merchant_id": merchant_id,
            "name": f"Merchant {number}",
            "country": _COUNTRIES[number % len(_COUNTRIES)],
        }
        yield KeyValue(merchant_id.encode(), json.dumps(merchant, separators=(",", ":")).encode())

"""Where a source of a query stands, as Spark's Kafka connector notes it: ``{"topic": {"0": 7}}``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from eos.offsets import Partition

Places = Mapping[Partition, int]


def places_of(noted: Any) -> Places:
    """What is noted of a source, parsed; nothing of one of another kind than Kafka's."""
    return {
        Partition(topic, int(number)): offset
        for topic, of_topic in (noted.items() if isinstance(noted, dict) else ())
        if isinstance(of_topic, dict)
        for number, offset in of_topic.items()
        if number.isdecimal() and isinstance(offset, int)
    }


def input_digest(sources: Iterable[tuple[Places, Places]]) -> str:
    """Of where each source of a batch begins and ends: another one for other offsets, the same for a batch that is run again."""
    read = {(*p, begin.get(p, -1), at) for begin, end in sources for p, at in end.items()}
    return hashlib.blake2b(json.dumps(sorted(read)).encode(), digest_size=8).hexdigest()

"""Progress: what `ExactlyOnceSink.lastProgress` says of a batch, in the words of Spark's StreamingQueryProgress."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from eos.offsets import Partition
from eos.spark.report import ShardResult, ShardState


class Stopwatch:
    """How long each step of a batch took, in milliseconds."""

    def __init__(self) -> None:
        self.began = datetime.now(UTC)
        self._first = self._last = time.monotonic()
        self._steps: dict[str, int] = {}

    def lap(self, name: str) -> None:
        """The step that ends now."""
        now = time.monotonic()
        self._steps[name] = round((now - self._last) * 1000)
        self._last = now

    @property
    def steps(self) -> dict[str, int]:
        """Each step's, and how long all of it took, as Spark calls it."""
        return {**self._steps, "triggerExecution": round((self._last - self._first) * 1000)}


def progress_of(
    *,
    query: str,
    run: str,
    name: str,
    batch: int,
    watch: Stopwatch,
    ends: Mapping[Partition, int],
    results: Sequence[ShardResult],
    ledger: str,
) -> dict[str, Any]:
    """A batch that is written, as Spark's own progress would say it.

    Args:
        query: its id.
        run: the id of its start.
        name: of the sink.
        batch: its number.
        watch: how long what took.
        ends: where the batch ends on the input that the sink knows.
        results: what became of its transactions.
        ledger: where its entries are.
    """
    offsets: dict[str, dict[str, int]] = {}
    for partition, end in sorted(ends.items()):
        offsets.setdefault(partition.topic, {})[str(partition.number)] = end
    states = Counter(result.state for result in results)
    return {
        "id": query,
        "runId": run,
        "name": name,
        "timestamp": watch.began.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "batchId": batch,
        "durationMs": watch.steps,
        "sources": [
            {"description": f"Kafka[{topic}]", "endOffset": {topic: ends}} for topic, ends in offsets.items()
        ],
        "sink": {
            "description": ledger,
            "numOutputRows": sum(result.records_out for result in results),
            "transactions": {
                str(state): states[state] for state in ShardState if state is not ShardState.FAILED
            },
        },
    }

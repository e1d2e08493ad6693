"""Twins: two tasks that write the same shard; how long the one that was fenced waits for the other."""

from __future__ import annotations

from pyspark import TaskContext

from eos.settings import Settings

# What is left of a first try when Spark has given it up needs less to end, or to commit after all.
_RETRY_WAIT_S = 3.0


def twin_wait_s(settings: Settings) -> float:
    """Seconds that a fenced task waits for its twin's commit, before it fails and Spark tries it again.

    A first try was fenced by somebody who is at work: its speculative copy, or another driver. A retry was most
    likely fenced by the try before: Spark starts the one the moment the other has failed, while that one's Python
    worker knows nothing of it yet, and its init may come last (seen in 3 of 20 runs). Nothing will come from there,
    and a third try fences it for good.
    """
    context = TaskContext.get()
    if context is None or context.attemptNumber() == 0:
        return settings.twin_wait_s
    return min(settings.twin_wait_s, _RETRY_WAIT_S)

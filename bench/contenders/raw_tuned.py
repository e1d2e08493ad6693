"""Contender b: the raw loop with the one setting that decides how fast a backlog is read."""

from bench.contenders.raw_loop import copy

# librdkafka pauses a partition's fetches for this long (default 1000) once its queue is full.
TUNED = {"fetch.queue.backoff.ms": 2}

if __name__ == "__main__":
    copy(consumer_settings=TUNED)

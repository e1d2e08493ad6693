"""Feeder: writes the input of a trial at a steady rate, past the proxies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from eos.errors import EosError, UsageError
from eos.job import Job
from eos.kafka.config import client_config
from eos.kafka.topics import produce_plain
from eos.records import OutputRecord
from eos.settings import Settings

_FEED_S = 120.0
_CHUNK = 200


class Feeder:
    """Writes in a thread, until it is stopped or there is no more.

    Attributes:
        records: how many were taken of the source.

    Args:
        settings: the job's, at the brokers' own addresses.
        job: its inputs are written to.
        source: values, (key, value) pairs, or records of the input topics.
        rate: records per second.
    """

    def __init__(self, settings: Settings, job: Job, source: Iterable[object], rate: int) -> None:
        self.records = 0
        self._config = client_config(settings)
        self._topics = sorted(job.inputs)
        self._source = iter(source)
        self._rate = rate
        self._over = threading.Event()
        self._taking = threading.Lock()
        self._writing = threading.Lock()
        self._failed: list[str] = []
        self._thread = threading.Thread(target=self._feed, name="eos-prove-feeder", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> Sequence[str]:
        """No more input; returns what went wrong."""
        self._over.set()
        self._thread.join(_FEED_S + 1)
        return self._failed

    @contextmanager
    def held(self) -> Iterator[None]:
        """No new input while the block runs; what has been begun is written before."""
        with self._writing:
            yield

    def _feed(self) -> None:
        next_at = time.monotonic()
        try:
            while not self._over.is_set():
                with self._writing:
                    chunk = self.take(_CHUNK)
                    if not chunk:
                        return
                    produce_plain(self._config, chunk, timeout_s=_FEED_S)
                # What was missed while it was held, or while no broker answered, does not come in a burst.
                next_at = max(next_at + len(chunk) / self._rate, time.monotonic())
                self._over.wait(next_at - time.monotonic())
        except EosError as error:
            self._failed.append(f"the input could not be written: {error}")
        except Exception as error:  # noqa: BLE001 - of the user's generator
            self._failed.append(f"the input's generator raised {type(error).__name__}: {error}")

    def take(self, number: int) -> list[OutputRecord]:
        """The next records of the source; fewer at its end."""
        with self._taking:
            taken = []
            for one in islice(self._source, number):
                taken.append(self._record(one))
                self.records += 1
            return taken

    def _record(self, one: object) -> OutputRecord:
        if isinstance(one, OutputRecord):
            return one
        key, value = one if isinstance(one, tuple) else (None, one)
        topic = self._topics[self.records % len(self._topics)]
        if not isinstance(value, bytes | None) or not isinstance(key, bytes | None):
            raise UsageError(
                f"the input's generator gave {type(one).__name__}. Fix: bytes, (key, value) pairs of bytes, or eos.OutputRecord"
            )
        return OutputRecord(topic, value, key)

"""An even stream of records, written by a thread of the harness."""

from __future__ import annotations

import threading
import time

from confluent_kafka import Producer

from bench.topics import PARTITIONER, key, value

TICK_SECONDS = 0.002
CALL_TIMEOUT_SECONDS = 30.0


class Generator:
    """Writes records at an even rate, each with the monotonic clock (nanoseconds) as its amount."""

    def __init__(self, bootstrap: str, topic: str, rate: int, seconds: float) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 0, "partitioner": PARTITIONER}
        )
        self._topic = topic
        self._rate = rate
        self._total = int(rate * seconds)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    def start(self) -> None:
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(CALL_TIMEOUT_SECONDS)

    def _run(self) -> None:
        began = time.monotonic()
        while self.sent < self._total and not self._stopped.is_set():
            due = min(int((time.monotonic() - began) * self._rate), self._total)
            for number in range(self.sent, due):
                stamped = value(number, time.monotonic_ns())
                self._producer.produce(self._topic, stamped, key(number))
            self.sent = due
            self._producer.poll(0)
            time.sleep(TICK_SECONDS)
        self._producer.flush(CALL_TIMEOUT_SECONDS)

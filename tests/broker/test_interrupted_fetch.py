"""The exception of a signal handler leaves fetch(), and the same objects are used on: nothing is lost, close() returns."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from eos import Session
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import (
    PlainRecord,
    assert_copied,
    create_topics,
    produce_plain,
    unique,
)
from tests.support.patience import PATIENCE_S

pytestmark = [
    pytest.mark.broker,
    # A signal may come while Python collects garbage, which holds clients of other tests: the exception ends there.
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
]

RECORDS = 2_000
ENOUGH = 6  # Interruptions. The input keeps coming for as long as it takes, on a busy machine too.
FEED_S = 60.0
NO_MORE_S = 600.0
CLOSE_S = PATIENCE_S / 2  # of for ever


class Interrupted(Exception):  # noqa: N818 - as KeyboardInterrupt
    """What the handler raises."""


@contextmanager
def interrupting(pause_s: Callable[[], float]) -> Iterator[list[int]]:
    """A signal to the main thread again and again, whose handler raises while the list is not empty."""
    armed: list[int] = []
    over = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def handler(*_: object) -> None:
        if armed:
            raise Interrupted

    def send() -> None:
        while not over.wait(pause_s()):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield armed
    finally:
        over.set()
        sender.join(PATIENCE_S)
        signal.signal(signal.SIGUSR1, before)


class Relay:
    """Copies its input, which keeps coming, 100 records at most at a time."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.source, self.out, self.group = unique("in"), unique("out"), unique("relay")
        create_topics(bootstrap, {self.source: 2, self.out: 1})
        settings = settings_for(bootstrap, group=self.group)
        self.session = Session(settings, app="relay", inputs=[self.source], outputs=[self.out])
        self.records = RECORDS
        self.interrupted = 0

    def feed(self, enough: int = ENOUGH) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, "log_level": 0})
        deadline = time.monotonic() + FEED_S
        number = 0
        while number < RECORDS or (self.interrupted < enough and time.monotonic() < deadline):
            producer.produce(self.source, b"%d" % number, partition=number % 2)
            producer.poll(0)
            if number % 5 == 0:
                time.sleep(0.008)
            number += 1
        self.records = number
        producer.flush(PATIENCE_S)

    def turn(self, armed: list[int], *, max_records: int, linger_s: float) -> None:
        """One fetch, in which the signal's handler may raise, and its transaction."""
        try:
            armed.append(1)
            # A fetch of its own: the public one lingers as long as the settings say.
            self.session._owner.committer.settle()
            batch = self.session._owner.fetch(max_records, 0.5, linger_s)
            armed.clear()
        except Interrupted:
            armed.clear()
            self.interrupted += 1
            return
        with self.session.transaction(batch) as txn:
            for record in batch:
                txn.produce(self.out, record.value, key=record.key)

    def done(self) -> bool:
        return sum(self.session.committed_offsets.values()) >= self.records

    def close(self) -> None:
        began = time.monotonic()
        self.session.close()
        assert time.monotonic() - began < CLOSE_S

    def check(self) -> None:
        assert_copied(self.bootstrap, self.group, self.source, self.out, self.records)


@pytest.fixture
def relay(bootstrap: str) -> Iterator[Relay]:
    relay = Relay(bootstrap)
    relay.session.open()
    yield relay
    relay.session.close()


@pytest.mark.parametrize("linger_s", [0.0, 0.005, 0.3])
def test_records_of_an_interrupted_fetch_are_read_again(relay: Relay, linger_s: float) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not relay.session.committed_offsets:
        assert time.monotonic() < deadline
        relay.session.fetch(1, 0.5)
    feeding = threading.Thread(target=relay.feed)
    feeding.start()
    # Without linger a fetch is over in a moment: so more signals, for enough of them to come into one.
    with interrupting(lambda: 0.02 if linger_s else 0.004) as armed:
        while feeding.is_alive():
            relay.turn(armed, max_records=100, linger_s=linger_s)
    deadline = time.monotonic() + PATIENCE_S
    with interrupting(lambda: NO_MORE_S) as armed:
        while not relay.done():
            assert time.monotonic() < deadline
            relay.turn(armed, max_records=100, linger_s=linger_s)
    assert relay.interrupted >= ENOUGH
    relay.close()
    relay.check()


def test_interrupted_in_the_assignment_nothing_is_read_without_its_offsets(relay: Relay) -> None:
    """The callback fails, and confluent-kafka would assign the partitions by itself, from where nobody has asked."""
    produce_plain(
        relay.bootstrap, relay.source, [PlainRecord(b"%d" % n, partition=n % 2) for n in range(RECORDS)]
    )
    deadline = time.monotonic() + PATIENCE_S
    with interrupting(lambda: 0.02) as armed:
        while relay.interrupted < 10:
            assert time.monotonic() < deadline
            relay.turn(armed, max_records=100, linger_s=0.0)
    deadline = time.monotonic() + PATIENCE_S
    with interrupting(lambda: NO_MORE_S) as armed:
        while not relay.done():
            assert time.monotonic() < deadline
            relay.turn(armed, max_records=100, linger_s=0.005)
    relay.close()
    relay.check()


def test_interrupted_while_statistics_arrive_the_consumer_still_closes(relay: Relay) -> None:
    """An exception that leaves a callback inside consume() locks a record in librdkafka, which then never goes."""
    feeding = threading.Thread(target=relay.feed, args=[1])
    feeding.start()
    with interrupting(lambda: 0.5) as armed:
        while feeding.is_alive():  # 3 s of linger: statistics come every 2 s
            relay.turn(armed, max_records=5_000, linger_s=3.0)
    assert relay.interrupted
    relay.close()

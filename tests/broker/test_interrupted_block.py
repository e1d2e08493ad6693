"""The exception of a signal handler leaves the begin or the commit of a transaction anywhere, and the session is used on.

Signals arrive at random instants; here the exception comes at chosen ones, in front of a step or right behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from eos import Session
from eos.core.consumer import ShardConsumer
from eos.core.ledger import Ledger
from eos.core.producer import ShardProducer
from eos.core.transaction import ShardTransaction
from eos.kafka.producer import TransactionalClient
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import (
    PlainRecord,
    assert_copied,
    committed_offsets,
    create_topics,
    lso,
    produce_plain,
    read_committed,
    unique,
)
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

RECORDS = 60
STEPS = {
    "before the producer is reopened": (ShardProducer, "new_transaction", False),
    "the producer is reopened": (ShardProducer, "new_transaction", True),
    "the client has begun": (TransactionalClient, "begin", True),
    "the client has committed": (TransactionalClient, "commit", True),
    "before the commit is noted": (ShardTransaction, "_committed", False),
    "before the end is noted": (ShardTransaction, "_end", False),
    "before the producer notes the end": (ShardProducer, "ended", False),
    "before the owner notes the end": (Ledger, "ended", False),
    "the producer has noted the end": (ShardProducer, "ended", True),
    "before the consumer notes the commit": (ShardConsumer, "settle", False),
    "the consumer has noted the commit": (ShardConsumer, "settle", True),
}


class Interrupted(Exception):  # noqa: N818 - as KeyboardInterrupt
    """What the handler raises."""


@contextmanager
def interrupting(step: str) -> Iterator[None]:
    """An exception in front of the step's next call, or behind it."""
    owner, name, behind = STEPS[step]
    original: Callable[..., Any] = getattr(owner, name)

    def interrupted(*args: Any, **kwargs: Any) -> None:
        setattr(owner, name, original)
        if behind:
            original(*args, **kwargs)
        raise Interrupted

    setattr(owner, name, interrupted)
    try:
        with pytest.raises(Interrupted):
            yield
    finally:
        setattr(owner, name, original)


class Relay:
    """Copies its input, 5 records at most at a time."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.source, self._out, self._group = unique("in"), unique("out"), unique("relay")
        create_topics(bootstrap, {self.source: 1, self._out: 1})
        settings = settings_for(bootstrap, group=self._group, input__fetch_records=5)
        self.session = Session(settings, app="relay", inputs=[self.source], outputs=[self._out])

    def feed(self, begin: int, end: int) -> None:
        produce_plain(self._bootstrap, self.source, [PlainRecord(b"%d" % n) for n in range(begin, end)])

    def turn(self) -> int:
        batch = self.session.fetch(timeout_s=0.5)
        with self.session.transaction(batch) as txn:
            for record in batch:
                txn.produce(self._out, record.value)
        return len(batch) if txn.committed else 0

    def process(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while count > 0:
            assert time.monotonic() < deadline
            count -= self.turn()

    @property
    def offset(self) -> int:
        (offset, _) = committed_offsets(self._bootstrap, self._group, [(self.source, 0)])[self.source, 0]
        return offset or 0

    def check(self, end: int) -> None:
        """All of the input is processed up to its end."""
        deadline = time.monotonic() + PATIENCE_S
        while self.offset < end:
            assert time.monotonic() < deadline
            self.turn()
        assert_copied(self._bootstrap, self._group, self.source, self._out)


@pytest.fixture
def relay(bootstrap: str) -> Iterator[Relay]:
    relay = Relay(bootstrap)
    with relay.session:
        yield relay


@pytest.mark.parametrize("step", STEPS)
def test_block_whose_end_is_interrupted_is_committed_once(relay: Relay, step: str) -> None:
    relay.feed(0, RECORDS)
    relay.process(10)
    batch = relay.session.fetch(timeout_s=PATIENCE_S)
    with interrupting(step), relay.session.transaction(batch) as txn:
        for record in batch:
            txn.produce(relay._out, record.value)
    relay.check(RECORDS)


@pytest.mark.parametrize("step", STEPS)
def test_commit_of_passed_records_is_interrupted_and_the_session_goes_on(
    relay: Relay, bootstrap: str, step: str
) -> None:
    relay.feed(0, 10)
    relay.process(10)
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("other"), "log_level": 0})
    writer.init_transactions(PATIENCE_S)
    writer.begin_transaction()
    writer.produce(relay.source, b"aborted")
    writer.flush(PATIENCE_S)
    writer.abort_transaction(PATIENCE_S)
    read_committed(bootstrap, relay.source)  # behind the marker, which may come after the answer
    (end,) = lso(bootstrap, relay.source).values()
    deadline = time.monotonic() + PATIENCE_S
    while relay.session._owner.consumer.positions()[next(iter(relay.session.committed_offsets))] < end:
        assert time.monotonic() < deadline
        relay.session._owner.ledger._passed_at = time.monotonic()  # not yet
        assert not relay.session.fetch(timeout_s=0.2)
    relay.session._owner.ledger._passed_at = 0.0
    with interrupting(step):
        relay.session.fetch(timeout_s=0.2)
    relay.feed(10, 30)
    relay.check(end + 20)

"""A consumer, a session or a producer that is closed inside a call of its own: by a listener, a signal handler or another thread."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from eos import ReadCommittedConsumer, Session, TransactionalProducer, UsageError
from eos.base.deadline import Deadline
from eos.events import Event, PartitionsAssigned
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import HoldProxy, ends_with
from tests.support.observer import PlainRecord, committed_offsets, produce_plain, read_committed
from tests.support.patience import PATIENCE_S
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

RECORDS = 5


@contextmanager
def signalled(after_s: float, act: Callable[[], None]) -> Iterator[None]:
    """A signal's handler does it, once."""
    before = signal.signal(signal.SIGALRM, lambda *_: act())
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def source(bootstrap: str, topic: NewTopic) -> str:
    name = topic("in")
    produce_plain(bootstrap, name, [PlainRecord(b"%d" % n) for n in range(RECORDS)])
    return name


def read_all(consumer: ReadCommittedConsumer) -> list[bytes | None]:
    read: list[bytes | None] = []
    deadline = Deadline(PATIENCE_S)
    while len(read) < RECORDS and not deadline.passed:
        read += consumer.fetch(RECORDS, 1.0).values
    return read


@pytest.mark.parametrize("call", ["fetch", "close", "rewind"])
def test_listener_of_a_consumer_is_refused_inside_a_fetch_and_the_records_come(
    bootstrap: str, source: str, names: Callable[[str], str], call: str
) -> None:
    """After a fetch inside the rebalance of a fetch no record came any more; close() took 15 s."""
    refused: list[str] = []

    def listener(event: Event) -> None:
        if isinstance(event, PartitionsAssigned):
            with pytest.raises(UsageError) as raised:
                {"fetch": lambda: consumer.fetch(1, 1.0), "close": consumer.close, "rewind": consumer.rewind}[
                    call
                ]()
            refused.append(str(raised.value))

    settings = settings_of(bootstrap, input__start="earliest")
    consumer = ReadCommittedConsumer(settings, [source], group=names("group"), listener=listener)
    with consumer:
        assert len(read_all(consumer)) == RECORDS
    assert refused[0].startswith(f"{call}(): a fetch of this consumer is at work")


def test_signal_handler_that_closes_a_consumer_inside_its_fetch_is_refused(
    bootstrap: str, source: str, names: Callable[[str], str]
) -> None:
    """It waited for 15 s, and left the client behind."""
    settings = settings_of(bootstrap, input__start="earliest")
    with ReadCommittedConsumer(settings, [source], group=names("group")) as consumer:
        assert len(read_all(consumer)) == RECORDS
        with (
            signalled(0.3, consumer.close),
            pytest.raises(UsageError, match="a fetch of this consumer is at work"),
        ):
            consumer.fetch(1, 5.0)


def test_consumer_that_is_open_is_not_opened_again(
    bootstrap: str, source: str, names: Callable[[str], str]
) -> None:
    """The first client of the two stayed a member; nothing was read, and the process did not end."""
    settings = settings_of(bootstrap, input__start="earliest")
    with ReadCommittedConsumer(settings, [source], group=names("group")) as consumer:
        with pytest.raises(UsageError, match="open already"):
            consumer.open()
        assert len(read_all(consumer)) == RECORDS
    with consumer:
        assert len(read_all(consumer)) == RECORDS


def test_signal_handler_that_closes_a_producer_inside_its_commit_is_refused_and_the_commit_ends(
    bootstrap: str, proxy: HoldProxy, topic: NewTopic, names: Callable[[str], str]
) -> None:
    """The commit lost its client: AttributeError, and the transaction stayed open until its timeout."""
    out = topic("out")
    held = proxy.hold(ApiKey.END_TXN, where=ends_with(committed=True))
    producer = TransactionalProducer(settings_of(proxy.bootstrap_servers), app=names("app").replace(".", "-"))

    def close() -> None:
        held.wait_held(PATIENCE_S)
        held.release()
        producer.close()

    def write() -> None:
        with producer.transaction() as txn:
            txn.produce(out, "x")

    producer.open()
    with signalled(0.5, close), pytest.raises(UsageError, match="is being ended"):
        write()
    producer.close()
    assert [record.value for record in read_committed(bootstrap, out)] == [b"x"]


def test_signal_handler_that_closes_a_session_inside_its_commit_is_refused_and_the_commit_ends(
    bootstrap: str, proxy: HoldProxy, source: str, topic: NewTopic, names: Callable[[str], str]
) -> None:
    out, app = topic("out"), names("app").replace(".", "-")
    settings = settings_of(proxy.bootstrap_servers, input__start="earliest")
    session = Session(settings, app=app, inputs=[source], outputs=[out])
    held = proxy.hold(
        ApiKey.END_TXN, nth=2, where=ends_with(committed=True)
    )  # the first is the group's first offsets

    def close() -> None:
        held.wait_held(PATIENCE_S)
        held.release()
        session.close()

    def copy() -> None:
        for batch in session:
            with session.transaction(batch) as txn:
                for record in batch:
                    txn.produce(out, record.value)
                signal.setitimer(signal.ITIMER_REAL, 0.5)

    with (
        session,
        signalled(100, close),
        pytest.raises(UsageError, match="a commit of this session is at work"),
    ):
        copy()
    written = len(read_committed(bootstrap, out))
    assert written > 0
    assert committed_offsets(bootstrap, app, [(source, 0)])[source, 0][0] == written

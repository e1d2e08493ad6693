"""Clients that nobody uses are served: what librdkafka has to say does not wait, and grow, until the next call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from eos import Partition, ReadCommittedConsumer, Session
from eos.deadline import Deadline
from eos.events import PartitionsAssigned, PartitionsRevoked
from eos.kafka.consumer import ConsumerClient
from eos.kafka.late_copies import ResendWatch
from eos.kafka.statistics import ConsumerStatistics
from eos.producer.transactional import TransactionalProducer
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.support.observer import PlainRecord, produce_plain, read_committed
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    """When a line of librdkafka's log has come, and which."""
    lines: list[tuple[float, str]] = []
    log = ResendWatch.log

    def hear(watch: ResendWatch, level: int, template: str, *args: object) -> None:
        lines.append((time.monotonic(), str(args[0])))
        log(watch, level, template, *args)

    monkeypatch.setattr(ResendWatch, "log", hear)
    return lines


def test_an_idle_producer_is_served_while_its_brokers_are_away(
    proxy: HoldProxy,
    topic: NewTopic,
    names: Callable[[str], str],
    bootstrap: str,
    heard: list[tuple[float, str]],
) -> None:
    """Its log lines take 36 MB an hour then, and the next call would serve all of them first."""
    out, app = topic("out"), names("app").replace(".", "-")
    with TransactionalProducer(settings_of(proxy.bootstrap_servers), app=app) as producer:
        with producer.transaction() as txn:
            txn.produce(out, "x")
        heard.clear()
        proxy.stop()
        assert Deadline(10).wait_for(lambda: any(facility == "FAIL" for _, facility in heard))
    assert [record.value for record in read_committed(bootstrap, out)] == [b"x"]


def test_an_idle_producer_has_no_statistics(
    topic: NewTopic, names: Callable[[str], str], bootstrap: str
) -> None:
    """They were what grew fastest: a megabyte a minute with 200 partitions."""
    settings = settings_of(bootstrap)
    with TransactionalProducer(settings, app=names("app").replace(".", "-")) as producer:
        with producer.transaction() as txn:
            txn.produce(topic("out"), b"x")
        client = producer._producer._require_client()
        time.sleep(1.5)
        assert client._serving.acquire(timeout=5)
        try:
            time.sleep(2.5)
            assert client._producer.poll(0) <= 20
        finally:
            client._serving.release()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Each report of statistics that was served; a consumer is idle after a second."""
    texts: list[int] = []
    read = ConsumerStatistics.read

    def hear(statistics: ConsumerStatistics, text: str) -> None:
        texts.append(len(text))
        read(statistics, text)

    monkeypatch.setattr(ConsumerStatistics, "read", hear)
    monkeypatch.setattr("eos.kafka.consumer._IDLE_S", 1.0)
    monkeypatch.setattr("eos.kafka.consumer._LET_GO_S", 1.0)
    monkeypatch.setattr("eos.kafka.consumer.INTERVAL_MS", 100)
    return texts


def wait_until_let_go(client: ConsumerClient) -> None:
    assert Deadline(20).wait_for(lambda: client.let_go)


def read_all(consumer: ReadCommittedConsumer, count: int) -> dict[int, list[int]]:
    """The offsets of so many records, by partition."""
    found: dict[int, list[int]] = {0: [], 1: []}
    deadline = Deadline(20)
    while sum(map(len, found.values())) < count and not deadline.passed:
        for record in consumer.fetch(100, 0.5):
            found[record.partition].append(record.offset)
    return found


def test_a_consumer_that_nobody_polls_has_its_statistics_served_and_goes_on_where_it_stood(
    topic: NewTopic, names: Callable[[str], str], bootstrap: str, served: list[int]
) -> None:
    """Records were fetched ahead of both partitions; of one of them none has been handed out before the pause."""
    source, group = topic("in", 2), names("group")
    produce_plain(bootstrap, source, [PlainRecord(b"v%d" % n, partition=n % 2) for n in range(400)])
    settings = settings_of(bootstrap, ownership__mode="partition", ownership__partitions=[f"{source}:0"])
    settings = settings.model_copy(update={"input": settings.input.model_copy(update={"start": "earliest"})})
    partitions = [Partition(source, 0), Partition(source, 1)]
    with ReadCommittedConsumer(settings, [source], group=group, partitions=partitions) as consumer:
        first: list[tuple[int, int]] = []
        while not first:
            first = [(record.partition, record.offset) for record in consumer.fetch(5, 1.0)]
        for _ in range(2):  # idle twice
            before = len(served)
            time.sleep(4.0)
            assert len(served) - before > 2, "one a second, of each of which the last is read"
            client = consumer._consumer._require_client()
            assert len(client._statistics_texts) <= 1
            first += [(record.partition, record.offset) for record in consumer.fetch(5, 5.0)]
        rest = read_all(consumer, 400 - len(first))
    for partition in (0, 1):
        whole = [offset for number, offset in first if number == partition] + rest[partition]
        assert whole == list(range(200))


@pytest.mark.parametrize("static", [True, False])
def test_a_member_that_nobody_polls_is_closed_once_it_is_out_of_its_group_and_joins_anew(
    topic: NewTopic, names: Callable[[str], str], bootstrap: str, served: list[int], static: bool
) -> None:
    source, group = topic("in", 2), names("group")
    produce_plain(bootstrap, source, [PlainRecord(b"v%d" % n, partition=n % 2) for n in range(20)])
    settings = settings_of(
        bootstrap,
        ownership__ordinal=0,
        ownership__static_membership=static,
        ownership__max_poll_interval_ms=6_000,
        ownership__session_timeout_ms=6_000,
        transaction__timeout_ms=6_000,
        input__start="earliest",
    )
    told: list[object] = []
    with ReadCommittedConsumer(settings, [source], group=group, listener=told.append) as consumer:
        assert read_all(consumer, 20) == {0: list(range(10)), 1: list(range(10))}
        wait_until_let_go(consumer._consumer._require_client())
        assert consumer.lag().shard  # what is asked meanwhile is answered
        produce_plain(bootstrap, source, [PlainRecord(b"w", partition=0)])
        assert read_all(consumer, 21) == {0: list(range(11)), 1: list(range(10))}, (
            "from the committed offsets"
        )
    owned = [one for one in told if isinstance(one, PartitionsAssigned | PartitionsRevoked)]
    assert [type(one) for one in owned[:3]] == [PartitionsAssigned, PartitionsRevoked, PartitionsAssigned]
    assert isinstance(owned[1], PartitionsRevoked)
    assert owned[1].lost


def test_a_session_whose_caller_sleeps_for_longer_than_the_poll_interval_repeats_what_it_had_not_committed(
    topic: NewTopic, names: Callable[[str], str], bootstrap: str, served: list[int]
) -> None:
    source, out, group = topic("in"), topic("out"), names("group")
    produce_plain(bootstrap, source, [PlainRecord(b"v%d" % n) for n in range(20)])
    settings = settings_of(
        bootstrap,
        group=group,
        ownership__ordinal=0,
        ownership__max_poll_interval_ms=6_000,
        ownership__session_timeout_ms=6_000,
        transaction__timeout_ms=6_000,
        input__start="earliest",
    )
    outcomes: list[bool] = []
    with Session(settings, app=names("app").replace(".", "-"), inputs=[source], outputs=[out]) as session:
        deadline = Deadline(60)
        while session.committed_offsets.get(Partition(source, 0), 0) < 20 and not deadline.passed:
            batch = session.fetch(10, 1.0)
            if batch and not outcomes:
                wait_until_let_go(session._consumer._require_client())
            with session.transaction(batch) as txn:
                for record in batch:
                    txn.produce(out, record.value)
            if batch:
                outcomes.append(txn.committed)
    assert outcomes[0] is False
    assert [record.value for record in read_committed(bootstrap, out)] == [b"v%d" % n for n in range(20)]

"""Databases: the sink and the relay of an outbox beside plain loops that do the same, interleaved; and how soon a row is seen."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table, create_engine

import eos
from bench.broker import broker
from bench.check import read_output
from bench.contenders.raw_batch import produce_columns
from bench.goals import at_least, at_most, ratios
from bench.results import Row, say, show, spread, write
from bench.topics import PARTITIONER, PARTITIONS, create_topic, delete_topic, key, load, value
from eos import InputBatch, InputRecord, Settings
from eos.local import LocalPostgres
from eos.sql import Insert, InsertBatch, Outbox, OutboxJob, SqlJob
from eos.sql.tables import create

SINK_AIM, RELAY_AIM, DELAY_AIM_MS = 0.85, 0.7, 150.0
TRANSACTION_MS = 100
DELAY_TRANSACTION_MS = 50
DELAY_RATE, DELAY_SECONDS = 1_000, 15.0
_WARM_SECONDS = 3.0  # of the delays: the relay starts
_EVERY_SECONDS = 0.01  # a transaction of the application
_CONSUMED_AT_ONCE = 10_000
_PAGE = 50_000  # rows of the table
_CALL_SECONDS = 30.0
_DEADLINE_SECONDS = 600.0
_BY_LOOP = """
CREATE TABLE positions (topic text, partition int, next_offset bigint, PRIMARY KEY (topic, partition))
"""


@dataclass(frozen=True)
class Outcome:
    """One contender in one round.

    Attributes:
        rate: rows or records per second, between the first and the last as the database or the broker saw them.
        exact: whether each was there once.
        cpu_seconds: user and system time, the start included.
    """

    contender: str
    round: int
    rate: float
    exact: bool
    cpu_seconds: float


@dataclass(frozen=True)
class Place:
    """Where a contender reads and writes."""

    servers: str
    url: str
    topic: str
    records: int

    @property
    def settings(self) -> Settings:
        """The defaults, but for the addresses and the transaction's length."""
        overrides = {
            "kafka.bootstrap_servers": self.servers,
            "sql.url": self.url,
            "input.start": "earliest",
            "transaction.interval_ms": TRANSACTION_MS,
        }
        return Settings.load(overrides=overrides, environ={})


# --- the sink -------------------------------------------------------------------------------------------------

_metadata = MetaData()
payments = Table(
    "payments",
    _metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("amount", Integer),
    Column("pad", String),
    Column("source", Integer),
    Column("key", LargeBinary),
)


def rows(batch: InputBatch) -> list[InsertBatch]:
    """Five columns of each record."""
    records = [orjson.loads(text or b"") for text in batch.values]
    columns = {name: [record[name] for record in records] for name in ("id", "amount", "pad")}
    return [InsertBatch(payments, {**columns, "source": batch.partitions, "key": batch.keys})]


def row(record: InputRecord) -> list[Insert]:
    """The same of one record."""
    values = orjson.loads(record.value or b"")
    columns = {"id": values["id"], "amount": values["amount"], "pad": values["pad"]}
    return [Insert(payments, {**columns, "source": record.partition, "key": record.key})]


def eos_sink(place: Place) -> None:
    """A SqlJob with a batch function."""
    job = SqlJob(name="bench-sink", inputs=[place.topic], tables=[payments], transform_batch=rows)
    eos.run(job, place.settings, until_caught_up=True)


def eos_sink_by_record(place: Place) -> None:
    """A SqlJob with a function of one record."""
    job = SqlJob(name="bench-sink", inputs=[place.topic], tables=[payments], transform=row)
    eos.run(job, place.settings, until_caught_up=True)


def raw_sink(place: Place) -> None:
    """A consumer, COPY of its rows and the positions in one transaction; no error handling, no owner."""
    consumer = Consumer(
        {
            "bootstrap.servers": place.servers,
            "group.id": "bench-raw",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(place.topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    left = place.records
    with psycopg.connect(place.url) as connection:
        while left:
            began, done = time.monotonic(), 0
            positions: dict[int, int] = {}
            with connection.cursor() as cursor:
                with cursor.copy("COPY payments (id, amount, pad, source, key) FROM STDIN") as copy:
                    while left and (not done or time.monotonic() - began < TRANSACTION_MS / 1000):
                        for message in consumer.consume(_CONSUMED_AT_ONCE, 0.1):
                            record = orjson.loads(message.value() or b"")
                            partition = message.partition() or 0
                            copy.write_row(
                                (record["id"], record["amount"], record["pad"], partition, message.key())
                            )
                            positions[partition] = (message.offset() or 0) + 1
                            done, left = done + 1, left - 1
                cursor.executemany(
                    "INSERT INTO positions VALUES (%s, %s, %s) ON CONFLICT (topic, partition) "
                    "DO UPDATE SET next_offset = excluded.next_offset",
                    [(place.topic, partition, offset) for partition, offset in positions.items()],
                )
            connection.commit()
    consumer.close()


# --- the relay ------------------------------------------------------------------------------------------------


def relay_of(topic: str) -> OutboxJob:
    """The job over one topic."""
    return OutboxJob(name="bench-relay", outbox=Outbox(MetaData()), outputs=[topic])


def eos_relay(place: Place) -> None:
    """An OutboxJob over a full outbox."""
    eos.run(relay_of(place.topic), place.settings, until_caught_up=True)


def raw_relay(place: Place) -> None:
    """A transactional producer, fed from a list."""
    records = [(key(n), value(n, 10_000)) for n in range(place.records)]
    producer = Producer(
        {"bootstrap.servers": place.servers, "transactional.id": "bench-raw", "partitioner": PARTITIONER}
    )
    producer.init_transactions(_CALL_SECONDS)
    at = 0
    while at < len(records):
        producer.begin_transaction()
        began = time.monotonic()
        while at < len(records) and time.monotonic() - began < TRANSACTION_MS / 1000:
            some = records[at : at + _CONSUMED_AT_ONCE]
            produce_columns(producer, place.topic, [one[1] for one in some], [one[0] for one in some])
            at += len(some)
        producer.commit_transaction(_CALL_SECONDS)


def plain_relay(place: Place) -> None:
    """The same, fed from the table page by page; nothing is kept of where it is, and a row that commits late is skipped."""
    producer = Producer(
        {"bootstrap.servers": place.servers, "transactional.id": "bench-plain", "partitioner": PARTITIONER}
    )
    producer.init_transactions(_CALL_SECONDS)
    page = 'SELECT id, topic, "key", "value", headers FROM eos_outbox WHERE id > %s ORDER BY id LIMIT %s'
    last, done = 0, 0
    with psycopg.connect(place.url) as connection:
        while done < place.records:
            rows = connection.execute(page, (last, _PAGE)).fetchall()
            connection.commit()
            producer.begin_transaction()
            produce_columns(producer, place.topic, [row[3] for row in rows], [row[2] for row in rows])
            producer.commit_transaction(_CALL_SECONDS)
            last, done = rows[-1][0], done + len(rows)


SINKS = {"raw": raw_sink, "eos": eos_sink, "eos by record": eos_sink_by_record}
RELAYS = {"raw": raw_relay, "plain": plain_relay, "eos": eos_relay}


def run(*, records: int, rounds: int, bootstrap: str | None) -> bool:
    """Print the tables; True if all was exact and the goals were met."""
    good = True
    with broker(bootstrap) as servers, _postgres() as server:
        sinks, relays = [], []
        for number in range(1, rounds + 1):
            for name in sorted(SINKS, reverse=bool(number % 2)):
                sinks.append(_sink(name, number, servers, server, records))
                say(f"round {number}/{rounds} sink {name}: {sinks[-1].rate:,.0f} rows/s")
            for name in sorted(RELAYS, reverse=bool(number % 2)):
                relays.append(_relay(name, number, servers, server, records))
                say(f"round {number}/{rounds} relay {name}: {relays[-1].rate:,.0f} records/s")
        delays = [_delays(servers, server) for _ in range(rounds)]
    for what, outcomes, aim in (("sink", sinks, SINK_AIM), ("relay", relays, RELAY_AIM)):
        names = SINKS if what == "sink" else RELAYS
        show(f"{what}: {records:,} rows, {rounds} rounds", [_row(name, outcomes) for name in names])
        good &= at_least(aim, f"eos {what} / raw", ratios(outcomes, "eos", "raw", "rate"))
        if what == "relay":
            say(
                f"eos relay / plain, which reads the table too: {spread(ratios(outcomes, 'eos', 'plain', 'rate'))}"
            )
        write(f"sql-{what}", {"records": records, "rounds": rounds}, outcomes)
        good &= all(one.exact for one in outcomes)
    say(f"\nfrom COMMIT to seen, {DELAY_RATE:,} rows/s, transactions of {DELAY_TRANSACTION_MS} ms")
    return at_most(DELAY_AIM_MS, "p99 in ms", delays) and good


@contextmanager
def _postgres() -> Iterator[LocalPostgres]:
    with tempfile.TemporaryDirectory(prefix="eos-bench-") as directory:
        Path(directory).chmod(0o755)  # as root the server runs as a user of its own
        with LocalPostgres(Path(directory), settings={"shared_buffers": "256MB"}) as server:
            yield server


@contextmanager
def _database(server: LocalPostgres) -> Iterator[str]:
    name = f"bench{time.time_ns()}"
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
    try:
        yield server.url.replace("/postgres", f"/{name}")
    finally:
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def _sink(name: str, number: int, servers: str, server: LocalPostgres, records: int) -> Outcome:
    topic = f"bench-sink-{time.time_ns()}"
    create_topic(servers, topic)
    load(servers, topic, records)
    try:
        with _database(server) as url:
            with psycopg.connect(url) as connection:
                engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
                with engine.begin() as made:
                    _metadata.create_all(made)
                    create(made)
                engine.dispose()
                connection.execute(_BY_LOOP)
                connection.execute(
                    "ALTER TABLE payments ADD COLUMN seen timestamptz DEFAULT clock_timestamp()"
                )
            cpu_seconds = _run(SINKS[name], Place(servers, url, topic, records))
            with psycopg.connect(url) as connection:
                found = connection.execute(
                    "SELECT count(*), count(DISTINCT id), extract(epoch FROM max(seen) - min(seen)) FROM payments"
                ).fetchone()
            assert found is not None
            return Outcome(
                name, number, records / float(found[2]), found[0] == found[1] == records, cpu_seconds
            )
    finally:
        delete_topic(servers, topic)


def _relay(name: str, number: int, servers: str, server: LocalPostgres, records: int) -> Outcome:
    topic = f"bench-relay-{time.time_ns()}"
    create_topic(servers, topic)
    try:
        with _database(server) as url:
            if name != "raw":
                _fill_outbox(url, topic, records)
            cpu_seconds = _run(RELAYS[name], Place(servers, url, topic, records))
            output = read_output(servers, topic)
            return Outcome(name, number, output.records_per_second, output.records == records, cpu_seconds)
    finally:
        delete_topic(servers, topic)


def _make_outbox(url: str, topic: str) -> None:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as made:
        create(made, relay_of(topic).own_tables)
    engine.dispose()


def _fill_outbox(url: str, topic: str, records: int) -> None:
    _make_outbox(url, topic)
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        with cursor.copy("COPY eos_outbox (topic, key, value) FROM STDIN") as copy:
            for n in range(records):
                copy.write_row((topic, key(n), value(n, 10_000)))
        connection.commit()
        connection.execute("ANALYZE eos_outbox")


def _delays(servers: str, server: LocalPostgres) -> float:
    """The p99 of the delays from COMMIT until a reader has the record, in milliseconds."""
    topic = f"bench-delay-{time.time_ns()}"
    create_topic(servers, topic)
    try:
        with _database(server) as url:
            _make_outbox(url, topic)
            stop = threading.Event()
            overrides = {
                "kafka.bootstrap_servers": servers,
                "sql.url": url,
                "transaction.interval_ms": DELAY_TRANSACTION_MS,
            }
            settings = Settings.load(overrides=overrides, environ={})
            relay = threading.Thread(
                target=eos.run, args=(relay_of(topic), settings), kwargs={"stop": stop}, daemon=True
            )
            application = threading.Thread(target=_apply, args=(url, topic, stop), daemon=True)
            relay.start()
            application.start()
            try:
                found = _seen(servers, topic)
            finally:
                stop.set()
                application.join(_CALL_SECONDS)
                relay.join(_CALL_SECONDS)
    finally:
        delete_topic(servers, topic)
    p99 = statistics.quantiles(found, n=100)[98]
    say(f"{len(found):,} rows: p50 {statistics.median(found):.0f} ms, p99 {p99:.0f} ms")
    return p99


def _apply(url: str, topic: str, stop: threading.Event) -> None:
    """The application: a transaction of some rows every few milliseconds."""
    number = max(1, round(DELAY_RATE * _EVERY_SECONDS))
    with psycopg.connect(url) as connection:
        due = time.monotonic()
        while not stop.is_set():
            stamp = str(time.time_ns()).encode()
            connection.cursor().executemany(
                "INSERT INTO eos_outbox (topic, value) VALUES (%s, %s)", [(topic, stamp)] * number
            )
            connection.commit()
            due += _EVERY_SECONDS
            stop.wait(max(0.0, due - time.monotonic()))


def _seen(servers: str, topic: str) -> list[float]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench-seen",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    found: list[float] = []
    began: float | None = None
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while began is None or time.monotonic() - began < _WARM_SECONDS + DELAY_SECONDS:
        messages = consumer.consume(1_000, 0.01)
        now_ns, now = time.time_ns(), time.monotonic()
        assert now < deadline, "no record was seen"
        if messages and began is None:
            began = now
        if began is not None and now - began > _WARM_SECONDS:
            found += [(now_ns - int(message.value() or b"0")) / 1e6 for message in messages]
    consumer.close()
    return found


def _run(contender: Callable[[Place], None], place: Place) -> float:
    """Run it in a process of its own; returns its CPU seconds."""

    def cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = cpu()
    process = multiprocessing.get_context("spawn").Process(target=contender, args=(place,))
    process.start()
    process.join(_DEADLINE_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
    if process.exitcode != 0:
        msg = f"{contender.__name__} ended with {process.exitcode}"
        raise RuntimeError(msg)
    return cpu() - before


def _row(name: str, outcomes: list[Outcome]) -> Row:
    own = [one for one in outcomes if one.contender == name]
    return {
        "contender": name,
        "rows/s": f"{statistics.median(one.rate for one in own):,.0f}",
        "/ raw": spread(ratios(outcomes, name, "raw", "rate")),
        "CPU s": f"{statistics.median(one.cpu_seconds for one in own):.1f}",
        "exact": "yes" if all(one.exact for one in own) else "NO",
    }

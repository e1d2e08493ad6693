"""What the coordinators have written down of transactions, on a real broker: the count of faults rests on it."""

from __future__ import annotations

import struct
import time

import pytest

from eos.base.deadline import Deadline
from eos.kafka.config import client_config
from eos.kafka.producer import TransactionalClient
from eos.prove.coordinators import Coordinators, LoggedState, LoggedTransaction, state_of
from tests.conftest import NewTopic
from tests.support.observer import unique
from tests.support.patience import PATIENCE_S
from tests.support.settings import settings_of


def value(version: int) -> bytes:
    """Of a transaction with partitions of two topics, as TransactionLogValue.json lays it out."""
    numbers = struct.pack(">qhib", 5, 3, 10_000, 2)
    times = struct.pack(">qq", 2_000, 1_000)
    if version == 0:
        one = b"".join(
            struct.pack(">h", len(name)) + name + struct.pack(">i", 2) + struct.pack(">ii", 0, 1)
            for name in (b"in", b"out")
        )
        return struct.pack(">h", 0) + numbers + struct.pack(">i", 2) + one + times
    two = b"".join(
        bytes([len(name) + 1]) + name + b"\3" + struct.pack(">ii", 0, 1) + b"\1\0\2ab"
        for name in (b"in", b"out")
    )
    return struct.pack(">h", 1) + numbers + b"\3" + two + times + b"\0"


@pytest.mark.parametrize("version", [0, 1])
def test_a_state_is_read_as_the_coordinator_writes_it(version: int) -> None:
    key = struct.pack(">hh", 0, 2) + b"id"
    assert state_of(key, value(version)) == LoggedState("id", 5, 3, 10_000, 2, 2_000, 1_000)
    assert state_of(struct.pack(">hh", 1, 2) + b"id", value(version)) is None


def test_a_transaction_without_partitions_is_read_too() -> None:
    empty = struct.pack(">hqhib", 0, 5, 3, 10_000, 0) + struct.pack(">i", -1) + struct.pack(">qq", 2, -1)
    assert state_of(struct.pack(">hh", 0, 2) + b"id", empty) == LoggedState("id", 5, 3, 10_000, 0, 2, -1)


@pytest.mark.broker
def test_only_what_the_coordinator_has_ended_after_its_time_has_expired(
    bootstrap: str, topic: NewTopic
) -> None:
    settings, out = settings_of(bootstrap), topic("out", 1)
    log = Coordinators(settings, "nobody")

    def begun(timeout_ms: int) -> tuple[str, TransactionalClient]:
        name = unique("coordinators")
        config = {**client_config(settings), "transactional.id": name, "transaction.timeout.ms": timeout_ms}
        client = TransactionalClient(config, transaction_timeout_s=timeout_ms / 1000)
        client.init(PATIENCE_S)
        client.begin()
        client.produce(out, [b"x"], [None], headers=[[]], deadline=Deadline(PATIENCE_S))
        assert Deadline(PATIENCE_S).wait_for(lambda: bool(log.looked([name])))
        return name, client

    def ended(name: str) -> LoggedTransaction:
        def is_decided() -> bool:
            return log.looked([name])[0].decided_ms is not None

        assert Deadline(PATIENCE_S).wait_for(is_decided)
        return log.of([name])[0]

    committed, first = begun(30_000)
    assert log.inside([committed], time.time() * 1000) is not None
    first.commit(PATIENCE_S)
    aborted, second = begun(30_000)
    second.abort(PATIENCE_S)
    expired, third = begun(6_000)
    fenced, fourth = begun(30_000)
    successor = TransactionalClient(
        {**client_config(settings), "transactional.id": fenced}, transaction_timeout_s=30
    )
    successor.init(PATIENCE_S)
    found = {
        what: ended(name)
        for what, name in (
            ("committed", committed),
            ("aborted", aborted),
            ("expired", expired),
            ("fenced", fenced),
        )
    }
    for client in (first, second, third, fourth, successor):
        client.close()
    assert {what: one.expired for what, one in found.items()} == {
        "committed": False,
        "aborted": False,
        "expired": True,
        "fenced": False,
    }
    assert [what for what, one in found.items() if one.committed] == ["committed"]
    assert log.longest_timeout_s >= 30

"""The late packet under both kinds of ownership: whatever arrives late, each input is processed once.

A session behind the proxy processes three transactions of input. One request of the second is held,
the client sends it again, and the first copy arrives in the middle of the third.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from eos import DeliveryError, OutputRecord, Partition, Settings
from eos.events import Event, ProducerOpened, ProducerSuspect
from eos.session.pipeline import PipelinedSession
from eos.shards import OrdinalShard, PartitionShard, Shard
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import Hold, HoldProxy, ends_with
from tests.support.observer import SeenRecord, assert_exactly_once, produce_plain, unique
from tests.support.sessions import session_for

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

WAIT_S = 20.0
HALF = 10  # records of half a transaction
INPUT = 6 * HALF

HOLDS: dict[str, Callable[[HoldProxy], Hold]] = {
    "abort": lambda proxy: proxy.hold(ApiKey.END_TXN, where=ends_with(committed=False), reset_client=True),
    "commit": lambda proxy: proxy.hold(ApiKey.END_TXN, where=ends_with(committed=True), reset_client=True),
    "offsets": lambda proxy: proxy.hold(ApiKey.TXN_OFFSET_COMMIT, reset_client=True),
}


def session_of(address: str, mode: str, group: str, source: str, told: list[Event]) -> PipelinedSession:
    overrides: dict[str, Any] = {
        "kafka.bootstrap_servers": address,
        "group": group,
        "input.start": "earliest",
        "ownership.mode": mode,
        "ownership.ordinal": 0,
    }
    shard: Shard = OrdinalShard("late", group, 0)
    if mode == "partition":
        overrides["ownership.partitions"] = [f"{source}:0"]
        shard = PartitionShard("late", group, Partition(source, 0))

    def tell(event: Event) -> None:
        told.append(event)

    return session_for(Settings.load(overrides=overrides, environ={}), shard, [source], listener=tell)


def fill(session: PipelinedSession, out: str) -> None:
    """Put the next half into the transaction, and wait until the broker has it."""
    left, deadline = HALF, time.monotonic() + WAIT_S
    while left:
        assert time.monotonic() < deadline
        batch = session.fetch(left, 0.2, 0.01)
        if batch:
            outputs = [OutputRecord(out, r.value, partition=int(r.value or b"0") % 3) for r in batch]
            session.stage(outputs, len(batch))
            left -= len(batch)
    session.produce()
    client = session._producer._client
    assert client is not None
    while len(client._producer) and time.monotonic() < deadline:
        client.poll()
        time.sleep(0.005)


def commit(session: PipelinedSession) -> None:
    session.commit_soon()
    session.join(WAIT_S)


@pytest.mark.parametrize(
    ("mode", "held"),
    [
        ("partition", "abort"),
        ("group", "commit"),
        ("partition", "offsets"),
        pytest.param("group", "abort", marks=pytest.mark.slow),
        pytest.param("partition", "commit", marks=pytest.mark.slow),
        pytest.param("group", "offsets", marks=pytest.mark.slow),
    ],
)
def test_request_that_arrives_in_the_middle_of_the_next_transaction_changes_nothing(
    proxy: HoldProxy, bootstrap: str, topic: NewTopic, *, mode: str, held: str
) -> None:
    source, out, group = topic("in"), topic("out", 3), unique("late")
    produce_plain(bootstrap, source, [b"%d" % n for n in range(INPUT)])
    told: list[Event] = []
    with session_of(proxy.bootstrap_servers, mode, group, source, told) as session:
        fill(session, out)
        fill(session, out)
        commit(session)
        late = HOLDS[held](proxy)
        fill(session, out)
        fill(session, out)
        if held == "abort":
            session.recover(DeliveryError("a test"))
        else:
            commit(session)
        assert [event for event in told if isinstance(event, ProducerSuspect)]
        fill(session, out)
        late.wait_held(WAIT_S)
        late.release()
        late.wait_answer(WAIT_S)
        fill(session, out)
        commit(session)
        if held == "abort":
            fill(session, out)
            fill(session, out)
            commit(session)
    assert len([event for event in told if isinstance(event, ProducerOpened)]) >= 2

    def same(record: SeenRecord) -> list[tuple[str, bytes | None, bytes | None]]:
        return [(out, None, record.value)]

    assert assert_exactly_once(bootstrap, group, [source], [out], same).processed == INPUT

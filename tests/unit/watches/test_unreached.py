"""Unreached: brokers that a consumer waits for are named once, and one that is connected to none ends."""

from __future__ import annotations

from typing import Any

import pytest

from eos import Partition, Settings
from eos.core.surroundings import Seat
from eos.errors import UnavailableError
from eos.events import Event, Waiting
from eos.faces.surroundings import ToKafka
from eos.kafka.consumer import AWAY_S
from eos.offsets import OffsetVector
from eos.watches import unreached
from eos.watches.unreached import Unreached

P, Q = Partition("in", 0), Partition("in", 1)
OWNED = OffsetVector({P: 5, Q: 7})
OFFLINE_MS = 60_000


class Client:
    """What a client knows of its connections, and the clock."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.away: dict[Partition, float] = {}
        self.outside_s = 0.0
        self.disconnected_s = 0.0

    def monotonic(self) -> float:
        return self.now

    def is_away(self, partition: Partition) -> bool:
        return self.away.get(partition, 0.0) >= AWAY_S


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    client = Client()
    monkeypatch.setattr(unreached, "time", client)
    return client


def watch(told: list[Event], *, is_member: bool = True) -> Unreached:
    settings = Settings.load(
        overrides={"input.offline_timeout_ms": OFFLINE_MS, "kafka.bootstrap_servers": "b:9092"}
    )
    return Unreached(
        Seat(
            settings=settings,
            topics=["in"],
            group="g",
            given=None if is_member else (P, Q),
            app="a",
            shard="s",
            listener=told.append,
            destination=ToKafka(),
        )
    )


def look(watching: Unreached, client: Any, times: int = 1) -> None:
    for _ in range(times):
        watching.look(client, OWNED)
        client.now += 2.5


def test_leader_that_is_away_is_named_once_and_again_when_it_has_come_back_and_gone(client: Any) -> None:
    told: list[Event] = []
    watching = watch(told)
    client.away = {Q: 9.9}
    look(watching, client, 2)
    assert told == []
    client.away = {Q: 10.0}
    look(watching, client, 5)
    assert [str(Q) in one.reason for one in told if isinstance(one, Waiting)] == [True]
    client.away = {}
    look(watching, client)
    client.away = {P: 11.0}
    look(watching, client)
    assert len(told) == 2


@pytest.mark.parametrize("is_member", [True, False])
def test_coordinator_that_refuses_a_member_is_named(client: Any, is_member: bool) -> None:
    told: list[Event] = []
    client.outside_s = 20.0
    watching = watch(told, is_member=is_member)
    look(watching, client, 2)
    assert len(told) == is_member


def test_client_without_any_broker_ends_when_its_time_is_over(client: Any) -> None:
    watching = watch([])
    look(watching, client)
    client.disconnected_s = OFFLINE_MS / 1000
    look(watching, client)
    client.disconnected_s += 1
    with pytest.raises(UnavailableError, match=r"input\.offline_timeout_ms = 60000"):
        look(watching, client)


def test_pause_of_the_process_is_not_counted_as_an_outage(client: Any) -> None:
    """Statistics that were not read meanwhile say nothing of now."""
    watching = watch([])
    look(watching, client)
    client.disconnected_s = OFFLINE_MS / 1000 + 1
    client.now += 600
    look(watching, client)
    with pytest.raises(UnavailableError):
        look(watching, client)

"""Partitions whose takeover fails, without a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from eos.core.assignment import Assignment
from eos.core.ledger import Ledger
from eos.errors import UnavailableError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.offsets import OffsetVector, Partition
from tests.support.settings import settings_of

INPUT = Partition("in", 0)


class Client:
    """What the group has assigned, and what is read."""

    def __init__(self) -> None:
        self.fails = False
        self.read: set[Partition] = set()

    def assignment(self) -> frozenset[Partition]:
        return frozenset(self.read)

    def incremental_assign(self, positions: OffsetVector) -> None:
        if self.fails:
            raise UnavailableError("no answer")
        self.read |= positions.keys()

    def incremental_unassign(self, partitions: Iterable[Partition]) -> None:
        self.read -= {*partitions}


class Seat:
    settings = settings_of()
    shard = "app.g.i.0"

    def listener(self, _: object) -> None: ...


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(OffsetMetadata(OwnershipMode.GROUP, "app.g.i.0"))


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def assignment(ledger: Ledger, client: Client, monkeypatch: pytest.MonkeyPatch) -> Assignment:
    made = Assignment(cast("Any", Seat()), [], ledger, lambda: cast("Any", client), None)
    monkeypatch.setattr(
        made, "take_over", lambda partitions: ledger.taken_over(dict.fromkeys(partitions), OffsetVector(dict.fromkeys(partitions, 0)))
    )  # fmt: skip
    return made


def fail(assignment: Assignment, client: Client) -> None:
    client.fails = True
    assignment.assigned([INPUT])
    with pytest.raises(UnavailableError):
        assignment.raise_error()
    client.fails = False


def test_partition_whose_takeover_failed_is_not_owned_until_it_is_repaired(
    assignment: Assignment, ledger: Ledger, client: Client
) -> None:
    """Else the owner would commit for it what it does not read."""
    fail(assignment, client)
    assert not ledger.committed
    assignment.repair()
    assert ledger.committed.keys() == client.read == {INPUT}


def test_partition_whose_takeover_failed_is_not_taken_over_once_it_has_gone(
    assignment: Assignment, ledger: Ledger, client: Client
) -> None:
    fail(assignment, client)
    assignment.revoked([INPUT])
    assignment.repair()
    assert not ledger.committed
    assert not client.read


def test_next_membership_has_its_own_assignment(
    assignment: Assignment, ledger: Ledger, client: Client
) -> None:
    fail(assignment, client)
    assignment.lose_all()
    assignment.repair()
    assert not ledger.committed
    assert not client.read

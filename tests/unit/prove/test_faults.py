"""The faults of a seed are the same each time, and each kind comes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from eos.prove.faults import BETWEEN, ERRORS, TRANSACTIONAL, Fault, FaultKind, faults
from eos.prove.inputs import WAYS
from eos.testing.proxy import ApiKey, Edge


def first(count: int, seed: int, kinds: list[FaultKind] | None = None) -> list[Fault]:
    return list(islice(faults(seed, kinds or list(FaultKind)), count))


def test_a_seed_makes_the_same_faults_again_and_another_seed_others() -> None:
    assert first(50, 7) == first(50, 7)
    assert first(50, 7) != first(50, 8)


def test_a_longer_trial_begins_as_a_shorter_one() -> None:
    assert first(50, 7)[:20] == first(20, 7)


def test_every_kind_way_and_request_comes() -> None:
    many = first(3_000, 1)
    assert [fault.number for fault in many] == list(range(1, 3_001))
    assert {fault.kind for fault in many} == set(FaultKind)
    assert {fault.api for fault in many if fault.kind is FaultKind.KILL} == {None, *TRANSACTIONAL}
    assert {fault.edge for fault in many} == set(Edge)
    assert len({fault.way for fault in many if fault.kind is FaultKind.DROP}) == 5
    assert {fault.way for fault in many if fault.kind is FaultKind.LATE} == {"held", "done, and again"}
    errors = [fault for fault in many if fault.kind is FaultKind.ERROR]
    assert {(fault.api, fault.error) for fault in errors} >= {(ApiKey.FETCH, 6), (ApiKey.END_TXN, 47)}
    assert {fault.api for fault in errors} == set(ERRORS)
    for api in ERRORS:
        ways = {fault.way for fault in errors if fault.api is api}
        assert ways == ({"done", "not done"} if api in TRANSACTIONAL else {""})
    assert all(fault.error == 0 for fault in many if fault.kind is not FaultKind.ERROR)
    assert {fault.way for fault in many if fault.kind is FaultKind.INPUT} == set(WAYS)
    zombies = [fault for fault in many if fault.kind is FaultKind.ZOMBIE]
    assert {fault.api for fault in zombies if not fault.way} == set(TRANSACTIONAL)
    between = [fault for fault in zombies if fault.way == BETWEEN]
    assert {(fault.api, fault.edge) for fault in between} == {(ApiKey.END_TXN, Edge.REPLY)}
    assert len(between) > len(zombies) / 2, (
        "inside a transaction the coordinator ends what they would do wrong"
    )
    assert min(Counter(fault.kind for fault in many).values()) > 200


@pytest.mark.parametrize("kind", list(FaultKind))
def test_only_what_was_asked_for_comes(kind: FaultKind) -> None:
    assert {fault.kind for fault in first(50, 3, [kind])} == {kind}


def test_a_fault_says_what_it_is() -> None:
    fault = Fault(1, FaultKind.DROP, 1.0, 0.0, 0.5, ApiKey.END_TXN, Edge.REPLY, "answer lost")
    assert str(fault) == "drop, answer lost at END_TXN"
    fault = Fault(1, FaultKind.KILL, 1.0, 0.0, 0.5, ApiKey.END_TXN, Edge.REPLY, "")
    assert str(fault) == "kill at END_TXN (reply)"


def test_the_ways_that_are_asked_for_come_as_they_would_among_all() -> None:
    of_all = [
        fault for fault in first(200, 3, [FaultKind.BROKER, FaultKind.KILL]) if fault.way in {"paused", ""}
    ]
    alone = list(
        islice(faults(3, [FaultKind.BROKER, FaultKind.KILL], {FaultKind.BROKER: ["paused"]}), len(of_all))
    )
    assert {fault.way for fault in alone} == {"paused", ""}
    assert alone == of_all


def test_quiet_is_shortened_and_nothing_else() -> None:
    short = list(islice(faults(3, list(FaultKind), quiet=0.25), 50))
    assert [replace(one, quiet_s=one.quiet_s * 4) for one in short] == first(50, 3)

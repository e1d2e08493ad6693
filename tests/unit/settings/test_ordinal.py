"""An ordinal is the same for an instance and its replacement; whatever looks random is refused."""

from __future__ import annotations

import socket

import pytest

from eos.errors import ConfigError
from eos.settings import Settings


def ordinal(text: str, **more: str) -> int | None:
    return Settings.load(environ={"EOS_ORDINAL": text, **more}).ownership.ordinal


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("0", 0),
        ("17", 17),
        ("999", 999),
        ("refunds-3", 3),
        ("refunds-v2-12", 12),
        ("refunds-3.refunds.payments.svc.cluster.local", 3),
    ],
)
def test_numbers_and_stateful_set_names_are_ordinals(text: str, meant: int) -> None:
    assert ordinal(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "-1",
        "3.5",
        "31337",  # a process id
        "20261121",  # a date
        "1763683200",  # a time
        "2026-11-21",
        "refunds-2026-11-21",
        "550e8400-e29b-41d4-a716-446655440000",
        "3f2a9c1b7d4e",  # a container's host name
        "refunds-7d9f8c6b5-x2x4z",  # a Deployment's pod
        "refunds-7d9f8c6b5-24689",
        "ip-10-0-3-17",
        "refunds-007",
        "refunds",
        "refunds-4711",
    ],
)
def test_what_looks_random_is_refused_with_the_reason_and_the_fix(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ordinal(text)
    message = str(caught.value)
    assert message.startswith("ownership.ordinal (environment EOS_ORDINAL): ")
    assert "Fix: EOS_ORDINAL = 0, 1, 2" in message
    assert text == "-1" or "replacement" in message


def test_a_large_ordinal_needs_the_number_of_instances() -> None:
    assert ordinal("1500", EOS_OWNERSHIP__INSTANCES="2000") == 1500
    with pytest.raises(ConfigError, match=r"not below ownership\.instances = 1000"):
        ordinal("1500", EOS_OWNERSHIP__INSTANCES="1000")


def test_the_host_name_is_taken_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "refunds-5")
    assert Settings.load(environ={}).ownership.ordinal is None
    assert ordinal("hostname") == 5
    monkeypatch.setattr(socket, "gethostname", lambda: "3f2a9c1b7d4e")
    with pytest.raises(ConfigError, match="the host name '3f2a9c1b7d4e' is neither"):
        ordinal("hostname")


def test_workers_share_out_ordinals_without_overlap() -> None:
    settings = [
        Settings.load(environ={"EOS_ORDINAL": str(n), "EOS_WORKERS__COUNT": "3"}).for_worker(i)
        for n in range(2)
        for i in range(3)
    ]
    assert [one.ordinal for one in settings] == [0, 1, 2, 3, 4, 5]
    assert {one.workers.count for one in settings} == {1}


def test_workers_share_out_partitions() -> None:
    base = {"EOS_OWNERSHIP__MODE": "partition", "EOS_WORKERS__COUNT": "2"}
    listed = Settings.load(environ={**base, "EOS_OWNERSHIP__PARTITIONS": "a:0,a:1,a:2"})
    assert [listed.for_worker(i).ownership.partitions for i in range(2)] == [("a:0", "a:2"), ("a:1",)]
    counted = Settings.load(environ={**base, "EOS_ORDINAL": "1", "EOS_OWNERSHIP__INSTANCES": "2"})
    assert [(one.ordinal, one.ownership.instances) for one in map(counted.for_worker, range(2))] == [
        (2, 4),
        (3, 4),
    ]


def test_a_single_instance_needs_no_ordinal_said() -> None:
    assert Settings.load(environ={}).ordinal == 0

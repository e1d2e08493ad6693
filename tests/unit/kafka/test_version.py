"""A librdkafka that is known to lose or double records is refused by name."""

from __future__ import annotations

import pytest

from eos.errors import ConfigError
from eos.kafka import librdkafka
from eos.kafka.consumer import ConsumerClient
from eos.kafka.librdkafka import librdkafka_version, refuse_known_bad


@pytest.mark.parametrize(
    ("version", "fault"),
    [
        ("1.8.1", "leaders change"),
        ("1.8.2", "reported them delivered"),
        ("1.9.2", "go on with a commit"),
        ("2.2.0", "over records"),
        ("2.13.1-RC1", "over records"),
    ],
)
def test_version_that_breaks_exactly_once_is_refused_with_its_fault(version: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=rf"librdkafka {version} .*{fault}.*Fix: pip install"):
        refuse_known_bad(version)


@pytest.mark.parametrize("version", ["2.0.0", "2.1.1", "2.13.2", "2.16.0", "3", librdkafka_version()])
def test_version_without_a_known_fault_passes(version: str) -> None:
    refuse_known_bad(version)


@pytest.mark.parametrize("version", ["2.13.2", "2.14.0", "2.14.2"])
def test_version_whose_kip_848_members_break_is_refused_for_that_protocol_only(version: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"KIP-848 protocol \(#5541\), until 2\.15\.0.*or ownership.protocol = 'cooperative'",
    ):
        refuse_known_bad(version, "consumer")
    refuse_known_bad(version, "classic")
    refuse_known_bad("2.15.0", "consumer")


def test_consumer_asks_for_its_group_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(librdkafka, "librdkafka_version", lambda: "2.14.0")
    librdkafka.require_sound_librdkafka.cache_clear()
    options = {"group.id": "g", "bootstrap.servers": "127.0.0.1:1"}
    try:
        ConsumerClient(options).close()
        with pytest.raises(ConfigError, match="KIP-848"):
            ConsumerClient({**options, "group.protocol": "consumer"})
    finally:
        librdkafka.require_sound_librdkafka.cache_clear()

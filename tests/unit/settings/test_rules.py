"""Combinations of settings that could lose, repeat or block records."""

from __future__ import annotations

import pytest

from eos.errors import ConfigError
from eos.settings import Settings
from tests.support.settings import settings_of

# Makes of this file one that could hold a certificate: -----BEGIN CERTIFICATE-----


@pytest.mark.parametrize(
    ("overrides", "name", "fix"),
    [
        ({"transaction.interval_ms": 40_000}, "transaction.interval_ms", "at most 30000"),
        ({"transaction.timeout_ms": 400_000}, "ownership.max_poll_interval_ms", "at least 400000"),
        ({"ownership.session_timeout_ms": 400_000}, "ownership.session_timeout_ms", "at most 300000"),
        (
            {"ownership.protocol": "consumer", "ownership.session_timeout_ms": 6_000},
            "ownership.session_timeout_ms",
            "consumer.session.timeout.ms on the broker",
        ),
        ({"ownership.mode": "partition"}, "ownership.mode", "ownership.partitions"),
        ({"ownership.mode": "partition", "ownership.ordinal": 0}, "ownership.mode", "ownership.instances"),
        ({"ownership.partitions": ["a:0"]}, "ownership.partitions", "ownership.mode = 'partition'"),
        (
            {"ownership.mode": "partition", "ownership.partitions": ["a"]},
            "ownership.partitions",
            "settlements:0",
        ),
        (
            {"ownership.mode": "partition", "ownership.partitions": ["a:0", "a:0"]},
            "ownership.partitions",
            "once",
        ),
        (
            {"ownership.mode": "partition", "ownership.partitions": ["a:0"], "ownership.instances": 2},
            "ownership.instances",
            "keep one",
        ),
        (
            {"ownership.mode": "partition", "ownership.partitions": ["a:0"], "workers.count": 2},
            "workers.count",
            "at most 1",
        ),
        ({"ownership.ordinal": 2, "ownership.instances": 2}, "ownership.ordinal", "0 to 1"),
        ({"kafka.security_protocol": "SASL_SSL"}, "kafka.sasl_mechanism", "SCRAM-SHA-512"),
        (
            {"kafka.security_protocol": "SSL", "kafka.ssl_ca_file": pytest.__file__},
            "kafka.ssl_ca_file",
            "PEM file",
        ),
        ({"group": "grüße"}, "group", "EOS_GROUP"),
        (
            {
                "kafka.security_protocol": "SASL_SSL",
                "kafka.sasl_mechanism": "PLAIN",
                "kafka.sasl_username": "u",
            },
            "kafka.sasl_password",
            "kafka.sasl_password_file",
        ),
        ({"kafka.sasl_username": "u"}, "kafka.sasl_username", "SASL_SSL"),
        ({"kafka.ssl_key_password": "u"}, "kafka.ssl_key_password", "SSL or SASL_SSL"),
        (
            {"kafka.security_protocol": "SSL", "kafka.ssl_certificate_file": __file__},
            "kafka.ssl_certificate_file",
            "kafka.ssl_key_file",
        ),
        ({"kafka.security_protocol": "SSL", "kafka.ssl_ca_file": "/nowhere"}, "kafka.ssl_ca_file", "PEM"),
        ({"local.brokers": 2}, "local.brokers", "1, or 3"),
        ({"group": "a\nb"}, "group", "EOS_GROUP"),
    ],
)
def test_a_combination_that_cannot_work_is_refused_with_its_fix(
    overrides: dict[str, object], name: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(**overrides)
    message = str(caught.value)
    assert message.startswith(f"{name}"), message
    assert fix in message.partition("Fix: ")[2]


def test_deadlines_follow_the_transaction_timeout_unless_set() -> None:
    settings = Settings.load(environ={"EOS_TRANSACTION__TIMEOUT_MS": "20000"})
    assert settings.transaction.commit_timeout_s == 20.0
    assert settings.open_timeout_s == 35.0
    own = Settings.load(environ={"EOS_TRANSACTION__COMMIT_DEADLINE_MS": "1500"})
    assert own.transaction.commit_timeout_s == 1.5


def test_waiting_for_a_predecessor_never_costs_the_membership() -> None:
    environ = {"EOS_TRANSACTION__TIMEOUT_MS": "5000", "EOS_OWNERSHIP__MAX_POLL_INTERVAL_MS": "10000"}
    assert Settings.load(environ=environ).open_timeout_s == 8.0

"""Client options that librdkafka does not take are refused before a client is made, with their source and the name that was meant."""

from __future__ import annotations

import pytest

from eos.errors import ConfigError
from eos.kafka.config import client_config
from eos.kafka.options import refuse_wrong
from eos.settings import Settings


def said_of(**options: object) -> str:
    settings = Settings.load(
        environ={"EOS_KAFKA__PRODUCER__LINGER_MS": "5", "EOS_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:9"},
        overrides={name.replace("__", "."): value for name, value in options.items()},
    )
    with pytest.raises(ConfigError) as raised:
        refuse_wrong(settings)
    with pytest.raises(ConfigError):
        client_config(settings)
    return str(raised.value)


def test_a_misspelt_option_is_named_with_its_source_and_the_nearest_name() -> None:
    assert said_of(kafka__consumer={"fetch.min.byts": 1}) == (
        "kafka.consumer.fetch.min.byts (override): librdkafka has no such option. Fix: did you mean kafka.consumer.fetch.min.bytes?"
    )
    assert "leave it out, or see librdkafka's CONFIGURATION.md" in said_of(kafka__client={"zzzz": 1})


def test_a_value_that_librdkafka_does_not_take_is_named() -> None:
    said = said_of(kafka__producer={"compression.type": "zst", "linger.ms": -1})
    assert said.startswith("2 settings are wrong:")
    assert 'kafka.producer.compression.type (override): Invalid value "zst"' in said
    assert "kafka.producer.linger.ms (override)" in said


def test_a_wrong_value_of_a_secret_is_not_printed() -> None:
    said = said_of(
        kafka__client={
            "enable.sasl.oauthbearer.unsecure.jwt": "s3cr3t-jwt",
            "sasl.oauthbearer.client.secret.x": "s3cr3t",
        }
    )
    assert "s3cr3t" not in said


def test_right_options_are_taken() -> None:
    settings = Settings.load(
        environ={},
        overrides={
            "kafka.client": {"socket.keepalive.enable": True, "client.id": "x"},
            "kafka.producer": {"linger.ms": 5, "compression.type": "zstd"},
            "kafka.consumer": {"fetch.min.bytes": 1, "max.partition.fetch.bytes": 1_000_000},
        },
    )
    refuse_wrong(settings)

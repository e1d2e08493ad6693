"""What librdkafka's clients are built from, and what users may not change in it."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from eos.errors import ConfigError
from eos.kafka.config import client_config, consumer_config, producer_config
from eos.kafka.fixed import _FIXED
from eos.settings import Settings

BROKER = {"EOS_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1"}
MODES: list[dict[str, str]] = [
    {},
    {"EOS_OWNERSHIP__PROTOCOL": "consumer"},
    {"EOS_OWNERSHIP__MODE": "partition", "EOS_OWNERSHIP__PARTITIONS": "a:0"},
]


def load(environ: dict[str, str] | None = None, overrides: dict[str, Any] | None = None) -> Settings:
    return Settings.load(environ={**BROKER, **(environ or {})}, overrides=overrides)


def quiet() -> logging.Logger:
    logger = logging.getLogger("librdkafka-in-tests")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def test_without_brokers_nothing_can_connect_and_the_error_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="EOS_KAFKA__BOOTSTRAP_SERVERS"):
        client_config(Settings.load(environ={}))


@pytest.mark.parametrize("mode", MODES)
def test_librdkafka_takes_the_rendered_dicts_also_with_short_times(mode: dict[str, str]) -> None:
    short = {
        "EOS_TRANSACTION__TIMEOUT_MS": "1000",
        "EOS_OWNERSHIP__MAX_POLL_INTERVAL_MS": "6000",
    }
    if "EOS_OWNERSHIP__PROTOCOL" not in mode:
        short["EOS_OWNERSHIP__SESSION_TIMEOUT_MS"] = "6000"
    for environ in (mode, mode | short):
        settings = load(environ)
        consumer = confluent_kafka.Consumer(consumer_config(settings, "g", 0), logger=quiet())
        consumer.close()
        producer = confluent_kafka.Producer(producer_config(settings, "t"), logger=quiet())
        del producer


def test_a_consumer_reads_committed_records_and_neither_commits_nor_jumps() -> None:
    for mode in MODES:
        config = consumer_config(load(mode), "g", 2)
        assert config["isolation.level"] == "read_committed"
        assert config["enable.auto.commit"] is False
        assert config["enable.auto.offset.store"] is False
        assert config["auto.offset.reset"] == "error"
        assert config["fetch.queue.backoff.ms"] == 2


def test_each_ownership_has_its_own_membership() -> None:
    cooperative, consumer, partition = (consumer_config(load(mode), "g", 2) for mode in MODES)
    assert cooperative["partition.assignment.strategy"] == "cooperative-sticky"
    assert cooperative["session.timeout.ms"] == 10_000
    assert cooperative["heartbeat.interval.ms"] == 500
    assert cooperative["group.instance.id"] == "g-2"
    assert consumer["group.protocol"] == "consumer"
    assert "group.instance.id" not in consumer  # a replacement would be refused: UNRELEASED_INSTANCE_ID
    refused_by_kip_848 = {"session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"}
    assert not refused_by_kip_848 & consumer.keys()
    assert not {"group.instance.id", "group.protocol", "partition.assignment.strategy"} & partition.keys()


def test_a_short_session_has_a_heartbeat_in_each_third_of_it() -> None:
    assert (
        consumer_config(load({"EOS_OWNERSHIP__SESSION_TIMEOUT_MS": "1200"}), "g", 2)["heartbeat.interval.ms"]
        == 400
    )


def test_a_member_is_static_only_with_an_ordinal_and_if_wanted() -> None:
    assert "group.instance.id" not in consumer_config(load(), "g", None)
    assert "group.instance.id" not in consumer_config(
        load({"EOS_OWNERSHIP__STATIC_MEMBERSHIP": "false"}), "g", 1
    )


def test_an_instance_id_holds_only_what_kafka_allows_there() -> None:
    """A group id may hold anything; an instance id is checked like a topic name (249 characters, five of them for a member that joins anew)."""
    assert consumer_config(load(), "a group/é", 3)["group.instance.id"] == "a_group__-3"
    assert len(consumer_config(load(), "g" * 300, 3)["group.instance.id"]) == 244


def test_a_producer_is_idempotent_partitions_like_java_and_lets_resends_and_implicit_acks_be_seen() -> None:
    config = producer_config(load({"EOS_TRANSACTION__TIMEOUT_MS": "20000"}), "app.g.i.0")
    assert config["transactional.id"] == "app.g.i.0"
    assert config["enable.idempotence"] is True
    assert config["partitioner"] == "murmur2_random"
    assert config["transaction.timeout.ms"] == config["message.timeout.ms"] == 20_000
    assert (config["debug"], config["log.connection.close"], config["log_level"]) == (
        "broker,feature,eos",
        True,
        6,
    )
    assert "socket.timeout.ms" not in config


def test_users_options_go_where_they_belong_and_win_over_defaults() -> None:
    settings = load(
        overrides={
            "kafka.client": {"client.id": "x", "linger.ms": 1},
            "kafka.producer": {"linger.ms": 20, "queue.buffering.max.messages": 7},
            "kafka.consumer": {"fetch.queue.backoff.ms": 5, "socket.timeout.ms": 3_000},
        }
    )
    producer, consumer = producer_config(settings, "t"), consumer_config(settings, "g", 0)
    assert (producer["client.id"], producer["linger.ms"], producer["queue.buffering.max.messages"]) == (
        "x",
        20,
        7,
    )
    assert (consumer["client.id"], consumer["fetch.queue.backoff.ms"]) == ("x", 5)
    assert consumer["socket.timeout.ms"] == 3_000
    assert "socket.timeout.ms" not in producer
    assert client_config(settings)["client.id"] == "x"


@pytest.mark.parametrize("table", ["client", "producer", "consumer"])
def test_options_that_the_guarantee_hangs_on_are_refused_by_name(table: str) -> None:
    options = {*_FIXED, "statistics.interval.ms", "error.cb", "stats.cb", "rebalance.cb"}
    if table == "consumer":
        options.remove("socket.timeout.ms")
    with pytest.raises(ConfigError) as caught:
        client_config(load(overrides={f"kafka.{table}": dict.fromkeys(options, "1")}))
    lines = str(caught.value).splitlines()[1:]
    assert len(lines) == len(options)
    for option in options:
        (line,) = [one for one in lines if f": {option} is fixed by eos: " in one]
        assert f"kafka.{table}.{option} (override)" in line
        assert "Fix: leave it out" in line


@pytest.mark.parametrize(
    ("variable", "instead"),
    [
        ("EOS_KAFKA__PRODUCER__TRANSACTION_TIMEOUT_MS", "transaction.timeout_ms"),
        ("EOS_KAFKA__CONSUMER__SESSION_TIMEOUT_MS", "ownership.session_timeout_ms"),
        ("EOS_KAFKA__CLIENT__BOOTSTRAP_SERVERS", "kafka.bootstrap_servers"),
        ("EOS_KAFKA__CLIENT__LOG_LEVEL", "observe.log_level"),
        ("EOS_KAFKA__CONSUMER__REBALANCE_CB", "listener"),
    ],
)
def test_a_refused_option_names_what_to_use_instead(variable: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=instead) as caught:
        client_config(load({variable: "1"}))
    assert f"(environment {variable})" in str(caught.value)


def test_what_eos_says_may_be_set_instead_exists() -> None:
    """A fix that names a setting nobody has would send the reader in circles."""
    known = {one.name for one in Settings.described()}
    tables = {name.partition(".")[0] for name in known if "." in name}
    for _, instead in _FIXED.values():
        for word in re.findall(r"\b([a-z]+\.[a-z_]+)\b", instead):
            if word.partition(".")[0] in tables:
                assert word in known or word == "kafka.producer", word


def test_scram_and_mutual_tls_are_rendered(tmp_path: Path) -> None:
    pem = tmp_path / "x.pem"
    pem.write_text("-----BEGIN CERTIFICATE-----")
    scram = {
        "EOS_KAFKA__SECURITY_PROTOCOL": "sasl_ssl",
        "EOS_KAFKA__SASL_MECHANISM": "scram-sha-512",
        "EOS_KAFKA__SASL_USERNAME": "u",
        "EOS_KAFKA__SASL_PASSWORD": "p",
        "EOS_KAFKA__SSL_CA_FILE": str(pem),
    }
    assert client_config(load(scram)) == {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.ca.location": str(pem),
    }
    mutual = {
        "EOS_KAFKA__SECURITY_PROTOCOL": "SSL",
        "EOS_KAFKA__SSL_CERTIFICATE_FILE": str(pem),
        "EOS_KAFKA__SSL_KEY_FILE": str(pem),
        "EOS_KAFKA__SSL_KEY_PASSWORD": "k",
    }
    rendered = client_config(load(mutual))
    assert (rendered["ssl.certificate.location"], rendered["ssl.key.location"]) == (str(pem), str(pem))
    assert rendered["ssl.key.password"] == "k"

"""Preflight's rules: how old a broker may be, and which topics get a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eos.errors import ConfigError
from eos.kafka.admin import TopicShape
from eos.ops.check.held_back import _described
from eos.ops.check.preflight import (
    OLDEST_BROKER,
    check_broker_version,
    check_transaction_timeout,
    late_offsets_risk,
    late_request_risks,
    other_makes,
    refuse_unfit_outputs,
    tiered_inputs,
    topic_risks,
)
from eos.ops.check.transactions import TransactionDescription

KAFKA_2_5 = {"OffsetFetch": 7, "TxnOffsetCommit": 3, "InitProducerId": 3}
SAFE = TopicShape(partitions=4, replicas=3)


def test_the_oldest_broker_is_accepted() -> None:
    check_broker_version(KAFKA_2_5)


@pytest.mark.parametrize("request_name", KAFKA_2_5)
def test_a_broker_without_what_the_fences_need_is_refused(request_name: str) -> None:
    older = {**KAFKA_2_5, request_name: KAFKA_2_5[request_name] - 1}
    with pytest.raises(ConfigError, match=f"{OLDEST_BROKER}.*{request_name}"):
        check_broker_version(older)


def test_a_broker_without_transactions_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="InitProducerId none < 3"):
        check_broker_version({"OffsetFetch": 7})


def test_a_safe_topic_gets_no_warning() -> None:
    config = {
        "min.insync.replicas": "2",
        "cleanup.policy": "delete",
        "unclean.leader.election.enable": "false",
    }
    assert not list(topic_risks(SAFE, config))


def test_a_topic_whose_configuration_is_not_shown_is_judged_by_its_replicas() -> None:
    assert not list(topic_risks(SAFE, {}))
    assert len(list(topic_risks(TopicShape(4, 1), {}))) == 1


def test_of_a_cluster_to_try_things_out_replicas_are_not_expected() -> None:
    assert not list(topic_risks(None, {"min.insync.replicas": "1"}))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"min.insync.replicas": "1"}, "min.insync.replicas = 1"),
        ({"unclean.leader.election.enable": "true"}, "unclean"),
        ({"cleanup.policy": "compact,delete"}, "compacted"),
    ],
)
def test_each_risk_is_named(config: dict[str, str], said: str) -> None:
    (risk,) = topic_risks(SAFE, config)
    assert said in risk


def test_the_brokers_own_topics_may_be_compacted() -> None:
    assert not list(topic_risks(SAFE, {"cleanup.policy": "compact"}, is_output=False))


UNCLEAN = "unclean.leader.election.enable"


def test_outputs_with_unclean_leader_election_are_refused_unless_a_setting_accepts_them() -> None:
    configs = {"a": {UNCLEAN: "true"}, "b": {UNCLEAN: "false"}, "unseen": {}}
    with pytest.raises(ConfigError, match=rf"^a: {UNCLEAN} = true.*accept_unclean_leader_election = true"):
        refuse_unfit_outputs(configs, accept_unclean=False)
    refuse_unfit_outputs(configs, accept_unclean=True)


@pytest.mark.parametrize("name", ["diskless.enable", "inkless.enable"])
def test_diskless_outputs_are_refused(name: str) -> None:
    refuse_unfit_outputs({"a": {name: "false"}}, accept_unclean=False)
    with pytest.raises(
        ConfigError, match=rf"^b: {name} = true, and diskless topics take no transactions.*Fix:"
    ):
        refuse_unfit_outputs({"a": {}, "b": {name: "true"}}, accept_unclean=True)


def test_tiered_inputs_get_a_warning() -> None:
    assert not list(tiered_inputs({"a": {"remote.storage.enable": "false"}, "b": {}}))
    (said,) = tiered_inputs({"a": {"remote.storage.enable": "true"}, "b": {}})
    assert said.startswith("a: remote.storage.enable = true")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"confluent.license.topic": "x", "transaction.state.log.min.isr": "2"}, "but Confluent Server:"),
        ({"log.retention.ms": "1"}, "another make, which has no setting transaction.state.log.min.isr"),
    ],
)
def test_brokers_that_are_not_apache_kafka_get_a_warning(config: dict[str, str], said: str) -> None:
    (warning,) = other_makes({"1": config})
    assert said in warning
    assert not list(other_makes({"1": {}, "2": {"transaction.state.log.min.isr": "2"}}))


def test_transaction_whose_end_is_decided_is_named_as_such() -> None:
    """Nobody's timeout ends it, so its owner and its timeout are no answer."""
    one = TransactionDescription("a.a.i.0", "PrepareCommit", 7, 3, 60_000, None, frozenset(), 1)
    assert "PrepareCommit: its end is decided" in _described(one)
    assert "KAFKA-19999" in _described(one)
    assert "decided" not in _described(replace(one, state="Ongoing"))


VERIFICATION = "transaction.partition.verification.enable"


def test_brokers_that_verify_transactions_get_no_warning() -> None:
    assert not list(late_request_risks({"1": {VERIFICATION: "true"}, "2": {VERIFICATION: "true"}}))


@pytest.mark.parametrize(("newest", "warnings"), [(8, 1), (9, 0), (10, 0)])
def test_brokers_that_do_not_verify_offsets_are_warned_of(newest: int, warnings: int) -> None:
    assert len(list(late_offsets_risk({"OffsetCommit": newest}))) == warnings


def test_brokers_that_do_not_are_named_with_the_reason() -> None:
    configs = {
        "1": {VERIFICATION: "true"},
        "2": {VERIFICATION: "false"},
        "3": {"other": "1"},
        "4": {"other": "1"},
    }
    switched_off, older = list(late_request_risks(configs))
    assert f"{VERIFICATION} = false (broker 2)" in switched_off
    assert "before Apache Kafka 3.6 (broker 3, 4)" in older
    assert "Fix:" in switched_off


def test_a_timeout_above_the_brokers_maximum_is_refused_with_both_figures() -> None:
    check_transaction_timeout(120_000, 900_000)
    with pytest.raises(ConfigError, match=r"transaction\.timeout_ms: 120000 .* = 60000"):
        check_transaction_timeout(120_000, 60_000)

"""Preflight on a real broker: what does not fit is refused before the first transaction, with its fix."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from eos.errors import ConfigError, UnavailableError
from eos.events import Event
from eos.job import Job
from eos.kafka.admin import Admin
from eos.kafka.api_versions import ApiVersions
from eos.offsets import Partition
from eos.ops.check.preflight import preflight
from eos.ops.check.transactions import TransactionsView
from eos.runner.worker import run
from tests.conftest import NewTopic
from tests.support.observer import broker_config, create_topics, unique
from tests.support.patience import PATIENCE_S
from tests.support.settings import settings_of

pytestmark = pytest.mark.broker


@pytest.fixture
def job(topic: NewTopic) -> Job:
    return Job(name="flight", inputs=[topic("in", 3)], outputs=[topic("out", 3)], transform=lambda _: [])


def test_a_single_broker_fits_with_a_warning_per_risk_not_per_topic(bootstrap: str, job: Job) -> None:
    warnings = preflight(job, settings_of(bootstrap))
    (of_replicas,) = [one for one in warnings if "1 replica:" in one]
    assert job.outputs[0] in of_replicas
    assert any("min.insync.replicas = 1" in one for one in warnings)
    assert not any("could not be" in one for one in warnings)


def test_the_brokers_version_in_librdkafkas_log_is_what_another_client_is_told(bootstrap: str) -> None:
    """If a librdkafka writes other lines, nothing is read from them and the preflight asks with the other client."""
    versions = ApiVersions()
    admin = Admin.of(settings_of(bootstrap), versions.options)
    admin.brokers(PATIENCE_S)
    admin.serve_log()
    with TransactionsView(settings_of(bootstrap)) as view:
        told = view.api_versions()
    requests = ("OffsetFetch", "TxnOffsetCommit", "InitProducerId")
    assert [versions.newest[one] for one in requests] == [told[one] for one in requests]


def test_a_log_without_the_versions_is_made_up_for_by_the_other_client(
    bootstrap: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    told = TransactionsView.api_versions

    def noted(view: TransactionsView) -> dict[str, int]:
        asked.append(True)
        return told(view)

    monkeypatch.setattr(ApiVersions, "log", lambda *_: None)
    monkeypatch.setattr(TransactionsView, "api_versions", noted)
    assert not any("could not be" in one for one in preflight(job, settings_of(bootstrap)))
    assert asked == [True]


def test_missing_topics_come_with_the_commands_that_create_them(bootstrap: str, job: Job) -> None:
    missing = [unique("missing"), unique("absent")]
    incomplete = Job(name="j", inputs=job.inputs, outputs=missing, transform=lambda _: [])
    with pytest.raises(ConfigError) as caught:
        preflight(incomplete, settings_of(bootstrap))
    for name in missing:
        assert (
            f"kafka-topics.sh --bootstrap-server {bootstrap} --create --topic {name} "
            "--partitions 3 --replication-factor 1"
        ) in str(caught.value)


def test_missing_topics_of_a_local_kafka_come_with_the_one_command_that_creates_them(
    bootstrap: str, job: Job
) -> None:
    incomplete = Job(name="j", inputs=job.inputs, outputs=[unique("missing")], transform=lambda _: [])
    with pytest.raises(ConfigError, match=r"Fix: eos local topics jobs\.shout:job$"):
        preflight(incomplete, settings_of(bootstrap), create="eos local topics jobs.shout:job")


def test_a_missing_dead_letter_topic_is_named(bootstrap: str, job: Job) -> None:
    dead = unique("dead")
    incomplete = Job(
        name="j", inputs=job.inputs, outputs=job.outputs, transform=lambda _: [], dead_letters=dead
    )
    with pytest.raises(ConfigError, match=dead):
        preflight(incomplete, settings_of(bootstrap))


def test_eos_run_which_has_no_preflight_names_a_missing_output_before_it_opens_anything(
    bootstrap: str, job: Job
) -> None:
    """librdkafka looks for a topic for some time, with the transaction open."""
    missing = unique("missing")
    incomplete = Job(name=unique("job"), inputs=job.inputs, outputs=[missing], transform=lambda _: [])
    opened: list[Event] = []
    with pytest.raises(ConfigError, match=f"'{missing}' does not exist. Fix: create it"):
        run(incomplete, settings_of(bootstrap, input__start="earliest"), listener=opened.append)
    assert opened == []


def test_asking_for_a_topic_does_not_create_it(bootstrap: str, job: Job) -> None:
    missing = unique("missing")
    incomplete = Job(name="j", inputs=[missing], outputs=job.outputs, transform=lambda _: [])
    for _ in range(2):
        with pytest.raises(ConfigError, match=missing):
            preflight(incomplete, settings_of(bootstrap))


def test_a_transaction_timeout_above_the_brokers_maximum_is_refused(bootstrap: str, job: Job) -> None:
    too_long = settings_of(
        bootstrap, transaction__timeout_ms=1_000_000, ownership__max_poll_interval_ms=1_000_000
    )
    with pytest.raises(ConfigError, match=r"transaction\.timeout_ms.*transaction\.max\.timeout\.ms = 900000"):
        preflight(job, too_long)


def test_a_broker_that_is_away_is_unavailable_within_the_deadline(job: Job) -> None:
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=re.escape("127.0.0.1:1 (kafka.bootstrap_servers)")):
        preflight(job, settings_of("127.0.0.1:1"), timeout_s=1)
    assert time.monotonic() - began < 15  # half of what it takes if not told


def test_a_compacted_output_gets_a_warning(bootstrap: str, job: Job) -> None:
    compacted = unique("compacted")
    create_topics(bootstrap, {compacted: 1}, config={"cleanup.policy": "compact"})
    warnings = preflight(
        Job(name="j", inputs=job.inputs, outputs=[compacted], transform=lambda _: []), settings_of(bootstrap)
    )
    assert any(one.startswith(f"{compacted}: compacted") for one in warnings)


def test_an_output_with_unclean_leader_election_is_refused_unless_a_setting_accepts_it(
    bootstrap: str, job: Job
) -> None:
    unclean = unique("unclean")
    create_topics(bootstrap, {unclean: 1}, config={"unclean.leader.election.enable": "true"})
    risky = Job(name="j", inputs=job.inputs, outputs=[unclean], transform=lambda _: [])
    with pytest.raises(ConfigError, match=f"{unclean}: unclean.leader.election.enable = true.*KAFKA-20716"):
        preflight(risky, settings_of(bootstrap))
    accepted = preflight(risky, settings_of(bootstrap, transaction__accept_unclean_leader_election=True))
    assert any(one.startswith(f"{unclean}: unclean.leader.election.enable = true") for one in accepted)


def test_apache_kafka_is_not_taken_for_another_make(bootstrap: str, job: Job) -> None:
    assert not any("not Apache Kafka" in one for one in preflight(job, settings_of(bootstrap)))


def test_a_broker_that_does_not_verify_transactions_gets_a_warning(bootstrap: str, job: Job) -> None:
    assert not any("verification" in one for one in preflight(job, settings_of(bootstrap)))
    with broker_config(bootstrap, "transaction.partition.verification.enable", "false"):
        warnings = preflight(job, settings_of(bootstrap))
    (of_late_requests,) = [one for one in warnings if "verification" in one]
    assert "arrives late" in of_late_requests


def joined(bootstrap: str, group: str, job: Job, protocol: str = "classic") -> Consumer:
    """A member of the group that has its partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "alive",
            "group.protocol": protocol,
        }
    )
    consumer.subscribe(list(job.inputs))
    deadline = time.monotonic() + PATIENCE_S
    while not consumer.assignment():
        consumer.poll(0.1)
        assert time.monotonic() < deadline
    return consumer


@pytest.fixture(params=["classic", "consumer"])
def member(request: pytest.FixtureRequest, bootstrap: str, job: Job) -> Iterator[str]:
    """A group with a live member, under both protocols."""
    group = unique("group")
    consumer = joined(bootstrap, group, job, request.param)
    yield group
    consumer.close()


def test_live_members_are_no_match_for_ownership_by_partition(bootstrap: str, job: Job, member: str) -> None:
    by_partition = settings_of(
        bootstrap, group=member, ownership__mode="partition", ownership__ordinal=0, ownership__instances=1
    )
    with pytest.raises(ConfigError, match="live members \\(alive @"):
        preflight(job, by_partition)
    assert preflight(job, settings_of(bootstrap, group=member))  # by group: they are its peers


def test_a_group_that_had_members_is_no_place_for_ownership_by_partition(bootstrap: str, job: Job) -> None:
    group = unique("group")
    consumer = joined(bootstrap, group, job)
    consumer.commit(
        offsets=[TopicPartition(one.topic, one.partition, 0) for one in consumer.assignment()],
        asynchronous=False,
    )
    consumer.close()
    by_partition = settings_of(
        bootstrap, group=group, ownership__mode="partition", ownership__ordinal=0, ownership__instances=1
    )
    with pytest.raises(ConfigError, match="had members"):
        preflight(job, by_partition)


def test_a_group_without_members_fits_ownership_by_partition(bootstrap: str, job: Job) -> None:
    assert preflight(
        job, settings_of(bootstrap, ownership__mode="partition", ownership__ordinal=0, ownership__instances=1)
    )
    assert Admin({"bootstrap.servers": bootstrap}).groups.shape(unique("nobody"), PATIENCE_S) == ([], False)


def test_transactions_are_seen_with_their_epochs(
    bootstrap: str, job: Job, names: Callable[[str], str]
) -> None:
    prefix = names("seen")
    mine = f"{prefix}.one"

    def initialised() -> Producer:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": mine, "log_level": 0})
        producer.init_transactions(PATIENCE_S)
        return producer

    with TransactionsView(settings_of(bootstrap)) as view:
        assert view.describe([mine]) == {}
        first = initialised()
        before = view.describe([mine, f"{prefix}.unknown"])[mine]
        assert not before.is_open
        assert view.lingering(prefix) == []
        first.begin_transaction()
        first.produce(job.outputs[0], b"open", partition=1)
        first.flush(PATIENCE_S)
        (lingering,) = view.lingering(prefix)
        assert lingering.state == "Ongoing"
        assert lingering.partitions == {Partition(job.outputs[0], 1)}
        assert lingering.started_ms is not None
        assert view.transactional_ids(prefix) == [mine]
        initialised()
        after = view.describe([mine])[mine]
        assert (after.producer_id, after.is_open) == (before.producer_id, False)
        assert after.producer_epoch > before.producer_epoch
        first.purge()

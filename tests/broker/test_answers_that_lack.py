"""A broker's answer lacks what the group or the topic has: an offset, a partition.

A broker whose metadata are behind, or a coordinator that lost offsets, gives such answers without an error. Each took input
for new, or for complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from eos import ConfigError, FencedError, UnavailableError, retry
from eos.base.deadline import Deadline
from eos.errors import AbortableError
from eos.events import Waiting
from eos.exits import ExitCode, exit_code_of
from eos.kafka.admin import Admin, Mark
from eos.offsets import Partition
from eos.testing.proxy import ApiKey, Frame, HoldProxy
from tests.support.jobs_for_faults import FaultJob, fault_job, in_thread, run_to_end, settings_for
from tests.support.observer import PlainRecord, committed_offsets, create_topics, produce_plain, unique
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from eos import Settings

pytestmark = pytest.mark.broker

ALWAYS = 1_000_000
PARTITION = {"ownership__mode": "partition", "ownership__ordinal": 0, "ownership__instances": 1}
MODES = pytest.mark.parametrize("owned", [{}, PARTITION], ids=["group", "partition"])
GROUP_AND_SLOW_PARTITION = pytest.mark.parametrize(
    "owned", [{}, pytest.param(PARTITION, marks=pytest.mark.slow)], ids=["group", "partition"]
)


@pytest.fixture
def job(bootstrap: str) -> FaultJob:
    """It has processed ten records of each partition, and has ten more to process."""
    return fault_job(bootstrap)


def process_twenty_of_forty(bootstrap: str, job: FaultJob, owned: dict[str, object]) -> None:
    job.load(bootstrap, 20, "a")
    run_to_end(job, settings_for(bootstrap, **owned))
    job.load(bootstrap, 20, "b")


def again(proxy: HoldProxy, owned: dict[str, object]) -> Settings:
    return settings_for(proxy.bootstrap_servers, input__start="fail", **owned)


def soon_over(owned: dict[str, object]) -> dict[str, object]:
    """Settings that bound how long an answer is asked for again; what does get an answer must fit in."""
    return {"transaction__timeout_ms": 4_000, **owned}


def without_offset(frame: Frame, answer: bytes) -> bytes:
    return frame.with_no_offset(answer, partition=0)


def without_last_partition(topic: str) -> Callable[[Frame, bytes], bytes]:
    return lambda frame, answer: frame.with_fewer_partitions(answer, topic)


@MODES
@pytest.mark.parametrize("nth", [2, 3, 4])
def test_one_answer_without_the_offset_of_a_partition_that_is_taken_over_repeats_nothing(
    bootstrap: str, proxy: HoldProxy, job: FaultJob, owned: dict[str, object], nth: int
) -> None:
    process_twenty_of_forty(bootstrap, job, owned)
    proxy.edit_reply(ApiKey.OFFSET_FETCH, without_offset, nth=nth)
    run_to_end(job, again(proxy, owned))
    assert job.check(bootstrap).processed == 40


def test_offset_that_is_gone_when_a_partition_is_taken_over_is_refused(
    bootstrap: str, proxy: HoldProxy, job: FaultJob
) -> None:
    process_twenty_of_forty(bootstrap, job, {})
    proxy.edit_reply(ApiKey.OFFSET_FETCH, without_offset, nth=2, times=ALWAYS)
    with pytest.raises(ConfigError, match="no committed offset there, though it has for other partitions"):
        run_to_end(job, again(proxy, soon_over({})))
    assert job.check(bootstrap).processed == 20


@GROUP_AND_SLOW_PARTITION
def test_consumer_that_metadata_without_brokers_leave_offline_ends_the_job_as_unavailable(
    bootstrap: str, proxy: HoldProxy, job: FaultJob, owned: dict[str, object]
) -> None:
    """librdkafka issue 5301: it forgets every broker, and asks none again."""
    job.load(bootstrap, 20, "a")
    settings = settings_for(
        proxy.bootstrap_servers,
        input__offline_timeout_ms=5_000,
        kafka__consumer={"topic.metadata.refresh.interval.ms": 500},
        **owned,
    )
    with in_thread(job, settings) as running:
        running.wait_for_commits(20)
        proxy.edit_reply(ApiKey.METADATA, lambda frame, answer: frame.with_no_brokers(answer), times=ALWAYS)
        with pytest.raises(
            UnavailableError, match=r"connected to no broker for .*input\.offline_timeout_ms = 5000"
        ) as raised:
            running.wait(PATIENCE_S)
    assert exit_code_of(raised.value) is ExitCode.UNAVAILABLE
    proxy.clear_rules()
    job.load(bootstrap, 20, "b")
    run_to_end(job, again(proxy, owned))
    assert job.check(bootstrap).processed == 40


def name_no_brokers(proxy: HoldProxy) -> None:
    proxy.edit_reply(ApiKey.METADATA, lambda frame, answer: frame.with_no_brokers(answer), times=ALWAYS)


def test_admin_that_was_told_of_no_broker_asks_by_another_client(bootstrap: str, proxy: HoldProxy) -> None:
    """A broker that was paused for 9 s is fenced when it goes on, and says so for a moment, although it answers."""
    topic = unique("named")
    create_topics(bootstrap, {topic: 1})
    config: dict[str, Any] = {"bootstrap.servers": proxy.bootstrap_servers}
    partitions = [Partition(topic, 0)]
    shapes, offsets, watching = Admin(config), Admin(config), Admin(config)

    def told_in_the_background() -> bool:
        asked = watching.ask_offsets_at(Mark.HIGH_WATERMARK, partitions, 1)
        return Deadline(2).wait_for(lambda: bool(asked.answers()))

    def all_are_told() -> None:
        assert retry.ask(lambda s: shapes.topics([topic], s), timeout_s=PATIENCE_S)
        assert retry.ask(lambda s: offsets.offsets_at(Mark.START, partitions, s), timeout_s=PATIENCE_S)
        assert Deadline(PATIENCE_S).wait_for(told_in_the_background)

    all_are_told()
    name_no_brokers(proxy)
    for admin in (shapes, offsets, watching):
        admin.topics([topic], PATIENCE_S)
    proxy.clear_rules()
    all_are_told()


@pytest.mark.canary
def test_client_that_was_told_of_no_broker_never_finds_one_again(bootstrap: str, proxy: HoldProxy) -> None:
    """librdkafka's own, for which `Admin` makes another client."""
    topic = unique("named")
    create_topics(bootstrap, {topic: 1})
    upstream = AdminClient(
        {"bootstrap.servers": proxy.bootstrap_servers, "metadata.recovery.strategy": "none"}
    )

    def told(seconds: float) -> str:
        (future,) = upstream.describe_topics(TopicCollection([topic]), request_timeout=seconds).values()
        error = future.exception(PATIENCE_S)
        return str(error.args[0].name()) if isinstance(error, KafkaException) else ""

    assert told(60) == ""
    name_no_brokers(proxy)
    assert told(60) == ""
    proxy.clear_rules()
    assert [told(2) for _ in range(2)] == ["_TIMED_OUT"] * 2


def test_answer_without_the_topics_that_were_asked_about_is_asked_for_again(
    bootstrap: str, proxy: HoldProxy, job: FaultJob
) -> None:
    """confluent-kafka raises a RuntimeError for it, which ended the job with a traceback."""
    job.load(bootstrap, 20, "a")
    lacking: list[Frame] = []

    def is_last_look(frame: Frame) -> bool:
        return all(topic.encode() in frame.payload for topic in (*job.inputs, *job.outputs))

    def without_topics(frame: Frame, answer: bytes) -> bytes:
        lacking.append(frame)
        return frame.with_no_topics(answer)

    with in_thread(job, settings_for(proxy.bootstrap_servers)) as running:
        running.wait_for_commits(20)
        proxy.edit_reply(ApiKey.METADATA, without_topics, where=is_last_look, times=2)
        job.load(bootstrap, 20, "b")
        running.wait_for_commits(40)
        running.stop()
    assert len(lacking) == 2
    assert job.check(bootstrap).processed == 40


@pytest.mark.slow
@pytest.mark.parametrize("own_loop", [False, True], ids=["eos.run", "own loop"])
def test_look_before_a_commit_that_gets_no_answer_is_waited_for_as_any_other_question(
    bootstrap: str, proxy: HoldProxy, *, own_loop: bool
) -> None:
    """Ten times was all, a minute or two."""
    job = fault_job(bootstrap, own_loop=own_loop)
    job.load(bootstrap, 20, "a")
    settings = settings_for(
        proxy.bootstrap_servers, input__offline_timeout_ms=60_000, transaction__timeout_ms=2_000
    )

    def looks() -> int:
        waits = [event for event in running.events if isinstance(event, Waiting)]
        return sum("the topic ids of" in event.reason for event in waits)

    with in_thread(job, settings) as running:
        running.wait_for_commits(20)
        _swallow_last_looks(proxy, job)
        job.load(bootstrap, 20, "b")
        Deadline(PATIENCE_S).wait_for(lambda: looks() > 10 or running.error is not None)
        proxy.clear_rules()
        running.wait_for_commits(40)
        running.stop()
    assert looks() > 10
    assert job.check(bootstrap).processed == 40


@pytest.mark.slow
def test_look_before_a_commit_that_never_gets_an_answer_ends_the_job_as_unavailable(
    bootstrap: str, proxy: HoldProxy, job: FaultJob
) -> None:
    job.load(bootstrap, 20, "a")
    settings = settings_for(
        proxy.bootstrap_servers, input__offline_timeout_ms=6_000, transaction__timeout_ms=2_000
    )
    with in_thread(job, settings) as running:
        running.wait_for_commits(20)
        _swallow_last_looks(proxy, job)
        job.load(bootstrap, 20, "b")
        began = time.monotonic()
        with pytest.raises(AbortableError, match=r"the topic ids of .* could not be read") as raised:
            running.wait(PATIENCE_S)
        assert 5 < time.monotonic() - began < 30
    assert exit_code_of(raised.value) is ExitCode.UNAVAILABLE
    proxy.clear_rules()
    run_to_end(job, again(proxy, {}))
    assert job.check(bootstrap).processed == 40


def _swallow_last_looks(proxy: HoldProxy, job: FaultJob) -> None:
    def is_last_look(frame: Frame) -> bool:
        return all(topic.encode() in frame.payload for topic in (*job.inputs, *job.outputs))

    proxy.swallow(ApiKey.METADATA, where=is_last_look, times=ALWAYS)


@GROUP_AND_SLOW_PARTITION
def test_coordinator_that_never_gets_its_log_loaded_is_named_and_nothing_is_processed(
    bootstrap: str, proxy: HoldProxy, job: FaultJob, owned: dict[str, object]
) -> None:
    process_twenty_of_forty(bootstrap, job, owned)
    proxy.edit_reply(
        ApiKey.OFFSET_FETCH,
        lambda frame, answer: frame.with_error(answer, KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
        times=ALWAYS,
    )
    with pytest.raises(
        UnavailableError, match=r"group coordinator .* has been loading its log .*KAFKA-19862"
    ) as raised:
        run_to_end(job, again(proxy, soon_over(owned)))
    assert exit_code_of(raised.value) is ExitCode.UNAVAILABLE
    assert job.check(bootstrap).processed == 20


def test_run_that_is_never_told_how_far_its_group_is_ends_as_unavailable(
    bootstrap: str, proxy: HoldProxy
) -> None:
    job = fault_job(bootstrap, pause_ms=100)
    job.load(bootstrap, 40, "a")
    settings = settings_for(proxy.bootstrap_servers, input__offline_timeout_ms=3_000)
    with in_thread(job, settings, until_caught_up=True) as running:
        running.wait_for_commits(5)
        proxy.edit_reply(ApiKey.OFFSET_FETCH, lambda f, a: f.with_error(a, 15), times=ALWAYS)
        with pytest.raises(
            UnavailableError, match=r"for \d+ s \(input\.offline_timeout_ms\) .* how far the group is"
        ):
            running.wait(PATIENCE_S)
    assert job.check(bootstrap).processed == 40


def test_own_offset_that_is_gone_ends_the_wait_for_the_end_of_the_input(
    bootstrap: str, proxy: HoldProxy, job: FaultJob
) -> None:
    """It waited for an offset that does not come, without a deadline."""
    process_twenty_of_forty(bootstrap, job, {})
    proxy.edit_reply(ApiKey.OFFSET_FETCH, without_offset, nth=3, times=ALWAYS)
    with pytest.raises(FencedError, match="the group has stored no offset"):
        run_to_end(job, again(proxy, soon_over({})), timeout_s=PATIENCE_S)
    assert job.check(bootstrap).processed == 40


@GROUP_AND_SLOW_PARTITION
def test_broker_that_knows_fewer_partitions_than_the_group_has_offsets_of_is_refused(
    bootstrap: str, proxy: HoldProxy, job: FaultJob, owned: dict[str, object]
) -> None:
    """It ended with 0, and the partition was not read."""
    process_twenty_of_forty(bootstrap, job, owned)
    (source,) = job.inputs
    proxy.edit_reply(ApiKey.METADATA, without_last_partition(source), times=ALWAYS)
    with pytest.raises(UnavailableError, match=r"knows 1 partitions, and the group .* has had offsets of 2"):
        run_to_end(job, again(proxy, soon_over(owned)))
    assert job.check(bootstrap).processed == 20


def test_partition_that_the_first_broker_asked_does_not_know_is_processed_by_the_run_that_catches_up(
    bootstrap: str, proxy: HoldProxy, job: FaultJob
) -> None:
    process_twenty_of_forty(bootstrap, job, PARTITION)
    (source,) = job.inputs
    first = without_last_partition(source)
    # Until the first init: the worker's own question, not those of the shards' sessions.
    proxy.edit_reply(
        ApiKey.METADATA, first, times=ALWAYS, where=lambda _: not proxy.requests(ApiKey.INIT_PRODUCER_ID)
    )
    run_to_end(job, again(proxy, PARTITION))
    assert job.check(bootstrap).processed == 40
    offsets = committed_offsets(bootstrap, job.group, [(source, 0), (source, 1)])
    assert [offset for offset, _ in offsets.values()] == [20, 20]


def without_leader(proxy: HoldProxy, bootstrap: str) -> Partition:
    """A partition with one record, that the next answers give no leader."""
    topic = unique("leaderless")
    create_topics(bootstrap, {topic: 1})
    produce_plain(bootstrap, topic, [PlainRecord(b"x")])
    proxy.edit_reply(ApiKey.METADATA, lambda frame, answer: frame.with_no_leader(answer, topic), times=5)
    return Partition(topic, 0)


def test_partition_without_a_leader_for_a_moment_is_asked_for_again(bootstrap: str, proxy: HoldProxy) -> None:
    partition = without_leader(proxy, bootstrap)
    waiting = Admin({"bootstrap.servers": proxy.bootstrap_servers})
    found = retry.ask(lambda s: waiting.offsets_at(Mark.HIGH_WATERMARK, [partition], s), timeout_s=PATIENCE_S)
    assert found == {partition: 1}


@pytest.mark.canary
def test_client_keeps_the_answer_that_a_partition_has_no_leader(bootstrap: str, proxy: HoldProxy) -> None:
    """librdkafka never asks again (`_NOENT`)."""
    topic, number = without_leader(proxy, bootstrap)
    upstream = AdminClient({"bootstrap.servers": proxy.bootstrap_servers})
    wanted: dict[TopicPartition, Any] = {TopicPartition(topic, number): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
    for _ in range(20):
        (future,) = upstream.list_offsets(wanted, request_timeout=60).values()
        assert "_NOENT" in str(future.exception(PATIENCE_S))
        time.sleep(0.1)

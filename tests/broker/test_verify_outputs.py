"""Verification on a real broker: exact outputs pass, damaged ones are named, unsettled and deleted ones refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from eos.errors import ConfigError, OffsetGapError, UnavailableError, UsageError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.job import Job
from eos.offsets import Partition
from eos.ops.verifier.logs import LogReader
from eos.ops.verifier.report import Difference, VerificationReport
from eos.ops.verifier.verify import verify
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord
from eos.settings import Settings
from tests.conftest import NewTopic
from tests.support import by_hand
from tests.support.observer import (
    PlainRecord,
    create_topics,
    produce_plain,
    read_committed,
    unique,
    watermarks,
)
from tests.support.patience import PATIENCE_S
from tests.support.settings import settings_of

pytestmark = pytest.mark.broker

POISON = b"poison"


class House(NamedTuple):
    """A job with its topics, and the processing of its input by hand, right or wrong."""

    bootstrap: str
    job: Job
    group: str

    @property
    def source(self) -> str:
        return self.job.inputs[0]

    def settings(self, policy: str = "dead-letter") -> Settings:
        return settings_of(self.bootstrap, group=self.group, poison__policy=policy)

    def verified(self, *, timeout_s: float = PATIENCE_S, policy: str = "dead-letter", **begins: Mapping[Partition, int]) -> VerificationReport:  # fmt: skip
        return verify(self.job, self.settings(policy), timeout_s=timeout_s, **begins)  # type: ignore[arg-type] # the two mappings

    def load(self, count: int) -> list[InputRecord]:
        """Input in two partitions; every seventh record is poison."""
        seen = produce_plain(
            self.bootstrap,
            self.source,
            [
                PlainRecord(
                    POISON if i % 7 == 6 else b"v%d" % i, b"k%d" % (i % 5), i % 2, (("n", b"%d" % i),)
                )
                for i in range(count)
            ],
        )
        return [InputRecord(*one) for one in seen]

    def outputs(self, record: InputRecord) -> list[OutputRecord]:
        transform = self.job.bound()
        try:
            return transform.record(record)
        except ValueError as error:
            return [transform.dead_letter(record, error)]

    def producer(self) -> Producer:
        return by_hand.producer(self.bootstrap)

    def commit(self, outputs: Sequence[OutputRecord], offsets: Mapping[int, int], producer: Producer | None = None) -> None:  # fmt: skip
        producer = producer or self.producer()
        producer.begin_transaction()
        by_hand.write(producer, outputs)
        if offsets:
            self.send_offsets(producer, offsets)
        producer.commit_transaction(PATIENCE_S)

    def send_offsets(
        self, producer: Producer, offsets: Mapping[int, int], metadata: str | None = None
    ) -> None:
        positions = {Partition(self.source, p): offset for p, offset in offsets.items()}
        if metadata is None:
            metadata = str(OffsetMetadata(OwnershipMode.GROUP, "#0", app=self.job.name))
        by_hand.send_offsets(producer, self.bootstrap, self.group, positions, metadata)

    def process(self, records: Sequence[InputRecord], batch: int = 25) -> None:
        """Everything, exactly once, in transactions."""
        producer = self.producer()
        for start in range(0, len(records), batch):
            part = records[start : start + batch]
            offsets = {one.partition: one.offset + 1 for one in part}
            self.commit([out for one in part for out in self.outputs(one)], offsets, producer)


@pytest.fixture
def house(bootstrap: str, topic: NewTopic, names: Callable[[str], str]) -> House:
    source, doubled, audit, dead = topic("in", 2), topic("doubled", 3), topic("audit", 1), topic("dlq", 1)

    def transform(record: InputRecord) -> Iterator[OutputRecord]:
        yield OutputRecord(audit, b"seen " + (record.value or b""), record.key)
        if record.value == POISON:
            raise ValueError(record.value)
        yield OutputRecord(doubled, (record.value or b"") * 2, record.key, record.headers)
        yield OutputRecord(doubled, None, None, record.headers)

    job = Job(name="house", inputs=[source], outputs=[doubled, audit], transform=transform, dead_letters=dead)
    return House(bootstrap, job, names("group"))


def kinds(report: VerificationReport) -> dict[Difference, int]:
    return {kind: count for kind, count in report.differences.items() if count}


def test_an_exact_output_passes(house: House) -> None:
    records = house.load(100)
    house.process(records[:70])
    report = house.verified()
    assert report.exactly_once, report
    assert report.records == 70
    assert report.expected == report.found == 10 + 3 * 60
    assert {one.committed for one in report.inputs} == {35}
    assert report.group == house.group


def test_a_batch_function_is_verified_record_by_record(house: House) -> None:
    def transform_batch(batch: InputBatch) -> list[OutputBatch]:
        if POISON in batch.values:
            raise ValueError(POISON)
        doubled = house.job.outputs[0]
        return [OutputBatch(doubled, [(value or b"") * 2 for value in batch.values], batch.keys)]

    job = Job(
        name="batches",
        inputs=house.job.inputs,
        outputs=house.job.outputs,
        transform_batch=transform_batch,
        dead_letters=house.job.dead_letters,
    )
    batches = house._replace(job=job)
    batches.process(batches.load(30))
    assert batches.verified().exactly_once


def test_aborted_records_are_not_there(house: House) -> None:
    records = house.load(20)
    producer = house.producer()
    producer.begin_transaction()
    by_hand.write(producer, [out for one in records for out in house.outputs(one)])
    producer.abort_transaction(PATIENCE_S)
    house.process(records)
    assert house.verified().exactly_once


def test_aborted_input_is_no_input(house: House) -> None:
    house.load(6)
    producer = house.producer()
    producer.begin_transaction()
    producer.produce(house.source, b"aborted", partition=0)
    producer.flush(PATIENCE_S)
    producer.abort_transaction(PATIENCE_S)
    produced = produce_plain(house.bootstrap, house.source, [PlainRecord(b"last", b"k", 0)])
    assert produced[0].offset == 5  # three records, the aborted one, its marker
    house.process([InputRecord(*one) for one in read_committed(house.bootstrap, house.source)])
    report = house.verified()
    assert report.exactly_once
    assert report.records == 7


def test_a_group_that_has_processed_nothing_is_not_called_exactly_once(house: House) -> None:
    house.load(5)
    report = house.verified()
    assert not report.differs
    assert not report.exactly_once
    assert "no record" in report.verdict
    assert report.records == report.found == 0
    assert [one.committed for one in report.inputs] == [None, None]


def test_group_that_has_passed_aborted_transactions_alone_has_nothing_to_compare(house: House) -> None:
    """It was told that it had processed nothing, and to run the job first."""
    producer = house.producer()
    producer.begin_transaction()
    producer.produce(house.source, b"aborted", partition=0)
    producer.flush(PATIENCE_S)
    producer.abort_transaction(PATIENCE_S)
    house.commit([], {0: 2})
    report = house.verified()
    assert (report.exactly_once, report.complete, report.records, report.passed) == (False, True, 0, 2)
    assert "has passed 2 offsets, and no committed record is left among them" in report.verdict
    house.commit([OutputRecord(house.job.outputs[0], b"of no input")], {})
    assert house.verified().verdict == "NO"


def test_output_of_a_group_without_offsets_is_wrong_and_what_it_has_aborted_is_none(house: House) -> None:
    outputs = [out for one in house.load(5) for out in house.outputs(one)]
    producer = house.producer()
    producer.begin_transaction()
    by_hand.write(producer, outputs)
    producer.abort_transaction(PATIENCE_S)
    report = house.verified()
    assert not report.differs, report.problems
    assert "no record" in report.verdict
    house.commit(outputs, {})
    (problem,) = house.verified().problems
    assert "is it the right group?" in problem


def test_a_transaction_without_its_outputs_is_lost(house: House) -> None:
    records = house.load(20)
    house.process(records[:10])
    house.commit([], {0: 10, 1: 10})
    report = house.verified()
    assert kinds(report) == {
        Difference.LOST: len([out for one in records[10:] for out in house.outputs(one)])
    }


def test_a_transaction_without_its_offsets_is_duplicated_by_its_retry(house: House) -> None:
    records = house.load(20)
    house.process(records)
    house.commit([out for one in records[-4:] for out in house.outputs(one)], {})
    report = house.verified()
    assert kinds(report) == {Difference.DUPLICATED: sum(len(house.outputs(one)) for one in records[-4:])}


def test_output_ahead_of_the_offsets_is_unexpected(house: House) -> None:
    records = house.load(20)
    house.process(records[:12])
    house.commit([out for one in records[12:14] for out in house.outputs(one)], {})
    report = house.verified()
    assert Difference.UNEXPECTED in kinds(report)
    assert Difference.LOST not in kinds(report)


def test_part_of_a_transaction_is_torn(house: House) -> None:
    records = house.load(6)
    outputs = [out for one in records for out in house.outputs(one)]
    audit = house.job.outputs[1]
    house.commit([out for out in outputs if out.topic != audit], {0: 3, 1: 3})
    report = house.verified()
    assert kinds(report) == {Difference.LOST: 6, Difference.TORN: 6}
    assert {one.partition.topic for one in report.examples} == {house.source}


def test_a_dead_letter_that_is_not_there_is_lost(house: House) -> None:
    records = house.load(14)
    outputs = [out for one in records for out in house.outputs(one)]
    house.commit([out for out in outputs if out.topic != house.job.dead_letters], {0: 7, 1: 7})
    report = house.verified()
    assert kinds(report) == {Difference.LOST: 2}
    assert {one.topic: one.differences[Difference.LOST] for one in report.outputs}[
        house.job.dead_letters or ""
    ] == 2


def test_the_policy_stop_makes_poison_below_the_offset_a_failure(house: House) -> None:
    records = house.load(8)
    kept = [out for one in records for out in house.outputs(one) if out.topic != house.job.dead_letters]
    house.commit(kept, {0: 4, 1: 4})
    report = house.verified(policy="stop")
    assert kinds(report) == {Difference.FAILED: 1}
    assert "ValueError" in str(report.examples[-1])
    assert "poison.policy is 'stop' here" in str(report.examples[-1])


def test_a_dead_letter_of_the_job_is_right_after_the_policy_was_set_back_to_stop(house: House) -> None:
    house.process(house.load(8))
    report = house.verified(policy="stop")
    assert kinds(report) == {}
    assert any(
        "the transform raises for 1 of the records. Each has a dead-letter record" in note
        for note in report.notes
    )


@pytest.mark.parametrize("policy", ["stop", "skip", "dead-letter"])
@pytest.mark.parametrize(
    ("which", "found"),
    [
        pytest.param("healthy", {Difference.UNEXPECTED: 1}, id="of a record that does not fail"),
        pytest.param("failing", {Difference.DUPLICATED: 1}, id="a second one of a record that fails"),
        pytest.param("behind", {Difference.UNEXPECTED: 1}, id="of a record behind the committed offset"),
    ],
)
def test_a_dead_letter_that_no_processed_record_accounts_for_is_found_under_every_policy(
    house: House, policy: str, which: str, found: dict[Difference, int]
) -> None:
    """Letters of an earlier policy are accepted for records that fail here, one for each, and for no other record."""
    records = house.load(14)
    processed = [one for one in records if one.offset < 4]
    house.process(processed)
    of = next(
        one
        for one in records
        if (one.value == POISON) is (which != "healthy") and (one in processed) is (which != "behind")
    )
    house.commit([house.job.bound().dead_letter(of, ValueError(POISON))], {})
    assert kinds(house.verified(policy=policy)) == found


DEADLINE_S = 6  # runs out; the steps before the one that is waited for must fit in


def slow(_: InputRecord) -> None:
    time.sleep(0.5)


def hangs(_: InputRecord) -> None:
    threading.Event().wait()


def catches_all(_: InputRecord) -> None:
    with suppress(BaseException):
        time.sleep(60)
    time.sleep(60)


@pytest.mark.parametrize("call", [slow, hangs, catches_all])
def test_a_transform_does_not_outlast_the_deadline(house: House, call: Callable[[InputRecord], None]) -> None:
    """Whatever it does meanwhile, progress is told, and the record that it has is named."""
    house.process(house.load(50))

    def transform(record: InputRecord) -> Iterator[OutputRecord]:
        call(record)
        yield OutputRecord(house.job.outputs[0], record.value)

    job = Job(name="house", inputs=house.job.inputs, outputs=house.job.outputs, transform=transform)
    seen: list[tuple[str, int, int]] = []
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=rf"deadline of 6 s: input.* {house.source}\[\d\] offset \d+"):
        verify(job, house.settings(), timeout_s=DEADLINE_S, on_progress=lambda *one: seen.append(one))
    assert time.monotonic() - began < 30
    assert len([one for one in seen if one[0] == "input"]) > 2


def test_the_deadline_holds_in_another_thread_at_the_next_line_of_the_transform(house: House) -> None:
    house.process(house.load(50))

    def transform(record: InputRecord) -> Iterator[OutputRecord]:
        while True:
            time.sleep(0.05)
            yield from ()

    job = Job(name="house", inputs=house.job.inputs, outputs=house.job.outputs, transform=transform)
    with ThreadPoolExecutor(1) as other, pytest.raises(UnavailableError, match="deadline of 6 s: input"):
        other.submit(verify, job, house.settings(), timeout_s=DEADLINE_S).result(PATIENCE_S)


def test_what_progress_raises_ends_a_verification(house: House) -> None:
    house.process(house.load(50))
    calls: list[str] = []

    def enough(stage: str, _done: int, _total: int) -> None:
        calls.append(stage)
        if calls.count("input") > 3:
            raise LookupError(stage)

    def transform(record: InputRecord) -> list[OutputRecord]:
        hangs(record)
        return []

    job = Job(name="house", inputs=house.job.inputs, outputs=house.job.outputs, transform=transform)
    with pytest.raises(LookupError, match="input"):
        verify(job, house.settings(), timeout_s=PATIENCE_S, on_progress=enough)


def test_offset_of_another_program_is_noted(house: House) -> None:
    records = house.load(4)
    house.process(records)
    assert house.verified().notes == ()
    producer = house.producer()
    producer.begin_transaction()
    house.send_offsets(producer, {1: 1}, metadata="")
    producer.commit_transaction(PATIENCE_S)
    (note,) = house.verified().notes
    assert note.startswith(f"{house.source}[1]: another program than eos has committed the offset")


def test_a_configuration_that_may_not_be_seen_is_noted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.process(house.load(14))
    monkeypatch.setattr(LogReader, "configs", lambda *_: {})
    report = house.verified()
    assert report.exactly_once
    (note,) = report.notes
    assert all(topic in note for topic in (house.source, *house.job.written_topics))


def test_the_policy_skip_expects_nothing_for_poison_and_says_of_how_many(house: House) -> None:
    records = house.load(8)
    kept = [one for one in records if one.value != POISON]
    house.commit([out for one in kept for out in house.outputs(one)], {0: 4, 1: 4})
    report = house.verified(policy="skip")
    assert report.exactly_once
    assert report.notes == ("1 records fail here, and count as left out: poison.policy is 'skip'",)


def test_an_open_transaction_is_not_settled_and_named(house: House) -> None:
    house.process(house.load(5))
    producer = house.producer()
    producer.begin_transaction()
    producer.produce(house.job.outputs[1], b"open")
    producer.flush(PATIENCE_S)
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=r"not settled: audit.*\[0\] \(LSO"):
        house.verified(timeout_s=DEADLINE_S)
    assert time.monotonic() - began < 30
    producer.abort_transaction(PATIENCE_S)
    assert house.verified().exactly_once


def test_a_pending_offset_is_waited_for(house: House) -> None:
    records = house.load(5)
    house.process(records[:2])
    producer = house.producer()
    producer.begin_transaction()
    house.send_offsets(producer, {0: 2})
    with pytest.raises(UnavailableError, match="committed offsets"):
        house.verified(timeout_s=DEADLINE_S)
    producer.abort_transaction(PATIENCE_S)
    assert house.verified().exactly_once


def test_a_broker_that_is_away_is_unavailable(house: House) -> None:
    away = house._replace(bootstrap="127.0.0.1:1")
    with pytest.raises(UnavailableError):
        away.verified(timeout_s=1)


def test_a_missing_topic_is_named(house: House) -> None:
    missing = unique("missing")
    job = Job(name="j", inputs=house.job.inputs, outputs=[missing], transform=lambda _: [])
    with pytest.raises(ConfigError, match=missing):
        house._replace(job=job).verified()


def test_deleted_input_needs_a_beginning(house: House) -> None:
    records = house.load(40)
    house.process(records[:20])
    ends = {Partition(one.topic, 0): one.found for one in house.verified().outputs}
    assert ends
    delete(house.bootstrap, TopicPartition(house.source, 0, 10))
    delete(house.bootstrap, TopicPartition(house.source, 1, 10))
    with pytest.raises(OffsetGapError, match="below offset 10"):
        house.verified()
    output_from = output_ends(house)
    house.process(records[20:])
    inputs = {Partition(house.source, p): 10 for p in range(2)}
    report = house.verified(input_from=inputs, output_from=output_from)
    assert report.exactly_once, report
    assert report.records == 20
    with pytest.raises(OffsetGapError, match="below offset 10"):
        house.verified(input_from=dict.fromkeys(inputs, 9), output_from=output_from)


def test_deleted_input_that_was_kept_is_judged_as_before(house: House) -> None:
    records = house.load(40)
    house.process(records[:30])
    before = house.verified()
    kept = {
        Partition(house.source, p): [one for one in records if one.partition == p and one.offset < 10]
        for p in range(2)
    }
    for p in range(2):
        delete(house.bootstrap, TopicPartition(house.source, p, 10))
    starts = dict.fromkeys(kept, 10)
    report = verify(house.job, house.settings(), timeout_s=PATIENCE_S, input_from=starts, archive=kept)
    assert before.exactly_once
    assert report.exactly_once, report
    assert report.records == before.records == 30
    kept[Partition(house.source, 0)].pop()
    report = verify(house.job, house.settings(), timeout_s=PATIENCE_S, input_from=starts, archive=kept)
    assert report.differences[Difference.UNEXPECTED], "the archive counts"


def test_deleted_output_needs_a_beginning(house: House) -> None:
    house.process(house.load(10))
    delete(house.bootstrap, TopicPartition(house.job.outputs[1], 0, 3))
    with pytest.raises(OffsetGapError, match=house.job.outputs[1]):
        house.verified()


def test_a_group_that_began_late_and_an_output_that_was_not_empty(house: House) -> None:
    produce_plain(house.bootstrap, house.job.outputs[1], [b"of another time"])
    records = house.load(20)
    output_from = output_ends(house)
    house.process(records[10:])
    assert not house.verified().exactly_once
    report = house.verified(
        input_from={Partition(house.source, p): 5 for p in range(2)}, output_from=output_from
    )
    assert report.exactly_once


def test_a_beginning_of_an_unknown_partition_is_refused(house: House) -> None:
    house.load(1)
    with pytest.raises(UsageError, match="no partition of the job"):
        house.verified(input_from={Partition("other", 0): 1})


def test_a_beginning_below_0_is_refused_and_not_taken_for_deleted_records(house: House) -> None:
    house.load(1)
    with pytest.raises(UsageError, match="no offset -1"):
        house.verified(input_from={Partition(house.source, 0): -1})
    with pytest.raises(UsageError, match="no offset -2"):
        house.verified(output_from={Partition(house.job.outputs[0], 0): -2})


def test_input_that_was_deleted_before_it_was_processed_is_not_complete(house: House) -> None:
    """Nothing is left of it that could be waiting."""
    records = [one for one in house.load(20) if one.partition == 0]
    house.process(records)
    house.commit([], {1: 0})
    delete(house.bootstrap, TopicPartition(house.source, 1, 10))
    report = house.verified()
    assert not report.differs
    assert not report.complete
    assert [(one.waiting, one.gone) for one in report.inputs] == [(0, 0), (10, 10)]
    rows = dict(report.rows())
    assert rows["not processed"].endswith("10 of them have been deleted before they were processed")
    assert rows["exactly once"].startswith("for what is committed")


def test_input_that_was_deleted_up_to_the_committed_offset_is_complete(house: House) -> None:
    records = house.load(20)
    house.process([one for one in records if one.partition == 1])
    output_from = output_ends(house)
    delete(house.bootstrap, TopicPartition(house.source, 1, 10))
    house.process([one for one in records if one.partition == 0])
    report = house.verified(input_from={Partition(house.source, 1): 10}, output_from=output_from)
    assert report.exactly_once, report
    assert report.complete


def test_an_offset_between_the_last_stable_and_the_high_watermark_is_laid_to_a_reader_of_open_transactions(
    house: House,
) -> None:
    house.process(house.load(4))
    producer = house.producer()
    producer.begin_transaction()
    producer.produce(house.source, b"open", partition=0)
    producer.flush(PATIENCE_S)
    house.commit([], {0: 3})
    report = house.verified()
    producer.abort_transaction(PATIENCE_S)
    assert not report.exactly_once
    assert "read_uncommitted" in report.problems[0]
    assert "created anew" not in report.problems[0]


def test_an_offset_beyond_the_input_is_a_problem(house: House) -> None:
    house.process(house.load(4))
    house.commit([], {0: 50})
    report = house.verified()
    assert not report.exactly_once
    assert "beyond the end" in report.problems[0]


def test_another_group_is_asked_about(house: House) -> None:
    house.process(house.load(4))
    report = verify(house.job, house.settings(), group=unique("other"), timeout_s=PATIENCE_S)
    assert not report.exactly_once
    assert "right group" in report.problems[0]


def test_timestamps_of_the_broker_are_not_compared(house: House, names: Callable[[str], str]) -> None:
    stamped = names("stamped")
    create_topics(house.bootstrap, {stamped: 1}, config={"message.timestamp.type": "LogAppendTime"})
    job = Job(
        name="j",
        inputs=house.job.inputs,
        outputs=[stamped],
        transform=lambda record: [OutputRecord(stamped, record.value, record.key, timestamp_ms=1_000)],
    )
    stamping = house._replace(job=job)
    stamping.process(stamping.load(5))
    assert stamping.verified().exactly_once


def test_dead_letter_whose_error_text_is_another_at_each_try_is_right(house: House) -> None:
    """An address, the order of a set, another version of Python: the letter's coordinates say what it is of."""

    def refuse(record: InputRecord) -> list[OutputRecord]:
        raise ValueError(f"cannot read {object()}")

    refusing = house._replace(job=replace(house.job, transform=refuse))
    records = refusing.load(3)
    refusing.process(records[:2])
    assert refusing.verified().exactly_once
    refusing.commit([], {0: 2})
    assert refusing.verified().differences[Difference.LOST] == 1


@pytest.mark.parametrize("side", ["input", "output"])
def test_compacted_topic_is_noted(house: House, side: str) -> None:
    """What compaction has removed makes a right output look wrong, and a wrong one right."""
    compacted = unique("compacted")
    create_topics(house.bootstrap, {compacted: 2}, config={"cleanup.policy": "compact"})
    changes: dict[str, Any] = {"inputs": [compacted]} if side == "input" else {"dead_letters": compacted}
    noting = house._replace(job=replace(house.job, **changes))
    noting.process(noting.load(3))
    report = noting.verified()
    assert report.exactly_once
    assert [note.split(":")[0] for note in report.notes] == [
        f"{side} {compacted} is compacted (cleanup.policy)"
    ]
    assert ("note", report.notes[0]) in report.rows()
    assert house.verified().notes == ()


def test_progress_is_reported_to_the_end(house: House) -> None:
    house.process(house.load(50))
    seen: dict[str, tuple[int, int]] = {}

    def on_progress(stage: str, done: int, total: int) -> None:
        seen[stage] = (done, total)

    verify(house.job, house.settings(), timeout_s=PATIENCE_S, on_progress=on_progress)
    assert list(seen) == ["state", "letters", "input", "output", "compare", "rest"]
    assert all(done == total > 0 for done, total in seen.values())


def delete(bootstrap: str, before: TopicPartition) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_records([before]).values():
        deleted.result(PATIENCE_S)


def output_ends(house: House) -> dict[Partition, int]:
    return {
        Partition(name, p): end
        for name in house.job.written_topics
        for p, (_, end) in watermarks(house.bootstrap, name).items()
    }

"""The poison policy: one bad record never costs the good ones beside it, and is never lost unseen."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eos.deadletter import dead_letter
from eos.errors import (
    AbortableError,
    AbortTransaction,
    ConfigError,
    FencedError,
    OffsetGapError,
    ProcessDiedError,
    ProcessLimitError,
    ReopenError,
    RetriableError,
    TransformError,
    UnavailableError,
    UsageError,
)
from eos.events import Event, RecordDeadLettered
from eos.exits import ExitCode, exit_code_of
from eos.job import Job
from eos.offsets import Partition
from eos.poison import PoisonFilter, Policy
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord, by_topic
from eos.transform import BoundTransform

POISON = b"poison"


def records(*values: bytes) -> InputBatch:
    return InputBatch.of([InputRecord("in", 2, 40 + i, None, value) for i, value in enumerate(values)])


def per_record(record: InputRecord) -> list[OutputRecord]:
    if record.value == POISON:
        raise ValueError("no such currency")
    return [OutputRecord("out", record.value), OutputRecord("audit", record.value)]


def per_batch(batch: InputBatch) -> list[OutputBatch]:
    if POISON in batch.values:
        raise ValueError("no such currency")
    return [OutputBatch("out", batch.values), OutputBatch("audit", batch.values)]


def bound(*, batches: bool) -> BoundTransform:
    shape = {"transform_batch": per_batch} if batches else {"transform": per_record}
    return Job(name="j", inputs=["in"], outputs=["out", "audit"], dead_letters="dlq", **shape).bound()


def filtered(policy: Policy, batch: InputBatch, *, batches: bool) -> tuple[list[OutputRecord], list[Event]]:
    seen: list[Event] = []

    def listener(event: Event) -> None:
        seen.append(event)

    outputs = PoisonFilter(bound(batches=batches), policy, shard="j.g.i.0", listener=listener).apply(batch)
    return [record for output in outputs for record in output], seen


shapes = pytest.mark.parametrize("batches", [False, True], ids=["per record", "per batch"])


@shapes
def test_poison_under_stop_names_its_coordinates_and_its_cause(batches: bool) -> None:
    with pytest.raises(TransformError, match=r"in\[2\] offset 41.*ValueError.*Fix") as raised:
        filtered("stop", records(b"a", POISON, b"b"), batches=batches)
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("in", 2, 41)
    assert isinstance(raised.value.__cause__, ValueError)


@shapes
def test_poison_under_dead_letter_goes_there_and_the_rest_goes_on(batches: bool) -> None:
    outputs, seen = filtered("dead-letter", records(b"a", POISON, b"b"), batches=batches)
    assert [(o.topic, o.value) for o in outputs] == [
        ("out", b"a"),
        ("out", b"b"),
        ("audit", b"a"),
        ("audit", b"b"),
        ("dlq", POISON),
    ]
    assert seen == [
        RecordDeadLettered("j.g.i.0", Partition("in", 2), 41, "ValueError: no such currency", skipped=False)
    ]


class Unprintable(Exception):  # noqa: N818 - what users raise has any name
    def __str__(self) -> str:
        raise RuntimeError


@shapes
@pytest.mark.parametrize("policy", ["stop", "dead-letter", "skip"])
def test_error_that_cannot_be_made_text_is_poison_like_any_other(policy: Policy, batches: bool) -> None:
    def one(_: InputRecord) -> list[OutputRecord]:
        raise Unprintable

    def many(_: InputBatch) -> list[OutputBatch]:
        raise Unprintable

    shape: dict[str, Any] = {"transform_batch": many} if batches else {"transform": one}
    transform = Job(name="j", inputs=["in"], outputs=["out"], dead_letters="dlq", **shape).bound()
    seen: list[Event] = []
    poison = PoisonFilter(transform, policy, shard="j.g.i.0", listener=seen.append)
    if policy == "stop":
        with pytest.raises(TransformError, match="the transform raised Unprintable "):
            poison.apply(records(POISON))
        return
    assert len(poison.apply(records(POISON))) == (policy == "dead-letter")
    assert [event.error for event in seen if isinstance(event, RecordDeadLettered)] == ["Unprintable"]


@shapes
@pytest.mark.parametrize(
    ("timestamp_ms", "partition", "says"),
    [(0, None, "timestamp 0 cannot be written"), (5, -1, "partition -1 does not exist")],
)
def test_output_that_the_client_would_change_makes_its_input_poison(
    batches: bool, timestamp_ms: int, partition: int | None, says: str
) -> None:
    def one(record: InputRecord) -> list[OutputRecord]:
        if record.value != POISON:
            return [OutputRecord("out", record.value)]
        return [OutputRecord("out", record.value, timestamp_ms=timestamp_ms, partition=partition)]

    def many(batch: InputBatch) -> list[OutputBatch]:
        outputs = [out for record in batch for out in one(record)]
        times, places = [out.timestamp_ms for out in outputs], [out.partition for out in outputs]
        return [OutputBatch("out", batch.values, timestamps_ms=times, partitions=places)]

    shape = {"transform_batch": many} if batches else {"transform": one}
    transform = Job(name="j", inputs=["in"], outputs=["out"], dead_letters="dlq", **shape).bound()
    apply = PoisonFilter(transform, "dead-letter", shard="s", listener=lambda _: None).apply
    outputs = apply(records(b"a", POISON, b"b"))
    made = [record for output in outputs for record in output]
    assert [(one.topic, one.value) for one in made] == [("out", b"a"), ("out", b"b"), ("dlq", POISON)]
    assert says in str(dict(made[2].headers)["eos.deadletter.error"])


HALF = "half \ud800"  # as json.loads makes it of an escape


@shapes
@pytest.mark.parametrize("many", [False, True], ids=["one output", "a second poison record"])
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"value": HALF}, "a value or key has half of a surrogate pair"),
        ({"key": HALF}, "a value or key has half of a surrogate pair"),
        ({"headers": (("name", HALF),)}, "the header 'name' cannot be written: its value has half"),
        ({"partition": 2**31}, f"partition {2**31} does not exist"),
        ({"timestamp_ms": 2**63}, f"timestamp {2**63} cannot be written"),
    ],
    ids=["value", "key", "header", "partition", "timestamp"],
)
def test_output_that_the_client_cannot_write_makes_its_input_poison(
    fields: dict[str, Any], says: str, many: bool, batches: bool
) -> None:
    """It ended the job with an error of the client's that named no input, whatever the policy."""

    def one(record: InputRecord) -> list[OutputRecord]:
        if many and record.value == b"b":
            raise ValueError
        given = {"topic": "out", "value": record.value} | (fields if record.value == POISON else {})
        return [OutputRecord(**given)]

    def of_batch(batch: InputBatch) -> list[OutputBatch]:
        return by_topic(out for record in batch for out in one(record))

    shape: dict[str, Any] = {"transform_batch": of_batch} if batches else {"transform": one}
    transform = Job(name="j", inputs=["in"], outputs=["out"], dead_letters="dlq", **shape).bound()
    seen: list[Event] = []
    apply = PoisonFilter(transform, "dead-letter", shard="s", listener=seen.append).apply
    made = {output.topic: list(output) for output in apply(records(b"a", b"b", POISON, b"c"))}
    assert [one.value for one in made["out"]] == ([b"a", b"c"] if many else [b"a", b"b", b"c"])
    assert [one.value for one in made["dlq"]] == ([b"b", POISON] if many else [POISON])
    assert says in str(dict(made["dlq"][-1].headers)["eos.deadletter.error"])
    assert len(seen) == len(made["dlq"])


@shapes
def test_poison_under_skip_is_dropped_but_reported(batches: bool) -> None:
    outputs, seen = filtered("skip", records(POISON, b"b"), batches=batches)
    assert [(o.topic, o.value) for o in outputs] == [("out", b"b"), ("audit", b"b")]
    assert [(type(event), getattr(event, "skipped", None)) for event in seen] == [(RecordDeadLettered, True)]


@given(st.lists(st.sampled_from([b"a", b"b", POISON]), max_size=6))
@settings(max_examples=30, deadline=None)
def test_both_shapes_give_the_same_records_per_topic_in_the_same_order(values: list[bytes]) -> None:
    by_record, seen = filtered("dead-letter", records(*values), batches=False)
    by_batch, seen_too = filtered("dead-letter", records(*values), batches=True)
    for topic in ("out", "audit", "dlq"):
        assert [o for o in by_record if o.topic == topic] == [o for o in by_batch if o.topic == topic]
    assert seen == seen_too


def test_batch_function_without_poison_is_called_once() -> None:
    calls: list[int] = []

    def counted(batch: InputBatch) -> list[OutputBatch]:
        calls.append(len(batch))
        return per_batch(batch)

    job = Job(name="j", inputs=["in"], outputs=["out", "audit"], transform_batch=counted)
    PoisonFilter(job.bound(), "stop", shard="", listener=lambda _: None).apply(records(b"a", b"b"))
    assert calls == [2]


def test_batch_function_that_raises_for_no_record_alone_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def only_alone(batch: InputBatch) -> list[OutputBatch]:
        if len(batch) > 1:
            raise RuntimeError
        return per_batch(batch)

    job = Job(name="j", inputs=["in"], outputs=["out", "audit"], transform_batch=only_alone)
    poison = PoisonFilter(job.bound(), "stop", shard="", listener=lambda _: None)
    for _ in range(2):
        assert sum(map(len, poison.apply(records(b"a", b"b")))) == 4
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == [
        "transform_batch raised RuntimeError for a batch of 2 records and for none of them alone"
    ]


@shapes
@pytest.mark.parametrize("policy", ["stop", "dead-letter", "skip"])
def test_undeclared_output_is_the_jobs_bug_and_no_poison(policy: Policy, batches: bool) -> None:
    """Dead-lettering it would send every record of a wrong job to the dead-letter topic."""
    shape = (
        {"transform_batch": lambda _: [OutputBatch("elsewhere", [b"v"])]}
        if batches
        else {"transform": lambda _: [OutputRecord("elsewhere", b"v")]}
    )
    job = Job(name="j", inputs=["in"], outputs=["out"], dead_letters="dlq", **shape)
    with pytest.raises(UsageError, match="not declared"):
        PoisonFilter(job.bound(), policy, shard="", listener=lambda _: None).apply(records(b"a"))


@shapes
@pytest.mark.parametrize("at", [0, 2], ids=["first", "last"])
@pytest.mark.parametrize("topic", [["out"], {"out"}, None, b"out"], ids=str)
def test_topic_that_is_no_name_is_refused_with_the_place_of_its_record(
    topic: Any, at: int, batches: bool
) -> None:
    def one(record: InputRecord) -> list[OutputRecord]:
        return [OutputRecord(topic if record.offset == 40 + at else "out", record.value)]

    def many(batch: InputBatch) -> list[OutputBatch]:
        return [OutputBatch(topic, batch.values)]

    job = Job(
        name="j",
        inputs=["in"],
        outputs=["out"],
        dead_letters="dlq",
        **{"transform_batch": many} if batches else {"transform": one},
    )
    poison = PoisonFilter(job.bound(), "dead-letter", shard="", listener=lambda _: None)
    place = f"offset {40 if batches else 40 + at}:"
    with pytest.raises(UsageError, match=rf"{place}.* which is not declared. Fix"):
        poison.apply(records(b"a", b"b", b"c"))


@shapes
def test_header_pairs_that_a_transform_uses_again_are_those_of_their_record(batches: bool) -> None:
    """Outputs wait for the rest of their batch, and for a commit that is under way; and the client takes tuples only."""
    pair: list[Any] = ["trace", None]

    def one(record: InputRecord) -> list[OutputRecord]:
        pair[1] = record.value
        return [OutputRecord("out", record.value, headers=[pair])]  # type: ignore[arg-type]

    def many(batch: InputBatch) -> Iterator[OutputBatch]:
        for value in batch.values:
            pair[1] = value
            yield OutputBatch("out", [value], headers=[[pair]])  # type: ignore[list-item]

    shape = {"transform_batch": many} if batches else {"transform": one}
    bound = Job(name="j", inputs=["in"], outputs=["out"], **shape).bound()
    made = PoisonFilter(bound, "stop", shard="", listener=lambda _: None).apply(records(b"a", b"b", b"c"))
    pair[:] = ["changed", b"later"]
    assert [(out.value, out.headers) for batch in made for out in batch] == [
        (value, (("trace", value),)) for value in (b"a", b"b", b"c")
    ]


def raising(error: Exception) -> dict[str, Any]:
    def one(record: InputRecord) -> list[OutputRecord]:
        if record.value == POISON:
            raise error
        return [OutputRecord("out", record.value)]

    return {"transform": one}


def raising_for_a_batch(error: Exception) -> dict[str, Any]:
    def many(batch: InputBatch) -> list[OutputBatch]:
        if POISON in batch.values:
            raise error
        return [OutputBatch("out", batch.values)]

    return {"transform_batch": many}


def raising_late(error: Exception) -> dict[str, Any]:
    def one(record: InputRecord) -> Iterator[OutputRecord]:
        yield OutputRecord("out", record.value)
        if record.value == POISON:
            raise error

    return {"transform": one}


OWN_CLASSES = [
    FencedError("from the transform"),
    RetriableError("from the transform"),
    AbortableError("from the transform"),
    ReopenError("from the transform"),
    ConfigError("from the transform"),
    UsageError("from the transform"),
    UnavailableError("from the transform"),
    OffsetGapError("from the transform"),
    TransformError("from the transform", topic="else", partition=7, offset=1),
    AbortTransaction("from the transform"),
]


@pytest.mark.parametrize("shape", [raising, raising_for_a_batch, raising_late])
@pytest.mark.parametrize("error", OWN_CLASSES, ids=lambda error: type(error).__name__)
def test_class_of_eos_that_a_transform_raises_is_poison_like_any_other(
    error: Exception, shape: Callable[[Exception], dict[str, Any]]
) -> None:
    """Else a FencedError would end the process as if another owner were there, and an AbortableError be retried."""
    job = Job(name="j", inputs=["in"], outputs=["out"], dead_letters="dlq", **shape(error))
    with pytest.raises(TransformError, match=r"in\[2\] offset 41.*Fix") as raised:
        PoisonFilter(job.bound(), "stop", shard="", listener=lambda _: None).apply(records(b"a", POISON))
    assert raised.value.__cause__ is error
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("in", 2, 41)

    outputs = PoisonFilter(job.bound(), "dead-letter", shard="", listener=lambda _: None).apply(
        records(b"a", POISON, b"b")
    )
    made = [record for output in outputs for record in output]
    assert [(one.topic, one.value) for one in made] == [("out", b"a"), ("out", b"b"), ("dlq", POISON)]


@shapes
@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_signal_inside_a_transform_is_no_poison(signal: type[BaseException], batches: bool) -> None:
    def interrupted(_: object) -> list[OutputRecord]:
        raise signal

    shape: dict[str, Any] = {"transform_batch": interrupted} if batches else {"transform": interrupted}
    job = Job(name="j", inputs=["in"], outputs=["out"], dead_letters="dlq", **shape)
    with pytest.raises(signal):
        PoisonFilter(job.bound(), "dead-letter", shard="", listener=lambda _: None).apply(records(b"a"))


def test_dead_letter_policy_without_a_topic_is_refused_before_the_first_record() -> None:
    job = Job(name="j", inputs=["in"], outputs=["out"], transform=per_record)
    with pytest.raises(UsageError, match="dead_letters"):
        PoisonFilter(job.bound(), "dead-letter", shard="", listener=lambda _: None)


@shapes
def test_dead_letters_that_the_transform_returns_are_told_of_once_each_with_those_of_the_policy(
    batches: bool,
) -> None:
    """They had no event, so the alert on dead letters could not fire."""

    def refused(record: InputRecord) -> list[OutputRecord]:
        if record.value == b"refused":
            return [dead_letter(record, "no such account", topic="dlq")]
        return per_record(record)

    def all_refused(batch: InputBatch) -> list[OutputBatch]:
        outputs = [refused(record) for record in batch]
        letters = [one for made in outputs for one in made if one.topic == "dlq"]
        return [
            OutputBatch("dlq", [one.value for one in letters], headers=[one.headers for one in letters]),
            OutputBatch("out", [made[0].value for made in outputs if made[0].topic == "out"]),
        ]

    shape = {"transform_batch": all_refused} if batches else {"transform": refused}
    job = Job(name="j", inputs=["in"], outputs=["out", "audit"], dead_letters="dlq", **shape)
    seen: list[Event] = []
    apply = PoisonFilter(job.bound(), "dead-letter", shard="s", listener=seen.append).apply
    apply(records(b"a", b"refused", b"refused"))
    told = [RecordDeadLettered("s", Partition("in", 2), offset, "no such account") for offset in (41, 42)]
    assert seen == told
    apply(records(b"a", b"refused", POISON))
    assert sorted(event.offset for event in seen[2:] if isinstance(event, RecordDeadLettered)) == [41, 42]
    apply(records(b"a"))
    assert len(seen) == 4


def braked(max_in_a_row: int, policy: Policy = "skip") -> Callable[[InputBatch], object]:
    return PoisonFilter(
        bound(batches=False), policy, shard="s", listener=lambda _: None, max_in_a_row=max_in_a_row
    ).apply


@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
def test_transform_that_refuses_all_records_is_stopped_before_it_has_drained_the_input(
    policy: Policy,
) -> None:
    apply = braked(4, policy)
    apply(records(POISON, POISON, b"a", POISON, POISON, POISON))
    batch = InputBatch.of([InputRecord("in", 2, 50 + n, None, POISON) for n in range(3)])
    with pytest.raises(TransformError, match=r"in\[2\] offset 51: .* 5 records in a row .*max_in_a_row = 4"):
        apply(batch)


def test_row_goes_on_from_the_records_before_the_batch_whoever_counted_them() -> None:
    """An abort leads back to the last commit; another process begins with what its predecessor has committed."""
    poison = PoisonFilter(
        bound(batches=False), "skip", shard="s", listener=lambda _: None, max_in_a_row=3, max_died_in_a_row=2
    )
    for _ in range(5):
        poison.apply(records(POISON, POISON, POISON), 0)
        assert poison.in_a_row == 3
    with pytest.raises(TransformError, match="max_in_a_row"):
        poison.apply(records(POISON), 3)
    assert poison.died(next(iter(records(POISON))), 3, 1) == []
    assert poison.in_a_row == 2
    with pytest.raises(
        ProcessDiedError, match=r"offset 40: 3 processes .*max_died_in_a_row = 2.*max_deaths = 0"
    ):
        poison.died(next(iter(records(POISON))), 3, 2)
    poison.apply(records(b"a"), 3)
    assert poison.in_a_row == 0


def test_records_that_are_poison_now_and_then_stop_nothing() -> None:
    apply = braked(1)
    for first in range(0, 100, 2):
        values = [POISON, b"good"]
        apply(InputBatch.of([InputRecord("in", 2, first + n, None, v) for n, v in enumerate(values)]))


def open_without_end(_: InputRecord) -> list[OutputRecord]:
    raise OSError(errno.EMFILE, "Too many open files", "/secret")


def too_much_memory(_: InputRecord) -> list[OutputRecord]:
    raise MemoryError


def no_more_threads(_: InputRecord) -> list[OutputRecord]:
    raise RuntimeError("can't start new thread")


@shapes
@pytest.mark.parametrize("policy", ["stop", "dead-letter", "skip"])
@pytest.mark.parametrize(
    ("lacking", "says"),
    [
        (open_without_end, r"file descriptors \(ulimit -n\)"),
        (too_much_memory, "memory"),
        (no_more_threads, "threads"),
    ],
)
def test_process_that_lacks_something_ends_and_no_record_is_poison_for_it(
    policy: Policy, lacking: Callable[[InputRecord], list[OutputRecord]], says: str, batches: bool
) -> None:
    def many(batch: InputBatch) -> list[OutputBatch]:
        lacking(batch[0])
        return []

    shape: dict[str, Any] = {"transform_batch": many} if batches else {"transform": lacking}
    transform = Job(name="j", inputs=["in"], outputs=["out"], dead_letters="dlq", **shape).bound()
    seen: list[Event] = []
    poison = PoisonFilter(transform, policy, shard="s", listener=seen.append)
    with pytest.raises(
        ProcessLimitError, match=rf"^in\[2\] offset 40: .*{says}.*not the record's fault"
    ) as raised:
        poison.apply(records(b"a", b"b"))
    assert f"{__file__}:{lacking.__code__.co_firstlineno + 1}" in str(raised.value)
    assert "/secret" not in str(raised.value)
    assert exit_code_of(raised.value) is ExitCode.UNEXPECTED
    assert seen == []


def test_error_of_the_operating_system_that_a_record_causes_is_poison_like_any_other() -> None:
    def missing(_: InputRecord) -> list[OutputRecord]:
        raise FileNotFoundError(errno.ENOENT, "no such file")

    transform = Job(name="j", inputs=["in"], outputs=["out"], transform=missing).bound()
    poison = PoisonFilter(transform, "skip", shard="s", listener=lambda _: None)
    assert poison.apply(records(b"a")) == []
    assert poison.in_a_row == 1

"""What is written for each event, in both forms, and what is never written."""

from __future__ import annotations

import io
import json
import logging
import sys
import uuid
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from pydantic import SecretStr

from eos import events
from eos.errors import FencedError, ProcessDiedError, TransformError
from eos.events import Event
from eos.offsets import OffsetVector, Partition
from eos.ops.observe import LogListener, configure_logs, log_start
from eos.ops.observe.event_texts import UNNOTED, note_of
from eos.ops.observe.log_lines import write
from eos.ops.observe.quoting import Texts, shown_error
from eos.settings.tables import ObserveSettings
from eos.spark import events as spark_events
from eos.spark.events import BatchResumed, InputPlanned, LedgerRefreshed, LedgerSharded
from eos.spark.log_listener import SparkLogListener

SHARD = "refunds.refunds.i.3"
P0, P1 = Partition("settlements", 0), Partition("settlements", 1)

# event, level, text, fields that must be there
WRITTEN: list[tuple[Event, str, str, dict[str, Any]]] = [
    (events.SessionOpened(SHARD, 0.25), "info", "session opened", {"seconds": 0.25}),
    (events.SessionClosed(SHARD), "info", "session closed", {}),
    (
        events.PartitionStalled(SHARD, P1, 5, 9, 40.0, "consume: UNKNOWN"),
        "warning",
        "partition brings no records, its fetches fail",
        {
            "partition": "settlements[1]",
            "position": 5,
            "last_stable_offset": 9,
            "seconds": 40.0,
            "error": "consume: UNKNOWN",
        },
    ),
    (
        events.PartitionStalled(SHARD, P1, 9, 9, 0.0),
        "info",
        "partition brings records again",
        {"partition": "settlements[1]"},
    ),
    (
        events.StrangersInGroup(SHARD, "refunds", ("console-consumer @ 10.0.0.7",)),
        "warning",
        "strangers in the group",
        {"group": "refunds", "members": "console-consumer @ 10.0.0.7"},
    ),
    (
        events.StrangersInGroup(SHARD, "refunds", ()),
        "info",
        "no stranger in the group any more",
        {"group": "refunds"},
    ),
    (
        events.OffsetsAdopted(SHARD, OffsetVector({P0: 7})),
        "warning",
        "another program's offsets adopted",
        {"positions": "settlements[0] at 7"},
    ),
    (
        events.SessionClosed(SHARD, "FencedError: a rival"),
        "warning",
        "session closed",
        {"reason": "FencedError"},
    ),
    (events.ProducerOpened(SHARD, 0.1), "info", "producer opened", {}),
    (
        events.ProducerOpened(SHARD, 0.1, "REQTMOUT: x"),
        "info",
        "producer rebuilt",
        {"because": "REQTMOUT: x"},
    ),
    (
        events.ProducerSuspect(SHARD, "FAIL: y"),
        "warning",
        "producer suspect, rebuilt before the next begin",
        {"reason": "FAIL: y"},
    ),
    (
        events.TransactionCommitted(SHARD, 10, 12, OffsetVector({P0: 20}), 0.1, 0.02),
        "debug",
        "transaction committed",
        {"records_in": 10, "records_out": 12, "ranges": "settlements[0] [?, 20)", "commit_seconds": 0.02},
    ),
    (
        events.TransactionEnded(SHARD, "aborted", "RebalancedError: moved on", 0.3),
        "warning",
        "transaction aborted",
        {"reason": "RebalancedError: moved on"},
    ),
    (events.Fenced(SHARD, "another owner"), "error", "fenced", {"reason": "another owner"}),
    (
        events.TransactionEnded(
            SHARD, "expired", "TransactionExpiredError: it outlived transaction.timeout_ms", 61.0
        ),
        "warning",
        "transaction expired",
        {"seconds": 61.0},
    ),
    (
        events.TransactionEnded(SHARD, "unresolved", "CommitOutcomeUnknownError: no answer", 2.0),
        "warning",
        "transaction unresolved",
        {"reason": "CommitOutcomeUnknownError: no answer", "seconds": 2.0},
    ),
    (
        events.Waiting(SHARD, "consume", "the broker that leads settlements[0] cannot be reached"),
        "warning",
        "waiting",
        {"call": "consume", "reason": "the broker that leads settlements[0] cannot be reached"},
    ),
    (
        events.CallRetried(SHARD, "commit", 2, "commit: Local: Timed out"),
        "warning",
        "call retried",
        {"call": "commit", "attempt": 2, "error": "commit: Local: Timed out"},
    ),
    (
        events.PartitionsAssigned(SHARD, OffsetVector({P0: 5, P1: 0})),
        "info",
        "partitions assigned",
        {"positions": "settlements[0] at 5, settlements[1] at 0"},
    ),
    (
        events.PartitionsRevoked(SHARD, [P0, P1]),
        "info",
        "partitions revoked",
        {"partitions": "settlements[0], settlements[1]"},
    ),
    (
        events.PartitionsRevoked(SHARD, [P0], lost=True),
        "warning",
        "partitions lost",
        {"partitions": "settlements[0]"},
    ),
    (events.Rewound(SHARD, OffsetVector({P0: 5})), "info", "rewound", {"positions": "settlements[0] at 5"}),
    (
        events.StartPolicyApplied(SHARD, OffsetVector({P0: 0}), "earliest", "command line"),
        "info",
        "start policy applied",
        {"policy": "earliest", "positions": "settlements[0] at 0"},
    ),
    (
        events.StartPolicyApplied(SHARD, OffsetVector({P0: 0}), "earliest", "EOS_INPUT__START"),
        "warning",
        "start policy applied",
        {"policy": "earliest", "positions": "settlements[0] at 0"},
    ),
    (
        events.RecordDeadLettered(SHARD, P0, 7, "ValueError: bad"),
        "warning",
        "record dead-lettered",
        {"partition": "settlements[0]", "offset": 7, "error": "ValueError"},
    ),
    (
        events.RecordDeadLettered(SHARD, P0, 7, "ValueError: bad", skipped=True),
        "warning",
        "record skipped",
        {"offset": 7},
    ),
    (
        events.TransformAtWork(SHARD, "settlements[0] offset 7", 12.3, ("a.py:1 in f", "b.py:2 in g")),
        "warning",
        "transform still at work",
        {"records": "settlements[0] offset 7", "seconds": 12, "stack": "a.py:1 in f > b.py:2 in g"},
    ),
    (events.TransformAtWork(SHARD, "", 0.0, ()), "info", "transform has returned", {}),
    (
        events.Sampled(SHARD, lag=events.Lag({P0: 5, P1: 6}, {P0: 1})),
        "debug",
        "lag measured",
        {"to_lso": 11, "lso_to_high_watermark": 1},
    ),
]

ON_SPARK: list[tuple[Event, str, str, dict[str, Any]]] = [
    (
        BatchResumed(SHARD, 7, [0, 2], 4),
        "warning",
        "batch resumed",
        {"batch": 7, "written": "0, 2", "shards": 4},
    ),
    (
        LedgerSharded(SHARD, 0, "ab-c", 4, 0),
        "info",
        "ledger sharded",
        {"batch": 0, "query": "ab-c", "shards": 4},
    ),
    (LedgerSharded(SHARD, 7, "ab-c", 8, 4), "warning", "ledger sharded", {"shards": 8, "was": 4}),
    (LedgerRefreshed(SHARD, 7), "info", "ledger refreshed", {"batch": 7}),
    (LedgerRefreshed(SHARD, -1, "gone"), "warning", "ledger not refreshed", {"reason": "gone"}),
    (
        InputPlanned(SHARD, OffsetVector({P0: 5}), OffsetVector({P0: 9}), (P0, P1)),
        "info",
        "input planned",
        {"partitions": 2, "offsets": 4, "ranges": "settlements[0] [5, 9)"},
    ),
    (
        InputPlanned(SHARD, OffsetVector(), OffsetVector(), (P0, P1)),
        "info",
        "input planned",
        {"partitions": 2, "offsets": 0, "ranges": "nothing new"},
    ),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def texts_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `configure_logs` found them, once the test is over."""
    monkeypatch.setattr(Texts, "shown", False)


@pytest.fixture
def lines() -> Callable[[], list[dict[str, Any]]]:
    """Logs at debug, as JSON; calling it parses what was written since."""
    stream = io.StringIO()
    configure_logs(ObserveSettings(log_format="json", log_level="debug", record_errors="hide"), stream=stream)

    def parsed() -> list[dict[str, Any]]:
        written = stream.getvalue()
        stream.seek(0)
        stream.truncate()
        return [json.loads(line) for line in written.splitlines()]

    return parsed


def event_types(module: ModuleType) -> set[type[Event]]:
    return {
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
    }


def test_every_event_type_has_a_row() -> None:
    assert set(LogListener().texts) == event_types(events)
    assert set(SparkLogListener().texts) == event_types(events) | event_types(spark_events)
    assert {type(event) for event, *_ in ON_SPARK} == event_types(spark_events)
    assert {type(event) for event, *_ in WRITTEN} == event_types(events) - {
        events.InputTaken,
        events.ShardsOwned,
    }


def test_every_event_type_has_a_note_or_a_reason_why_not() -> None:
    assert {type(event) for event, *_ in WRITTEN if note_of(1.0, event)} == event_types(events) - set(UNNOTED)


@pytest.mark.parametrize(
    ("event", "level", "text", "fields"),
    WRITTEN + ON_SPARK,
    ids=[f"{type(e).__name__}-{t}" for e, _, t, _ in WRITTEN + ON_SPARK],
)
def test_an_event_is_one_line_with_shard_id_and_facts(
    lines: Callable[[], list[dict[str, Any]]], event: Event, level: str, text: str, fields: dict[str, Any]
) -> None:
    SparkLogListener()(event)
    (line,) = lines()
    assert (line["level"], line["event"]) == (level, text)
    assert (line["shard"], line["id"]) == ("worker 3", SHARD)
    assert line.items() >= fields.items()
    assert line["timestamp"].endswith("Z")


def test_a_turn_of_the_loop_is_not_written(lines: Callable[[], list[dict[str, Any]]]) -> None:
    LogListener()(events.Sampled(SHARD))
    LogListener()(events.ShardsOwned("refunds.refunds.", (SHARD,)))
    assert lines() == []


def test_an_event_type_without_a_row_is_named_without_its_fields(
    lines: Callable[[], list[dict[str, Any]]],
) -> None:
    class Surprising(Event):
        pass

    LogListener()(Surprising("elsewhere"))
    (line,) = lines()
    assert (line["event"], line["shard"]) == ("Surprising", "elsewhere")


def test_a_commit_shows_the_half_open_ranges_since_the_last_position(
    lines: Callable[[], list[dict[str, Any]]],
) -> None:
    listener = LogListener()
    listener(events.PartitionsAssigned(SHARD, OffsetVector({P0: 5})))
    listener(events.TransactionCommitted(SHARD, 10, 10, OffsetVector({P0: 15}), 0.1, 0.1))
    listener(events.TransactionCommitted(SHARD, 5, 5, OffsetVector({P0: 20}), 0.1, 0.1))
    listener(events.Rewound(SHARD, OffsetVector({P0: 18})))
    listener(events.TransactionCommitted(SHARD, 1, 1, OffsetVector({P0: 19}), 0.1, 0.1))
    listener(events.PartitionsRevoked(SHARD, [P0]))
    listener(events.TransactionCommitted(SHARD, 1, 1, OffsetVector({P0: 30}), 0.1, 0.1))
    ranges = [line["ranges"] for line in lines() if "ranges" in line]
    assert ranges == [f"settlements[0] [{r})" for r in ("5, 15", "15, 20", "18, 19", "?, 30")]


def test_many_partitions_do_not_make_an_endless_line(lines: Callable[[], list[dict[str, Any]]]) -> None:
    LogListener()(events.PartitionsAssigned(SHARD, OffsetVector({Partition("in", n): 0 for n in range(500)})))
    (line,) = lines()
    assert line["positions"].endswith("in[31] at 0 and 468 more")


def test_retries_are_written_at_once_and_then_once_per_ten_seconds_per_shard_and_call(
    lines: Callable[[], list[dict[str, Any]]],
) -> None:
    now = 100.0
    listener = LogListener(clock=lambda: now)
    for tenths in range(250):
        now = 100.0 + tenths / 10
        listener(events.CallRetried(SHARD, "commit", tenths + 1, "timed out"))
    listener(events.CallRetried(SHARD, "init", 1, "loading"))
    listener(events.CallRetried("refunds.refunds.i.4", "commit", 1, "timed out"))
    written = [(line["attempt"], line.get("unwritten"), line["call"], line["shard"]) for line in lines()]
    assert written == [
        (1, None, "commit", "worker 3"),
        (101, 99, "commit", "worker 3"),
        (201, 99, "commit", "worker 3"),
        (1, None, "init", "worker 3"),
        (1, None, "commit", "worker 4"),
    ]


def test_a_flood_of_dead_letters_is_bounded_but_every_skipped_record_is_written(
    lines: Callable[[], list[dict[str, Any]]],
) -> None:
    listener = LogListener(clock=lambda: 100.0)
    for offset in range(1000):
        listener(events.RecordDeadLettered(SHARD, P0, offset, "ValueError: bad"))
    assert len(lines()) == 20
    for offset in range(1000):
        listener(events.RecordDeadLettered(SHARD, P0, offset, "ValueError: bad", skipped=True))
    assert [line["offset"] for line in lines()] == list(range(1000))


def raise_from_a_transform(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("log_format", ["human", "json"])
def test_no_record_and_no_secret_reaches_a_line(log_format: str) -> None:
    """User code's exceptions quote what they were given; secrets may be bound to a line by mistake."""
    canary = f"S3CR3T-{uuid.uuid4()}"
    stream = io.StringIO()
    configure_logs(
        ObserveSettings.model_validate(
            {"log_format": log_format, "log_level": "debug", "record_errors": "hide"}
        ),
        stream=stream,
    )
    listener = LogListener()
    listener(
        events.TransactionEnded(SHARD, "aborted", f"ValueError: invalid literal for int(): '{canary}'", 0.1)
    )
    listener(events.TransactionEnded(SHARD, "aborted", f"error: {canary}", 0.1))
    listener(
        events.TransactionEnded(
            SHARD, "aborted", f"TransformError: in[0] offset 1: ValueError: {canary}", 0.1
        )
    )
    listener(events.SessionClosed(SHARD, f"AbortTransaction: {canary}"))
    listener(events.ProducerOpened(SHARD, 0.1, f"Boom: {canary}"))
    listener(events.RecordDeadLettered(SHARD, P0, 1, f"ValidationError: input_value='{canary}'"))
    listener(events.RecordDeadLettered(SHARD, P0, 2, f"just words {canary}", skipped=True))
    write(
        "info", "connecting", sasl_password=canary, config={"ssl.key.password": canary}, key=SecretStr(canary)
    )
    write("info", "fetching", url=f"https://user:{canary}@registry.example/")
    try:
        try:
            int(canary)
        except ValueError as error:
            message = f"in[0] offset 9: the transform raised {error}"
            raise TransformError(message, topic="in", partition=0, offset=9) from error
    except TransformError as error:
        write("error", "unexpected", exc_info=True)
        logging.getLogger("eos.runner.worker").error("%s", error)  # noqa: TRY400 - as it is written there
        logging.getLogger("eos.runner.worker").error(error)  # noqa: TRY400
        logging.getLogger("eos.runner.worker").exception("unexpected error")
        logging.getLogger("other").warning("failed: %s", error.__cause__)
    try:  # a class of eos that user code raised: its text is that code's
        try:
            raise_from_a_transform(FencedError(canary))
        except FencedError as error:
            raise TransformError("in[0] offset 9", topic="in", partition=0, offset=9) from error
    except TransformError:
        write("error", "unexpected", exc_info=True)
    written = stream.getvalue()
    assert canary not in written
    assert "TransformError: in[0] offset 9: the transform raised ValueError at " in written
    assert f"{__file__}:" in written
    assert "Fix: the transform, or poison.policy" in written
    assert "int(canary)" in written  # where it happened is shown
    assert len(written.splitlines()) >= 14


def test_own_reasons_are_written_whole(lines: Callable[[], list[dict[str, Any]]]) -> None:
    reason = "AbortableError: out[0]: Broker: Message size too large; nothing of it is visible"
    LogListener()(events.TransactionEnded(SHARD, "aborted", reason, 0.1))
    assert lines()[0]["reason"] == reason


@pytest.mark.parametrize(
    ("log_format", "stream", "is_json", "is_coloured"),
    [
        ("auto", io.StringIO, True, False),
        ("auto", Terminal, False, True),
        ("human", io.StringIO, False, False),
        ("human", Terminal, False, True),
        ("json", Terminal, True, False),
    ],
)
def test_the_form_follows_the_terminal(
    log_format: str,
    stream: type[io.StringIO],
    is_json: bool,
    is_coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = stream()
    configure_logs(ObserveSettings.model_validate({"log_format": log_format}), stream=out)
    listener = LogListener()
    listener(events.SessionOpened(SHARD, 0.25))
    listener(events.TransactionEnded(SHARD, "aborted", "RebalancedError: line one\nline two", 0.25))
    listener(events.TransactionCommitted(SHARD, 1, 1, OffsetVector(), 0.1, 0.1))  # debug: not at level info
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert ("\x1b[" in out.getvalue()) is is_coloured
    if is_json:
        assert json.loads(lines[0])["event"] == "session opened"
    if not (is_json or is_coloured):
        assert "session opened" in lines[0]
        assert "seconds=0.25" in lines[0]
        assert "shard='worker 3'" in lines[0]


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    configure_logs(ObserveSettings(), stream=out)
    LogListener()(events.SessionOpened(SHARD, 0.25))
    assert "\x1b[" not in out.getvalue()


def test_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(ObserveSettings(log_format="json"))
    LogListener()(events.SessionOpened(SHARD, 0.25))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["event"] == "session opened"


def test_a_closed_or_broken_stderr_does_not_stop_the_loop() -> None:
    class Broken(io.StringIO):
        def write(self, text: str, /) -> int:
            raise BrokenPipeError(text)

    closed = io.StringIO()
    configure_logs(ObserveSettings(log_format="json"), stream=closed)
    closed.close()
    LogListener()(events.Fenced(SHARD, "another owner"))
    configure_logs(ObserveSettings(log_format="json"), stream=Broken())
    LogListener()(events.Fenced(SHARD, "another owner"))


def test_lines_of_the_standard_library_come_out_in_the_same_form(
    lines: Callable[[], list[dict[str, Any]]],
) -> None:
    logging.getLogger("eos.runner.supervisor").warning("worker %d was killed by signal %d", 1, 9)
    logging.getLogger("other.client").info("chatter")
    logging.getLogger("other.client").log(35, "50%% of %s", "it")
    written = lines()
    assert [(line["level"], line["event"], line.get("logger")) for line in written] == [
        ("warning", "worker 1 was killed by signal 9", None),
        ("warning", "50% of it", "other.client"),
    ]


def test_configuring_again_does_not_double_lines(lines: Callable[[], list[dict[str, Any]]]) -> None:
    stream = io.StringIO()
    for _ in range(3):
        configure_logs(ObserveSettings(log_format="json"), stream=stream)
    logging.getLogger("eos.runner.supervisor").warning("once")
    assert len(stream.getvalue().splitlines()) == 1
    assert lines() == []


def test_the_first_line_names_the_versions(lines: Callable[[], list[dict[str, Any]]]) -> None:
    log_start(lambda: "2.16.0", job="refunds")
    (line,) = lines()
    assert (line["event"], line["job"], line["librdkafka"]) == ("started", "refunds", "2.16.0")
    assert line["confluent_kafka"][0].isdigit()
    assert line["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "eos" in line


@pytest.mark.parametrize(
    ("settings", "stream", "is_shown"),
    [
        ({}, io.StringIO, False),
        ({}, Terminal, True),
        ({"log_level": "debug"}, io.StringIO, True),
        ({"record_errors": "show"}, io.StringIO, True),
        ({"record_errors": "hide", "log_level": "debug"}, Terminal, False),
    ],
)
def test_what_a_transform_raised_is_shown_with_its_text_only_where_that_is_wanted(
    settings: dict[str, str], stream: type[io.StringIO], is_shown: bool
) -> None:
    out = stream()
    configure_logs(ObserveSettings.model_validate(settings), stream=out)
    LogListener()(events.RecordDeadLettered(SHARD, P0, 7, "ValueError: value 4711"))
    try:
        int("value 4711")
    except ValueError as cause:
        logging.getLogger("eos.test").error("%s", transform_error(cause))  # noqa: TRY400 - as it is written there
        logging.getLogger("eos.test").warning("the transform raised", exc_info=cause)
    written = out.getvalue()
    assert written.count("4711") == (3 + 1 if is_shown else 1)  # the source line is no text of the error
    assert written.count("settlements[0]") == 2
    assert __file__.rpartition("/")[2] in written


def test_a_record_that_processes_died_with_is_named_so_where_texts_are_shown_too() -> None:
    died = ProcessDiedError(
        "settlements[0] offset 7: 3 processes in a row died", topic="settlements", partition=0, offset=7
    )
    shown = {shown_error(died, texts=texts) for texts in (True, False)}
    assert shown == {"ProcessDiedError: settlements[0] offset 7: 3 processes in a row died"}


def transform_error(cause: Exception) -> TransformError:
    error = TransformError("x", topic="settlements", partition=0, offset=7)
    error.__cause__ = cause
    return error

"""What each event counts, and what it costs."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from eos import events
from eos.events import Event
from eos.offsets import OffsetVector, Partition
from eos.ops.observe import WorkerState
from eos.ops.observe.worker_state import UNCOUNTED

SHARD = "refunds.refunds.i.3"
P0, P1 = Partition("in", 0), Partition("in", 1)
COMMITTED = events.TransactionCommitted(SHARD, 10, 12, OffsetVector({P0: 20}), 0.1, 0.02)

# event, series, how much it changes them
COUNTED: list[tuple[Event, dict[str, float]]] = [
    (events.ShardsOwned("refunds.refunds.", (SHARD, "refunds.refunds.i.4")), {"eos_shards_owned": 2}),
    (events.SessionOpened(SHARD, 0.1), {"eos_sessions_open": 1}),
    (events.PartitionStalled(SHARD, P0, 5, 9, 40.0), {'eos_stalled_seconds{partition="0",topic="in"}': 40}),
    (events.StrangersInGroup(SHARD, "g", ("a @ x", "b @ y")), {"eos_group_strangers": 2}),
    (
        COMMITTED,
        {
            'eos_transactions_total{outcome="committed",shard="refunds.refunds.i.3"}': 1,
            "eos_records_in_total": 10,
            "eos_records_out_total": 12,
            "eos_transaction_seconds_count": 1,
            "eos_transaction_seconds_sum": 0.1,
            'eos_transaction_seconds_bucket{le="0.05"}': 0,
            'eos_transaction_seconds_bucket{le="0.1"}': 1,
            'eos_commit_seconds_bucket{le="0.01"}': 0,
            'eos_commit_seconds_bucket{le="0.025"}': 1,
            'eos_commit_seconds_bucket{le="+Inf"}': 1,
        },
    ),
    (
        events.TransactionEnded(SHARD, "aborted", "x", 0.1),
        {
            'eos_transactions_total{outcome="aborted",shard="refunds.refunds.i.3"}': 1,
            "eos_records_in_total": 0,
        },
    ),
    (
        events.TransactionEnded(
            SHARD, "expired", "TransactionExpiredError: it outlived transaction.timeout_ms", 61
        ),
        {
            'eos_transactions_total{outcome="unresolved",shard="refunds.refunds.i.3"}': 1,
            "eos_expired_total": 1,
        },
    ),
    (
        events.TransactionEnded(SHARD, "unresolved", "x", 2.0),
        {
            'eos_transactions_total{outcome="unresolved",shard="refunds.refunds.i.3"}': 1,
            "eos_expired_total": 0,
        },
    ),
    (events.ProducerOpened(SHARD, 0.1), {'eos_producer_opens_total{reason="first"}': 1}),
    (events.Fenced(SHARD, "x"), {"eos_fences_total": 1}),
    (events.CallRetried(SHARD, "commit", 1, "x"), {'eos_retries_total{call="commit"}': 1}),
    (events.Waiting(SHARD, "consume", "x"), {'eos_retries_total{call="consume"}': 1}),
    (events.RecordDeadLettered(SHARD, P0, 1, "x"), {'eos_dead_letters_total{skipped="false",topic="in"}': 1}),
    (
        events.RecordDeadLettered(SHARD, P0, 1, "x", skipped=True),
        {'eos_dead_letters_total{skipped="true",topic="in"}': 1},
    ),
    (events.PartitionsAssigned(SHARD, OffsetVector()), {'eos_rebalances_total{change="assigned"}': 1}),
    (events.PartitionsRevoked(SHARD, []), {'eos_rebalances_total{change="revoked"}': 1}),
    (events.PartitionsRevoked(SHARD, [], lost=True), {'eos_rebalances_total{change="lost"}': 1}),
    (
        events.Sampled(SHARD, lag=events.Lag({P0: 5}, {P0: 7})),
        {
            'eos_lag_records{partition="0",topic="in"}': 5,
            'eos_lso_distance_records{partition="0",topic="in"}': 7,
        },
    ),
    (events.Sampled(SHARD), {'eos_last_turn_timestamp_seconds{shard="refunds.refunds.i.3"}': 1234.5}),
]


def series(listener: WorkerState) -> dict[str, float]:
    """Every series by the name that Prometheus shows, labels sorted."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(listener.registry).decode()):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def test_every_event_type_is_counted_or_named_with_a_reason_why_not() -> None:
    known = {
        kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
    }
    assert set(WorkerState().counted) | set(UNCOUNTED) == known
    assert not set(WorkerState().counted) & set(UNCOUNTED)
    shown_elsewhere = {
        events.SessionClosed,
        events.ProducerSuspect,  # tested below: they need an event before or after
        events.Rewound,
        events.TransformAtWork,  # in test_job_status: they change no series
    }
    assert {type(event) for event, _ in COUNTED} | shown_elsewhere == set(WorkerState().counted)


@pytest.mark.parametrize(
    ("event", "changes"), COUNTED, ids=[f"{type(e).__name__}-{n}" for n, (e, _) in enumerate(COUNTED)]
)
def test_an_event_changes_its_series(event: Event, changes: dict[str, float]) -> None:
    listener = WorkerState(wall_clock=lambda: 1234.5)
    before = series(listener)
    listener(event)
    after = series(listener)
    assert {name: after.get(name, 0.0) - before.get(name, 0.0) for name in changes} == changes


def test_the_reason_of_an_open_is_first_suspect_or_over() -> None:
    listener = WorkerState()
    for event in (
        events.ProducerOpened(SHARD, 0.1),
        events.ProducerSuspect(SHARD, "REQTMOUT"),
        events.ProducerOpened(SHARD, 0.1, "REQTMOUT"),
        events.ProducerOpened(SHARD, 0.1, "TransactionExpiredError: x"),
    ):
        listener(event)
    found = series(listener)
    assert [found[f'eos_producer_opens_total{{reason="{r}"}}'] for r in ("first", "suspect", "over")] == [
        1,
        1,
        1,
    ]


def test_open_sessions_follow_open_close_and_fence() -> None:
    listener = WorkerState()
    for shard in ("a", "b", "c"):
        listener(events.SessionOpened(shard, 0.1))
    listener(events.SessionClosed("a"))
    listener(events.Fenced("b", "x"))
    listener(events.SessionClosed("b", "FencedError: x"))
    assert series(listener)["eos_sessions_open"] == 1
    assert listener.open_sessions == {"c"}


def test_the_lag_of_a_partition_that_left_is_not_shown_any_more() -> None:
    listener = WorkerState()
    listener(events.Sampled(SHARD, lag=events.Lag({P0: 5, P1: 6}, {P0: 0, P1: 0})))
    listener(events.PartitionsRevoked(SHARD, [P0]))
    assert [name for name in series(listener) if "eos_lag_records{" in name] == [
        'eos_lag_records{partition="1",topic="in"}'
    ]
    listener(events.Sampled(SHARD, lag=events.Lag({P0: 5}, {P0: 1})))
    assert [name for name in series(listener) if "eos_lag_records{" in name] == [
        'eos_lag_records{partition="0",topic="in"}'
    ]
    listener(events.SessionClosed(SHARD))
    assert not [name for name in series(listener) if "records{" in name]


def test_a_closed_session_leaves_its_counts_but_no_turning_loop() -> None:
    listener = WorkerState()
    for event in (
        events.SessionOpened(SHARD, 0.1),
        COMMITTED,
        events.Sampled(SHARD),
        events.SessionClosed(SHARD),
        COMMITTED,
    ):
        listener(event)
    found = series(listener)
    assert found['eos_transactions_total{outcome="committed",shard="refunds.refunds.i.3"}'] == 2
    listener(events.SessionClosed(SHARD))
    assert not [name for name in series(listener) if "last_turn" in name]


@pytest.mark.parametrize(
    "end",
    [
        events.PartitionStalled(SHARD, P0, 9, 9, 0.0),
        events.PartitionsRevoked(SHARD, (P0,)),
        events.SessionClosed(SHARD, "x"),
    ],
    ids=lambda end: type(end).__name__,
)
def test_a_stall_that_is_over_is_not_shown_any_more(end: Event) -> None:
    listener = WorkerState()
    for event in (
        events.Sampled(SHARD),
        events.PartitionStalled(SHARD, P0, 5, 9, 40.0),
        events.PartitionStalled(SHARD, P1, 5, 9, 30.0),
    ):
        listener(event)
    assert {name for name in series(listener) if "stalled" in name} == {
        'eos_stalled_seconds{partition="0",topic="in"}',
        'eos_stalled_seconds{partition="1",topic="in"}',
    }
    listener(end)
    assert 'eos_stalled_seconds{partition="0",topic="in"}' not in series(listener)

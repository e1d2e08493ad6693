"""What the job's page shows: of each event, of the workers' reports, and what a person is told to look at."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from eos import events
from eos.events import Event
from eos.offsets import OffsetVector, Partition
from eos.ops.observe import page
from eos.ops.observe.event_texts import dead_letter_of, note_of
from eos.ops.observe.job_status import JobStatus
from eos.ops.observe.quoting import NOT_SHOWN, Texts
from eos.ops.observe.rates import STEP_S, STEPS, Rates
from eos.ops.observe.worker_report import Counts, WorkerReport
from eos.ops.observe.worker_state import WorkerState

SHARD = "refunds.refunds.i.0"
P0, P1 = Partition("in", 0), Partition("in", 1)
RECORD = "the value of a record"
COMMITTED = events.TransactionCommitted(SHARD, 10, 12, OffsetVector({P0: 20}), 0.1, 0.02)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Worker:
    """A worker's listeners, and its reports as its parent gets them."""

    def __init__(self, clock: Clock, name: str = "1-1") -> None:
        self.name = name
        self.state = WorkerState(clock=clock, wall_clock=clock)
        self.sent: list[Event] = []

    def __call__(self, *sent: Event, silent_s: float = 0.0, ended: bool = False) -> WorkerReport:
        for event in sent:
            self.state(event)
        return self.state.report(process=self.name, ended=ended, silent_s=silent_s)._replace(pid=4711)


class Job:
    """The parent's side."""

    def __init__(self, *ordinals: int, **about: object) -> None:
        self.clock = Clock()
        self.status = JobStatus(ordinals or (0,), {"app": "refunds", **about}, 60.0, self.clock())

    def take(self, report: WorkerReport, ordinal: int = 0) -> None:
        self.status.take(ordinal, report, self.clock())

    @property
    def shown(self) -> Any:
        """As a reader of the JSON gets it."""
        now = self.clock()
        return json.loads(json.dumps(self.status.shown(now, now)))


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def worker(job: Job) -> Worker:
    return Worker(job.clock)


# --- notes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["ValueError", "Überfehler", "BOOM", "pydantic_core.ValidationError"])
@pytest.mark.parametrize(
    "event",
    [
        lambda error: events.TransactionEnded(SHARD, "aborted", error, 0.1),
        lambda error: events.TransactionEnded(SHARD, "unresolved", error, 0.1),
        lambda error: events.SessionClosed(SHARD, error),
        lambda error: events.ProducerOpened(SHARD, 0.1, error),
        lambda error: events.RecordDeadLettered(SHARD, P0, 7, error),
    ],
)
def test_the_text_of_user_codes_error_is_on_no_page_even_where_logs_show_it(
    event: Callable[[str], Event], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Texts, "shown", True)
    made = event(f"{error}: {RECORD}")
    note = note_of(1.0, made)
    assert note is not None
    assert RECORD not in str(note)
    assert error.rpartition(".")[2] in note.text or NOT_SHOWN in note.text
    if isinstance(made, events.RecordDeadLettered):
        assert RECORD not in str(dead_letter_of(1.0, made))


def test_a_bare_text_in_the_place_of_an_error_is_not_shown() -> None:
    note = note_of(1.0, events.TransactionEnded(SHARD, "aborted", RECORD, 0.1))
    assert note is not None
    assert RECORD not in note.text


def test_an_error_of_eos_is_shown_with_its_text_and_no_password_of_an_address() -> None:
    note = note_of(
        1.0, events.TransactionEnded(SHARD, "aborted", "AbortableError: http://me:pass@host refused", 0.1)
    )
    assert note is not None
    assert note.text == "AbortableError: http://**********@host refused"


def test_a_long_text_is_cut() -> None:
    note = note_of(1.0, events.Fenced(SHARD, "x" * 10_000))
    assert note is not None
    assert len(note.text) == 300


# --- what a worker reports ---------------------------------------------------------------------------


def test_committed_offsets_and_their_ages(job: Job, worker: Worker) -> None:
    job.take(worker(events.PartitionsAssigned(SHARD, OffsetVector({P0: 10, P1: 5})), COMMITTED))
    job.clock.now += 3
    shown = job.shown
    assert [(p["partition"], p["committed"], p["committed_s"]) for p in shown["partitions"]] == [
        (0, 20, 3),
        (1, 5, None),
    ]
    assert shown["committed_s"] == 3
    assert shown["workers"][0]["committed_s"] == 3
    job.take(worker(events.Rewound(SHARD, OffsetVector({P0: 20, P1: 4}))))
    assert [(p["committed"], p["committed_s"]) for p in job.shown["partitions"]] == [(20, 3), (4, None)]
    job.take(worker(events.PartitionsRevoked(SHARD, [P0])))
    assert [p["partition"] for p in job.shown["partitions"]] == [1]
    job.take(worker(events.SessionClosed(SHARD)))
    assert job.shown["partitions"] == []


def test_lag_and_what_is_held_back_stand_beside_the_offset(job: Job, worker: Worker) -> None:
    job.take(worker(COMMITTED, events.Sampled(SHARD, lag=events.Lag({P0: 5}, {P0: 7}))))
    [partition] = job.shown["partitions"]
    assert partition == {
        "topic": "in",
        "partition": 0,
        "worker": 0,
        "committed": 20,
        "committed_s": 0,
        "lag": 5,
        "lso_distance": 7,
        "stalled_s": None,
        "waits_s": 0,
        "held_back_s": None,
        "unmeasured_s": None,
    }


def test_a_lag_that_a_loop_has_not_measured_of_late_is_not_shown(job: Job, worker: Worker) -> None:
    """It was 0, and since then the loop stands in a transform while records come."""
    job.take(
        worker(
            events.SessionOpened(SHARD, 0.1),
            COMMITTED,
            events.Sampled(SHARD, lag=events.Lag({P0: 0}, {P0: 0})),
        )
    )
    job.clock.now += 9
    job.take(worker(events.TransformAtWork(SHARD, "in[0] offset 20", 9.0, ())))
    assert [one["lag"] for one in job.shown["partitions"]] == [0]
    job.clock.now += 2
    job.take(worker())
    assert [(one["lag"], one["lso_distance"]) for one in job.shown["partitions"]] == [(None, None)]


@pytest.mark.parametrize(
    "end",
    [
        COMMITTED,
        events.TransactionEnded(SHARD, "aborted", "AbortableError: x", 0.1),
        events.TransactionEnded(
            SHARD, "expired", "TransactionExpiredError: it outlived transaction.timeout_ms", 60.0
        ),
        events.TransactionEnded(SHARD, "unresolved", "CommitOutcomeUnknownError: x", 0.1),
        events.Sampled(SHARD),
        events.SessionClosed(SHARD),
    ],
)
def test_a_transaction_is_open_until_its_end(job: Job, worker: Worker, end: Event) -> None:
    job.take(worker(events.Sampled(SHARD, 4.0)))
    job.clock.now += 2
    job.take(worker())
    job.clock.now += 1
    assert job.shown["workers"][0]["open_s"] == 7
    job.take(worker(end))
    assert job.shown["workers"][0]["open_s"] is None


def test_a_stuck_transform_is_named_with_its_record_and_the_place_in_its_own_code(
    job: Job, worker: Worker
) -> None:
    stack = ("/app/jobs/fx.py:112 in rate_of", "/usr/lib/python3.11/socket.py:706 in readinto")
    job.take(
        worker(events.SessionOpened(SHARD, 0.1), events.TransformAtWork(SHARD, "in[0] offset 7", 12.0, stack))
    )
    job.clock.now += 30
    shown = job.shown
    assert shown["workers"][0]["state"] == "stuck"
    assert shown["workers"][0]["at_work"] == [
        {"records": "in[0] offset 7", "seconds": 42, "place": "/app/jobs/fx.py:112 in rate_of"}
    ]
    assert shown["problems"][0]["text"].startswith(
        "Worker 0 is stuck: its transform has been at in[0] offset 7 for 42 s, in /app/jobs/fx.py:112"
    )
    job.take(worker(events.TransformAtWork(SHARD, "", 0.0, ())))
    assert job.shown["workers"][0]["state"] == "running"


def test_an_event_is_in_one_report_only_and_a_flood_is_bounded(worker: Worker) -> None:
    report = worker(*[events.TransactionEnded(SHARD, "aborted", "AbortableError: x", 0.1)] * 10_000)
    assert len(report.notes) == 40
    assert worker().notes == ()


# --- the job -----------------------------------------------------------------------------------------


def test_equal_events_are_one_row_with_a_count_and_the_newest_row_is_first(job: Job, worker: Worker) -> None:
    aborted = events.TransactionEnded(SHARD, "aborted", "AbortableError: in[0]: took 7 ms", 0.1)
    job.take(
        worker(
            aborted,
            events.TransactionEnded(
                SHARD, "expired", "TransactionExpiredError: it outlived transaction.timeout_ms", 60.0
            ),
        )
    )
    job.clock.now += 5
    job.take(worker(events.TransactionEnded(SHARD, "aborted", "AbortableError: in[0]: took 9 ms", 0.1)))
    first, second = job.shown["events"]
    assert (first["kind"], first["times"], first["since"], first["at"]) == ("aborted", 2, 1000, 1005)
    assert first["text"].endswith("9 ms")
    assert second["kind"] == "expired"


def test_memory_is_bounded_whatever_comes(job: Job, worker: Worker) -> None:
    for number in range(1_000):
        job.clock.now += 1
        letter = events.RecordDeadLettered(SHARD, P0, number, "ValueError: x")
        name = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        job.take(
            worker(
                COMMITTED, letter, events.TransactionEnded(SHARD, "aborted", f"AbortableError: {name}", 0.1)
            )
        )
    shown = job.shown
    assert len(shown["events"]) == 60
    assert [letter["offset"] for letter in shown["dead_letters"]] == list(range(999, 979, -1))
    assert len(shown["rates"]["records_in"]) == STEPS
    assert len(job.status._rates._steps) <= STEPS + 1


def test_states_of_a_worker_from_its_start_to_its_end(job: Job, worker: Worker) -> None:
    def state() -> tuple[str, int | None]:
        [one] = job.shown["workers"]
        return one["state"], one["pid"]

    assert state() == ("starting", None)
    job.take(worker())
    assert state() == ("opening", 4711)
    job.take(worker(events.SessionOpened(SHARD, 0.1), COMMITTED))
    assert state() == ("running", 4711)
    job.clock.now += 9
    assert state() == ("frozen", 4711)
    job.clock.now += 52
    job.take(worker(silent_s=61.0))
    assert state() == ("silent", 4711)
    job.status.restarted(0, "ended by signal 9 (Killed)", job.clock(), job.clock())
    assert state() == ("restarting", None)
    assert [p["worker"] for p in job.shown["partitions"]] == [None]  # nobody reads it
    second = Worker(job.clock, "2-2")
    job.take(second(events.SessionOpened(SHARD, 0.1)))
    assert state() == ("running", 4711)
    assert job.shown["workers"][0]["restarts"] == 1
    job.take(second(ended=True))
    assert state() == ("ended", None)
    job.status.done(0)
    assert state() == ("done", None)


def test_a_partition_that_another_worker_has_taken_over_is_that_workers() -> None:
    job = Job(0, 1)
    first, second = Worker(job.clock), Worker(job.clock, "2-2")
    job.take(first(COMMITTED), 0)
    job.status.restarted(0, "", job.clock(), job.clock())
    job.take(second(events.PartitionsAssigned("refunds.refunds.i.1", OffsetVector({P0: 20}))), 1)
    [partition] = job.shown["partitions"]
    assert partition["worker"] == 1


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_partition_that_was_taken_from_a_frozen_worker_is_shown_as_the_new_owners(frozen: int) -> None:
    job = Job(0, 1)
    sleeper, successor = Worker(job.clock), Worker(job.clock, "2-2")
    job.take(sleeper(events.SessionOpened(SHARD, 0.1), COMMITTED), frozen)
    job.take(successor(events.SessionOpened(SHARD, 0.1)), 1 - frozen)
    job.clock.now += 9
    job.take(successor(replace(COMMITTED, offsets=OffsetVector({P0: 40}))), 1 - frozen)
    [partition] = job.shown["partitions"]
    assert (partition["worker"], partition["committed"]) == (1 - frozen, 40)


def test_a_worker_that_stopped_reporting_is_a_problem_within_ten_seconds(job: Job, worker: Worker) -> None:
    job.take(
        worker(
            events.SessionOpened(SHARD, 0.1),
            COMMITTED,
            events.Sampled(SHARD, lag=events.Lag({P0: 0}, {P0: 0})),
        )
    )
    job.clock.now += 5
    assert job.shown["problems"] == []
    job.clock.now += 4
    [problem] = job.shown["problems"]
    assert problem["text"].startswith("Worker 0 is frozen: it has not reported for 9 s.")
    job.take(worker())
    assert job.shown["problems"] == []


def test_the_first_offsets_of_a_group_are_not_partitions_of_the_worker_that_committed_them() -> None:
    job = Job(0, 1)
    first, second = Worker(job.clock), Worker(job.clock, "2-2")
    other = "refunds.refunds.i.1"
    job.take(second(events.StartPolicyApplied(other, OffsetVector({P0: 0, P1: 0}), "earliest")), 1)
    job.take(first(events.PartitionsAssigned(SHARD, OffsetVector({P0: 0})), COMMITTED), 0)
    job.take(second(events.PartitionsAssigned(other, OffsetVector({P1: 0}))), 1)
    assert [(p["worker"], p["committed"]) for p in job.shown["partitions"]] == [(0, 20), (1, 0)]


# --- rates -------------------------------------------------------------------------------------------


def test_rates_are_those_that_were_reported_over_a_restart_too(job: Job, worker: Worker) -> None:
    for _ in range(20):
        job.clock.now += 1
        job.take(worker(COMMITTED))
    second = Worker(job.clock, "2-2")
    for _ in range(20):
        job.clock.now += 1
        job.take(second(COMMITTED))
    rates = job.shown["rates"]
    assert rates["records_in"] == pytest.approx([10.0] * len(rates["records_in"]), abs=0.1)
    assert rates["records_out"] == pytest.approx([12.0] * len(rates["records_in"]), abs=0.1)
    assert rates["commits"] == pytest.approx([1.0] * len(rates["records_in"]), abs=0.1)
    assert rates["aborts"] == [0.0] * len(rates["records_in"])
    assert len(rates["records_in"]) * STEP_S == pytest.approx(38, abs=4)
    job.clock.now += 20
    assert job.shown["rates"]["records_in"][-5:] == [0.0] * 5


def test_what_a_report_covers_is_spread_over_its_time() -> None:
    rates = Rates(0.0)
    rates.add(Counts(records_in=40), 2.0, 10.0)
    assert rates.per_second(14.0)["records_in"] == [0.0, 5.0, 5.0, 5.0, 5.0, 0.0]


# --- problems ----------------------------------------------------------------------------------------


def _texts(job: Job) -> list[str]:
    return [f"{one['level']}: {one['text']}" for one in job.shown["problems"]]


def test_a_job_that_is_well_has_no_problem(job: Job, worker: Worker) -> None:
    assert _texts(job) == []
    job.take(
        worker(
            events.SessionOpened(SHARD, 0.1),
            COMMITTED,
            events.Sampled(SHARD, lag=events.Lag({P0: 5}, {P0: 2})),
        )
    )
    for _ in range(5):
        job.clock.now += 5
        assert _texts(job) == []
        job.take(worker())


@pytest.mark.parametrize(
    ("sent", "after_s", "problem"),
    [
        ([], 40, "error: Worker 0 has 0 of 1 sessions open."),
        (
            [
                events.SessionOpened(SHARD, 0.1),
                events.PartitionsAssigned(SHARD, OffsetVector({P0: 20, P1: 5})),
                events.Sampled(SHARD, lag=events.Lag({P0: 1200, P1: 3}, {})),
            ],
            61,
            "error: in[0], in[1]: nothing was committed for 61 s, and the lag is 1,203.",
        ),
        (
            [
                events.SessionOpened(SHARD, 0.1),
                COMMITTED,
                events.Sampled(SHARD, lag=events.Lag({P0: 0}, {P0: 7})),
            ],
            31,
            "warning: in[0]: 7 offsets are held back by an open transaction of another writer.",
        ),
        (
            [events.SessionOpened(SHARD, 0.1), events.PartitionStalled(SHARD, P0, 5, 9, 45.0, "refused")],
            0,
            "error: in[0]: no record comes, although there are some, for 45 s.",
        ),
        (
            [
                events.SessionOpened(SHARD, 0.1),
                events.StrangersInGroup(SHARD, "refunds", ("console-consumer @ 10.0.0.7",)),
            ],
            0,
            (
                "error: Members of the group are no instances of this job: console-consumer @ 10.0.0.7. Partitions "
                "that they are given are not processed, and offsets that they commit are refused."
            ),
        ),
        (
            [events.SessionOpened(SHARD, 0.1), events.Sampled(SHARD, 31.0)],
            0,
            "error: Worker 0's transaction has been open for 31 s.",
        ),
        (
            [
                events.SessionOpened(SHARD, 0.1),
                *[events.CallRetried(SHARD, "consume", 1, "all brokers are down")] * 5,
            ],
            0,
            "warning: Worker 0 tries again what Kafka does not answer: consume retried, all brokers are down",
        ),
        (
            [events.SessionOpened(SHARD, 0.1), events.Fenced(SHARD, "another owner")],
            0,
            "error: Worker 0 was fenced: another owner",
        ),
        (
            [
                events.SessionOpened(SHARD, 0.1),
                events.RecordDeadLettered(SHARD, P0, 7, f"ValueError: {RECORD}"),
            ],
            0,
            "warning: Records could not be processed in the last 5 minutes; the latest is in[0] offset 7 (ValueError).",
        ),
    ],
)
def test_a_problem_is_named_and_each_has_a_fix(
    job: Job, worker: Worker, sent: list[Event], after_s: float, problem: str
) -> None:
    job.take(worker(*sent))
    job.clock.now += after_s
    job.take(worker(*(event for event in sent if isinstance(event, events.Sampled) and event.lag)))
    assert problem in _texts(job)
    assert all(one["fix"] for one in job.shown["problems"])


def test_a_transaction_that_is_filled_for_its_interval_is_no_problem() -> None:
    """Both are errors in a job that commits ten times a second."""
    job = Job(interval_s=40.0)
    worker = Worker(job.clock)
    waits = events.Sampled(SHARD, 100.0, events.Lag({P0: 7}, {P0: 0}))
    job.take(worker(events.SessionOpened(SHARD, 0.1), COMMITTED, waits))
    for _ in range(100):
        job.clock.now += 1
        job.take(worker(waits))
    assert _texts(job) == []
    for _ in range(100):
        job.clock.now += 1
        job.take(worker(events.Sampled(SHARD, 200.0, waits.lag)))
    assert len(_texts(job)) == 2


def test_a_record_that_comes_to_an_idle_job_is_no_problem_and_one_that_stays_is(
    job: Job, worker: Worker
) -> None:
    lags = [
        events.Sampled(SHARD, lag=events.Lag({P0: lag}, {P0: held})) for lag, held in ((0, 0), (1, 0), (0, 1))
    ]
    job.take(worker(events.SessionOpened(SHARD, 0.1), COMMITTED, lags[0]))
    job.clock.now += 3600
    for lag in lags[1:]:
        job.take(worker(lag, events.Sampled(SHARD)))
        assert _texts(job) == []
    for _ in range(70):  # it goes on slowly, but it goes on
        job.clock.now += 1
        offset = OffsetVector({P0: int(job.clock.now)})
        job.take(worker(events.TransactionCommitted(SHARD, 1, 1, offset, 0.1, 0.02), lags[1]))
    assert _texts(job) == []
    for _ in range(61):
        job.clock.now += 1
        job.take(worker(lags[1]))
    assert _texts(job) == ["error: in[0]: nothing was committed for 61 s, and the lag is 1."]


def test_one_outage_in_a_transaction_is_one_problem(job: Job, worker: Worker) -> None:
    lagging = events.Sampled(SHARD, lag=events.Lag({P0: 7}, {P0: 0}))
    job.take(worker(events.SessionOpened(SHARD, 0.1), COMMITTED, lagging))
    for passed in range(90):
        job.clock.now += 1
        retried = events.CallRetried(SHARD, "commit", passed, "all brokers are down")
        job.take(worker(events.Sampled(SHARD, float(passed)), retried))
    assert len(_texts(job)) == 1, _texts(job)
    assert _texts(job)[0].startswith("error: in[0]: the brokers have not answered for ")


def test_brokers_that_are_away_are_named_and_forgotten_when_they_are_back(job: Job, worker: Worker) -> None:
    measured = events.Sampled(SHARD, lag=events.Lag({P0: 0}, {P0: 0}))
    job.take(worker(events.SessionOpened(SHARD, 0.1), COMMITTED, measured))
    for _ in range(40):
        job.clock.now += 1
        job.take(worker(events.Sampled(SHARD)))  # it turns, and learns nothing
    assert _texts(job) == ["error: in[0]: the brokers have not answered for 29 s."]
    assert job.status.unanswered_s(job.clock()) == {0: 29.0}
    job.take(worker(measured))
    assert _texts(job) == []
    assert job.status.unanswered_s(job.clock()) == {}


def test_a_worker_without_partitions_whose_group_cannot_be_reached_is_not_ready(
    job: Job, worker: Worker
) -> None:
    """The group has taken its partitions back, so no partition shows that the brokers are away."""
    lost = events.PartitionsRevoked(SHARD, (P0,), lost=True)
    job.take(
        worker(
            events.SessionOpened(SHARD, 0.1),
            COMMITTED,
            lost,
            events.Sampled(SHARD, lag=events.Lag({}, {}, 8.0)),
        )
    )
    assert job.status.unanswered_s(job.clock()) == {}
    job.clock.now += 4
    job.take(worker(events.Sampled(SHARD)))
    assert job.status.unanswered_s(job.clock()) == {0: 12.0}
    job.take(worker(events.Sampled(SHARD, lag=events.Lag({}, {}))))
    assert job.status.unanswered_s(job.clock()) == {}


def test_a_worker_whose_partitions_are_lost_is_a_problem_until_it_has_some_again(
    job: Job, worker: Worker
) -> None:
    assigned = events.PartitionsAssigned(SHARD, OffsetVector({P0: 20}))
    lost = events.PartitionsRevoked(SHARD, (P0,), lost=True)
    job.take(worker(events.SessionOpened(SHARD, 0.1), assigned, lost))
    assert _texts(job) == ["warning: Worker 0 has lost in[0], and has got none back yet."]
    job.clock.now += 1
    job.take(worker(assigned))
    assert _texts(job) == []


def test_a_stuck_worker_that_is_silent_too_is_one_problem(job: Job, worker: Worker) -> None:
    job.take(worker(events.SessionOpened(SHARD, 0.1), COMMITTED))
    job.clock.now += 100
    job.take(worker(events.TransformAtWork(SHARD, "in[0] offset 20", 100.0, ()), silent_s=100.0))
    [problem] = _texts(job)
    assert problem.startswith("error: Worker 0 is stuck: its transform has been at in[0] offset 20 for 100 s")


def test_a_share_of_aborts_is_a_problem_and_goes_with_its_time(job: Job, worker: Worker) -> None:
    aborted = events.TransactionEnded(SHARD, "aborted", "AbortableError: x", 0.1)
    opened = events.SessionOpened(SHARD, 0.1)
    job.clock.now += 2
    job.take(worker(opened, *[COMMITTED] * 20, *[aborted] * 5))
    job.clock.now += 5
    job.take(worker(COMMITTED))
    assert "warning: 5 of the last 25 transactions were aborted: correct, but slow." in _texts(job)
    for _ in range(400):
        job.clock.now += 1
        job.take(worker(COMMITTED, events.Sampled(SHARD, lag=events.Lag({P0: 0}, {P0: 0}))))
    assert _texts(job) == []


def test_a_silent_and_a_replaced_worker_are_problems_the_worst_first(job: Job, worker: Worker) -> None:
    job.take(worker(events.SessionOpened(SHARD, 0.1), COMMITTED))
    job.clock.now += 61
    job.take(worker(silent_s=61.0))
    assert _texts(job) == ["error: Worker 0 is silent: its loop has not turned for 61 s."]
    job.status.restarted(0, "ended by signal 9 (Killed)", job.clock(), job.clock())
    job.clock.now += 16
    error, warning = _texts(job)
    assert error.startswith(
        "error: Worker 0 has been ended by a signal, and its next process has not reported for 16 s"
    )
    assert warning == (
        "warning: Worker 0 was ended by signal 9 (Killed) and replaced, 0 min ago; restarts so far: 1."
    )


# --- the page ----------------------------------------------------------------------------------------


def test_the_page_is_one_file_that_asks_for_nothing_elsewhere() -> None:
    text = page.html().decode()
    assert set(re.findall(r"""\w+://[^"'\s]+""", text)) == {
        "http://www.w3.org/2000/svg"
    }  # a name, not an address
    assert not re.findall(r"""(?:src|href)=["'](?!data:,|status\.json|metrics|healthz|readyz)""", text)
    assert not re.search(r"@import|url\(|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
    assert not re.search(r"\sstyle=|\son\w+=", text)  # its policy would refuse them


def test_the_policy_allows_its_own_style_and_script_and_no_other() -> None:
    policy = page.policy()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert len(re.findall(r"'sha256-[\w+/]{43}='", policy)) == 2

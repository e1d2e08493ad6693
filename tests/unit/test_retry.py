"""The retry policy: every row of the table is driven, and the table in the documentation is this one.

``python -m tests.unit.test_retry`` prints the table for docs/DESIGN.md.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eos import retry
from eos.base.calls import Call
from eos.base.deadline import Deadline
from eos.errors import (
    AbortableError,
    Action,
    CommitOutcomeUnknownError,
    ConfigError,
    EosError,
    FencedError,
    OffsetGapError,
    ProcessDiedError,
    ProcessLimitError,
    RebalancedError,
    RecordRefusedError,
    ReopenError,
    RetriableError,
    TransactionExpiredError,
    TransformError,
    UnavailableError,
    UnclassifiedError,
    UnprovenFenceError,
    UsageError,
)
from eos.retry import RULES, Rule, rule_for
from tests.support.patience import PATIENCE_S

DESIGN = Path(__file__).parents[2] / "docs/DESIGN.md"
_BEGIN, _END = "<!-- retry-policy -->", "<!-- /retry-policy -->"

RESUMED = {Call.INIT, Call.COMMIT, Call.ABORT, Call.COMMITTED, Call.METADATA}
REDONE = set(Call) - RESUMED

# What a holder of each class does: written down a second time, by hand, so that a change is on purpose.
EXPECTED: dict[type[EosError], Action] = {
    ConfigError: Action.STOP,
    UsageError: Action.STOP,
    AbortableError: Action.REDO,
    RebalancedError: Action.REDO,
    RecordRefusedError: Action.STOP,
    TransformError: Action.STOP,
    ProcessDiedError: Action.STOP,
    ProcessLimitError: Action.STOP,
    ReopenError: Action.REOPEN,
    TransactionExpiredError: Action.REOPEN,
    UnprovenFenceError: Action.REOPEN,
    CommitOutcomeUnknownError: Action.REOPEN,
    OffsetGapError: Action.STOP,
    UnavailableError: Action.STOP,
    FencedError: Action.STOP,
    UnclassifiedError: Action.STOP,
}


def made(kind: type[EosError]) -> EosError:
    if issubclass(kind, TransformError):
        return kind("no", topic="in", partition=0, offset=0)
    return kind("no", code="_TIMED_OUT")


def every_class(kind: type[EosError] = EosError) -> set[type[EosError]]:
    return {kind}.union(
        *(every_class(child) for child in kind.__subclasses__() if child.__module__ == EosError.__module__)
    )


RESUMING = [
    pytest.param(rule, call, id=str(call))
    for rule in RULES
    if rule.action is Action.RESUME
    for call in sorted(rule.calls)
]


class Clock:
    """Stands in for the module ``time``: sleeping moves it on, and it remembers each sleep."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("eos.retry.time", clock)
    monkeypatch.setattr("eos.base.deadline.time", clock)
    monkeypatch.setattr("tenacity.nap.time", clock)
    return clock


class Failing:
    """A call that raises these errors in turn, then for ever the last one; ``None`` is an answer."""

    def __init__(self, clock: Clock, *outcomes: EosError | None, takes_s: float = 0.0) -> None:
        self._clock = clock
        self._outcomes = list(outcomes)
        self._takes_s = takes_s
        self.timeouts_s: list[float] = []

    def __call__(self, timeout_s: float = 0.0) -> str:
        self.timeouts_s.append(timeout_s)
        self._clock.now_s += min(timeout_s, self._takes_s)
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        if outcome is not None:
            raise outcome
        return "answered"


# --- the table ---------------------------------------------------------------------------------------


def test_every_class_of_the_tree_is_expected_here() -> None:
    assert set(EXPECTED) | {EosError, RetriableError} == every_class()


@pytest.mark.parametrize("kind", EXPECTED)
def test_every_pair_of_class_and_call_has_its_row(kind: type[EosError]) -> None:
    for call in Call:
        rule = rule_for(call, made(kind))
        assert rule in RULES
        assert rule.action is EXPECTED[kind]


@pytest.mark.parametrize("call", Call)
def test_retriable_is_resumed_where_the_call_is_resumable_and_redone_elsewhere(call: Call) -> None:
    rule = rule_for(call, RetriableError("no"))
    assert rule in RULES
    assert rule.action is (Action.RESUME if call in RESUMED else Action.REDO)


@pytest.mark.parametrize("call", Call)
def test_class_that_the_table_does_not_know_stops(call: Call) -> None:
    """Default to fatal, also for a class of tomorrow."""
    assert rule_for(call, EosError("no")).action is Action.STOP


def test_no_row_is_hidden_by_the_rows_before_it() -> None:
    reached = {id(rule_for(call, made(kind))) for kind in every_class() for call in Call}
    assert [rule for rule in RULES if id(rule) not in reached] == []


def test_whatever_is_tried_again_is_bounded_waits_and_says_why() -> None:
    for rule in RULES:
        assert rule.why
        if rule.action is Action.STOP:
            assert (rule.attempts, rule.first_wait_s, rule.max_wait_s) == (1, 0.0, 0.0)
        else:
            assert 0.0 < rule.max_wait_s <= 5.0
            assert rule.first_wait_s <= rule.max_wait_s
        # Only what resume() drives has a deadline, and so may do without a count.
        assert (rule.attempts is None) == (rule.action is Action.RESUME)


# --- resume ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "call"), RESUMING)
def test_resumed_call_is_made_until_it_is_answered(rule: Rule, call: Call, clock: Clock) -> None:
    function = Failing(clock, *[RetriableError("no")] * 7, None)
    told: list[tuple[Call, int, EosError]] = []
    answer = retry.resume(
        call, function, deadline=Deadline(60), on_retry=lambda c, n, e: told.append((c, n, e))
    )
    assert answer == "answered"
    assert len(function.timeouts_s) == 8
    assert [(c, n) for c, n, _ in told] == [(call, n) for n in range(1, 8)]
    assert {type(e) for _, _, e in told} == {RetriableError}


@pytest.mark.parametrize(("rule", "call"), RESUMING)
def test_waits_of_a_resumed_call_grow_with_jitter_up_to_the_rows_bound(
    rule: Rule, call: Call, clock: Clock
) -> None:
    function = Failing(clock, *[RetriableError("no")] * 50, None)
    retry.resume(call, function, deadline=Deadline(10_000))
    for n, wait_s in enumerate(clock.slept_s):
        assert 0.0 <= wait_s <= min(rule.max_wait_s, rule.first_wait_s * 2**n or rule.max_wait_s)
    # An answer that fails at once must not become a storm of requests: by the jitter, half a bound on average.
    assert max(clock.slept_s) > rule.max_wait_s / 2
    assert len(set(clock.slept_s)) > 25


@pytest.mark.parametrize(("rule", "call"), RESUMING)
def test_call_without_an_answer_ends_at_its_deadline(rule: Rule, call: Call, clock: Clock) -> None:
    last = RetriableError("no", code="_TIMED_OUT")
    function = Failing(clock, last, takes_s=1.0)
    began_s = clock.now_s
    with pytest.raises(UnavailableError, match=f"{call}: no usable answer in 1.*the last one: no") as raised:
        retry.resume(call, function, deadline=Deadline(10), slice_s=1.0)
    assert raised.value.__cause__ is last
    assert raised.value.code == "_TIMED_OUT"
    # The wait before the last try may reach over the deadline, by no more than itself.
    assert began_s + 10 <= clock.now_s <= began_s + 10 + rule.max_wait_s + 0.001


@pytest.fixture
def no_descriptor() -> Iterator[None]:
    """This process has all the file descriptors open that it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("no_descriptor")
def test_a_process_without_file_descriptors_does_not_blame_the_brokers_until_the_deadline(
    clock: Clock,
) -> None:
    function = Failing(clock, RetriableError("no", code="_TIMED_OUT"), takes_s=1.0)
    began_s = clock.now_s
    with pytest.raises(ProcessLimitError, match=r"no more file descriptors \(ulimit -n\)"):
        retry.resume(Call.INIT, function, deadline=Deadline(75), slice_s=1.0)
    assert clock.now_s < began_s + 15


def test_no_slice_is_longer_than_asked_nor_reaches_over_the_deadline(clock: Clock) -> None:
    function = Failing(clock, RetriableError("no"), takes_s=60.0)
    with pytest.raises(UnavailableError):
        retry.resume(Call.COMMIT, function, deadline=Deadline(2.25), slice_s=0.5)
    assert all(0.0 < timeout_s <= 0.5 for timeout_s in function.timeouts_s)
    assert sum(function.timeouts_s) <= 2.25 + 0.001


def test_time_in_which_the_process_stood_still_does_not_end_the_tries(clock: Clock) -> None:
    """SIGSTOP for two minutes, in the middle of a try: the broker has answered nothing, for it was asked nothing."""
    timeouts_s: list[float] = []

    def function(timeout_s: float) -> str:
        timeouts_s.append(timeout_s)
        if len(timeouts_s) > 3:
            return "answered"
        clock.now_s += 120 if len(timeouts_s) == 2 else timeout_s
        raise RetriableError("no")

    assert retry.resume(Call.COMMITTED, function, deadline=Deadline(20)) == "answered"
    assert timeouts_s == [1.0] * 4


def test_call_is_tried_once_even_when_its_deadline_has_passed(clock: Clock) -> None:
    function = Failing(clock, None)
    assert retry.resume(Call.COMMIT, function, deadline=Deadline(-5)) == "answered"
    assert function.timeouts_s == [0.001]


def test_process_that_has_to_end_leaves_the_call_without_an_answer(clock: Clock) -> None:
    function = Failing(clock, RetriableError("no"), takes_s=1.0)
    with pytest.raises(UnavailableError):
        retry.resume(
            Call.COMMIT,
            function,
            deadline=Deadline(60),
            given_up=lambda: len(function.timeouts_s) >= 3,
        )
    assert len(function.timeouts_s) == 3


@pytest.mark.parametrize("kind", [*EXPECTED, EosError])
def test_what_the_table_does_not_resume_goes_on_untouched_and_at_once(
    kind: type[EosError], clock: Clock
) -> None:
    error = made(kind)
    for call in Call:
        function = Failing(clock, error)
        with pytest.raises(kind) as raised:
            retry.resume(call, function, deadline=Deadline(60))
        assert raised.value is error
        assert (len(function.timeouts_s), clock.slept_s) == (1, [])


@pytest.mark.parametrize("call", sorted(REDONE))
def test_call_that_is_not_resumable_is_made_once(call: Call, clock: Clock) -> None:
    """send_offsets above all: a second call is a second request, which a late first one may follow."""
    function = Failing(clock, RetriableError("no"))
    with pytest.raises(RetriableError):
        retry.resume(call, function, deadline=Deadline(60))
    assert len(function.timeouts_s) == 1


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit, GeneratorExit, ZeroDivisionError])
def test_signal_or_bug_is_never_retried(signal: type[BaseException], clock: Clock) -> None:
    calls: list[float] = []

    def function(timeout_s: float) -> None:
        calls.append(timeout_s)
        raise signal

    with pytest.raises(signal):
        retry.resume(Call.COMMIT, function, deadline=Deadline(60))
    assert len(calls) == 1


# --- attempts ----------------------------------------------------------------------------------------


_TURNS = [
    pytest.param(kind, rule_for(Call.BEGIN, made(kind)), id=kind.__name__)
    for kind in [*EXPECTED, RetriableError]
    if rule_for(Call.BEGIN, made(kind)).action in (Action.REDO, Action.REOPEN)
]


def failures(kind: type[EosError], attempts: retry.Attempts) -> list[float]:
    """The waits between tries that all fail, until the error is raised."""
    waits: list[float] = []
    error = made(kind)
    with pytest.raises(kind) as raised:
        while len(waits) < 100:
            waits.append(attempts.failed(error))
    assert raised.value is error
    return waits


@pytest.mark.parametrize(("kind", "rule"), _TURNS)
def test_turn_is_made_again_as_often_as_its_row_says(kind: type[EosError], rule: Rule) -> None:
    told: list[int] = []
    waits = failures(kind, retry.Attempts(lambda _call, attempt, _error: told.append(attempt)))
    assert len(waits) == (rule.attempts or 0) - 1
    assert told == list(range(1, rule.attempts or 0))


@pytest.mark.parametrize(("kind", "rule"), _TURNS)
def test_waits_between_turns_grow_with_jitter_up_to_the_rows_bound(kind: type[EosError], rule: Rule) -> None:
    seen: set[float] = set()
    for _ in range(20):
        waits = failures(kind, retry.Attempts(lambda *_: None))
        seen.update(waits)
        for n, wait_s in enumerate(waits):
            assert 0.0 <= wait_s <= min(rule.max_wait_s, rule.first_wait_s * 2**n)
    assert len(seen) > 20


def test_progress_ends_the_count() -> None:
    attempts = retry.Attempts(lambda *_: None)
    for _ in range(100):
        attempts.failed(AbortableError("no"))
        attempts.succeeded()


@pytest.mark.parametrize("kind", [kind for kind, action in EXPECTED.items() if action is Action.STOP])
def test_turn_that_must_stop_stops_at_once(kind: type[EosError]) -> None:
    assert failures(kind, retry.Attempts(lambda *_: pytest.fail("no other try"))) == []


# --- the documentation -------------------------------------------------------------------------------


def policy_table() -> list[str]:
    """The rows of RULES as a Markdown table."""
    rows = ["| action | calls | attempts | waits |", "|---|---|---|---|"]
    for rule in RULES:
        calls = "any" if rule.calls == frozenset(Call) else ", ".join(c for c in Call if c in rule.calls)
        attempts = "until the deadline" if rule.attempts is None else str(rule.attempts)
        waits = f"{rule.first_wait_s:g} s to {rule.max_wait_s:g} s" if rule.max_wait_s else "none"
        rows.append(f"| {rule.action} | {calls} | {attempts} | {waits} |")
    return rows


def test_documented_table_is_the_one_that_runs() -> None:
    text = DESIGN.read_text(encoding="utf-8")
    assert text.count(_BEGIN) == text.count(_END) == 1, f"put the table between {_BEGIN} and {_END}"
    documented = text.split(_BEGIN)[1].split(_END)[0]
    assert [line.strip() for line in documented.splitlines() if line.strip()] == policy_table()


def test_first_failure_imports_nothing() -> None:
    """An import that a signal handler's exception leaves may be impossible from then on, and every retry with it."""
    code = """
import sys
from eos.base.calls import Call
from eos.base.deadline import Deadline
from eos.errors import RetriableError
from eos.retry import resume

failures = [RetriableError("once")]

def commit(timeout_s):
    if failures:
        raise failures.pop()
    return timeout_s

before = set(sys.modules)
assert resume(Call.COMMIT, commit, deadline=Deadline(10)) > 0
print(sorted(set(sys.modules) - before))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert ended.stdout == "[]\n", ended.stderr


if __name__ == "__main__":
    sys.stdout.write("\n".join([_BEGIN, *policy_table(), _END, ""]))

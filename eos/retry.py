"""The retry policy: one table of action and call, and tenacity to execute it.

The table is the documentation: docs/DESIGN.md shows it, and a test holds the two together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from eos.base.calls import Call
from eos.base.deadline import Deadline
from eos.base.process_limits import no_descriptor_left
from eos.errors import Action, EosError, ProcessLimitError, RetriableError, UnavailableError

_FIRST_NOTICE_S, _NEXT_NOTICE_S = 10.0, 30.0
# A try that takes so much longer than it was given, and the wait before it, has not had a process that runs.
_STOOD_STILL_S = 10.0
_ASK_S = 5.0  # a longer wait for one answer is of no use: the broker that was asked may be gone

_GIVEN_UP: ContextVar[Callable[[], bool] | None] = ContextVar("given_up", default=None)

log = logging.getLogger(__name__)

T = TypeVar("T")
OnRetry = Callable[[Call, int, EosError], None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the policy.

    ``attempts`` counts tries without progress; None means that the call's deadline is the only bound.
    Waits are in seconds and grow exponentially with jitter from ``first_wait_s`` to ``max_wait_s``.
    """

    action: Action
    calls: frozenset[Call]
    attempts: int | None = 1
    first_wait_s: float = 0.0
    max_wait_s: float = 0.0
    why: str = ""


_ANY = frozenset(Call)

RULES: tuple[Rule, ...] = (
    Rule(
        Action.RESUME,
        frozenset({Call.INIT}),
        None,
        0.1,
        1.0,
        "the coordinator loads, moves, or still ends what the last owner left; init is resumable",
    ),
    Rule(
        Action.RESUME,
        frozenset({Call.COMMIT, Call.ABORT}),
        None,
        0.02,
        0.2,
        "the same commit (abort) is resumed, not repeated; after a timed-out commit nothing else may follow",
    ),
    Rule(
        Action.RESUME,
        frozenset({Call.COMMITTED, Call.METADATA}),
        None,
        0.05,
        1.0,
        "reading is idempotent; a pending transaction of another id ends by its timeout at the latest",
    ),
    Rule(Action.REDO, _ANY, 10, 0.1, 5.0, "nothing of the transaction is visible"),
    Rule(Action.REOPEN, _ANY, 5, 0.1, 5.0, "the comparison after the reopen tells what happened"),
    Rule(Action.STOP, _ANY, why="a person, the code or another owner decides; the same would happen again"),
)


def rule_for(call: Call, error: EosError) -> Rule:
    """The row of the policy that an error of a call falls under.

    A call that cannot be resumed (a second send_offsets is a second request) is made again in a new transaction.
    """
    resumed = [rule for rule in RULES if rule.action is error.action and call in rule.calls]
    return resumed[0] if resumed else next(rule for rule in RULES if rule.action is Action.REDO)


@contextmanager
def given_up_when(asked: Callable[[], bool]) -> Iterator[None]:
    """In this block a question of this thread that stays without an answer is given up once ``asked()`` is true.

    For questions whose answers only serve to go on: a process that was asked to stop need not wait for them.
    """
    token = _GIVEN_UP.set(asked)
    try:
        yield
    finally:
        _GIVEN_UP.reset(token)


def is_given_up() -> bool:
    """Whether to wait on is of no use in this thread."""
    asked = _GIVEN_UP.get()
    return asked is not None and asked()


def ask(question: Callable[[float], T], *, timeout_s: float) -> T:
    """The answer to a question about the cluster, which is asked with a timeout in seconds until it is answered.

    Raises:
        UnavailableError: no answer in ``timeout_s``; its cause is the last try's error.
        EosError: an error that no retry helps against.
    """
    return resume(Call.METADATA, question, deadline=Deadline(timeout_s), slice_s=_ASK_S)


def resume(
    call: Call,
    function: Callable[[float], T],
    *,
    deadline: Deadline,
    slice_s: float = 1.0,
    grows: bool = False,
    on_retry: OnRetry | None = None,
    given_up: Callable[[], bool] = is_given_up,
) -> T:
    """Make one call in short slices until it is answered, as the table allows, at most until the deadline.

    Short slices let a signal be answered between them: librdkafka's transactional calls do not return for one.

    Args:
        call: which call it is.
        function: makes the call with a timeout in seconds.
        deadline: when to give up.
        slice_s: the longest single wait, in seconds.
        grows: each wait may be twice as long as the one before: brokers that are slow answer in time then.
        on_retry: called for every failed try. Without it, a wait of more than 10 s is written to the log.
        given_up: asked after every failed try; true ends it like the deadline. By default what :func:`given_up_when` says.

    Raises:
        UnavailableError: the deadline passed; its cause is the last try's error.
        ProcessLimitError: no answer, and this process has no file descriptor left to ask with.
        EosError: an error that the table does not resume.
    """
    began = until = time.monotonic()

    def tried() -> T:
        nonlocal until, slice_s
        asked_s = _slice_of(deadline, slice_s)
        slice_s *= 2 if grows else 1
        try:
            return function(asked_s)
        finally:
            # A process that is suspended (SIGSTOP, a frozen container) makes no try: its deadline must not end the first one after.
            before, until = until, time.monotonic()
            deadline.put_off(until - before - asked_s - _STOOD_STILL_S)

    # Tenacity comes in with the first failure: where there is none, it would take 70 microseconds, twice in each transaction. It is
    # imported before: an import that the exception of a signal handler leaves cannot be made again (tenacity 9.2, 61 of 925 trials).
    try:
        return tried()
    except EosError as error:
        first = [error]

    def once() -> T:
        if first:
            raise first.pop()
        return tried()

    def resumable(error: BaseException) -> bool:
        return isinstance(error, EosError) and rule_for(call, error).action is Action.RESUME

    notice = _Notice(began, deadline)

    def cannot_connect() -> bool:
        # No broker is at fault, and none that comes back helps. A transform may have some of them open for a moment.
        return time.monotonic() - began > _FIRST_NOTICE_S and bool(no_descriptor_left())

    def before_sleep(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if on_retry is not None and isinstance(error, EosError):
            on_retry(call, state.attempt_number, error)
        else:
            notice.failed(error)

    rule = rule_for(call, RetriableError(""))
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(resumable),
        stop=lambda _state: given_up() or deadline.passed or cannot_connect(),
        wait=tenacity.wait_random_exponential(multiplier=rule.first_wait_s, max=rule.max_wait_s),
        before_sleep=before_sleep,
    )
    try:
        answer = retrying(once)
    except tenacity.RetryError as error:
        last = error.last_attempt.exception()
        raise _without_answer(call, last, time.monotonic() - began, given_up=given_up()) from last
    notice.answered(call)
    return answer


def _without_answer(call: Call, last: BaseException | None, waited_s: float, *, given_up: bool) -> EosError:
    """What ends a call that was not answered: the brokers' silence, or what this process lacks to hear them."""
    code = getattr(last, "code", None)
    if not given_up and (lacks := no_descriptor_left()):
        return ProcessLimitError(
            f"{call}: no answer in {waited_s:.1f} s, and this process has no more {lacks}: it cannot connect to a broker. Nothing is "
            "lost. Fix: a higher limit (LimitNOFILE of systemd, ulimits of a container), or what uses it up; the last answer: "
            f"{last}",
            code=code,
        )
    unavailable = UnavailableError(
        f"{call}: no usable answer in {waited_s:.1f} s; the last one: {last}{_coordinator(call, code)}",
        code=code,
    )
    unavailable.unanswered, unavailable.given_up = True, given_up
    return unavailable


def _slice_of(deadline: Deadline, slice_s: float) -> float:
    return max(0.001, min(slice_s, deadline.left_s))


class _Notice:
    """Writes to the log that an answer is waited for, and that it has come, where that takes long."""

    def __init__(self, began: float, deadline: Deadline) -> None:
        self._began = began
        self._deadline = deadline
        self._next = Deadline(_FIRST_NOTICE_S - (time.monotonic() - began))
        self._given = False

    def failed(self, error: BaseException | None) -> None:
        if self._next.passed:
            waited_s = time.monotonic() - self._began
            longest_s = waited_s + self._deadline.left_s
            self._next, self._given = Deadline(_NEXT_NOTICE_S), True
            log.warning("waiting for %.0f s, at most for %.0f s: %s", waited_s, longest_s, str(error))

    def answered(self, call: Call) -> None:
        if self._given:
            log.warning("%s: answered after %.0f s", call, time.monotonic() - self._began)


# librdkafka asks a coordinator that answers COORDINATOR_LOAD_IN_PROGRESS again by itself, and says only that the time is over
# (measured with 2.16).
_NO_REASON = frozenset({"_TIMED_OUT", "COORDINATOR_LOAD_IN_PROGRESS"})
_COORDINATORS = {Call.COMMITTED: "group", Call.INIT: "transaction"}


def _coordinator(call: Call, code: str | None) -> str:
    """What may keep a coordinator from answering, in words; "" for other calls and errors."""
    if code not in _NO_REASON or call not in _COORDINATORS:
        return ""
    return (
        f". No broker answers at kafka.bootstrap_servers; or the {_COORDINATORS[call]} coordinator is out of reach, waits for a "
        "transaction that is open, or has been loading its log since its broker started; one that never comes to an end can't read it (a fault of brokers, KAFKA-19862 for one): see "
        "docs/operations/brokers.md, 'A coordinator does not load'"
    )


class Attempts:
    """Counts tries without progress in between, and applies the policy to them.

    Args:
        on_retry: called for every failure after which there is another try.
    """

    def __init__(self, on_retry: OnRetry) -> None:
        self._on_retry = on_retry
        self._failed = 0

    def succeeded(self) -> None:
        """There was progress."""
        self._failed = 0

    def failed(self, error: EosError) -> float:
        """Count a try that has failed. The caller has aborted, reopened and rewound already.

        Returns:
            How long to wait before the next try, in seconds.

        Raises:
            EosError: this very error: the policy says to stop, or it was the last try.
        """
        rule = rule_for(Call.BEGIN, error)
        self._failed += 1
        if rule.action is Action.STOP or rule.attempts is None or self._failed >= rule.attempts:
            raise error
        self._on_retry(Call.BEGIN, self._failed, error)
        state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
        state.attempt_number = self._failed
        return tenacity.wait_random_exponential(multiplier=rule.first_wait_s, max=rule.max_wait_s)(state)

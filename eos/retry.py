"""The retry policy: one table of error class and call, and tenacity to execute it.

The table is the documentation: docs/DESIGN.md shows it, and a test holds the two together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import tenacity

from eos.calls import Call
from eos.errors import (
    AbortableError,
    ConfigError,
    EosError,
    FatalError,
    OffsetGapError,
    RecordRefusedError,
    ReopenError,
    RetriableError,
    TransformError,
    UnavailableError,
    UsageError,
)

_ASK_S = 5.0  # a longer wait for one answer is of no use: the broker that was asked may be gone

T = TypeVar("T")
Tell = Callable[[Call, int, EosError], None]


class Action(StrEnum):
    """What the holder of an error does."""

    RESUME = "make the same call again"
    REDO = "abort, rewind, begin anew"
    REOPEN = "reopen the producer, compare, rewind, begin anew"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the policy.

    ``attempts`` counts tries without progress; None means that the call's deadline is the only bound.
    Waits are in seconds and grow exponentially with jitter from ``first_wait_s`` to ``max_wait_s``.
    """

    error: type[EosError]
    calls: frozenset[Call]
    action: Action
    attempts: int | None = 1
    first_wait_s: float = 0.0
    max_wait_s: float = 0.0
    why: str = ""


_ANY = frozenset(Call)

# The first row that fits is the one that holds.
RULES: tuple[Rule, ...] = (
    Rule(ConfigError, _ANY, Action.STOP, why="a person has to change a setting or a grant"),
    Rule(UsageError, _ANY, Action.STOP, why="the code has to change"),
    Rule(OffsetGapError, _ANY, Action.STOP, why="going on would skip input silently"),
    Rule(
        FatalError,
        _ANY,
        Action.STOP,
        why="another owner has the shard, the cluster stayed away until a deadline, or nobody knows what it means",
    ),
    Rule(
        TransformError,
        _ANY,
        Action.STOP,
        why="the poison policy has decided already; the same input raises again",
    ),
    Rule(RecordRefusedError, _ANY, Action.STOP, why="the same record would be refused again"),
    Rule(
        RetriableError,
        frozenset({Call.INIT}),
        Action.RESUME,
        None,
        0.1,
        1.0,
        "the coordinator loads, moves, or still ends what the last owner left; init is resumable",
    ),
    Rule(
        RetriableError,
        frozenset({Call.COMMIT, Call.ABORT}),
        Action.RESUME,
        None,
        0.02,
        0.2,
        "the same commit (abort) is resumed, not repeated; after a timed-out commit nothing else may follow",
    ),
    Rule(
        RetriableError,
        frozenset({Call.COMMITTED, Call.METADATA}),
        Action.RESUME,
        None,
        0.05,
        1.0,
        "reading is idempotent; a pending transaction of another id ends by its timeout at the latest",
    ),
    Rule(
        RetriableError,
        frozenset({Call.CONSUME}),
        Action.RESUME,
        None,
        0.05,
        1.0,
        "librdkafka reconnects by itself; an outage of the brokers is waited out",
    ),
    Rule(RetriableError, _ANY, Action.REDO, 10, 0.1, 5.0, "the call itself cannot be resumed"),
    Rule(AbortableError, _ANY, Action.REDO, 10, 0.1, 5.0, "nothing of the transaction is visible"),
    Rule(
        ReopenError, _ANY, Action.REOPEN, 5, 0.1, 5.0, "the comparison after the reopen tells what happened"
    ),
)


def rule_for(call: Call, error: EosError) -> Rule:
    """The row of the policy that an error of a call falls under."""
    for rule in RULES:
        if isinstance(error, rule.error) and call in rule.calls:
            return rule
    return Rule(type(error), frozenset({call}), Action.STOP, why="not in the table: stop")


def ask(question: Callable[[float], T], *, within_s: float) -> T:
    """The answer to a question about the cluster, which is asked with a timeout in seconds until it is answered.

    Raises:
        UnavailableError: no answer in ``within_s``; its cause is the last try's error.
        EosError: an error that no retry helps against.
    """
    return resume(Call.METADATA, question, deadline=time.monotonic() + within_s, slice_s=_ASK_S)


def resume(
    call: Call,
    function: Callable[[float], T],
    *,
    deadline: float,
    slice_s: float = 1.0,
    tell: Tell | None = None,
    given_up: Callable[[], bool] = lambda: False,
) -> T:
    """Make one call in short slices until it is answered, as the table allows, at most until the deadline.

    Short slices let a signal be answered between them: librdkafka's transactional calls do not return for one.

    Args:
        call: which call it is.
        function: makes the call with a timeout in seconds.
        deadline: a time.monotonic() value.
        slice_s: the longest single wait, in seconds.
        tell: told of every failed try.
        given_up: asked after every failed try; true ends it like the deadline.

    Raises:
        UnavailableError: the deadline passed; its cause is the last try's error.
        EosError: an error that the table does not resume.
    """
    began = time.monotonic()

    def once() -> T:
        return function(max(0.001, min(slice_s, deadline - time.monotonic())))

    def resumable(error: BaseException) -> bool:
        return isinstance(error, EosError) and rule_for(call, error).action is Action.RESUME

    def before_sleep(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if tell is not None and isinstance(error, EosError):
            tell(call, state.attempt_number, error)

    rule = next(r for r in RULES if r.error is RetriableError and call in r.calls)
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(resumable),
        stop=lambda _state: given_up() or time.monotonic() >= deadline,
        wait=tenacity.wait_random_exponential(multiplier=rule.first_wait_s, max=rule.max_wait_s),
        before_sleep=before_sleep,
    )
    try:
        return retrying(once)
    except tenacity.RetryError as error:
        last = error.last_attempt.exception()
        raise UnavailableError(
            f"{call}: no usable answer in {time.monotonic() - began:.1f} s; the last one: {last}",
            code=getattr(last, "code", None),
        ) from last


def redo(
    function: Callable[[], T], *, tell: Tell | None = None, sleep: Callable[[float], None] = time.sleep
) -> T:
    """Make one turn of a loop, and make it again after an error that the table lets one redo or reopen for.

    The turn itself aborts, reopens and rewinds before it raises. Each success is the end of the row's
    count: only turns without any progress in between are counted.

    Raises:
        EosError: the error of the last try.
    """

    def failed(state: tenacity.RetryCallState) -> tuple[Rule, EosError] | None:
        error = state.outcome.exception() if state.outcome is not None else None
        return (rule_for(Call.BEGIN, error), error) if isinstance(error, EosError) else None

    def again(state: tenacity.RetryCallState) -> bool:
        found = failed(state)
        return found is not None and found[0].action in (Action.REDO, Action.REOPEN)

    def stop(state: tenacity.RetryCallState) -> bool:
        found = failed(state)
        return found is None or (found[0].attempts is not None and state.attempt_number >= found[0].attempts)

    def wait(state: tenacity.RetryCallState) -> float:
        found = failed(state)
        if found is None:
            return 0.0
        return tenacity.wait_random_exponential(multiplier=found[0].first_wait_s, max=found[0].max_wait_s)(
            state
        )

    def before_sleep(state: tenacity.RetryCallState) -> None:
        found = failed(state)
        if tell is not None and found is not None:
            tell(Call.BEGIN, state.attempt_number, found[1])

    retrying = tenacity.Retrying(
        retry=again, stop=stop, wait=wait, before_sleep=before_sleep, sleep=sleep, reraise=True
    )
    return retrying(function)

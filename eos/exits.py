"""Exit codes of a process, for its supervisor."""

from __future__ import annotations

from enum import IntEnum

from eos.errors import (
    AbortableError,
    ConfigError,
    FencedError,
    OffsetGapError,
    RecordRefusedError,
    ReopenError,
    TransactionExpiredError,
    TransformError,
    UnavailableError,
    UsageError,
)

# Why the last try of a transaction failed, where the cluster has only let it wait: it took no records or offsets, or did not answer.
_LET_WAIT = frozenset(
    {
        "_MSG_TIMED_OUT",
        "_TIMED_OUT",
        "_TRANSPORT",
        "CONCURRENT_TRANSACTIONS",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "LEADER_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "NOT_LEADER_FOR_PARTITION",
        "REQUEST_TIMED_OUT",
    }
)


class ExitCode(IntEnum):
    """Documented in docs/reference/exit-codes.md and in docs/RUNBOOK.md; a number is never given a second meaning."""

    DONE = 0
    UNEXPECTED = 1  # an error without a documented meaning
    CONFIGURATION = 2  # a setting, a grant or the declaration is wrong: a restart does not help
    FENCED = 3  # another owner holds the shard: find out who before a restart
    POISON = 4  # a record cannot be processed: its coordinates are in the error
    UNAVAILABLE = 5  # the cluster did not answer in time, took no output, or held input back (a stalled partition, an open transaction): start later
    OFFSET_GAP = 6  # input was deleted before it was processed: a person decides
    NOT_EXACTLY_ONCE = 7  # the verification found a difference, or nothing to compare or to show


# As ``extra`` of a log line: this error ends the process, or its parent.
ENDS = {"ends": True}


def exit_code_of(error: BaseException) -> ExitCode:
    """The code for the error that ended a process."""
    for kinds, code in (
        ((ConfigError, UsageError), ExitCode.CONFIGURATION),
        ((FencedError,), ExitCode.FENCED),
        ((TransformError, RecordRefusedError), ExitCode.POISON),
        # A transaction outlives its time where the machine stands still: a start later may go on.
        ((UnavailableError, TransactionExpiredError), ExitCode.UNAVAILABLE),
        ((OffsetGapError,), ExitCode.OFFSET_GAP),
    ):
        if isinstance(error, kinds):
            return code
    if isinstance(error, (AbortableError, ReopenError)) and (
        error.code in _LET_WAIT or isinstance(error.__cause__, (UnavailableError, TransactionExpiredError))
    ):
        return ExitCode.UNAVAILABLE
    return ExitCode.UNEXPECTED

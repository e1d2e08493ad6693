"""Exit codes of a process, for its supervisor."""

from __future__ import annotations

from enum import IntEnum

from eos.errors import (
    ConfigError,
    FencedError,
    OffsetGapError,
    RecordError,
    UnavailableError,
    UsageError,
)


class ExitCode(IntEnum):
    """Documented in the README and in docs/RUNBOOK.md; a number is never given a second meaning."""

    DONE = 0
    UNEXPECTED = 1  # an error without a documented meaning
    CONFIGURATION = 2  # a setting, a grant or the declaration is wrong: a restart does not help
    FENCED = 3  # another owner holds the shard: find out who before a restart
    POISON = 4  # a record cannot be processed: its coordinates are in the error
    UNAVAILABLE = 5  # the cluster did not answer in time, or held input back (a stalled partition, an open transaction): start later
    OFFSET_GAP = 6  # input was deleted before it was processed: a person decides
    NOT_EXACTLY_ONCE = 7  # the verification found a difference, or nothing to compare or to show


# As ``extra`` of a log line: this error ends the process, or its parent.
ENDS = {"ends": True}


def exit_code_of(error: BaseException) -> ExitCode:
    """The code for the error that ended a process."""
    for kinds, code in (
        ((ConfigError, UsageError), ExitCode.CONFIGURATION),
        ((FencedError,), ExitCode.FENCED),
        ((RecordError,), ExitCode.POISON),
        ((UnavailableError,), ExitCode.UNAVAILABLE),
        ((OffsetGapError,), ExitCode.OFFSET_GAP),
    ):
        if isinstance(error, kinds):
            return code
    return ExitCode.UNEXPECTED

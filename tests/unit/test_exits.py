"""Exit codes: a supervisor can tell by the number whether a restart helps."""

from __future__ import annotations

import pytest

from eos import errors
from eos.errors import EosError
from eos.exits import ExitCode, exit_code_of

EXPECTED = {
    errors.EosError: ExitCode.UNEXPECTED,
    errors.ConfigError: ExitCode.CONFIGURATION,
    errors.UsageError: ExitCode.CONFIGURATION,
    errors.RetriableError: ExitCode.UNEXPECTED,
    errors.AbortableError: ExitCode.UNEXPECTED,
    errors.RecordRefusedError: ExitCode.POISON,
    errors.RebalancedError: ExitCode.UNEXPECTED,
    errors.TransformError: ExitCode.POISON,
    errors.ProcessDiedError: ExitCode.POISON,
    errors.ReopenError: ExitCode.UNEXPECTED,
    errors.TransactionExpiredError: ExitCode.UNAVAILABLE,
    errors.UnprovenFenceError: ExitCode.UNEXPECTED,
    errors.CommitOutcomeUnknownError: ExitCode.UNEXPECTED,
    errors.OffsetGapError: ExitCode.OFFSET_GAP,
    errors.UnavailableError: ExitCode.UNAVAILABLE,
    errors.FencedError: ExitCode.FENCED,
    errors.ProcessLimitError: ExitCode.UNEXPECTED,
    errors.UnclassifiedError: ExitCode.UNEXPECTED,
}


def every_class(kind: type[EosError] = EosError) -> set[type[EosError]]:
    return {kind}.union(
        *(every_class(child) for child in kind.__subclasses__() if child.__module__ == EosError.__module__)
    )


def test_every_class_has_a_code_on_purpose() -> None:
    assert set(EXPECTED) == every_class()


@pytest.mark.parametrize(("kind", "code"), EXPECTED.items())
def test_error_ends_the_process_with_its_code(kind: type[EosError], code: ExitCode) -> None:
    if issubclass(kind, errors.TransformError):
        error: EosError = kind("no", topic="in", partition=0, offset=0)
    else:
        error = kind("no")
    assert exit_code_of(error) is code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.AbortableError("no", code="_MSG_TIMED_OUT"), ExitCode.UNAVAILABLE),
        (errors.AbortableError("no", code="UNKNOWN_PRODUCER_ID"), ExitCode.UNEXPECTED),
        (errors.CommitOutcomeUnknownError("no", code="_TIMED_OUT"), ExitCode.UNAVAILABLE),
        (errors.RecordRefusedError("no", code="_MSG_TIMED_OUT"), ExitCode.POISON),
    ],
)
def test_last_try_that_only_waited_for_the_cluster_is_unavailable(error: EosError, code: ExitCode) -> None:
    assert exit_code_of(error) is code


def test_what_eos_did_not_raise_is_unexpected() -> None:
    assert exit_code_of(ZeroDivisionError()) is ExitCode.UNEXPECTED


def test_numbers_are_a_contract_with_supervisors() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "DONE": 0,
        "UNEXPECTED": 1,
        "CONFIGURATION": 2,
        "FENCED": 3,
        "POISON": 4,
        "UNAVAILABLE": 5,
        "OFFSET_GAP": 6,
        "NOT_EXACTLY_ONCE": 7,
    }

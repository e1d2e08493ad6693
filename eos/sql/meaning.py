"""What an error of the database means to a session: one of eos's errors, and with it what is done next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from eos import retry
from eos.base.calls import Call
from eos.base.deadline import Deadline
from eos.errors import AbortableError, EosError, RetriableError, UnavailableError, UnclassifiedError
from eos.sql.classify import Kind, Verdict, classify

T = TypeVar("T")

_AWAY = "Nothing is lost. Fix: what is wrong there; it is waited for as long as input.offline_timeout_ms says"


def meaning(error: BaseException) -> EosError | None:
    """What a new transaction may put right, as an AbortableError. None for anything else: what a row or a statement is refused for.

    A database that cannot work now is waited for as long as brokers are (``input.offline_timeout_ms``). Its cause says so, and that
    one's cause is the error: raise it ``from`` its own cause, for Python keeps one alone.
    """
    verdict = classify(error)
    if verdict is None or verdict.kind in (Kind.RECORD, Kind.STOP):
        return None
    is_away = verdict.kind is Kind.DOWN or verdict.lost
    fix = f". {_AWAY}" if is_away else ""
    aborted = AbortableError(f"the database: {verdict.says}{fix}", code=verdict.code or None)
    aborted.__cause__ = error
    if is_away:
        cause = UnavailableError(aborted.args[0], code=aborted.code)
        cause.unanswered = True
        aborted.__cause__, cause.__cause__ = cause, error
    return aborted


@contextmanager
def explained() -> Iterator[None]:
    """Statements of eos's own: an error of the database leaves the block as one of eos.

    Raises:
        RetriableError: asked again, the database may answer.
        UnclassifiedError: it never will.
    """
    try:
        yield
    except EosError:
        raise
    except Exception as error:
        verdict = classify(error)
        if verdict is None:
            raise
        if verdict.kind in (Kind.TRANSIENT, Kind.DOWN):
            raise RetriableError(f"the database: {verdict.says}", code=verdict.code or None) from error
        raise UnclassifiedError(refused_text(verdict), code=verdict.code or None) from error


def refused_text(verdict: Verdict) -> str:
    """A refusal of eos's own statements, whose rows are no secret."""
    return f"the database refuses a statement of eos: {verdict.says}: {verdict.detail}"


def asked(call: Call, question: Callable[[], T], *, timeout_s: float, on_retry: retry.OnRetry | None) -> T:
    """The database's answer; it is asked again until then.

    Raises:
        UnavailableError: no answer in ``timeout_s``.
        EosError: a refusal.
    """

    def once(_slice_s: float) -> T:
        with explained():
            return question()

    return retry.resume(call, once, deadline=Deadline(timeout_s), on_retry=on_retry)

"""Quoting: what of an error may be logged; the texts of user code's exceptions quote records, which may be private."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator

from eos import errors
from eos.base.printable import printable
from eos.base.raised_at import raised_at
from eos.errors import EosError, ProcessDiedError, ProcessLimitError, TransformError

NOT_SHOWN = "(not shown: it may quote the record)"
_MAX_CAUSES = 20
# How an exception is shown: its class, then its text. Words in capitals are librdkafka's log facilities.
_NAMED = re.compile(r"(?![A-Z0-9_]+:)([^\W\d][\w.]*): ")
_CLASS = re.compile(r"[^\W\d][\w.]*(?=: )")

# Texts of these classes are written in this package or by librdkafka: they hold no record.
_OWN_TEXTS = frozenset(
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, EosError) and not issubclass(kind, TransformError)
)


class Texts:
    """Whether the texts of user code's exceptions are shown in this process's logs."""

    shown = False


def without_values(text: str) -> str:
    """A reason as it may be logged: of an exception that user code raised, its class alone, unless texts are shown.

    User code's texts quote records (``invalid literal for int(): '4711'``, every pydantic error). The texts
    of this package's own classes, and free text, do not.
    """
    if Texts.shown:
        return text
    named = _NAMED.match(text)
    if named is None or named[1] in _OWN_TEXTS:
        return text
    return named[1]


def of_error(text: str) -> str:
    """What `eos.errors.reason_of` wrote, as it may be shown to everybody: a class of user code without its text."""
    named = _CLASS.match(text)
    if named is None:
        return NOT_SHOWN
    return text if named[0] in _OWN_TEXTS else named[0]


def class_only(text: str) -> str:
    """The class of an error that comes from user code for certain; nothing of it if it does not name one."""
    named = _NAMED.match(text)
    return named[1] if named else NOT_SHOWN


def shown_error(error: BaseException, *, texts: bool | None = None) -> str:
    """An exception as it may be logged; for a record's, the coordinates under which it can be looked up.

    ``texts``: whether the texts of user code's exceptions are shown; by default as in this process's logs.
    """
    texts = Texts.shown if texts is None else texts
    name = type(error).__name__
    # A ProcessDiedError nobody's code raised.
    if isinstance(error, TransformError) and not isinstance(error, ProcessDiedError):
        cause = error.__cause__
        raised = f" {type(cause).__name__}{raised_at(cause)}" if cause else ""
        text = (
            f": {printable(str(cause))}"
            if texts
            else " (its text may quote the record, so it is not shown: observe.record_errors)"
        )
        return (
            f"{name}: {error.topic}[{error.partition}] offset {error.offset}: the transform raised{raised}{text}. "
            "Fix: the transform, or poison.policy = 'dead-letter' or 'skip'"
        )
    if isinstance(error, EosError):
        return f"{name}: {error}"
    return f"{name}: {printable(str(error))}" if texts else name


def shown_traceback(error: BaseException) -> str:
    """Where an error and its causes were raised, the first cause first, without local variables."""
    links = list(_chain(error))
    # Behind these all is the transform's, which may have raised a class of eos with a text of its own.
    own = next(
        (at for at, link in enumerate(links) if isinstance(link, (TransformError, ProcessLimitError))),
        len(links),
    )
    return "\n".join(
        "".join(traceback.format_tb(link.__traceback__))
        + (shown_error(link) if at <= own or Texts.shown else type(link).__name__)
        for at, link in reversed(list(enumerate(links)))
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)

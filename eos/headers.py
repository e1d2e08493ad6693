"""Headers of records, and what stands in for those of a consumed record that the client cannot read.

Kafka does not look at the name of a header. A program in another language may write any bytes; confluent-kafka makes text
of them and fails where they are not UTF-8. Such a record is poison like any other, if its headers are asked for.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable, Mapping, Sequence
from operator import countOf, methodcaller
from typing import Any, NoReturn, Protocol, cast

Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]

_LOST_NAME = "eos.lost-name"
# A transform's threads may look at one record at the same time, and between the first look and the repair of what cannot be read,
# a second one would be given names that are null pointers: see _unreadable.
_LOOKING = threading.RLock()
# What the client returns is looked at by C code: a call of message.headers() that Python 3.11 has specialised, because it was made often,
# does not see that an exception is set. It comes up in a later call then, or a null pointer is touched (the process ends).
_headers = methodcaller("headers")


_TRACEPARENT = "traceparent"
_MAX_LOOKED_AT = 128  # records of a fetch: no more links than that are kept for a span by default


class TraceContexts:
    """Whether the trace contexts of input records are read, in this process."""

    wanted = False


class WithHeaders(Protocol):
    """The part of a client's message that is read here; confluent_kafka.Message has it."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def headers(self) -> Sequence[Header] | Mapping[str, bytes | None] | None: ...


class UnreadableHeadersError(ValueError):
    """The headers of a record were asked for, and one of their names is not UTF-8."""

    def __init__(self, headers: UnreadableHeaders) -> None:
        super().__init__(headers)
        self.headers = headers

    def __str__(self) -> str:
        return f"{self.headers.where}: the name of a header is not UTF-8, so the headers of this record cannot be read"


class UnreadableHeaders:
    """Stands in for a record's headers: any use of them raises UnreadableHeadersError.

    Args:
        where: the record.
        legible: what could be read of them, for a dead letter: all values, and each name in UTF-8. Of the others the first
            is there with its bytes escaped, the rest is ``eos.lost-name``.
    """

    __slots__ = ("legible", "where")

    def __init__(self, where: str, legible: Headers) -> None:
        self.where = where
        self.legible = legible

    def __repr__(self) -> str:
        return f"<unreadable headers of {self.where}>"

    def refuse(self, *_: object) -> NoReturn:
        """Raise the error that says which record it is."""
        raise UnreadableHeadersError(self)

    __iter__ = __len__ = __bool__ = __getitem__ = __contains__ = __eq__ = __hash__ = __add__ = __radd__ = (
        refuse
    )


def headers_of(messages: Iterable[WithHeaders]) -> list[Headers]:
    """The headers of each message, as tuples of (name, value); an UnreadableHeaders in the place of those that are."""
    column: list[Headers] = []
    with _LOOKING:
        for message in messages:
            try:
                found = _headers(message)
                column.append(
                    (tuple(found.items() if isinstance(found, Mapping) else found)) if found else ()
                )
            except UnreadableHeadersError as error:  # known from an earlier look
                column.append(cast("Headers", error.headers))
            except (SystemError, UnicodeDecodeError) as error:
                column.append(cast("Headers", _unreadable(message, error)))
    return column


def traceparents_of(messages: Sequence[WithHeaders]) -> tuple[str, ...]:
    """The different trace contexts that the first of these messages name, if they are wanted."""
    if not TraceContexts.wanted:
        return ()
    named = (
        (value or b"").decode("ascii", "replace")
        for headers in headers_of(messages[:_MAX_LOOKED_AT])
        for name, value in legible(headers)
        if name == _TRACEPARENT
    )
    return tuple(dict.fromkeys(named))


def refuse_unreadable(headers: Iterable[object]) -> None:
    """Raise if the headers of a record among these cannot be read.

    Raises:
        UnreadableHeadersError: for the first one.
    """
    for found in headers:
        if isinstance(found, UnreadableHeaders):
            found.refuse()


def any_unreadable(headers: Sequence[object]) -> bool:
    """Whether the headers of a record among these cannot be read."""
    return countOf(map(type, headers), tuple) < len(headers) and UnreadableHeaders in set(map(type, headers))


def legible(headers: object) -> Headers:
    """The headers, or what can be read of them."""
    return headers.legible if isinstance(headers, UnreadableHeaders) else cast("Headers", headers)


def _unreadable(message: Any, error: BaseException) -> UnreadableHeaders:
    """What to put in the place of headers that the client could not convert.

    confluent-kafka 2.16.1 raises SystemError once, and keeps the list that it has made: at the second call it returns pairs
    whose name is a null pointer (to touch it ends the process). The values are there, and the collector's view of a pair
    does not contain the null pointer. So the list is taken apart here, and replaced in the message.
    """
    pairs = message.headers() if isinstance(error, SystemError) else ()
    name = _first_name(error)
    found: list[Header] = []
    for pair in pairs or ():
        if len(gc.get_referents(pair)) == len(pair):
            found.append(pair)
        else:
            found.append((name or _LOST_NAME, pair[1]))
            name = None
    where = f"{message.topic()}[{message.partition()}] offset {message.offset()}"
    replaced = UnreadableHeaders(where, tuple(found))
    message.set_headers(replaced)
    return replaced


def _first_name(error: BaseException) -> str | None:
    """The name that could not be converted first, as text: it is the last link of the chain of errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error.object.decode(errors="backslashreplace") if isinstance(error, UnicodeDecodeError) else None

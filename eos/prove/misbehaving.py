"""Misbehaving: a job of eos itself that does what users' code does: `eos prove eos.prove.misbehaving:job`.

The first word of a record's value says what its transform does. What it *makes* depends on the record alone, and carries the
tags of `eos.prove.tagged`. How it *behaves* does not: a record may end its process, take longer than a transaction
lives, or set alarms, but only in a job that is tried, and only the first time that it is seen there. With a "!" behind the
word it does so each time: then the job has to stop, and to say what to do.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Never

from eos.errors import FencedError
from eos.job import Job
from eos.prove.fleet import DIRECTORY
from eos.prove.tagged import outputs_of
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord

_TOPICS = ("misbehaving-first", "misbehaving-second")
_DEAD_LETTERS = "misbehaving-dead"
_KEYS = 50
_MANY = 3_000
_FLOOD = 120_000  # more than the client's queue takes
_LARGE = 2 * 1024 * 1024  # more than the broker takes
_SLOW_S = 12.0  # beyond a trial's transaction timeout and its session timeout
_ALARMS_S = 2.0
_SILENT = range(900, 1_200)  # of each thousand and a half: input that makes nothing
_EVERY = 1_500  # records: one that does what costs time
_FIRST = 20


class Unprintable(Exception):  # noqa: N818 - what users raise has any name
    """An error that cannot be made text."""

    def __str__(self) -> str:
        msg = "no text"
        raise RuntimeError(msg)


# --- what a record makes ------------------------------------------------------------------------------------------

_shared: list[Any] = []
_shared_headers: list[tuple[str, bytes]] = []


def _plain(record: InputRecord) -> Iterable[OutputRecord]:
    return outputs_of(record, 2, _TOPICS)


def _reused(record: InputRecord) -> Iterable[OutputRecord]:
    """One list for all calls, and one list of headers."""
    _shared_headers[:] = [("of", b"%d" % record.offset)]
    _shared[:] = [replace(one, headers=_shared_headers) for one in _plain(record)]  # type: ignore[arg-type]
    return _shared


def _generated(record: InputRecord) -> Iterator[OutputRecord]:
    yield from _plain(record)


def _text(record: InputRecord) -> Iterable[OutputRecord]:
    """Text where bytes are declared; names and keys of any letters; one name twice, and an empty one."""
    headers = (("größe", "läßt".encode()), ("größe", None), ("", b""), ("名前", b"\xff\x00"))
    for one in _plain(record):
        value = (one.value or b"").decode()
        yield replace(one, value=value, key="schlüssel-名", headers=headers)  # type: ignore[arg-type]


def _null(record: InputRecord) -> Iterable[OutputRecord]:
    """Tombstones, one without a key either."""
    made = [OutputRecord(_TOPICS[1], None, record.key), OutputRecord(_TOPICS[1], None)]
    return [*_plain(record), *made, OutputRecord(_TOPICS[0], b"", b"")]


def _placed(record: InputRecord) -> Iterable[OutputRecord]:
    """A partition and a time of their own, an hour before the input's."""
    at = max(1, (record.timestamp_ms or 0) - 3_600_000)
    return [replace(one, partition=0, timestamp_ms=at) for one in _plain(record)]


_SHAPES: Mapping[str, Callable[[InputRecord], Iterable[Any]]] = {
    "plain": _plain,
    "none": lambda _: [],
    "reused": _reused,
    "generated": _generated,
    "text": _text,
    "null": _null,
    "placed": _placed,
    "many": lambda record: outputs_of(record, _MANY, _TOPICS),
    "flood": lambda record: outputs_of(record, _FLOOD, _TOPICS),
    # What eos has to refuse:
    "buffer": lambda record: [OutputRecord(_TOPICS[0], bytearray(record.value or b""))],  # type: ignore[arg-type]
    "view": lambda record: [OutputRecord(_TOPICS[0], memoryview(record.value or b""))],  # type: ignore[arg-type]
    "undeclared": lambda record: [OutputRecord("nowhere", record.value)],
    "large": lambda _: [OutputRecord(_TOPICS[0], bytes(_LARGE))],
    "nowhere": lambda record: [OutputRecord(_TOPICS[0], record.value, partition=10_000)],
}
_LIGHT = ("plain", "plain", "none", "reused", "generated", "text", "null", "placed")


# --- what a record does beside that ---------------------------------------------------------------------------------


def _die(number: signal.Signals) -> Callable[[], None]:
    def die() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), number)

    return die


def _touch_null() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def _abort() -> Never:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def _interrupt() -> Never:
    raise KeyboardInterrupt


def _hold_the_lock() -> None:
    """As a call of C does that lets no other thread of Python run."""
    ctypes.PyDLL(None).usleep(int(_SLOW_S * 1_000_000))


def _timeout(*_: object) -> Never:
    raise TimeoutError


def _alarm() -> None:
    """A time limit by SIGALRM, as libraries have it; it is exceeded, which makes no difference to the outputs."""
    if threading.current_thread() is not threading.main_thread():  # where alone alarms can be set
        return
    before = signal.signal(signal.SIGALRM, _timeout)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        time.sleep(_SLOW_S)
    except TimeoutError:
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _alarms() -> None:
    """System calls are interrupted all the time, in eos too, which goes on meanwhile."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        threading.Timer(_ALARMS_S, signal.setitimer, (signal.ITIMER_REAL, 0)).start()


def _fork_that_ends() -> None:
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        os._exit(0)


def _fork_that_returns() -> None:
    if child := os.fork():  # it comes back to eos, which ends it
        threading.Thread(target=os.waitpid, args=(child, 0), daemon=True).start()


def _start_thread() -> None:
    threading.Thread(target=time.sleep, args=(0.5,), daemon=True).start()


_SURVIVED: Mapping[str, Callable[[], object]] = {
    "kill": _die(signal.SIGKILL),
    "term": _die(signal.SIGTERM),  # its parent does not know
    "segv": _touch_null,
    "abort": _abort,
    "slow": lambda: time.sleep(_SLOW_S),
    "lock": _hold_the_lock,
    "alarm": _alarm,
    "alarms": _alarms,
    "fork": _fork_that_ends,
    "back": _fork_that_returns,
    "thread": _start_thread,
}
_DEEDS: Mapping[str, Callable[[], object]] = {
    **_SURVIVED,
    # After which no worker goes on:
    "exit": lambda: os._exit(0),
    "leave": lambda: sys.exit(0),
    "interrupt": _interrupt,
}
_COSTLY = (*_SURVIVED, "many", "flood")


# --- what it raises, each time --------------------------------------------------------------------------------------


def _raise(error: BaseException) -> Callable[[InputRecord], Never]:
    def fail(_: InputRecord) -> Never:
        raise error

    return fail


def _raise_late(record: InputRecord) -> Iterator[OutputRecord]:
    yield from _plain(record)
    raise ValueError


_POISON: Mapping[str, Callable[[InputRecord], Iterable[OutputRecord]]] = {
    "raise": _raise(ValueError("\udcff " * 1_000)),
    "fenced": _raise(FencedError("of another system")),
    "unprintable": _raise(Unprintable()),
    "stop": _raise(StopIteration()),
    "late": _raise_late,
    "zero": lambda record: [OutputRecord(_TOPICS[0], record.value, timestamp_ms=0)],
    "nul": lambda record: [OutputRecord(_TOPICS[0], record.value, headers=(("a\0b", b""),))],
    "headers": lambda record: [OutputRecord(_TOPICS[0], record.value, headers=record.headers)],
}


# --- the transform --------------------------------------------------------------------------------------------------


def _made(record: InputRecord) -> Iterable[OutputRecord]:
    way = (record.value or b"plain").split()[0].decode()
    if (deed := _DEEDS.get(way.rstrip("!"))) and _is_due(record, each_time=way.endswith("!")):
        deed()
    return (_POISON.get(way) or _SHAPES.get(way) or _plain)(record)


def _is_due(record: InputRecord, *, each_time: bool) -> bool:
    """Whether this is a job that is tried, and no process of it has been here."""
    if (directory := os.environ.get(DIRECTORY)) is None:
        return False
    seen = Path(directory) / "misbehaved"
    seen.mkdir(exist_ok=True)
    try:
        (seen / f"{record.topic}-{record.partition}-{record.offset}").touch(exist_ok=each_time)
    except FileExistsError:
        return False
    return True


_values: list[Any] = []
_keys: list[Any] = []


def _made_of_batch(batch: InputBatch) -> Iterator[OutputBatch]:
    """One batch for each topic, in lists that all calls share; what it was given is changed."""
    made: defaultdict[str, list[OutputRecord]] = defaultdict(list)
    for record in batch:
        for one in _made(record):
            # The list of headers is used again for the next record.
            made[one.topic].append(replace(one, headers=tuple(one.headers)))
    batch.values.clear()
    batch.keys[:] = [b"changed"] * len(batch)
    batch.offsets.reverse()
    for topic, outputs in made.items():
        _values[:], _keys[:] = [one.value for one in outputs], [one.key for one in outputs]
        yield OutputBatch(
            topic,
            _values,
            _keys,
            [one.headers for one in outputs],
            [one.timestamp_ms for one in outputs],
            [one.partition for one in outputs],
        )


# --- the input ------------------------------------------------------------------------------------------------------


def sample_input(seed: int) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Records that an exactly-once job survives, whatever its settings."""
    return _input(seed, _LIGHT)


def with_poison(seed: int) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Also records for which the transform raises: for `poison.policy` dead-letter or skip."""
    return _input(seed, (*_LIGHT, *_LIGHT, *_LIGHT, *_POISON))


def _input(seed: int, light: tuple[str, ...]) -> Iterator[tuple[bytes | None, bytes | None]]:
    random = Random(seed)  # noqa: S311 - reproducible, no secret
    costly: list[str] = []
    for number in count():
        if number % _EVERY == _FIRST:
            costly = costly or random.sample(_COSTLY, len(_COSTLY))
            way = costly.pop()
        else:
            way = "none" if number % _EVERY in _SILENT else random.choice(light)
        value = b"%s %d of %d" % (way.encode(), number, seed) if random.randrange(_KEYS) else None
        yield b"%d" % random.randrange(_KEYS) if number % 3 else None, value


job = Job(
    name="misbehaving",
    inputs=["misbehaving-input"],
    outputs=list(_TOPICS),
    transform=_made,
    dead_letters=_DEAD_LETTERS,
)
batch_job = replace(job, transform=None, transform_batch=_made_of_batch)

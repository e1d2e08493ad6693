"""AtWork: watches the transforms of a process, and says which one takes long, on which record, and where its code stands."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType, FunctionType
from typing import NamedTuple, Self

from eos.events import Listener, TransformAtWork
from eos.records import InputBatch, InputRecord
from eos.transform import Applied

_FIRST_S = 10.0
_AGAIN_S = 30.0
_POLL_S = 1.0
_MAX_FRAMES = 12


@cache
def _code_of(kind: type[object]) -> frozenset[CodeType]:
    """The code of a class's methods: it calls the user's, and one of them has the record."""
    return frozenset(
        method.__code__
        for one in kind.__mro__
        for method in vars(one).values()
        if isinstance(method, FunctionType)
    )


class _Work(NamedTuple):
    batch: InputBatch
    transform: Applied
    thread: int
    since: float


class AtWork:
    """The transforms that run now; a thread of its own looks at them while the block runs.

    It costs a loop nothing per record: which one is at work is read from the stack of the loop's thread. A transform that
    holds Python's lock is not seen, for no thread runs.

    Args:
        listener: called from that thread.
        first_s: seconds after which a transform is named for the first time.
    """

    def __init__(self, listener: Listener, *, first_s: float = _FIRST_S) -> None:
        self._listener = listener
        self._first_s = first_s
        self._works: dict[str, _Work] = {}
        self._named: dict[str, tuple[_Work, float]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="eos-at-work", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_POLL_S)

    @contextmanager
    def on(self, shard: str, batch: InputBatch, transform: Applied) -> Iterator[None]:
        """This thread applies the shard's transform to the batch while the block runs."""
        self._works[shard] = _Work(batch, transform, threading.get_ident(), time.monotonic())
        try:
            yield
        finally:
            del self._works[shard]

    def _watch(self) -> None:
        while not self._over.wait(min(_POLL_S, self._first_s)):
            now = time.monotonic()
            works = self._works.copy()
            for shard, (named, _) in list(self._named.items()):
                if works.get(shard) is not named:
                    del self._named[shard]
                    self._listener(TransformAtWork(shard, "", 0.0, ()))
            for shard, work in works.items():
                _, next_s = self._named.get(shard, (work, self._first_s))
                if now - work.since >= next_s:
                    self._named[shard] = (work, now - work.since + _AGAIN_S)
                    self._name(shard, work, now - work.since)

    def _name(self, shard: str, work: _Work, seconds: float) -> None:
        frame = sys._current_frames().get(work.thread)  # noqa: SLF001 - the documented way to another thread's stack
        frames: list[FrameType] = []
        code = _code_of(type(work.transform))
        while frame is not None and frame.f_code not in code:
            frames.append(frame)
            frame = frame.f_back
        if frame is None:
            return  # it has just returned, or commits meanwhile
        at = work.batch
        while frame is not None and at is work.batch:
            record = frame.f_locals.get("record") if frame.f_code in code else None
            at = InputBatch.of([record]) if isinstance(record, InputRecord) else at
            frame = frame.f_back
        stack = traceback.StackSummary.extract((one, one.f_lineno) for one in reversed(frames))
        where = tuple(f"{one.filename}:{one.lineno} in {one.name}" for one in stack[-_MAX_FRAMES:])
        self._listener(TransformAtWork(shard, at.place, seconds, where))

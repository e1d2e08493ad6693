"""Watch: keeps the deadline of a verification in whatever it does, and says how far it is."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from eos.base.deadline import Deadline
from eos.errors import UnavailableError
from eos.offsets import Partition
from eos.records import InputRecord

T = TypeVar("T")
OnProgress = Callable[[str, int, int], None]  # stage, how much of it is done, of how much

_SHOWN_EVERY_S = 0.5
# What waits for the cluster ends by itself at the deadline, and says what it has waited for.
_LATER_S = 1.0
_AGAIN_S = 5.0  # a transform may have caught what ended it
_LINES = 100  # by then an exception that was sent to this thread has been raised; CPython raises it at the next jump back
# Ignored by default, and sent by nothing else; the handler is there for a verification only.
_SIGNAL = signal.SIGURG


class _Ended(BaseException):
    """Raised by the watch in the thread that verifies. No transform's ``except Exception`` catches it."""


class Watch:
    """A thread beside the one that verifies.

    It calls ``on_progress`` about twice a second, also while a transform or a statement of the database takes long. After the
    deadline it interrupts the verification: in the main thread by a signal, which also ends a call that waits in the system; in any
    other thread at its next line of Python.

    Attributes:
        deadline: of all of it.
        record: the one that the transform has now.
    """

    def __init__(self, timeout_s: float, on_progress: OnProgress) -> None:
        self.deadline = Deadline(timeout_s)
        self.record: InputRecord | None = None
        self._on_progress = on_progress
        self._telling = threading.Lock()
        self._stands: tuple[str, int, int] = ("", 0, 0)
        self._over = threading.Event()
        self._ending = threading.Lock()  # of the verification, by itself or by the watch
        self._raised: Exception | None = None  # by on_progress, in the thread of the watch

    def at(self, stage: str, done: int, total: int) -> None:
        """The verification is at this stage, and so far in it."""
        new, self._stands = stage != self._stands[0] or done == total, (stage, done, total)
        if new:
            with self._telling:
                self._on_progress(stage, done, total)

    def keep(self, function: Callable[[], T]) -> T:
        """Call a function under the watch.

        Raises:
            UnavailableError: it had not returned at the deadline; the message says what it was at.
        """
        try:
            with self._watching():
                return function()
        except _Ended:
            if self._raised is not None:
                raise self._raised from None
            raise UnavailableError(
                f"not done before the deadline of {self.deadline.seconds:g} s: {self}"
            ) from None

    def __str__(self) -> str:
        stage, done, total = self._stands
        if (record := self.record) is not None:
            return f"{stage}: the transform has {Partition(record.topic, record.partition)} offset {record.offset}"
        return f"{stage}, {done:,} of {total:,}"

    @contextmanager
    def _watching(self) -> Iterator[None]:
        verifying = threading.get_ident()
        by_signal = threading.current_thread() is threading.main_thread()
        before = signal.signal(_SIGNAL, self._end) if by_signal else None
        thread = threading.Thread(
            target=self._watch,
            args=(verifying,),
            kwargs={"by_signal": by_signal},
            name="eos-watch",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            self._end_watching()
            if by_signal:
                signal.signal(_SIGNAL, before)

    def _end_watching(self) -> None:
        """No exception comes from here on; one that is on its way is raised here, and not in what follows.

        It is not taken back, which CPython 3.11 answers by a flag that nothing resets: every later look at it takes time, and a
        tracer or profiler (a debugger, coverage) makes the next call of a function an endless loop (measured with 3.11.7; 3.12 and
        3.13 are free of it).
        """
        while True:
            try:
                with self._ending:
                    self._over.set()
                for _ in range(_LINES):
                    pass
            except _Ended:
                continue
            return

    def _watch(self, verifying: int, *, by_signal: bool) -> None:
        due = Deadline(self.deadline.left_s + _LATER_S)
        while not self._over.wait(_SHOWN_EVERY_S):
            if self._raised is None:
                try:
                    with self._telling:
                        self._on_progress(*self._stands)
                except Exception as error:  # noqa: BLE001 - raised by keep(), as if it had been called there
                    self._raised, due = error, Deadline(0)
            if due.passed:
                due = Deadline(_AGAIN_S)
                with self._ending:
                    if self._over.is_set():
                        return
                    if by_signal:
                        signal.pthread_kill(verifying, _SIGNAL)
                    else:
                        _end_at_its_next_line(verifying)

    def _end(self, _signal: int, _frame: FrameType | None) -> None:
        if not self._over.is_set():
            raise _Ended


def _end_at_its_next_line(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Ended))

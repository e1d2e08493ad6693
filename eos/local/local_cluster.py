"""What a local Kafka and a local Spark have in common: one directory with one lock, one state file and one owner."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from eos.base.deadline import Deadline
from eos.errors import ConfigError, RetriableError, UsageError
from eos.local import state as state_file
from eos.local.layout import ClusterLayout
from eos.local.lock import locked
from eos.local.process import Identity, end, identity_of

START_TIMEOUT_S = 90.0  # 10 s for three brokers on two cores, 5 s for Spark; a loaded machine needs more
_LOCK_TIMEOUT_S = START_TIMEOUT_S + 30.0  # the process that holds the lock is starting or stopping
_OWNER_GONE_TIMEOUT_S = 10.0  # its guards need some milliseconds to kill its processes


class State(Protocol):
    """What is asked of either kind of state."""

    @property
    def owner(self) -> Identity | None: ...

    @property
    def running(self) -> object: ...

    @property
    def size(self) -> int: ...


StateT = TypeVar("StateT", bound=State)
LayoutT = TypeVar("LayoutT", bound=ClusterLayout)


def ignore(line: str) -> None:
    """The default listener for progress."""


class LocalCluster(ABC, Generic[StateT, LayoutT]):
    """A cluster of processes, started and stopped by any process that names its directory.

    Args:
        layout: where its files are.
        kind: the class of its state.
        size: how many brokers or workers it is to have.
        owned: whether its processes end with this process.
        progress: called with one line before each long step.
    """

    title: ClassVar[str]
    start_command: ClassVar[str]
    _part: ClassVar[str]
    _stop_command: ClassVar[str]

    def __init__(
        self,
        layout: LayoutT,
        kind: type[StateT],
        size: int,
        *,
        owned: bool,
        progress: Callable[[str], None],
    ) -> None:
        self._layout = layout
        self._kind = kind
        self._size = size
        self._owned = owned
        self._progress = progress
        self._mutex = threading.RLock()  # tests stop brokers from one thread and restart them from another

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._layout.directory)!r}, {self._size} {self._part}(s))"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @classmethod
    @abstractmethod
    def attach(cls, directory: Path) -> Self | None:
        """The cluster that runs in that directory, of this process or another; None if none does."""

    @abstractmethod
    def start(self) -> Self:
        """Start what is not running, and wait until it serves."""

    @abstractmethod
    def stop(self) -> None:
        """End every process."""

    @property
    def running(self) -> bool:
        """Whether any process of it is alive."""
        state = self._state()
        return state is not None and bool(state.running)

    @property
    def _owner(self) -> Identity | None:
        return identity_of(os.getpid()) if self._owned else None

    def _state(self) -> StateT | None:
        return state_file.load(self._layout.state, self._kind)

    def _started(self) -> StateT:
        if (state := self._state()) is None:
            raise UsageError(f"{self._layout.root} holds no cluster yet: call start()")
        return state

    def _check_ours(self, state: StateT, which: str) -> bool:
        """Whether the running cluster is one to go on with; False if it has just ended with its owner.

        Raises:
            ConfigError: it is another process's, or has another size.
        """
        where = f"a {self.title} cluster is running in {self._layout.root} ({which})"
        fix = f"Fix: `{self._stop_command}`"
        if state.owner is not None and not state.owner.alive:
            if Deadline(_OWNER_GONE_TIMEOUT_S).wait_for(lambda: not state.running):
                return False
            raise ConfigError(f"{where}, but the process that owned it is gone. {fix}")
        if state.owner != self._owner:
            raise ConfigError(f"{where} and is not ours. {fix}, or choose another directory.")
        if state.size != self._size:
            raise ConfigError(f"{where} with {state.size} {self._part}(s), not {self._size}. {fix}")
        return True

    def _end_processes(self, processes: Iterable[Identity], *, grace_s: float) -> None:
        if survivors := end(processes, grace_s=grace_s):
            pids = [identity.pid for identity in survivors]
            raise RetriableError(f"processes {pids} of {self._layout.root} do not end")

    @contextmanager
    def _locked(self, purpose: str) -> Iterator[None]:
        with self._mutex:
            try:
                self._layout.root.mkdir(parents=True, exist_ok=True)
                with locked(self._layout.lock, timeout_s=_LOCK_TIMEOUT_S, purpose=purpose):
                    yield
            except OSError as error:
                raise ConfigError(
                    f"cannot run {self.title} in {self._layout.root}: {error}. Fix: choose a writable directory."
                ) from error

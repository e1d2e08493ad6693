"""Runs a job in a thread of the test's own process, so that a test can have accidents meanwhile."""

from __future__ import annotations

import threading
from typing import Any

from eos.base.deadline import Deadline
from eos.errors import UnavailableError
from eos.events import Event, Sampled, TransactionCommitted
from eos.job import Job
from eos.runner.worker import run
from eos.settings import Settings

_SHOWN_EVENTS = 3


class RunningJob:
    """A job that runs: made by ``KafkaCluster.running``.

    Attributes:
        events: what happened so far (``eos.events``), without the samples.
    """

    def __init__(self, job: Job, settings: Settings, *, until_caught_up: bool) -> None:
        self.events: list[Event] = []
        self._error: BaseException | None = None
        self._name = job.name
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(job, settings, until_caught_up), name=f"job-{job.name}", daemon=True
        )
        self._thread.start()

    @property
    def committed_records(self) -> int:
        """How many input records the job knows to be committed; for the proof, look from outside."""
        return sum(event.records_in for event in self.events if isinstance(event, TransactionCommitted))

    def wait_for_records(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait until so many input records are committed: the moment for an accident in the middle of the work.

        Raises:
            EosError: the job's own, if it ended by one.
            UnavailableError: it did not get there in time, or ended before.
        """
        Deadline(timeout_s).wait_for(lambda: self.committed_records >= count or not self._thread.is_alive())
        if self.committed_records < count:
            self._raise_error()
            raise UnavailableError(
                f"job {self._name!r} has committed {self.committed_records} of {count} records{self._latest()}"
            )

    def stop(self, timeout_s: float = 60.0) -> None:
        """Ask it to end in order, and wait."""
        self._stop.set()
        self.wait(timeout_s)

    def wait(self, timeout_s: float = 60.0) -> None:
        """Wait for its end.

        Raises:
            EosError: what ended it.
            UnavailableError: it still runs after ``timeout_s``; it is asked to end then.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._stop.set()
            raise UnavailableError(f"job {self._name!r} still runs after {timeout_s:g} s{self._latest()}")
        self._raise_error()

    def _run(self, job: Job, settings: Settings, until_caught_up: Any) -> None:
        try:
            run(job, settings, stop=self._stop, until_caught_up=until_caught_up, listener=self._listen)
        except BaseException as error:  # noqa: BLE001 - raised to the test
            self._error = error

    def _listen(self, event: Event) -> None:
        if not isinstance(event, Sampled):
            self.events.append(event)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _latest(self) -> str:
        return (
            "; the latest events: " + ", ".join(map(str, self.events[-_SHOWN_EVENTS:])) if self.events else ""
        )

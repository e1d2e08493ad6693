"""A contender's process: started, watched from outside, and ended."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.contender import Arguments, Report
from bench.contenders import Contender

SAMPLE_SECONDS = 0.1
GRACE_SECONDS = 30.0
ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Running:
    """A contender at work. ``report`` and ``cpu_seconds`` are there once the block of `running` has ended.

    Attributes:
        started_ms: milliseconds since the epoch.
        samples: (milliseconds since the epoch, resident bytes of the process and all its children).
        cpu_seconds: user and system time of the process and its ended children, from outside.
    """

    process: subprocess.Popen[str]
    started_ms: int
    samples: list[tuple[int, int]] = field(default_factory=list)
    report: Report | None = None
    cpu_seconds: float = 0.0

    def rss_bytes_at(self, moment_ms: float) -> int:
        """The resident size at the sample nearest to a moment; 0 if none was taken."""
        nearest = min(self.samples, key=lambda sample: abs(sample[0] - moment_ms), default=(0, 0))
        return nearest[1]

    def wait(self, seconds: float) -> None:
        """Wait until the contender ends by itself.

        Raises:
            subprocess.TimeoutExpired: it did not.
        """
        self.process.wait(seconds)


@contextmanager
def running(contender: Contender, arguments: Arguments) -> Iterator[Running]:
    """Run a contender during the block; at the block's end it is told to stop, and its report is read.

    Raises:
        RuntimeError: it ended with an error; its last words are in the message.
    """
    command = [*contender.command, *arguments.command_line()]
    cpu_before = _cpu_seconds_of_children()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err, text=True)
        run = Running(process, time.time_ns() // 1_000_000)
        watch = threading.Thread(target=_watch, args=(run,), daemon=True)
        watch.start()
        try:
            yield run
        except BaseException as error:
            end(process)
            err.seek(0)
            error.add_note(f"contender {contender.name} said:\n{err.read()[-2000:]}")
            raise
        finally:
            end(process)
            watch.join(GRACE_SECONDS)
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            msg = f"contender {contender.name} ended with {process.returncode}:\n{err.read()[-2000:]}"
            raise RuntimeError(msg)
        run.report = Report.parse(out.read())
        run.cpu_seconds = _cpu_seconds_of_children() - cpu_before


def _cpu_seconds_of_children() -> float:
    # Of those that were waited for. The broker is not while contenders run, so a difference is one contender's.
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def end(process: subprocess.Popen[str]) -> None:
    """End a process in order, or kill it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(GRACE_SECONDS)


def _watch(run: Running) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(run.process.pid)
        while run.process.returncode is None:
            resident = 0
            for process in (parent, *parent.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    resident += process.memory_info().rss
            if resident:
                run.samples.append((time.time_ns() // 1_000_000, resident))
            time.sleep(SAMPLE_SECONDS)

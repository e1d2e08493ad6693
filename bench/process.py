"""A contender's process: started, watched from outside, and ended."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TextIO

import psutil

from bench.contender import Arguments, Report
from bench.contenders import Contender

SAMPLE_SECONDS = 0.1
GRACE_SECONDS = 30.0
SHOWN_CHARACTERS = 2000
ROOT = Path(__file__).resolve().parent.parent


class Sample(NamedTuple):
    """A contender's process and all its children at a moment, in milliseconds since the epoch."""

    moment_ms: int
    rss_bytes: int
    cpu_seconds: float  # of those that live


@dataclass
class Running:
    """A contender at work. ``report`` and ``cpu_seconds`` are there once the block of `running` has ended.

    Attributes:
        started_ms: milliseconds since the epoch.
        samples: taken all the time.
        cpu_seconds: user and system time of the process and its ended children, from outside.
    """

    process: subprocess.Popen[str]
    started_ms: int
    samples: list[Sample] = field(default_factory=list)
    report: Report | None = None
    cpu_seconds: float = 0.0

    def rss_bytes_at(self, moment_ms: float) -> int:
        """The resident size at the sample nearest to a moment; 0 if none was taken."""
        return self._sample_at(moment_ms).rss_bytes

    def cpu_share(self, begin_ms: float, end_ms: float) -> float:
        """How much of a processor was used between two moments."""
        begin, end = self._sample_at(begin_ms), self._sample_at(end_ms)
        return (end.cpu_seconds - begin.cpu_seconds) / max(end.moment_ms - begin.moment_ms, 1) * 1000

    def _sample_at(self, moment_ms: float) -> Sample:
        nothing = Sample(0, 0, 0.0)
        return min(self.samples, key=lambda sample: abs(sample.moment_ms - moment_ms), default=nothing)

    def wait(self, seconds: float) -> None:
        """Wait until the contender ends by itself.

        Raises:
            subprocess.TimeoutExpired: it did not, and was killed.
        """
        wait(self.process, seconds)


def wait(process: subprocess.Popen[str], seconds: float) -> int:
    """The exit code, at the moment that the process ends: Popen.wait with a timeout looks every 50 ms.

    Raises:
        subprocess.TimeoutExpired: it did not end, and was killed.
    """
    overdue = threading.Event()

    def end() -> None:
        overdue.set()
        process.kill()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        code = process.wait()
    finally:
        timer.cancel()
    if overdue.is_set():
        raise subprocess.TimeoutExpired(process.args, seconds)
    return code


@contextmanager
def running(contender: Contender, arguments: Arguments) -> Iterator[Running]:
    """Run a contender during the block; at the block's end it is told to stop, and its report is read.

    Raises:
        RuntimeError: it ended with an error; its last words are in the message.
    """
    name = f"contender {contender.name}"
    command = [*contender.command, *arguments.command_line()]
    cpu_before = _cpu_seconds_of_children()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with ended_with_block(name, command, out=out, err=err) as process:
            run = Running(process, time.time_ns() // 1_000_000)
            watch = threading.Thread(target=_watch, args=(run,), daemon=True)
            watch.start()
            yield run
        watch.join(GRACE_SECONDS)
        out.seek(0)
        if process.returncode != 0:
            msg = f"{name} ended with {process.returncode}:\n{_last_words(err)}"
            raise RuntimeError(msg)
        run.report = Report.parse(out.read())
        run.cpu_seconds = _cpu_seconds_of_children() - cpu_before


def _cpu_seconds_of_children() -> float:
    # Of those that were waited for. The broker is not while contenders run, so a difference is one contender's.
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def ended_with_block(
    name: str,
    command: Sequence[str],
    *,
    out: TextIO,
    err: TextIO,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Run a command during the block. Its last words go with an error of the block."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=err, text=True)
    try:
        yield process
    except BaseException as error:
        _end(process)
        error.add_note(f"{name} said:\n{_last_words(err)}")
        raise
    finally:
        _end(process)


def _last_words(err: TextIO) -> str:
    err.seek(0)
    return err.read()[-SHOWN_CHARACTERS:]


def _end(process: subprocess.Popen[str]) -> None:
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
            resident, cpu = 0, 0.0
            for process in (parent, *parent.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    resident += process.memory_info().rss
                    cpu += sum(process.cpu_times()[:2])
            if resident:
                run.samples.append(Sample(time.time_ns() // 1_000_000, resident, cpu))
            time.sleep(SAMPLE_SECONDS)

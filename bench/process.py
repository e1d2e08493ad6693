"""A contender's process: started, watched from outside, and ended."""

from __future__ import annotations

import contextlib
import subprocess
import sys
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
    """A contender at work. ``report`` is there once the block of `running` has ended.

    Attributes:
        samples: (milliseconds since the epoch, resident bytes of the process and all its children).
    """

    process: subprocess.Popen[str]
    samples: list[tuple[int, int]] = field(default_factory=list)
    report: Report | None = None

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
    command = [sys.executable, "-m", f"bench.contenders.{contender.module}", *arguments.command_line()]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err, text=True)
        run = Running(process)
        watch = threading.Thread(target=_watch, args=(run,), daemon=True)
        watch.start()
        try:
            yield run
        except BaseException as error:
            _end(process)
            err.seek(0)
            error.add_note(f"contender {contender.name} said:\n{err.read()[-2000:]}")
            raise
        finally:
            _end(process)
            watch.join(GRACE_SECONDS)
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            msg = f"contender {contender.name} ended with {process.returncode}:\n{err.read()[-2000:]}"
            raise RuntimeError(msg)
        run.report = Report.parse(out.read())


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
            resident = 0
            for process in (parent, *parent.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    resident += process.memory_info().rss
            if resident:
                run.samples.append((time.time_ns() // 1_000_000, resident))
            time.sleep(SAMPLE_SECONDS)

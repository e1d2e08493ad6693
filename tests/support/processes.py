"""Python child processes for tests: awaited by their output, signalled by pid, always ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.patience import PATIENCE_S

_REPOSITORY = Path(__file__).parents[2]
_SHOWN_LINES = 200


class Child:
    """A running Python script; made by ``running``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self._process = process
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, name=f"child-{self.pid}", daemon=True)
        self._reader.start()

    @property
    def lines(self) -> list[str]:
        """What it has printed so far, to stdout and stderr together."""
        with self._changed:
            return list(self._lines)

    @property
    def alive(self) -> bool:
        """Whether it still runs (a stopped process does)."""
        return self._process.poll() is None

    def wait_line(self, pattern: str, timeout_s: float, *, after: int = 0) -> str:
        """The first line that contains the regular expression, printed already or to come.

        Args:
            pattern: what to look for.
            timeout_s: seconds to wait.
            after: skip so many lines, such as ``len(child.lines)`` of an earlier moment.

        Raises:
            TimeoutError: no such line in time, or the process ended without it.
        """
        wanted = re.compile(pattern)
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                for line in self._lines[after:]:
                    if wanted.search(line):
                        return line
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    how = "ended" if self._ended else f"ran for {timeout_s:g} s"
                    msg = f"process {self.pid} {how} without printing {pattern!r}"
                    raise TimeoutError(msg)
                self._changed.wait(left)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait(PATIENCE_S)

    def pause(self) -> None:
        """SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM."""
        self.signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> int:
        """Wait for its end; returns the exit code, negative for a signal. Raises TimeoutError."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            msg = f"process {self.pid} still runs after {timeout_s:g} s"
            raise TimeoutError(msg) from None
        self._reader.join(1)  # a grandchild may keep the pipe open
        return code

    def _read(self) -> None:
        output = self._process.stdout
        if output is None:
            return
        with contextlib.suppress(ValueError):  # closed by _end
            for line in output:
                with self._changed:
                    self._lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _end(self) -> None:
        # The child leads a process group of its own, so its workers end with it, stopped ones too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextlib.contextmanager
def running(
    script: Path | str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path = _REPOSITORY,
    python: Path | str = sys.executable,
) -> Iterator[Child]:
    """Run a Python script (a path, or the code itself); it is dead when the block is left.

    The repository is importable. If the block raises, the error shows what the process has printed.

    Args:
        script: a file, or code.
        *arguments: its command line.
        env: variables to set beside those of this process.
        cwd: its working directory.
        python: the interpreter.
    """
    source = [str(script)] if isinstance(script, Path) else ["-c", script]
    with _running([str(python), *source, *arguments], env or {}, cwd) as child:
        yield child


@contextlib.contextmanager
def running_module(
    module: str, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path = _REPOSITORY
) -> Iterator[Child]:
    """As ``running``, for ``python -m module``."""
    with _running([sys.executable, "-m", module, *arguments], env or {}, cwd) as child:
        yield child


@contextlib.contextmanager
def _running(command: Sequence[str], env: Mapping[str, str], cwd: Path) -> Iterator[Child]:
    path = os.pathsep.join(filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path, **env},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    child = Child(process)
    try:
        yield child
    except BaseException as error:
        shown = "\n".join(child.lines[-_SHOWN_LINES:])
        error.add_note(f"process {child.pid} ({child._process.poll()}) had printed:\n{shown}")
        raise
    finally:
        child._end()

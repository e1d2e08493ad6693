"""What a contender is to the harness: one process, the same arguments for all, one line of JSON at its end.

A contender copies every record of the input topic to the output topic under the given group. It runs as
``python -m bench.contenders.NAME`` and prints one `Report` when it has caught up (``--until-caught-up``)
or was told to stop (SIGTERM).
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Arguments:
    """What every contender is told."""

    bootstrap: str
    input: str
    output: str
    group: str
    transaction_ms: int
    until_caught_up: bool

    @classmethod
    def from_command_line(cls) -> Arguments:
        """Parse this process's command line."""
        parser = argparse.ArgumentParser(description="A contender of the benchmark; started by its harness.")
        parser.add_argument("--bootstrap", required=True)
        parser.add_argument("--input", required=True, help="topic")
        parser.add_argument("--output", required=True, help="topic")
        parser.add_argument("--group", required=True, help="consumer group; its offsets are committed")
        parser.add_argument("--transaction-ms", type=int, default=100, help="a transaction's length")
        parser.add_argument("--until-caught-up", action="store_true", help="stop at the input's present end")
        return cls(**vars(parser.parse_args()))

    def command_line(self) -> list[str]:
        """The inverse of `from_command_line`."""
        words = ["--bootstrap", self.bootstrap, "--input", self.input, "--output", self.output]
        words += ["--group", self.group, "--transaction-ms", str(self.transaction_ms)]
        return [*words, "--until-caught-up"] if self.until_caught_up else words


@dataclass(frozen=True)
class Report:
    """What a contender says of its run; the harness finds out by itself what it can see from outside.

    Attributes:
        seconds: wall time from `Meter`'s start to its end.
        startup_cpu_seconds: user and system time before the work began (interpreter, imports; the virtual machine).
        peak_rss_bytes: the largest resident size of this process.
        commits: transactions committed, or offset commits where there are no transactions.
        commit_seconds: time inside sending offsets and committing, all commits together; None if unknown.
        commit_p99_seconds: how long all but the slowest hundredth of them took; None if unknown.
    """

    seconds: float
    startup_cpu_seconds: float
    peak_rss_bytes: int
    commits: int
    commit_seconds: float | None
    commit_p99_seconds: float | None = None

    @classmethod
    def parse(cls, output: str) -> Report:
        """Read the last line of a contender's standard output."""
        lines = output.strip().splitlines()
        if not lines:
            msg = "the contender printed no report"
            raise ValueError(msg)
        return cls(**json.loads(lines[-1]))


class Meter:
    """Measures the process it is made in, from its making to `report`. Make it after the imports."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._startup_cpu = usage.ru_utime + usage.ru_stime

    def report_each(self, commit_seconds: Sequence[float]) -> None:
        """As `report`, where it is known how long each commit took."""
        slowest = sorted(commit_seconds)[-1 - len(commit_seconds) // 100 :]
        self.report(
            commits=len(commit_seconds),
            commit_seconds=sum(commit_seconds),
            commit_p99_seconds=min(slowest, default=None),
        )

    def report(
        self, *, commits: int, commit_seconds: float | None, commit_p99_seconds: float | None = None
    ) -> None:
        """Print the one line of JSON that the harness waits for."""
        report = Report(
            seconds=time.monotonic() - self._began,
            startup_cpu_seconds=self._startup_cpu,
            peak_rss_bytes=_peak_rss_bytes(),
            commits=commits,
            commit_seconds=commit_seconds,
            commit_p99_seconds=commit_p99_seconds,
        )
        sys.stdout.write(json.dumps(asdict(report)) + "\n")
        sys.stdout.flush()


def _peak_rss_bytes() -> int:
    # Linux carries ru_maxrss over fork and exec: a small program started by a large one would report the
    # large one's peak. VmHWM belongs to the address space, which exec replaces.
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kibibytes

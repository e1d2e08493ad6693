"""``eos run`` as a user starts it: a parent with a worker process, ended with its block."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.process import ROOT, end

EOS = str(Path(sys.executable).with_name("eos"))
JOB = "bench.contenders.eos_workers:job"


@dataclass(frozen=True)
class JobRun:
    """What is copied; everything else is as the settings have it."""

    bootstrap: str
    source: str
    target: str

    def start(self, *options: str, ordinal: int = 0) -> subprocess.Popen[str]:
        """Start ``eos run``."""
        environment = {
            **os.environ,
            "BENCH_INPUT": self.source,
            "BENCH_OUTPUT": self.target,
            "EOS_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
            "EOS_GROUP": self.target,
            "EOS_INPUT__START": "earliest",
            "EOS_ORDINAL": str(ordinal),
        }
        return subprocess.Popen(
            [EOS, "run", JOB, *options],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    @contextmanager
    def running(self, *, ordinal: int = 0) -> Iterator[subprocess.Popen[str]]:
        """Run it during the block."""
        process = self.start(ordinal=ordinal)
        try:
            yield process
        finally:
            end(process)


def worker_of(process: subprocess.Popen[str]) -> int:
    """The process id of its one worker: of all processes below the parent, the one that has worked most."""
    below = psutil.Process(process.pid).children(recursive=True)
    worker: int = max(below, key=lambda child: sum(child.cpu_times()[:2])).pid
    return worker

"""``eos run`` as a user starts it: a parent with a worker process, ended with its block."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.process import ended_with_block

EOS = str(Path(sys.executable).with_name("eos"))
JOB = "bench.contenders.eos_workers:job"


@dataclass(frozen=True)
class JobRun:
    """What is copied; everything else is as the settings have it."""

    bootstrap: str
    source: str
    target: str

    @contextmanager
    def running(self, *options: str, ordinal: int = 0) -> Iterator[subprocess.Popen[str]]:
        """Run ``eos run`` during the block. What it said goes with an error of the block."""
        environment = {
            **os.environ,
            "BENCH_INPUT": self.source,
            "BENCH_OUTPUT": self.target,
            "EOS_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
            "EOS_GROUP": self.target,
            "EOS_INPUT__START": "earliest",
            "EOS_ORDINAL": str(ordinal),
        }
        command = [EOS, "run", JOB, *options]
        with tempfile.TemporaryFile("w+") as log:
            name = f"worker {ordinal}"
            with ended_with_block(name, command, out=log, err=log, environment=environment) as process:
                yield process


def worker_of(process: subprocess.Popen[str]) -> int:
    """The process id of its one worker: of all processes below the parent, the one that has worked most."""
    below = psutil.Process(process.pid).children(recursive=True)
    worker: int = max(below, key=lambda child: sum(child.cpu_times()[:2])).pid
    return worker

"""The console blocks of a page, run one after the other in one shell, and what each command prints."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.documents import blocks

# What differs from run to run, in the order in which it is looked for.
_VARIES = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?|\b\d\d:\d\d:\d\d\b", "TIME"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"owner=\w+", "owner=…"),
    (r"topic=[\w-]+", "topic=…"),
    (r"host=[\w.-]+/\d+", "host=…"),
    (r"owner on [\w.-]+/\d+", "owner on PROCESS"),
    (r"shouter-[0-9a-f]{8}-0", "MEMBER"),
    (r"(pid|at|seconds|confluent_kafka|librdkafka|python)=[\d.]+", r"\1=…"),
    (r"\b\d+(\.\d+)? s\b", "SECONDS"),
    (r"\d+ records/s", "RATE"),
    (r"rdkafka#\w+-\d+", "CLIENT"),
    (r"producer id \d+", "producer id …"),
)
_SAID = "eos: using the local Kafka"  # and "[1]+": what the shell says of a job
_KILLED = re.compile(r"bash: line \d+: +\d+ Killed ")


class Command(NamedTuple):
    """A line behind ``$``, and the lines under it."""

    line: str
    output: list[str]


def commands(page: str) -> list[Command]:
    """All of a page, in their order."""
    found: list[Command] = []
    for code in blocks(page, "console").values():
        for line in code.splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:], []))
            else:
                found[-1].output.append(line)
    return found


def run(
    lines: list[str],
    directory: Path,
    environment: Mapping[str, str],
    *,
    timeout_s: float,
    each_succeeds: bool = False,
) -> list[Command]:
    """Run commands in one shell with job control; what each prints, both streams together.

    Raises:
        ValueError: ``each_succeeds``, and one has not: those behind it are missing.
    """
    script = f"set -{'e' if each_succeeds else ''}m\n" + "".join(
        f"echo '== {number}'\n{line}\n" for number, line in enumerate(lines)
    )
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=directory,
        env={
            **os.environ,
            **environment,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=timeout_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    parts = re.split(r"^== \d+\n", printed, flags=re.MULTILINE)[1:]
    return [Command(line, list(_worth(part))) for line, part in zip(lines, parts, strict=True)]


def _worth(printed: str) -> Iterator[str]:
    for line in printed.splitlines():
        if line.strip() and not line.startswith((_SAID, "[1]+")) and not _KILLED.match(line):
            yield line.rstrip()


def masked(lines: list[str]) -> list[str]:
    """Without what differs from run to run, and without the width of columns."""
    return [_masked(line) for line in lines]


def _masked(line: str) -> str:
    for pattern, name in _VARIES:
        line = re.sub(pattern, name, line)
    return re.sub(r"\s+|─+", " ", line).strip()

"""How soon a job works: a run without input from its start to its end, and a killed worker's replacement to its first record.

Several ``eos`` commands (of several trees) take turns, so that what else the machine does meets all of them.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.broker import broker
from bench.results import Row, say, show, write
from bench.topics import PARTITIONS, create_topic, delete_topic, key, load

_JOB = """
import os
from eos import Job, OutputRecord

SOURCE, TARGET = os.environ["BENCH_INPUT"], os.environ["BENCH_OUTPUT"]

def copy(record):
    return [OutputRecord(TARGET, b"%d" % os.getpid(), record.key)]

job = Job(name=SOURCE, inputs=[SOURCE], outputs=[TARGET], transform=copy)
"""
_RECORDS = 1_000
_PAUSE_S = 0.002  # between two records
_STEADY_S = 6.0  # of work, before a worker is killed
_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """One command in one round."""

    command: str
    round: int
    run_without_input_s: float
    replacement_s: float
    missing: int
    doubled: int


def run(commands: Sequence[str], *, rounds: int, bootstrap: str | None) -> bool:
    """Run the benchmark and print its table; True if no record was missing or doubled."""
    outcomes: list[Outcome] = []
    with broker(bootstrap) as servers, tempfile.TemporaryDirectory(prefix="bench-") as directory:
        Path(directory, "bench_job.py").write_text(_JOB)
        for number in range(rounds + 1):
            for command in commands:
                outcome = _measure(command, number, servers, directory)
                if number:  # the first round warms up the broker and the files
                    outcomes.append(outcome)
                    say(
                        f"round {number}/{rounds} {command}: a run without input {outcome.run_without_input_s:.2f} s, "
                        f"a replacement {outcome.replacement_s:.2f} s"
                    )
    rows = [_row(command, outcomes) for command in commands]
    show(
        f"starting: {rounds} rounds, min med max",
        rows,
        ["from the command to its exit; from SIGKILL to the first visible record"] * len(rows),
    )
    write("starting", {}, outcomes)
    return not any(outcome.missing or outcome.doubled for outcome in outcomes)


def _measure(command: str, number: int, bootstrap: str, directory: str) -> Outcome:
    name = f"bench-starting-{number}-{time.time_ns()}"
    source, target = f"{name}-input", f"{name}-output"
    environment = {
        **os.environ,
        "BENCH_INPUT": source,
        "BENCH_OUTPUT": target,
        "EOS_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
        "EOS_OBSERVE__LOG_LEVEL": "warning",
    }
    words = [command, "run", "bench_job:job", "--app-dir", directory]
    create_topic(bootstrap, source)
    create_topic(bootstrap, target)
    try:
        load(bootstrap, source, _RECORDS)
        _run(words, "--until-caught-up", "--start", "earliest", environment=environment)
        began = time.monotonic()
        _run(words, "--until-caught-up", environment=environment)
        alone_s = time.monotonic() - began
        with _working(words, environment):
            stream = _Stream(bootstrap, source)
            replacement_s, seen = _replacement_s(bootstrap, target, stream)
    finally:
        delete_topic(bootstrap, source)
        delete_topic(bootstrap, target)
    return Outcome(
        command=command,
        round=number,
        run_without_input_s=alone_s,
        replacement_s=replacement_s,
        missing=stream.total - len(seen.keys()),
        doubled=seen.total() - len(seen.keys()),
    )


def _run(words: Sequence[str], *options: str, environment: dict[str, str]) -> None:
    subprocess.run(
        [*words, *options], env=environment, check=True, timeout=_DEADLINE_S, stderr=subprocess.DEVNULL
    )


@contextmanager
def _working(words: Sequence[str], environment: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(_DEADLINE_S)


class _Stream:
    """Writes records at an even rate, numbered on from those that were loaded, until it is ended."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.total = _RECORDS
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.flush(_DEADLINE_S)

    def _produce(self) -> None:
        while not self._ended.wait(_PAUSE_S):
            self._producer.produce(self._topic, b"", key(self.total))
            self._producer.poll(0)
            self.total += 1


def _replacement_s(bootstrap: str, topic: str, stream: _Stream) -> tuple[float, Counter[int]]:
    """Kill the worker; how long it took until another one's first record, and how often each record has come in the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
    seen: Counter[int] = Counter()
    killed: int | None = None
    killed_at = replaced_at = 0.0
    steady_at, deadline = time.monotonic() + _STEADY_S, time.monotonic() + _DEADLINE_S
    while (not replaced_at or len(seen) < stream.total) and time.monotonic() < deadline:
        message = consumer.poll(0.01)
        if message is None or message.error() is not None:
            continue
        seen[int.from_bytes(message.key() or b"")] += 1
        worker = int(message.value() or b"0")
        if killed is None and len(seen) > _RECORDS and time.monotonic() > steady_at:
            killed, killed_at = worker, time.monotonic()
            os.kill(killed, signal.SIGKILL)
        elif killed not in (None, worker) and not replaced_at:
            replaced_at = time.monotonic()
            stream.end()
    consumer.close()
    stream.end()
    if not replaced_at:
        msg = f"no record of a replacement in {_DEADLINE_S:g} s"
        raise TimeoutError(msg)
    return replaced_at - killed_at, seen


def _row(command: str, outcomes: Sequence[Outcome]) -> Row:
    own = [outcome for outcome in outcomes if outcome.command == command]
    row = {"command": command}
    for title, figures in (
        ("run without input s", [outcome.run_without_input_s for outcome in own]),
        ("replacement s", [outcome.replacement_s for outcome in own]),
    ):
        row[title] = f"{min(figures):.2f} {statistics.median(figures):.2f} {max(figures):.2f}"
    row["missing, doubled"] = f"{sum(o.missing for o in own)}, {sum(o.doubled for o in own)}"
    return row

"""Load generator: where the trial's input comes from, and its steady way into the input topics."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from eos.errors import ConfigError, EosError
from eos.kafka.config import client_config
from eos.kafka.topics import produce_plain
from eos.prove.source import Source
from eos.records import OutputRecord
from eos.settings import Settings

Feed = Callable[[int], Iterable["bytes | tuple[bytes | None, bytes | None] | OutputRecord"]]

_FEED_S = 120.0
_CHUNK = 200
_FEW = 10  # at once: in the rest behind a burst a job would stand outside of its transactions
_WRITTEN_IN = 0.8  # of a chunk's time
_ROOM_S = 0.2  # until the job is looked at again that has enough to do
_LINES = ".jsonl"
_FIELDS = frozenset({"key", "value", "topic", "headers", "timestamp_ms"})


def feed_of_file(path: Path, inputs: Collection[str]) -> Feed:
    """The records of a file, in its order and again from its beginning, so that faults have something to meet.

    Each line of a ``.jsonl`` is an object with key, value, topic, headers and timestamp_ms, of which value alone is needed;
    text becomes UTF-8, and what is no text its JSON. Of any other file each line is a value.

    Args:
        path: the file.
        inputs: the job's input topics.

    Raises:
        ConfigError: it cannot be read, a line is wrong, or there is none.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(
            f"--input {path}: it cannot be read ({error.strerror}). Fix: a file that can"
        ) from error
    if path.suffix == _LINES:
        numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
        records = [_of_json(f"--input {path}, line {number}", line, inputs) for number, line in numbered]
        return feed_of(records, f"--input {path}")
    return feed_of(lines, f"--input {path}")


def feed_of(records: Sequence[Any], where: str) -> Feed:
    """These records, again and again, whatever the seed.

    Raises:
        ConfigError: there are none.
    """
    if not records:
        raise ConfigError(f"{where}: there is no record. Fix: a source that has some")
    return lambda _seed: cycle(records)


def _of_json(
    where: str, line: bytes, inputs: Collection[str]
) -> OutputRecord | tuple[bytes | None, bytes | None]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}. Fix: one object on each line") from error
    if not isinstance(found, dict) or "value" not in found or (found.keys() - _FIELDS):
        raise ConfigError(
            f"{where}: that is no record. Fix: an object with value, and if you like key, topic, headers, timestamp_ms"
        )
    key, value = _bytes(found.get("key")), _bytes(found["value"])
    headers, time_ms, topic = found.get("headers") or {}, found.get("timestamp_ms"), found.get("topic")
    if topic is not None and topic not in inputs:
        raise ConfigError(
            f"{where}: {topic!r} is no input of the job. Fix: one of {', '.join(sorted(inputs))}, or leave topic out"
        )
    if not isinstance(headers, dict) or not (time_ms is None or (type(time_ms) is int and time_ms > 0)):
        raise ConfigError(
            f"{where}: headers is an object of names and values, timestamp_ms a whole number above 0. Fix: that line"
        )
    if topic is None and not headers and time_ms is None:
        return key, value
    named = tuple((str(name), _bytes(one)) for name, one in headers.items())
    return OutputRecord(topic or "", value, key, headers=named, timestamp_ms=time_ms)


def _bytes(found: object) -> bytes | None:
    if found is None or isinstance(found, str):
        return None if found is None else found.encode()
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()


class LoadGenerator:
    """Writes the input at a steady rate, past the proxies, until it is stopped or there is no more.

    Args:
        settings: the brokers' own addresses.
        source: of the records.
        rate: of them, in a second.
        room: how many more the job can be given now, when so many were taken.
    """

    def __init__(
        self,
        settings: Settings,
        source: Source,
        rate: int,
        room: Callable[[int], int] = lambda _: _CHUNK,
    ) -> None:
        self._room = room
        self._config = client_config(settings)
        self._source = source
        self._rate = rate
        self._over = threading.Event()
        self._writing = threading.Lock()
        self._failed: list[str] = []
        self._thread = threading.Thread(target=self._feed, name="eos-prove-load", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> Sequence[str]:
        """No more input; returns what went wrong."""
        self._over.set()
        self._thread.join(_FEED_S + 1)
        return self._failed

    @contextmanager
    def held(self) -> Iterator[None]:
        """No new input while the block runs; what has been begun is written before."""
        with self._writing:
            yield

    def _feed(self) -> None:
        next_at = time.monotonic()
        try:
            while not self._over.is_set():
                if (room := self._room(self._source.records)) <= 0:  # a job whose records take long
                    self._over.wait(_ROOM_S)
                    continue
                with self._writing:
                    chunk = self._source.take(min(room, _CHUNK))
                    if not chunk:
                        return
                    produce_plain(self._config, self._spread(chunk), timeout_s=_FEED_S)
                # What was missed while it was held, or while no broker answered, does not come in a burst.
                next_at = max(next_at + len(chunk) / self._rate, time.monotonic())
                self._over.wait(next_at - time.monotonic())
        except EosError as error:
            self._failed.append(f"the input could not be written: {error}")
        except Exception as error:  # noqa: BLE001 - of the user's generator
            self._failed.append(f"the input's generator raised {type(error).__name__}: {error}")

    def _spread(self, records: Sequence[OutputRecord]) -> Iterator[OutputRecord]:
        """In a steady stream."""
        began = time.monotonic()
        for number, one in enumerate(records):
            if number % _FEW == 0:
                self._over.wait(max(0.0, began + _WRITTEN_IN * number / self._rate - time.monotonic()))
            yield one

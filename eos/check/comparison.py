"""Comparison of expected with found outputs in bounded memory: a scratch database, gone afterwards.

Only hashes and coordinates are kept, about 150 bytes of disk per output while it compares. They go to the
directory of temporary files (TMPDIR).

What is compared:
- *As multisets*: an output's identity is its topic, key, value and headers, and its partition and timestamp where
  the transform sets them. Outputs that several input records make alike are counted, not told apart.
- *In order*: for each input partition, output topic and key, the outputs stand in the order of the input within
  their output partition. Outputs without a key have no order. Nor have those that cannot be told apart: alike from
  several input partitions, or alike in several output partitions; or that are lost or duplicated anyway.
"""

from __future__ import annotations

import secrets
import sqlite3
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self, TypeVar

from eos.check.report import Differences, Example, Kind, OutputCount
from eos.errors import UsageError
from eos.offsets import Partition
from eos.records import Headers, InputRecord, OutputRecord

T = TypeVar("T")

_EXAMPLES = 5  # of each kind
_ROWS_PER_INSERT = 10_000
_CACHE_KIB = 16_384  # SQLite sorts in pieces of this size; a few are in memory at once
_STILL_WANTED_EVERY_S = 0.2
_KEYS_REMEMBERED = 65_536
_HASH_BYTES = 8  # SQLite's integers. See `_Identities` for why 64 bits are enough
_NONE = -1
_FRAME = struct.Struct("<6q").pack  # partition, timestamp, number of headers; lengths of topic, key, value
_HEADER = struct.Struct("<2q").pack  # lengths of name and value

_SCHEMA = """
CREATE TABLE expected (seq INTEGER PRIMARY KEY, id INT, lane INT, topic INT, source INT, offset INT, outputs INT);
CREATE TABLE found (seq INTEGER PRIMARY KEY, id INT, topic INT, place INT, offset INT);
"""

# Identities that are not simply found as often as expected, from one input and in one output partition.
_SPECIAL = """
CREATE TABLE special (id INTEGER PRIMARY KEY, expected INT, found INT);
INSERT INTO special
SELECT id, sum(expected), sum(found) FROM (
    SELECT id, 1 AS expected, 0 AS found, source, NULL AS place FROM expected
    UNION ALL SELECT id, 0, 1, NULL, place FROM found
) GROUP BY id
HAVING sum(expected) <> sum(found) OR min(source) <> max(source) OR min(place) <> max(place);
"""

# Which of several alike is missing or too many nobody can tell: the last ones are named. (CROSS JOIN keeps
# SQLite from turning the join around, for which it would have to index the large table first.)
_MISSING = """
CREATE TABLE missing AS
SELECT topic, source, offset, outputs FROM (
    SELECT e.*, s.found, row_number() OVER (PARTITION BY e.id ORDER BY e.seq) AS nth
    FROM expected e CROSS JOIN special s ON s.id = e.id WHERE s.expected > s.found
) WHERE nth > found;
"""
_SURPLUS = """
CREATE TABLE surplus AS
SELECT topic, place, offset, expected > 0 AS known FROM (
    SELECT f.*, s.expected, row_number() OVER (PARTITION BY f.id ORDER BY f.seq) AS nth
    FROM found f CROSS JOIN special s ON s.id = f.id WHERE s.found > s.expected
) WHERE nth > expected;
"""

# Alike outputs of one input partition and key are paired first with first, second with second …: if the order is
# right at all, it is right in that pairing, since all of them are matched.
_REORDERED = """
CREATE TABLE reordered AS
SELECT place, found_seq FROM (
    SELECT place, found_seq,
        lag(found_seq) OVER (PARTITION BY lane, source, place ORDER BY expected_seq) > found_seq AS backwards
    FROM (
        SELECT e.lane, e.source, f.place, e.seq AS expected_seq, f.seq AS found_seq
        FROM (
            SELECT id, seq, lane, source, row_number() OVER (PARTITION BY id ORDER BY seq) AS nth
            FROM expected WHERE lane IS NOT NULL
        ) e
        JOIN (SELECT id, seq, place, row_number() OVER (PARTITION BY id ORDER BY seq) AS nth FROM found) f
        ON f.id = e.id AND f.nth = e.nth
        WHERE e.id NOT IN (SELECT id FROM special)
    )
) WHERE backwards;
"""

_TORN = "SELECT source, offset, count(*) AS gone, outputs FROM missing GROUP BY source, offset HAVING gone < outputs"


class Comparison:
    """First all that is expected, then all that was found, then `result`; use it as a context manager.

    Args:
        topics: every output topic, so that those without any records are reported too.
        broker_timestamps: those of them whose broker writes its own time into records (message.timestamp.type =
            LogAppendTime): timestamps are not compared there.
        directory: for the scratch database, instead of the one of temporary files.
    """

    def __init__(
        self,
        topics: Iterable[str],
        *,
        broker_timestamps: Collection[str] = (),
        directory: Path | None = None,
    ) -> None:
        self._identities = _Identities(broker_timestamps)
        self._topics: dict[str, int] = {topic: number for number, topic in enumerate(sorted(topics))}
        self._sources: dict[Partition, int] = {}
        self._places: dict[Partition, int] = {}
        self._expected: Counter[str] = Counter()
        self._found: Counter[str] = Counter()
        self._rows: list[tuple[int | None, ...]] = []
        self._expecting = True
        self._folder = TemporaryDirectory(prefix="eos-verify-", dir=directory)
        self._database = sqlite3.connect(
            Path(self._folder.name) / "outputs.db", isolation_level=None, check_same_thread=False
        )
        for pragma in (
            "journal_mode = OFF",  # nothing here is worth recovering
            "synchronous = OFF",
            "locking_mode = EXCLUSIVE",
            "temp_store = FILE",
            f"cache_size = -{_CACHE_KIB}",
        ):
            self._database.execute(f"PRAGMA {pragma}")
        self._database.executescript(_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete the scratch database."""
        self._database.close()
        self._folder.cleanup()

    def expect(self, record: InputRecord, outputs: Sequence[OutputRecord]) -> None:
        """Add the outputs of one input record, in their order.

        Args:
            record: the input record; each partition in offset order.
            outputs: what the transform makes of it.

        Raises:
            UsageError: outputs found were added before.
        """
        if not self._expecting:
            raise UsageError("Comparison: all expected outputs come before the first one found")
        source = _number(self._sources, Partition(record.topic, record.partition))
        for output in outputs:
            self._expected[output.topic] += 1
            self._rows.append(
                (
                    self._identities.expected(output),
                    self._identities.lane(output.topic, output.key),
                    _number(self._topics, output.topic),
                    source,
                    record.offset,
                    len(outputs),
                )
            )
        if len(self._rows) >= _ROWS_PER_INSERT:
            self._flush()

    def found(self, record: InputRecord) -> None:
        """Add one record of an output topic; each partition in offset order."""
        if self._expecting:
            self._flush()
            self._expecting = False
            if self._identities.seal():
                self._database.execute("CREATE INDEX expected_by_id ON expected (id)")
        self._found[record.topic] += 1
        self._rows.append(
            (
                self._identity_of(record),
                _number(self._topics, record.topic),
                _number(self._places, Partition(record.topic, record.partition)),
                record.offset,
            )
        )
        if len(self._rows) >= _ROWS_PER_INSERT:
            self._flush()

    def result(self, still_wanted: Callable[[], None] = lambda: None) -> Differences:
        """Compare; once, at the end.

        Args:
            still_wanted: called while it compares; what it raises ends the comparison.
        """
        self._flush()
        self._execute(_SPECIAL + _MISSING + _SURPLUS + _REORDERED, still_wanted)
        topics = list(self._topics)
        places = list(self._places)
        lost = self._count("SELECT topic, count(*) FROM missing GROUP BY topic")
        duplicated = self._count("SELECT topic, count(*) FROM surplus WHERE known GROUP BY topic")
        unexpected = self._count("SELECT topic, count(*) FROM surplus WHERE NOT known GROUP BY topic")
        reordered: Counter[str] = Counter()
        for place, count in self._count("SELECT place, count(*) FROM reordered GROUP BY place").items():
            reordered[places[place].topic] += count
        return Differences(
            outputs=tuple(
                OutputCount(
                    topic,
                    self._expected[topic],
                    self._found[topic],
                    lost[number],
                    duplicated[number],
                    unexpected[number],
                    reordered[topic],
                )
                for number, topic in sorted(enumerate(topics), key=lambda pair: pair[1])
            ),
            torn=sum(1 for _ in self._database.execute(_TORN)),
            examples=tuple(self._examples()),
        )

    def _identity_of(self, record: InputRecord) -> int:
        *specific, last = self._identities.candidates(record)
        for identity in specific:
            if self._database.execute("SELECT 1 FROM expected WHERE id = ? LIMIT 1", (identity,)).fetchone():
                return identity
        return last

    def _flush(self) -> None:
        if not self._rows:
            return
        self._database.execute("BEGIN")
        self._database.executemany(
            "INSERT INTO expected (id, lane, topic, source, offset, outputs) VALUES (?, ?, ?, ?, ?, ?)"
            if self._expecting
            else "INSERT INTO found (id, topic, place, offset) VALUES (?, ?, ?, ?)",
            self._rows,
        )
        self._database.execute("COMMIT")
        self._rows.clear()

    def _execute(self, script: str, still_wanted: Callable[[], None]) -> None:
        """Beside this thread: a statement may take minutes, and this thread answers signals meanwhile."""
        with ThreadPoolExecutor(1) as beside:
            done = beside.submit(self._database.executescript, script)
            try:
                while not wait([done], _STILL_WANTED_EVERY_S).done:
                    still_wanted()
            except BaseException:
                self._database.interrupt()
                raise
            done.result()

    def _count(self, query: str) -> Counter[int]:
        return Counter(dict(self._database.execute(query).fetchall()))

    def _first(self, query: str, *arguments: int) -> Iterable[tuple[int, ...]]:
        return self._database.execute(f"{query} LIMIT {_EXAMPLES}", arguments)

    def _examples(self) -> Iterator[Example]:
        topics, sources, places = list(self._topics), list(self._sources), list(self._places)
        for topic, source, offset in self._first("SELECT topic, source, offset FROM missing"):
            yield Example(Kind.LOST, sources[source], offset, f"its output in {topics[topic]} was not found")
        for known, kind, detail in (
            (1, Kind.DUPLICATED, "found more often than expected"),
            (0, Kind.UNEXPECTED, "no processed input record makes it"),
        ):
            for place, offset in self._first("SELECT place, offset FROM surplus WHERE known = ?", known):
                yield Example(kind, places[place], offset, detail)
        for source, offset, gone, outputs in self._first(_TORN):
            yield Example(
                Kind.TORN, sources[source], offset, f"{gone} of its {outputs} outputs were not found"
            )
        for place, offset in self._first(
            "SELECT r.place, f.offset FROM reordered r CROSS JOIN found f ON f.seq = r.found_seq"
        ):
            yield Example(
                Kind.REORDERED,
                places[place],
                offset,
                "found before an output of an earlier record of the same input partition and key",
            )


class _Identities:
    """Hashes that stand for outputs, keyed anew for each comparison.

    64 bits are enough. Two different outputs with one hash do no harm while both are there: the sums are equal.
    A difference is only hidden if a lost output collides with a surplus one, of which there are few unless the
    verdict is clear anyway; and nobody can aim for that without the key.
    """

    def __init__(self, broker_timestamps: Collection[str]) -> None:
        self._key = secrets.token_bytes(16)
        self._broker_timestamps = frozenset(broker_timestamps)
        # Per topic: whether its outputs set their partition and their timestamp, in every combination that occurs.
        self._claims: defaultdict[str, set[tuple[bool, bool]]] = defaultdict(set)
        self._sealed: dict[str, list[tuple[bool, bool]]] = {}
        self.lane = lru_cache(_KEYS_REMEMBERED)(self._lane)

    def expected(self, output: OutputRecord) -> int:
        topic, value, key, headers, timestamp_ms, partition = output
        if topic in self._broker_timestamps or timestamp_ms == 0:  # librdkafka takes 0 for none
            timestamp_ms = None
        if partition == -1:  # and this
            partition = None
        self._claims[topic].add((partition is not None, timestamp_ms is not None))
        return self._hash(topic, _bytes(key), _bytes(value), headers, partition, timestamp_ms)

    def seal(self) -> bool:
        """End the expecting; true if outputs of one topic set their partition or timestamp and others of it do not."""
        self._sealed = {topic: sorted(claims, reverse=True) for topic, claims in self._claims.items()}
        return any(len(claims) > 1 for claims in self._sealed.values())

    def candidates(self, record: InputRecord) -> list[int]:
        """The identities that a found record may have, those with more claims first; rarely more than one."""
        topic, partition, _, key, value, headers, timestamp_ms = record
        return [
            self._hash(
                topic,
                key,
                value,
                headers,
                partition if sets_partition else None,
                timestamp_ms if sets_timestamp else None,
            )
            for sets_partition, sets_timestamp in self._sealed.get(topic, [(False, False)])
        ]

    def _lane(self, topic: str, key: bytes | None) -> int | None:
        """Stands for the outputs among which order matters: those of one topic and key."""
        return None if key is None else self._hash(topic, _bytes(key), None, (), None, None)

    def _hash(  # noqa: PLR0917 - the fields of a record, in their order
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> int:
        name = topic.encode()
        # Lengths first, so that no two different records are the same bytes.
        content = b"".join(
            (
                _FRAME(
                    _NONE if partition is None else partition,
                    _NONE if timestamp_ms is None else timestamp_ms,
                    len(headers),
                    len(name),
                    _NONE if key is None else len(key),
                    _NONE if value is None else len(value),
                ),
                name,
                key or b"",
                value or b"",
                _framed(headers) if headers else b"",
            )
        )
        digest = blake2b(content, digest_size=_HASH_BYTES, key=self._key).digest()
        return int.from_bytes(digest, "little", signed=True)


def _framed(headers: Headers) -> bytes:
    parts = []
    for text, content in headers:
        name, value = text.encode(), _bytes(content)
        parts += [_HEADER(len(name), _NONE if value is None else len(value)), name, value or b""]
    return b"".join(parts)


def _bytes(field: bytes | str | None) -> bytes | None:
    # Text is not declared, but librdkafka's client takes it, so a transform may return it.
    return field.encode() if isinstance(field, str) else field


def _number(numbers: dict[T, int], one: T) -> int:
    return numbers.setdefault(one, len(numbers))

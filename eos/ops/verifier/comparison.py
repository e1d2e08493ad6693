"""Comparison of expected with found outputs in bounded memory: a scratch database, deleted afterwards.

Only hashes and coordinates are kept, 100 to 200 bytes of disk per output. What is compared:
- *As multisets*: an output's identity is its topic, key, value and headers, and its timestamp where the transform
  sets it. Outputs that several input records make alike are counted, not distinguished.
- *By place*: an output is in the partition that it names, or that its key's hash chooses (`placement`).
- *In order*: in each output partition, the outputs of each input partition stand in the order of the input
  (`ordering`), with any keys. Left out are those that are lost, duplicated or misplaced anyway. Of outputs without
  a key that are alike in several output partitions, nothing says which of them is which: each output partition is then
  judged as if all of them were there to choose from. So no right order is refused, and a wrong one passes where two output
  partitions need the same one of them.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, TypeVar

from eos.errors import UsageError
from eos.offsets import Partition
from eos.ops.verifier import tables
from eos.ops.verifier.identities import Identities
from eos.ops.verifier.ordering import Break, Ordering, Step
from eos.ops.verifier.placement import OWN, Placement
from eos.ops.verifier.report import Compared, Difference, Example, OutputCount
from eos.records import InputRecord, OutputRecord

T = TypeVar("T")

_EXAMPLES = 5  # of each kind
_ROWS_PER_INSERT = 10_000
_INTERRUPTIBLE_S = 0.2
_ANSWERS_REMEMBERED = 65_536


class Comparison:
    """First `expect` all records, then `found` all records, then `result`; use it as a context manager.

    Args:
        partitions: every output topic, also those without any records, and how many partitions it has.
        broker_timestamps: those of them whose broker writes its own time into records (message.timestamp.type =
            LogAppendTime): timestamps are not compared there.
        dead_letters: see `Identities`.
        grown_from: see `Placement`.
        partitioner: see `Placement`.
        order: whether the order is compared.
        directory: for the scratch database, instead of the one of temporary files (TMPDIR).
    """

    def __init__(
        self,
        partitions: Mapping[str, int],
        *,
        broker_timestamps: Collection[str] = (),
        dead_letters: str | None = None,
        grown_from: Mapping[str, int] | None = None,
        partitioner: str = OWN,
        order: bool = True,
        directory: Path | None = None,
    ) -> None:
        self._placement = Placement(partitions, grown_from or {}, partitioner)
        self._identities = Identities(broker_timestamps, dead_letters)
        self._order = order
        # Topics, input partitions and output partitions stand in the tables by number.
        self._topics = {topic: number for number, topic in enumerate(sorted(partitions))}
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
        self._database.executescript(tables.SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._folder.cleanup()

    def expect(self, record: InputRecord, outputs: Sequence[OutputRecord]) -> None:
        """Add what the transform makes of one input record; each partition in offset order."""
        if not self._expecting:
            raise UsageError("Comparison: all expected outputs come before the first one found")
        source = _number(self._sources, Partition(record.topic, record.partition))
        for output in outputs:
            self._expected[output.topic] += 1
            want = self._placement.wanted(output)
            self._add(
                self._identities.expected(output),
                None if want is None else _number(self._places, Partition(output.topic, want)),
                self._topics[output.topic],
                source,
                record.offset,
                len(outputs),
                output.partition is not None,
            )

    def found(self, record: InputRecord) -> None:
        """Add one record of an output topic; each partition in offset order."""
        if self._expecting:
            self._flush()
            self._expecting = False
            if self._identities.seal():
                self._execute(tables.INDEX)
        self._found[record.topic] += 1
        self._add(
            self._identity_of(record),
            self._topics[record.topic],
            _number(self._places, Partition(record.topic, record.partition)),
            record.offset,
            self._placement.is_astray(record.topic, record.key, record.partition),
        )

    def result(self) -> Compared:
        """Compare; once, at the end. An exception that comes meanwhile, of a signal handler for example, ends it."""
        self._flush()
        self._execute(tables.SPECIAL + tables.MISSING + tables.SURPLUS + tables.MISPLACED)
        differences: dict[str, Counter[Difference]] = {topic: Counter() for topic in self._topics}
        topics, places = list(self._topics), list(self._places)
        for kind, query in tables.COUNTS.items():
            for topic, count in self._beside(partial(self._rows_of, query)):
                differences[topics[topic]][kind] = count
        ordering, first_breaks = Ordering(*self._lookups()), list[Break]()
        if self._order:
            self._execute(tables.STEPS)
            for one in ordering.breaks(self._steps()):
                differences[places[one.place].topic][Difference.REORDERED] += 1
                if len(first_breaks) < _EXAMPLES:
                    first_breaks.append(one)
        return Compared(
            tuple(OutputCount(t, self._expected[t], self._found[t], differences[t]) for t in self._topics),
            torn=self._beside(lambda: sum(1 for _ in self._database.execute(tables.TORN))),
            undecided=ordering.undecided,
            examples=(*self._beside(lambda: tuple(self._examples())), *map(self._reordered, first_breaks)),
        )

    # --- inside ------------------------------------------------------------------------------------------

    def _identity_of(self, record: InputRecord) -> int:
        *specific, last = self._identities.candidates(record)
        for identity in specific:
            if self._rows_of("SELECT 1 FROM expected WHERE id = ? LIMIT 1", identity):
                return identity
        return last

    def _add(self, *row: int | None) -> None:
        self._rows.append(row)
        if len(self._rows) >= _ROWS_PER_INSERT:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            insert = tables.INSERT_EXPECTED if self._expecting else tables.INSERT_FOUND
            self._database.execute("BEGIN")
            self._database.executemany(insert, self._rows)
            self._database.execute("COMMIT")
            self._rows.clear()

    def _execute(self, script: str) -> None:
        self._beside(lambda: self._database.executescript(script))

    def _beside(self, function: Callable[[], T]) -> T:
        """Call a function in another thread: a statement may take minutes, and this thread answers signals meanwhile."""
        with ThreadPoolExecutor(1) as beside:
            done = beside.submit(function)
            try:
                while not wait([done], _INTERRUPTIBLE_S).done:
                    pass
            except BaseException:
                while not wait(
                    [done], _INTERRUPTIBLE_S
                ).done:  # between two statements there is none to interrupt
                    self._database.interrupt()
                raise
            return done.result()

    def _rows_of(self, query: str, *arguments: int) -> list[Any]:
        return self._database.execute(query, arguments).fetchall()

    def _steps(self) -> Iterator[Step]:
        for row in self._database.execute("SELECT * FROM steps ORDER BY rowid"):
            yield Step(*row)

    def _lookups(self) -> tuple[Callable[[int], Sequence[int]], Callable[[int, int, int, int], int | None]]:
        """For `Ordering`, of outputs that are alike: which input partitions make them, and which one follows another."""

        @lru_cache(_ANSWERS_REMEMBERED)
        def sources(identity: int) -> tuple[int, ...]:
            rows = self._rows_of("SELECT DISTINCT source FROM alike WHERE id = ?", identity)
            return tuple(source for (source,) in rows)

        @lru_cache(_ANSWERS_REMEMBERED)
        def following(identity: int, source: int, after: int, place: int) -> int | None:
            rows = self._rows_of(tables.FOLLOWING, identity, source, after, place)
            return rows[0][0] if rows else None

        return sources, following

    def _examples(self) -> Iterator[Example]:
        def first(query: str) -> Iterable[Any]:
            return self._rows_of(f"{query} LIMIT {_EXAMPLES}")

        topics, sources, places = list(self._topics), list(self._sources), list(self._places)
        for topic, source, offset in first("SELECT topic, source, offset FROM missing"):
            text = f"its output in {topics[topic]} was not found"
            yield Example(Difference.LOST, sources[source], offset, text)
        for place, offset in first("SELECT place, offset FROM surplus WHERE known"):
            yield Example(Difference.DUPLICATED, places[place], offset, "found more often than expected")
        for place, offset in first("SELECT place, offset FROM surplus WHERE NOT known"):
            yield Example(Difference.UNEXPECTED, places[place], offset, "no processed input record makes it")
        for source, offset, gone, outputs in first(tables.TORN):
            text = f"{gone} of its {outputs} outputs were not found"
            yield Example(Difference.TORN, sources[source], offset, text)
        for topic, place, offset, want in first("SELECT topic, place, offset, want FROM misplaced"):
            text = "where no key of its hash belongs" if want is None else f"it belongs in {places[want]}"
            text += self._placement.explanation(topics[topic])
            yield Example(Difference.MISPLACED, places[place], offset, text)

    def _reordered(self, one: Break) -> Example:
        text = "behind all that its input partitions make before it, in every way to attribute what is alike"
        if one.expected is not None and one.behind is not None:
            query = "SELECT source, offset FROM expected WHERE seq = ?"
            ((source, own),) = self._rows_of(query, one.expected)
            ((_, later),) = self._rows_of(query, one.behind)
            made_of = f"{list(self._sources)[source]}@{own}"
            text = f"made of {made_of}, it belongs before the output of @{later} that stands before it"
        ((offset,),) = self._rows_of("SELECT offset FROM found WHERE seq = ?", one.found)
        return Example(Difference.REORDERED, list(self._places)[one.place], offset, text)


def _number(numbers: dict[T, int], one: T) -> int:
    return numbers.setdefault(one, len(numbers))

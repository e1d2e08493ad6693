"""BoundChanges: a job's transform, ready to be applied; and how the record is found whose rows the database refuses.

A row is refused when its transaction is filled, which says nothing of the record that it was made of. The transaction is then rolled
back, and its input comes again *carefully*: the changes of each record are tried, in a transaction that is rolled back. There a refusal
counts as raised by the transform, so the poison policy decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.exc import DBAPIError

from eos.core.surroundings import Surroundings
from eos.errors import AbortableError, EosError, UnclassifiedError, reason_of
from eos.headers import legible
from eos.identity import Identity
from eos.records import InputBatch, InputRecord, OutputRefusedError
from eos.settings import Settings
from eos.sql.changes import Batch, Call, Change, Insert, Rows, checked, grouped
from eos.sql.classify import Kind, classify
from eos.sql.destination import ToDatabase, surroundings_of
from eos.sql.engine import engine_of
from eos.sql.headers import to_json
from eos.sql.limits import Limits
from eos.sql.meaning import meaning
from eos.sql.tables import dead_letters
from eos.sql.transaction import begin, check_constraints
from eos.transform import refuse_limit, require_function

_TRIAL = Limits(lock_s=2.0, transaction_s=60.0)
_MAX_REASON_CHARS = 500

PerRecord = Callable[[InputRecord], Iterable[Change]]
PerBatch = Callable[[InputBatch], Iterable[Change | Batch]]
OwnSql = Callable[[Connection, InputBatch], object]


class RowRefused(Exception):  # noqa: N818 - said of a record
    """The database refuses what was made of a record."""


class _TrialOver(Exception):  # noqa: N818 - said of a trial
    """The transaction of a trial has ended, which no record is to blame for."""

    def __init__(self, meant: EosError) -> None:
        super().__init__(str(meant))
        self.meant = meant


class BoundChanges:
    """The calls of `eos.transform.Applied` for a job that writes to a database.

    Args:
        name: the job's.
        tables: that it changes.
        per_record, per_batch, own_sql: one of these.
        identity: the job's.
    """

    reads_topics: ClassVar[Literal[True]] = True
    dead_letters = None  # no topic

    def __init__(
        self,
        name: str,
        tables: Sequence[Table],
        per_record: PerRecord | None,
        per_batch: PerBatch | None,
        own_sql: OwnSql | None,
        *,
        identity: Callable[[Settings], Identity],
    ) -> None:
        for what, function, arguments in (
            ("transform", per_record, ["the record"]),
            ("transform_batch", per_batch, ["the batch"]),
            ("apply", own_sql, ["the connection", "the batch"]),
        ):
            if function is not None:
                require_function(f"SqlJob {name!r}: {what}", function, arguments=arguments)
        self._name = name
        self._tables = tuple(tables)
        self._per_record = per_record
        self._per_batch = per_batch
        self._own_sql = own_sql
        self._identity = identity
        self._shapes: dict[object, Sequence[str]] = {}  # of changes that were found right
        self._group = name
        self._destination: ToDatabase | None = None

    def surroundings(self, settings: Settings) -> Surroundings:
        """Of an owner that writes to the database of the settings."""
        self._group = self._identity(settings).group
        self._destination = ToDatabase(engine_of(settings, app=self._name), own_engine=False)
        return surroundings_of(self._destination)

    def close(self) -> None:
        """Close the connections, once all owners have ended: they share the engine, and it drops those that are in use."""
        if self._destination is not None:
            self._destination.engine.dispose()

    def try_each(self, engine: Engine, group: str) -> None:
        """The changes of each record are tried from now on, as behind a refusal; and dead letters are those of this group."""
        self._group = group
        self._destination = ToDatabase(engine, own_engine=False)
        self._destination.note_refused()

    @property
    def one_fetch_at_a_time(self) -> bool:
        """Whether nothing may be open or in flight while records are transformed: a trial would wait for its locks."""
        return self._destination is not None and self._destination.refused

    @property
    def takes_batches(self) -> bool:
        return self._per_record is None and not self.one_fetch_at_a_time

    def batch(self, batch: InputBatch) -> list[Rows | Call]:
        """What is made of a batch, in statements."""
        if self._own_sql is not None:
            return [Call(self._own_sql, batch)]
        return list(grouped(self._changes_of(batch), self._tables))

    def records(
        self, batch: InputBatch, failed: Callable[[InputRecord, Exception], Iterable[Change]]
    ) -> list[Rows | Call]:
        """The same, record by record; ``failed`` makes those of a record that raised, or whose rows the database refuses.

        Where a row was refused, the statements stay those that were tried, record by record: in those of many records the tables have
        another order, which may be what is refused.
        """
        as_tried = self.one_fetch_at_a_time
        changes: list[Change | Batch] = []
        calls: list[Rows | Call] = []
        with self._trial() as trial:
            for record in batch:
                try:
                    made: list[Change | Batch] = []
                    if self._own_sql is not None:
                        call = Call(self._own_sql, InputBatch.of([record]))
                        trial([call])
                        calls.append(call)
                    else:
                        made = self.changes_of(record)
                        if as_tried:
                            trial(grouped(made, self._tables))
                except OutputRefusedError as error:
                    raise OutputRefusedError(
                        f"{InputBatch.of([record]).place}: {error}", placed=True
                    ) from None
                except _TrialOver as over:
                    raise over.meant from over.meant.__cause__ or over.__cause__
                except Exception as error:  # noqa: BLE001 - the user's code may raise anything, classes of eos too
                    refuse_limit(error, InputBatch.of([record]).place)
                    made = list(failed(record, error))
                if as_tried:
                    calls += grouped(made, self._tables)
                else:
                    changes += made
        return [*calls, *grouped(changes, self._tables)]

    def changes_of(self, record: InputRecord) -> list[Change | Batch]:
        """What is made of one record, by either shape of function."""
        return self._changes_of(InputBatch.of([record]) if self._per_record is None else record)

    def grouped(self, outputs: Sequence[Change | Batch]) -> list[Rows]:
        return grouped(outputs, self._tables)

    def size_of(self, outputs: Sequence[Rows | Call]) -> int:
        return sum(output.size for output in outputs)

    def require_dead_letters(self) -> str:
        """The table that `eos sql tables` makes."""
        return dead_letters.name

    def dead_letter(self, record: InputRecord, error: BaseException) -> Insert:
        """The row for a record that could not be processed."""
        return Insert(
            dead_letters,
            {
                "consumer_group": self._group,
                "app": self._name,
                "topic": record.topic,
                "partition": record.partition,
                "record_offset": record.offset,
                "record_key": record.key,
                "record_value": record.value,
                "headers": to_json(tuple(legible(record.headers))),
                "timestamp_ms": record.timestamp_ms,
                "reason": _storable(reason_of(error)[:_MAX_REASON_CHARS]),
            },
        )

    # --- inside ------------------------------------------------------------------------------------

    def _changes_of(self, given: Any) -> list[Change | Batch]:
        function: Callable[[Any], object]
        if self._per_record is not None:
            function = self._per_record
        elif self._per_batch is not None:
            function, given = self._per_batch, given.as_received()
        else:
            raise UnclassifiedError(f"SqlJob {self._name!r} has no transform")
        return checked(self._name, self._tables, function(given), self._shapes)

    @contextmanager
    def _trial(self) -> Iterator[Callable[[Sequence[Rows | Call]], None]]:
        """Tries statements, one record's after the other's, in a transaction that is rolled back; if no row was refused, it does nothing."""
        destination = self._destination
        if destination is None or not destination.refused:
            yield lambda _: None
            return
        found = over = False
        try:
            with destination.engine.connect() as connection:
                begin(connection, _TRIAL)

                def tried(statements: Sequence[Rows | Call]) -> None:
                    nonlocal found, over
                    try:
                        _try(connection, statements)
                    except RowRefused:
                        found = True
                        raise
                    except _TrialOver:
                        over = True
                        raise

                yield tried
                connection.rollback()
        except DBAPIError as error:  # of the trial's own begin and end
            over = True
            if (meant := meaning(error)) is not None:
                raise meant from meant.__cause__
            raise
        finally:
            if not over:
                destination.looked_for(found=found)


def _try(connection: Connection, statements: Sequence[Rows | Call]) -> None:
    """Run a record's statements, in a transaction that is rolled back later.

    Raises:
        RowRefused: the database refuses a row.
        _TrialOver: the transaction has ended, by a connection that is lost, say.
    """
    try:
        savepoint = connection.begin_nested()
    except Exception as error:
        raise _over(error) from error
    try:
        for one in statements:
            one.apply(connection, lambda _: "")
        check_constraints(connection)
        savepoint.commit()
    except Exception as error:
        try:
            savepoint.rollback()
            connection.exec_driver_sql("SELECT 1")  # a rollback of a connection that is gone raises nothing
        except Exception as another:  # noqa: BLE001 - of the driver, whatever it is
            raise _over(another) from error
        verdict = classify(error)
        if verdict is None:
            raise  # the job's own
        if verdict.kind is Kind.RECORD:
            raise RowRefused(verdict.says) from error


def _storable(reason: str) -> str:
    """A text that any database takes: users' code may raise one with NUL, or with half of a surrogate pair."""
    return reason.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def _over(error: Exception) -> _TrialOver:
    return _TrialOver(
        meaning(error) or AbortableError(f"the database ended a transaction: {type(error).__name__}")
    )

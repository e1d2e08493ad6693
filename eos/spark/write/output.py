"""Output: the columns that become Kafka records, checked on the driver, and their way from Arrow to OutputBatch.

The columns are those of Spark's own Kafka sink, and ``timestamp``: outputs must not depend on the clock of
whichever try comes through.

| column | type | |
|---|---|---|
| value | BINARY or STRING | NULL is a tombstone |
| key | BINARY or STRING | optional; decides the partition by murmur2, as in Java clients |
| topic | STRING | optional if exactly one output is declared |
| partition | INT | optional; overrides the key's choice; NULL leaves it to the key |
| headers | ARRAY<STRUCT<key: STRING, value: BINARY>> | optional |
| timestamp | TIMESTAMP | optional, in milliseconds; NULL takes the client's clock |

Other columns are left out, as Spark's sink does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from eos.errors import UsageError
from eos.headers import Headers
from eos.records import OutputBatch

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, BinaryType | StringType)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType]
    return fields == [("key", StringType), ("value", BinaryType)]


# column -> is the type right, what the type should be, what is sent to the writer
_COLUMNS: dict[str, tuple[Callable[[DataType], bool], str, Callable[[Column], Column]]] = {
    "topic": (lambda kind: isinstance(kind, StringType), "STRING", lambda column: column),
    "key": (_is_bytes, "BINARY or STRING", lambda column: column.cast("binary")),
    "value": (_is_bytes, "BINARY or STRING", lambda column: column.cast("binary")),
    "partition": (lambda kind: isinstance(kind, IntegerType), "INT", lambda column: column),
    "headers": (_is_headers, "ARRAY<STRUCT<key: STRING, value: BINARY>>", lambda column: column),
    "timestamp": (lambda kind: isinstance(kind, TimestampType), "TIMESTAMP", F.unix_millis),
}


@dataclass(frozen=True, slots=True)
class OutputColumns:
    """Which of the columns a transform gives, and to which topics it may write.

    Args:
        outputs: every topic that rows may go to.
        names: the columns that are there.
    """

    outputs: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, frame: DataFrame, outputs: Sequence[str]) -> OutputColumns:
        """The output columns of a transformed DataFrame.

        Raises:
            UsageError: a column is missing, there more than once, or has another type.
        """
        require_once(frame, _COLUMNS)
        kinds = {field.name: field.dataType for field in frame.schema}
        if "value" not in kinds:
            raise UsageError(
                f"the transform returned the columns {', '.join(kinds) or 'none'}, and no 'value'. "
                "Fix: .select('shard', 'key', F.to_json(…).alias('value'))"
            )
        if "topic" not in kinds and len(outputs) != 1:
            raise UsageError(
                f"several outputs are declared ({', '.join(outputs)}) and the transform returned no column 'topic', "
                f"which says where each row goes. Fix: .withColumn('topic', F.lit({outputs[0]!r})); of what goes to "
                "several topics, one frame: a.unionByName(b)"
            )
        names = tuple(name for name in _COLUMNS if name in kinds)
        for name in names:
            fits, wanted, _ = _COLUMNS[name]
            if not fits(kinds[name]):
                raise UsageError(
                    f"the column {name!r} is {kinds[name].simpleString().upper()}; an output needs {wanted}. "
                    "Fix: cast it, or F.to_json(F.struct(…)) for a value of many fields"
                )
        return cls(tuple(outputs), names)

    def select(self, frame: DataFrame, *others: Column) -> DataFrame:
        """These columns of a frame in the types that the writer takes, behind ``others``."""
        return frame.select(*others, *[_COLUMNS[name][2](F.col(name)).alias(name) for name in self.names])

    def batches(self, rows: pa.RecordBatch) -> Iterator[OutputBatch]:
        """Rows as one batch per topic; the rows of a topic keep their order.

        Raises:
            UsageError: a topic is NULL or not declared, or a header has no name.
        """
        if "topic" not in self.names:
            yield self._batch(self.outputs[0], rows)
            return
        for topic in pc.unique(rows.column("topic")).to_pylist():
            if topic not in self.outputs:
                raise UsageError(
                    f"a row has the topic {topic!r}, which is not declared. "
                    f"Fix: add it to outputs (now: {', '.join(self.outputs)})"
                )
            mine = pc.equal(rows.column("topic"), topic)
            yield self._batch(topic, rows if pc.all(mine).as_py() else rows.filter(mine))

    def _batch(self, topic: str, rows: pa.RecordBatch) -> OutputBatch:
        def column(name: str) -> list[Any] | None:
            if name not in self.names:
                return None
            array = rows.column(name)
            return None if array.null_count == len(array) else array.to_pylist()

        return OutputBatch(
            topic,
            column("value") or [None] * rows.num_rows,
            column("key"),
            headers_of(rows.column("headers")) if "headers" in self.names else None,
            column("timestamp"),
            column("partition"),
        )


def require_once(frame: DataFrame, names: Iterable[str]) -> None:
    """Refuse a frame in which one of these names stands for several columns, or for one that is written otherwise.

    Spark finds ``KEY`` by the name ``key``, unless spark.sql.caseSensitive is set; as a column of the output it was left out.

    Raises:
        UsageError: names the column.
    """
    is_exact = frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    for name in names:
        found = [one for one in frame.columns if one == name or (not is_exact and one.lower() == name)]
        if len(found) > 1:
            raise UsageError(
                f"{len(found)} of the columns ({', '.join(frame.columns)}) have the name {name!r}, so it does not show which of "
                f"them is meant. Fix: keep one, for example other.withColumnRenamed({name!r}, …) or other.drop({name!r}) "
                "before a join with other, or joined.drop(other[…]) behind it"
            )
        if found and found != [name]:
            raise UsageError(
                f"the column {found[0]!r} would be left out: as a column of the output it is written {name!r}. "
                f"Fix: .withColumnRenamed({found[0]!r}, {name!r}); or another name, if it is to be left out"
            )


def headers_of(column: pa.Array) -> list[Headers] | None:
    """Per row its headers; None if no row has any."""
    flat = column.flatten()
    if not len(flat):
        return None
    names = flat.field("key").to_pylist()
    if None in names:
        raise UsageError("a header has no name: the 'key' of a header is never NULL")
    pairs = list(zip(names, flat.field("value").to_pylist(), strict=True))
    headers: list[Headers] = []
    start = 0
    for count in pc.list_value_length(column).to_pylist():
        end = start + (count or 0)
        headers.append(tuple(pairs[start:end]))
        start = end
    return headers

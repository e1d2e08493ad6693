"""Placement: where the rows of a run are written, as a person is told of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the rows of a run, or of a stream's batch, are written.

    Attributes:
        in_place: each input partition's rows are written by the task that read them; if not, Spark shuffles them first.
        tasks: how many write.
        moved_by: why they are shuffled: the operator that takes rows out of their task, by its name in Spark's physical plan
            (``"HashAggregate"``, ``"Union"``), ``"commit='batch'"``, ``"sink_shards=4"`` where a stream's input has more
            partitions than a batch may have transactions, or ``"Spark 4.0"``, which can write in no other way. ``""`` in place.
    """

    in_place: bool
    tasks: int
    moved_by: str = ""

    def __str__(self) -> str:
        tasks = f"{self.tasks} task{'' if self.tasks == 1 else 's'}"
        return f"in place, {tasks}" if self.in_place else f"shuffled to {tasks} by {self.moved_by}"

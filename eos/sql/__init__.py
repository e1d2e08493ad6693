"""Exactly once past Kafka: rows and the position of their input in one transaction of a database; and an outbox.

``dialect`` says which databases, ``engine`` connects to one, ``tables`` are those that eos needs there. ``progress`` claims and
moves the positions of a sink by the rules of ``position``, inside the bounds of ``limits``; ``classify`` says what a database's
error is, and ``meaning`` what a session does about it. ``session`` is what users hold; ``destination`` is handed to its owner, whose
transactions come from ``writer`` and ``transaction``. ``job`` is what users declare for `eos run`: ``changes`` are what its transform
returns, which ``copying`` may send at once; ``bound`` applies it. From outside, by ``asking``, ``fitness`` looks whether a job could run,
and ``operated`` shows and sets its positions.

``outbox`` is the table that applications write records to. ``outbox_position`` says where a relay of it stands, and why that is a
snapshot (`eos.sql.snapshot`); ``outbox_read`` reads and prunes, and ``relay_mark`` shows a database that went back. ``outbox_job`` is
what users declare for it; ``relay`` is the loop of a shard, which reads from ``relay_source``, commits a ``relay_entry``, and takes as
much at once as ``relay_pace`` says.
"""

from eos.sql.changes import Delete, DeleteBatch, Insert, InsertBatch, Upsert, UpsertBatch
from eos.sql.job import SqlJob
from eos.sql.outbox import Outbox
from eos.sql.outbox_job import OutboxJob
from eos.sql.session import SqlSession

__all__ = [
    "Delete",
    "DeleteBatch",
    "Insert",
    "InsertBatch",
    "Outbox",
    "OutboxJob",
    "SqlJob",
    "SqlSession",
    "Upsert",
    "UpsertBatch",
]

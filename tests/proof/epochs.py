"""A15: one transactional.id is driven over epoch 32,767, the last one that Kafka's short integer holds.

The coordinator gives a new producer id with epoch 0 instead. The inits up to shortly before it are sent by hand, 1 ms each;
across the boundary goes eos. What was written there says so by itself: the output's log holds producer ids and epochs.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from eos import FencedError, TransactionalProducer
from eos.base.deadline import Deadline
from eos.errors import EosError
from eos.prove.log import batches_in
from eos.testing.proxy.frames import ApiKey
from tests.proof.arena import Arena, shared_arena
from tests.proof.late_packets import judged
from tests.proof.players import ByLoop
from tests.proof.row import Cell, Outcome, Row
from tests.support.observer import create_topics, produce_plain, read_committed, unique
from tests.support.settings import owning, settings_of, shard_of

LAST = 32_766  # 32,767 is what fences the last owner of a producer id
_CONCURRENT = 51
_NOT_YET = {14, 15, 16, _CONCURRENT}
_TIMEOUT_MS = 30_000
_WAIT_S = 60.0
_TURNS = 10  # of owners or transactions, half of them before the boundary
_RECORDS = 5  # of each transaction
_INPUT = 2 * _TURNS * _RECORDS


def raise_epoch(bootstrap: str, transactional_id: str, to: int) -> int:
    """Init the id again and again until its epoch is this; returns how many inits it took."""
    host, _, port = bootstrap.partition(":")
    name = transactional_id.encode()
    body = struct.pack(">h", len(name)) + name + struct.pack(">i", _TIMEOUT_MS)
    request = struct.pack(">hhih", ApiKey.INIT_PRODUCER_ID, 1, 7, -1) + body  # version 1, no client id
    sent, deadline = 0, Deadline(10 * _WAIT_S)
    with socket.create_connection((host, int(port)), timeout=_WAIT_S) as connection:
        while not deadline.passed:
            connection.sendall(struct.pack(">i", len(request)) + request)
            _, _, error, _, epoch = struct.unpack(">iihqh", _answer(connection))
            sent += 1
            if error not in {0, *_NOT_YET}:
                raise RuntimeError(f"InitProducerId of {transactional_id}: error {error}")
            if error == 0 and epoch == to:
                return sent
    raise TimeoutError(f"{transactional_id} did not come to epoch {to}")


def _answer(connection: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", _read(connection, 4))
    return _read(connection, length)


def _read(connection: socket.socket, length: int) -> bytes:
    parts = b""
    while len(parts) < length:
        part = connection.recv(length - len(parts))
        if not part:
            raise ConnectionError("the broker has closed the connection")
        parts += part
    return parts


class _World:
    """Topics of their own, and owners of one partition under one transactional.id."""

    def __init__(self, arena: Arena, **changes: object) -> None:
        self.arena = arena
        self.source, self.out, self.group = unique("in"), unique("out"), unique("epochs")
        create_topics(arena.bootstrap, {self.source: 1, self.out: 4})
        produce_plain(arena.bootstrap, self.source, [b"%d" % n for n in range(_INPUT)])
        self.shard = shard_of("partition", "epochs", self.group, self.source)
        self.settings = settings_of(
            arena.bootstrap,
            input__start="earliest",
            transaction__timeout_ms=_TIMEOUT_MS,
            **changes,
            **owning("partition", self.source),
        )

    def owner(self) -> ByLoop:
        """The next one."""
        owner = ByLoop(self.settings, self.shard, self.source, self.out)
        owner.open()
        return owner

    def commit(self, owner: ByLoop) -> None:
        owner.write(_RECORDS, 0)
        owner.end(committed=True)

    def to_the_brink(self, before: int) -> None:
        """After a commit at the first epochs, so many inits before the last epoch."""
        first = self.owner()
        self.commit(first)
        first.close()
        raise_epoch(self.arena.bootstrap, self.shard.transactional_id, LAST - before)

    def outcome(self, against: Sequence[str] = ()) -> Outcome:
        """What is left of the input is copied, and all of it is judged."""
        self.owner().restart_and_finish()
        ids = written_by(self.arena, self.out)
        found = [*against, *judged(self.arena, self.group, self.source, self.out, _INPUT)]
        if len(ids) < 2:
            found.append(f"the producer id never changed: {ids}")
        return Outcome(faults=int(len(ids) > 1), records=_INPUT, anomalies=found, note=_shown(ids))


def written_by(arena: Arena, topic: str) -> Mapping[int, tuple[int, int]]:
    """Per producer id in a topic's log, its first and its last epoch."""
    found: dict[int, tuple[int, int]] = {}
    for batches in batches_in(arena.kafka, [topic]).values():
        for one in batches:
            low, high = found.get(one.producer_id, (one.epoch, one.epoch))
            found[one.producer_id] = (min(low, one.epoch), max(high, one.epoch))
    return found


def _shown(ids: Mapping[int, tuple[int, int]]) -> str:
    return "; ".join(
        f"producer id {one}: epochs {low:,} to {high:,}" for one, (low, high) in sorted(ids.items())
    )


def reopened(arena: Callable[[], Arena], _: Path) -> Outcome:
    """An owner that reopens its producer before each transaction."""
    world = _World(arena(), transaction__fence_every="transaction")
    world.to_the_brink(_TURNS // 2)
    owner = world.owner()
    for _turn in range(_TURNS):
        world.commit(owner)
    owner.close()
    return world.outcome()


def killed(arena: Callable[[], Arena], _: Path) -> Outcome:
    """Owners that are gone with a transaction open, which the next one's init has to end: two epochs each."""
    world = _World(arena())
    world.to_the_brink(_TURNS)
    for _turn in range(_TURNS):
        owner = world.owner()
        world.commit(owner)
        owner.write(_RECORDS, 1)
        owner.vanish()
    return world.outcome()


def zombie(arena: Callable[[], Arena], _: Path, *, at: int, with_open: bool) -> Outcome:
    """An owner from before the boundary comes back when another one works behind it."""
    world = _World(arena())
    world.to_the_brink(LAST - at + 1)
    old = world.owner()
    world.commit(old)
    if with_open:
        old.write(_RECORDS, 1)
    new = world.owner()
    world.commit(new)
    against = list(_ended(old, with_open=with_open))
    world.commit(new)
    old.close()
    new.close()
    return world.outcome(against)


def _ended(old: ByLoop, *, with_open: bool) -> Iterator[str]:
    """What speaks against an old owner that goes on as the loop would: it has to find that another one came."""
    for turn in range(_TURNS):
        try:
            if turn or not with_open:
                old.write(_RECORDS, 1)
            old.end(committed=True)
        except FencedError:
            return
        except (
            EosError
        ) as error:  # whatever it was: the policy is a new transaction, or a comparison before it
            try:
                old.recover(error)
            except FencedError:
                return
        else:
            yield "the old owner has committed"
            return
    yield "the old owner never found that there is another one"


def output_alone(arena: Callable[[], Arena], _: Path) -> Outcome:
    """A producer without input compares epochs when it reopens, and the new producer id is no other owner."""
    place = arena()
    out, name = unique("out"), unique("epochs")
    create_topics(place.bootstrap, {out: 1})
    settings = settings_of(
        place.bootstrap,
        ownership__ordinal=0,
        transaction__fence_every="transaction",
        transaction__timeout_ms=_TIMEOUT_MS,
    )
    values = [b"%d" % n for n in range(_TURNS)]
    against: list[str] = []
    with TransactionalProducer(settings, app=name) as producer:
        with producer.transaction() as txn:
            txn.produce(out, b"first")
        transactional_id = producer.transactional_id
    raise_epoch(place.bootstrap, transactional_id, LAST - _TURNS // 2)
    with TransactionalProducer(settings, app=name) as producer:
        for value in values:
            with producer.transaction() as txn:
                txn.produce(out, value)
    seen = [record.value for record in read_committed(place.bootstrap, out)]
    if seen != [b"first", *values]:
        against.append(f"found {seen}")
    ids = written_by(place, out)
    if len(ids) < 2:
        against.append(f"the producer id never changed: {ids}")
    return Outcome(faults=int(len(ids) > 1), records=len(seen), anomalies=against, note=_shown(ids))


def _cells() -> Iterator[Cell]:
    for name, run in (
        ("reopened before each transaction", reopened),
        ("owners that vanish with a transaction open", killed),
        ("output alone", output_alone),
    ):
        yield Cell(name=name, run=partial(run, shared_arena), minutes=1)
    for at in (LAST - 1, LAST):
        for with_open in (True, False):
            yield Cell(
                name=f"an owner of epoch {at:,} comes back{' with its transaction open' * with_open}",
                run=partial(zombie, shared_arena, at=at, with_open=with_open),
                minutes=1,
            )


A15 = Row(
    id="A15",
    title="one transactional.id goes over its last epoch, 32,766",
    goal=7,
    counts="crossings",
    cells=_cells,
)

"""A loop of one's own whose process is stopped inside a block, is replaced, and wakes up.

What its block has produced must never be visible, and the replacement must go on committing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eos import EosError, Partition, Session
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import (
    PlainRecord,
    assert_copied,
    committed_offsets,
    produce_plain,
    read_uncommitted,
    unique,
)
from tests.support.patience import PATIENCE_S
from tests.support.processes import Child, running
from tests.support.sessions import wait_delivered

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

STEP = 20  # records per block
SHORT_MS = 6_000  # a session that is to end, or a transaction that is to expire
BLOCKS = 6

OWNER = """
import sys
from tests.faults.test_own_loop_zombies import be_an_owner
be_an_owner(*sys.argv[1:])
"""


def session_of(bootstrap: str, group: str, source: str, out: str, **changes: Any) -> Session:
    by_partition = changes.get("ownership__mode") == "partition"
    if by_partition:
        changes["ownership__partitions"] = [f"{source}:0"]
    return Session(
        settings_for(bootstrap, group=group, input__fetch_records=STEP, **changes),
        app="zombie",
        inputs=[source],
        outputs=[out],
        partition=Partition(source, 0) if by_partition else None,
        until_caught_up=True,
    )


def be_an_owner(
    bootstrap: str, group: str, source: str, out: str, mode: str, go_on: str, timeout_ms: str
) -> None:
    """The loop of docs/guides/own-loop.md; its second block waits for the file ``go_on`` before its last record."""
    nth = 0
    try:
        with session_of(
            bootstrap,
            group,
            source,
            out,
            ownership__mode=mode,
            ownership__session_timeout_ms=SHORT_MS,
            ownership__static_membership=False,
            transaction__timeout_ms=int(timeout_ms),
        ) as session:
            for batch in session:
                nth += 1
                with session.transaction(batch) as txn:
                    for record in batch:
                        txn.produce(out, record.value, key=record.key)
                    if nth == 2:
                        wait_delivered(txn._begun()._client)
                        say("filled")
                        wait_for(Path(go_on))
                say("committed" if txn.committed else "not committed")
    except EosError as error:
        say(f"ended by {type(error).__name__}")
    else:
        say("caught up")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


class World:
    """One input partition that two processes want, and what must come of it."""

    def __init__(self, bootstrap: str, source: str, out: str, go_on: Path) -> None:
        self.bootstrap, self.source, self.out, self.go_on = bootstrap, source, out, go_on
        self.group = unique("zombie")
        produce_plain(bootstrap, source, [PlainRecord(b"%d" % n) for n in range(BLOCKS * STEP)])

    @contextmanager
    def stopped_zombie(self, mode: str, *, timeout_ms: int = 60_000) -> Iterator[Child]:
        """It has committed one block, and has produced the records of a second."""
        names = (self.bootstrap, self.group, self.source, self.out, mode, str(self.go_on))
        with running(OWNER, *names, str(timeout_ms)) as child:
            child.wait_line("filled", PATIENCE_S)
            child.pause()
            assert len(read_uncommitted(self.bootstrap, self.out)) >= 2 * STEP
            yield child

    def wakes_up(self, zombie: Child) -> None:
        zombie.resume()
        self.go_on.touch()

    def committed(self) -> int | None:
        return committed_offsets(self.bootstrap, self.group, [(self.source, 0)])[self.source, 0][0]

    def process(self, session: Session, blocks: int) -> None:
        """Make so many blocks, and commit each."""
        deadline = time.monotonic() + PATIENCE_S
        while blocks:
            assert time.monotonic() < deadline
            batch = session.fetch()
            if batch:
                with session.transaction(batch) as txn:
                    for record in batch:
                        txn.produce(self.out, record.value, key=record.key)
                assert txn.committed
                blocks -= 1

    def check(self) -> None:
        assert_copied(self.bootstrap, self.group, self.source, self.out, BLOCKS * STEP)


@pytest.fixture
def world(bootstrap: str, topic: NewTopic, tmp_path: Path) -> World:
    return World(bootstrap, topic("in"), topic("out"), tmp_path / "go-on")


@pytest.mark.parametrize("mode", ["group", pytest.param("partition", marks=pytest.mark.slow)])
def test_zombie_that_wakes_up_inside_its_block_ends_as_fenced(world: World, mode: str) -> None:
    """Its replacement has the same ordinal or partition, and so the same transactional.id."""
    with world.stopped_zombie(mode) as zombie:
        settings = {"ownership__mode": mode, "ownership__static_membership": False}
        with session_of(world.bootstrap, world.group, world.source, world.out, **settings) as replacement:
            world.process(replacement, 2)
            assert world.committed() == 3 * STEP
            world.wakes_up(zombie)
            zombie.wait_line("ended by FencedError", PATIENCE_S)
            assert zombie.wait(PATIENCE_S) == 0
            assert world.committed() == 3 * STEP
            world.process(replacement, BLOCKS - 3)
    assert zombie.lines.count("committed") == 1
    world.check()


@pytest.mark.parametrize("past", ["its session is over", "its transaction too"])
def test_zombie_whose_partitions_another_member_has_reads_what_is_left_for_it(
    world: World, past: str
) -> None:
    """Another ordinal: no producer is fenced, and the group takes offsets of any live member. Only the session knows."""
    timeout_ms = 60_000 if past == "its session is over" else SHORT_MS
    with world.stopped_zombie("group", timeout_ms=timeout_ms) as zombie:
        stopped_at = time.monotonic()
        dynamic: dict[str, Any] = {
            "ownership__static_membership": False,
            "ownership__session_timeout_ms": SHORT_MS,
            "ownership__ordinal": 1,
        }
        with session_of(world.bootstrap, world.group, world.source, world.out, **dynamic) as other:
            world.process(other, 2)
            assert world.committed() == 3 * STEP
            if timeout_ms == SHORT_MS:
                time.sleep(max(0.0, stopped_at + SHORT_MS / 1_000 - time.monotonic()))
            world.wakes_up(zombie)
            zombie.wait_line("not committed", PATIENCE_S)
            deadline = time.monotonic() + PATIENCE_S
            for batch in other:
                assert time.monotonic() < deadline
                with other.transaction(batch) as txn:
                    for record in batch:
                        txn.produce(world.out, record.value, key=record.key)
        zombie.wait_line("caught up|ended by", PATIENCE_S)
        assert zombie.wait(PATIENCE_S) == 0
    world.check()

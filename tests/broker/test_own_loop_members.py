"""Own loops of several members, and commits whose answer an exception of a signal handler has cut off."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from eos import FencedError, InputBatch, Partition, Session, Settings
from eos.core.producer import ShardProducer
from eos.group.committed import fresh_reader
from eos.kafka.admin import Admin
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import HoldProxy, ends_with
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import (
    PlainRecord,
    assert_copied,
    committed_offsets,
    produce_plain,
    read_committed,
    unique,
)
from tests.support.patience import PATIENCE_S
from tests.support.sessions import producer_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker


class Interrupted(Exception):  # noqa: N818 - as KeyboardInterrupt
    """What the handler raises."""


def turn(session: Session, out: str, before_end: object = None) -> None:
    batch = session.fetch(20, 0.3)
    if batch:
        with session.transaction(batch) as txn:
            for record in batch:
                txn.produce(out, record.value, key=record.key)
            if callable(before_end):
                before_end()


def open_session(settings: Settings, group: str, source: str, out: str, ordinal: int = 0) -> Session:
    return Session(
        settings.model_copy(
            update={"group": group, "ownership": settings.ownership.model_copy(update={"ordinal": ordinal})}
        ),
        app="relay",
        inputs=[source],
        outputs=[out],
    )


@pytest.mark.slow
def test_member_whose_producer_is_reopened_after_a_rebalance_goes_on(bootstrap: str, topic: NewTopic) -> None:
    source, out, group = topic("in", 2), topic("out"), unique("relay")
    settings = settings_for(bootstrap)
    over = threading.Event()
    partitions: dict[int, int] = {}

    def member(ordinal: int) -> None:
        with open_session(settings, group, source, out, ordinal) as session:
            while not over.is_set():
                if len(partitions) == 2 and producer_of(session._owner).state == "ready":
                    producer_of(session._owner)._suspect("as after a connection that broke")
                turn(session, out)
                partitions[ordinal] = len(session.committed_offsets)

    def wait_for(seen: dict[int, int]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while partitions != seen:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    threads = [threading.Thread(target=member, args=(ordinal,)) for ordinal in range(2)]
    produce_plain(bootstrap, source, [PlainRecord(b"%d" % n, partition=n % 2) for n in range(40)])
    try:
        threads[0].start()
        wait_for({0: 2})
        time.sleep(2)
        threads[1].start()
        wait_for({0: 1, 1: 1})
        for _ in range(4):  # both have committed where the other one was
            produce_plain(bootstrap, source, [PlainRecord(b"more", partition=n % 2) for n in range(40)])
            time.sleep(1.5)
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert_copied(bootstrap, group, source, out, 200)


def test_fenced_session_says_who_is_in_its_group(bootstrap: str, topic: NewTopic) -> None:
    source, out, group = topic("in"), topic("out"), unique("relay")
    produce_plain(bootstrap, source, [b"%d" % n for n in range(40)])
    settings = settings_for(bootstrap)
    with open_session(settings, group, source, out) as session:
        while not session.committed_offsets.get(Partition(source, 0)):
            turn(session, out)
        batch = fetched(session)
        before = session.committed_offsets
        with (
            fresh_reader(settings, group, stable=False) as reader,
            ShardProducer(settings, session.shard) as rival,
            rival.transaction() as txn,
        ):
            txn.add_offsets(before, reader.group_metadata())  # the same offsets, of another owner
        (member,) = Admin.of(settings).groups.members(group, PATIENCE_S)
        with pytest.raises(FencedError) as fenced, session.transaction(batch) as txn:
            txn.produce(out, b"of the fenced one")
        with pytest.raises(FencedError) as later:
            for _ in range(20):
                turn(session, out)
        for error in (fenced.value, later.value):
            assert "of which one may be the other owner" in str(error)
            assert str(error).count(str(member)) == 1
        assert session.committed_offsets == before
    stored = committed_offsets(bootstrap, group, [(source, 0)])
    assert stored[source, 0][0] == before[Partition(source, 0)]
    assert b"of the fenced one" not in [record.value for record in read_committed(bootstrap, out)]


def fetched(session: Session) -> InputBatch:
    deadline = time.monotonic() + PATIENCE_S
    while not (batch := session.fetch(20, 0.3)):
        assert time.monotonic() < deadline
    return batch


def test_commit_that_is_interrupted_twice_and_happens_is_not_made_again(
    bootstrap: str, proxy: HoldProxy, topic: NewTopic
) -> None:
    """Ctrl-C, and once more because it takes its time: the answer is lost, and the same objects are used on."""
    source, out, group = topic("in", 2), topic("out"), unique("relay")
    produce_plain(bootstrap, source, [PlainRecord(b"%d" % n, partition=n % 2) for n in range(100)])
    settings = settings_for(proxy.bootstrap_servers)
    main = threading.main_thread().ident
    assert main is not None
    happened = threading.Event()

    def lose_its_answer() -> None:
        proxy.drop_reply(ApiKey.END_TXN, where=ends_with(committed=True), then=lambda _: happened.set())
        threading.Thread(target=interrupt_twice).start()

    def interrupt_twice() -> None:
        happened.wait(PATIENCE_S)
        for _ in range(2):
            signal.pthread_kill(main, signal.SIGUSR1)
            time.sleep(1.5)

    def handler(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with open_session(settings, group, source, out) as session:
            with pytest.raises(Interrupted):
                for _ in range(100):
                    turn(session, out, lose_its_answer if not happened.is_set() else None)
            deadline = time.monotonic() + PATIENCE_S
            while sum(session.committed_offsets.values()) < 100:
                assert time.monotonic() < deadline
                turn(session, out)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert_copied(bootstrap, group, source, out, 100)

"""The group moves on while a record is transformed and what is open is committed beside it: the offsets carry the old generation.

The member's metadata for such a commit is read once for a transaction. The coordinator refuses it when the member has another
generation by then, so nothing is committed, and the input is processed again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from eos.base.deadline import Deadline
from eos.core.pipeline import Pipeline
from eos.errors import AbortableError
from eos.shards import OrdinalShard
from tests.conftest import NewTopic
from tests.support.members import cooperative_member
from tests.support.observer import assert_copied, committed_offsets, load, read_committed, unique
from tests.support.patience import PATIENCE_S
from tests.support.sessions import commit, fill, session_for
from tests.support.settings import settings_of

pytestmark = pytest.mark.broker

AT_ONCE = 0.0


@contextmanager
def another_member(bootstrap: str, group: str, source: str) -> Iterator[None]:
    """A member that has joined, and gets nothing: the group has one partition, which keeps its owner."""
    member = cooperative_member(bootstrap, group)
    over = threading.Event()

    def poll() -> None:
        while not over.is_set():
            member.poll(0.1)

    member.subscribe([source])
    polling = threading.Thread(target=poll)
    polling.start()
    try:
        yield
    finally:
        over.set()
        polling.join()
        member.close()


def moved_on(session: Pipeline, before: object) -> None:
    """Wait until the member has another generation; it polls nothing meanwhile."""
    deadline = Deadline(PATIENCE_S)
    deadline.wait_for(lambda: session.owner.consumer.group_metadata() != before)
    assert session.owner.consumer.group_metadata() != before


def test_offsets_of_an_old_generation_are_refused_and_the_input_is_processed_once(
    bootstrap: str, topic: NewTopic
) -> None:
    source, out, group = topic(), topic(), unique("moved-on")
    load(bootstrap, source, 30)
    settings = settings_of(bootstrap, input__start="earliest")
    with session_for(settings, OrdinalShard("app", group, 0), [source]) as session:
        fill(session, out, 10)
        with session.committing_at(float("inf")):  # the first look of this transaction at the member
            before = session.owner.consumer.group_metadata()
        batch = session.fetch(10, PATIENCE_S, 0.1)
        while not batch:
            batch = session.fetch(10, PATIENCE_S, 0.1)
        with another_member(bootstrap, group, source):
            with session.committing_at(AT_ONCE):
                moved_on(session, before)
                session._overtime.look()
            assert session.owner.committer.committing
            with pytest.raises(AbortableError, match="ILLEGAL_GENERATION") as refused:
                session.owner.committer.join(PATIENCE_S)
            assert read_committed(bootstrap, out) == []
            ((offset, _),) = committed_offsets(bootstrap, group, [(source, 0)]).values()
            assert offset == 0
            session.owner.go_on_after(refused.value)
            fill(session, out, 30)
            commit(session)
    assert_copied(bootstrap, group, source, out, records=30)

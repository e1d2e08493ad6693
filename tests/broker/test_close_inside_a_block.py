"""A session, or a producer, that is closed while a block of it is open: the block is aborted, and what was raised goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from eos import Session, TransactionalProducer, UsageError
from eos.events import Event, PartitionsAssigned
from eos.kafka.admin import Admin
from tests.support.observer import PlainRecord, committed_offsets, produce_plain, read_committed
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker


class TheirsError(Exception):
    """Of the caller's own code."""


@pytest.mark.parametrize("raising", [True, False])
def test_a_session_that_is_closed_inside_its_block_aborts_it_and_leaves_its_group(
    bootstrap: str, topic: NewTopic, names: Callable[[str], str], *, raising: bool
) -> None:
    source, out, app = topic("in"), topic("out"), names("app").replace(".", "-")
    produce_plain(bootstrap, source, [PlainRecord(b"%d" % n) for n in range(5)])
    settings = settings_of(bootstrap, input__start="earliest", ownership__static_membership=False)
    session = Session(settings, app=app, inputs=[source], outputs=[out])
    session.open()

    def work() -> None:
        for batch in session:
            with session.transaction(batch) as txn:
                for record in batch:
                    txn.produce(out, record.value)
                session.close()
                if raising:
                    raise TheirsError

    expected, said = (TheirsError, "^$") if raising else (UsageError, "closed inside a transaction block")
    with pytest.raises(expected, match=said):
        work()
    session.close()  # once more, as `with` does
    assert Admin.of(settings).groups.members(app, 5) == []
    assert read_committed(bootstrap, out) == []
    assert committed_offsets(bootstrap, app, [(source, 0)])[source, 0][0] == 0


def test_a_producer_that_is_closed_inside_its_block_aborts_it_and_lets_the_callers_error_go_on(
    bootstrap: str, topic: NewTopic, names: Callable[[str], str]
) -> None:
    out = topic("out")
    producer = TransactionalProducer(settings_of(bootstrap), app=names("app").replace(".", "-"))
    producer.open()

    def work() -> None:
        with producer.transaction() as txn:
            txn.produce(out, "x")
            producer.close()
            raise TheirsError

    with pytest.raises(TheirsError):
        work()
    producer.close()
    assert read_committed(bootstrap, out) == []


@pytest.mark.parametrize("call", ["fetch", "close"])
def test_fetch_or_close_by_a_listener_inside_a_fetch_is_refused_and_nothing_is_lost(
    bootstrap: str, topic: NewTopic, names: Callable[[str], str], call: str
) -> None:
    """The fetch waited for the end of the callback that it came from, for ever; close() for 15 s."""
    source, out, app = topic("in"), topic("out"), names("app").replace(".", "-")
    produce_plain(bootstrap, source, [PlainRecord(b"0")])
    settings = settings_of(bootstrap, input__start="earliest")
    refused: list[str] = []

    def listener(event: Event) -> None:
        if isinstance(event, PartitionsAssigned):
            with pytest.raises(UsageError) as raised:
                getattr(session, call)()
            refused.append(str(raised.value))

    session = Session(
        settings, app=app, inputs=[source], outputs=[out], listener=listener, until_caught_up=True
    )
    with session:
        for batch in session:
            with session.transaction(batch) as txn:
                for record in batch:
                    txn.produce(out, record.value)
    assert refused
    assert refused[0].startswith(f"{call}(): a fetch of this session is at work")
    assert [record.value for record in read_committed(bootstrap, out)] == [b"0"]
    assert committed_offsets(bootstrap, app, [(source, 0)])[source, 0][0] == 1

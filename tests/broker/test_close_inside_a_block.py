"""A session, or a producer, that is closed while a block of it is open: the block is aborted, and what was raised goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from eos import Session, TransactionalProducer, UsageError
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

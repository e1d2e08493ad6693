"""A request of transaction n that arrives inside the block of transaction n+1 of a loop of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eos import AbortTransaction, Session
from eos.events import Event, ProducerOpened, ProducerSuspect
from eos.offsets import Partition
from eos.testing.proxy.hold_proxy import Hold, HoldProxy
from tests.support.jobs_for_faults import settings_for
from tests.support.late import HOLDS
from tests.support.observer import PlainRecord, assert_copied, produce_plain, unique
from tests.support.patience import PATIENCE_S
from tests.support.sessions import wait_delivered
from tests.support.settings import owning

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

RECORDS = 100  # five blocks of 20


@pytest.mark.parametrize(
    ("mode", "held"),
    [
        ("group", "abort"),
        ("group", "commit"),
        ("group", "offsets"),
        pytest.param("partition", "abort", marks=pytest.mark.slow),
        pytest.param("partition", "commit", marks=pytest.mark.slow),
        pytest.param("partition", "offsets", marks=pytest.mark.slow),
    ],
)
def test_request_that_arrives_inside_the_next_block_changes_nothing(
    proxy: HoldProxy, bootstrap: str, topic: NewTopic, *, mode: str, held: str
) -> None:
    source, out, group = topic("in"), topic("out", 3), unique("late")
    produce_plain(bootstrap, source, [PlainRecord(b"%d" % n) for n in range(RECORDS)])
    settings = settings_for(
        proxy.bootstrap_servers, group=group, input__fetch_records=20, **owning(mode, source)
    )
    told: list[Event] = []
    late: Hold | None = None
    with Session(
        settings,
        app="late",
        inputs=[source],
        outputs=[out],
        partition=Partition(source, 0) if mode == "partition" else None,
        until_caught_up=True,
        listener=told.append,
    ) as session:
        for nth, batch in enumerate(session):
            assert nth < RECORDS
            with session.transaction(batch) as txn:
                half = len(batch) // 2
                for number, record in enumerate(batch):
                    if nth == 2 and number == half:
                        # What the second block sent late arrives between the third's records.
                        wait_delivered(txn._begun()._client)
                        assert late is not None
                        late.wait_held(PATIENCE_S)
                        late.release()
                        late.wait_answer(PATIENCE_S)
                    txn.produce(out, record.value, partition=int(record.value or b"0") % 3)
                if nth == 1:
                    wait_delivered(txn._begun()._client)
                    late = HOLDS[held](proxy)
                    if held == "abort":
                        raise AbortTransaction
    assert [event for event in told if isinstance(event, ProducerSuspect)]
    assert len([event for event in told if isinstance(event, ProducerOpened)]) >= 2
    assert_copied(bootstrap, group, source, out, RECORDS)

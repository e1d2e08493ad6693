"""The late packet under both kinds of ownership: whatever arrives late, each input is processed once.

A session behind the proxy processes three transactions of input. One request of the second is held,
the client sends it again, and the first copy arrives in the middle of the third.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eos import AbortableError
from eos.events import Event, ProducerOpened, ProducerSuspect
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.support.late import HOLDS
from tests.support.observer import assert_copied, produce_plain, unique
from tests.support.patience import PATIENCE_S
from tests.support.sessions import commit, fill, session_for
from tests.support.settings import owning, settings_of, shard_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

HALF = 10  # records of half a transaction
INPUT = 6 * HALF


@pytest.mark.parametrize(
    ("mode", "held"),
    [
        ("partition", "abort"),
        ("group", "commit"),
        ("partition", "offsets"),
        pytest.param("group", "abort", marks=pytest.mark.slow),
        pytest.param("partition", "commit", marks=pytest.mark.slow),
        pytest.param("group", "offsets", marks=pytest.mark.slow),
    ],
)
def test_request_that_arrives_in_the_middle_of_the_next_transaction_changes_nothing(
    proxy: HoldProxy, bootstrap: str, topic: NewTopic, *, mode: str, held: str
) -> None:
    source, out, group = topic("in"), topic("out", 3), unique("late")
    produce_plain(bootstrap, source, [b"%d" % n for n in range(INPUT)])
    told: list[Event] = []
    settings = settings_of(proxy.bootstrap_servers, input__start="earliest", **owning(mode, source))
    shard = shard_of(mode, "late", group, source)
    with session_for(settings, shard, [source], listener=told.append) as session:
        fill(session, out, HALF, partitions=3)
        fill(session, out, HALF, partitions=3)
        commit(session)
        late = HOLDS[held](proxy)
        fill(session, out, HALF, partitions=3)
        fill(session, out, HALF, partitions=3)
        if held == "abort":
            session.owner.recover(AbortableError("a test"))
        else:
            commit(session)
        assert [event for event in told if isinstance(event, ProducerSuspect)]
        fill(session, out, HALF, partitions=3)
        late.wait_held(PATIENCE_S)
        late.release()
        late.wait_answer(PATIENCE_S)
        fill(session, out, HALF, partitions=3)
        commit(session)
        if held == "abort":
            fill(session, out, HALF, partitions=3)
            fill(session, out, HALF, partitions=3)
            commit(session)
    assert len([event for event in told if isinstance(event, ProducerOpened)]) >= 2
    assert_copied(bootstrap, group, source, out, INPUT)

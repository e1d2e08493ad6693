"""Offsets that a broker before 4.0 has forgotten, because a late copy of older ones came in between, are committed again."""

from __future__ import annotations

from pathlib import Path

import pytest

from eos.testing.proxy import ApiKey
from tests.proof.arena import kafka_of, shared_arena
from tests.proof.late_packets import ours
from tests.proof.late_script import Late

LAST_3 = "3.9.2"


@pytest.mark.slow  # another Kafka is fetched and started
@pytest.mark.parametrize("mode", ["group", "partition"])
def test_offsets_that_came_late_at_an_old_coordinator_do_not_take_those_of_the_next_transaction_along(
    mode: str, tmp_path: Path
) -> None:
    try:
        kafka_of(LAST_3)
    except LookupError as missing:
        pytest.skip(str(missing))
    # Commits, and the copy arrives behind the next transaction's offsets.
    late = Late(
        request=ApiKey.TXN_OFFSET_COMMIT, commits=True, same=True, mode=mode, signs=mode == "group", seed=20
    )
    found = ours(late, lambda: shared_arena(LAST_3), tmp_path)
    assert found.faults == 1
    assert not found.anomalies

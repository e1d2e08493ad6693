"""Offsets that another job or another mode of ownership has committed are refused, unless a person adopts them."""

from __future__ import annotations

import pytest

from eos.errors import ConfigError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.guards.owners import refuse_foreign
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from tests.support.settings import settings_of

P0 = Partition("in", 0)


def look(
    app: str = "mine",
    mode: OwnershipMode = OwnershipMode.GROUP,
    *,
    me: str | None = "mine",
    adopt: bool = False,
) -> None:
    stored = {P0: Committed(7, str(OffsetMetadata(mode, "#0", app=app)))}
    refuse_foreign(
        settings_of("nowhere:1", ownership__adopt_offsets=adopt), "g", stored, OwnershipMode.GROUP, me
    )


def test_own_offsets_and_those_that_name_no_job_are_taken() -> None:
    look()
    look("")
    look("another", me=None)  # a reader that is no job


def test_offsets_of_another_job_are_refused_unless_a_person_adopts_them() -> None:
    with pytest.raises(ConfigError, match=r"in\[0\].*committed by the job 'another'.*--adopt-offsets"):
        look("another")
    look("another", adopt=True)


@pytest.mark.parametrize("mode", [OwnershipMode.PARTITION, OwnershipMode.BATCH, OwnershipMode.SINK])
def test_offsets_of_another_mode_are_refused_unless_a_person_adopts_them(mode: OwnershipMode) -> None:
    with pytest.raises(ConfigError, match="neither fences the other"):
        look(mode=mode)
    look(mode=mode, adopt=True)


def test_offsets_of_an_older_start_policy_are_everyones() -> None:
    look(mode=OwnershipMode.START)

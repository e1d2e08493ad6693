"""Offsets that another job, mode of ownership or program has committed are refused, unless a person adopts them."""

from __future__ import annotations

import pytest

from eos.core.surroundings import TakeOver
from eos.errors import ConfigError
from eos.group import others
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.group.mirror import MIRROR
from eos.group.offset_history import Before
from eos.group.others import refuse_copied, refuse_others
from eos.guards.owners import refuse_foreign, refuse_moved
from eos.guards.takeover import foreign
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from tests.support.settings import settings_of

P0 = Partition("in", 0)


def taking_over(stored: dict[Partition, Committed]) -> TakeOver:
    return TakeOver(
        group="g",
        mode=OwnershipMode.GROUP,
        app="mine",
        partitions=[P0],
        stored=stored,
        positions=OffsetVector(),
        topic_ids={},
        known_ids=set(),
        entered={},
    )


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


# --- moved to another group --------------------------------------------------------------------------


def left(app: str = "mine") -> dict[Partition, Committed]:
    return {P0: Committed(7, str(OffsetMetadata(OwnershipMode.GROUP, "#0", app=app).moved("other group")))}


def test_group_whose_offsets_were_moved_is_refused_and_the_other_one_is_named() -> None:
    with pytest.raises(
        ConfigError,
        match=r"in\[0\].*'g' were copied to the group 'other group'.*--from-group 'other group'.*--to in:0@7\b",
    ):
        refuse_moved("g", left(), "mine")
    refuse_moved("g", left("another"), "mine")  # it is refused as another job's
    refuse_moved("g", left(), None)  # a reader that is no job


def test_owner_that_finds_moved_offsets_in_a_takeover_is_refused_also_where_settings_adopt_offsets() -> None:
    """It had opened its shard before they were moved, and looked at them behind that."""
    with pytest.raises(ConfigError, match="copied to the group 'other group'"):
        foreign(settings_of("nowhere:1", ownership__adopt_offsets=True), taking_over(left()))


# --- of another program ------------------------------------------------------------------------------

P1 = Partition("in", 1)
THEIRS = Committed(9, "")
OURS = Committed(7, str(OffsetMetadata(OwnershipMode.GROUP, "#0", app="mine")))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> dict[Partition, Before]:
    """What the log of the group's offsets shows."""
    shown = {P0: Before(None, None, 1_000), P1: Before(5, 2_000, 3_000)}
    monkeypatch.setattr(
        others, "before", lambda _settings, _group, partitions, **_: {p: shown[p] for p in partitions}
    )
    return shown


def test_offsets_of_another_program_are_refused_with_what_is_known_of_them(
    log: dict[Partition, Before],
) -> None:
    def refusal(stored: dict[Partition, Committed]) -> str:
        with pytest.raises(ConfigError) as refused:
            refuse_others(settings_of("nowhere:1"), "g", stored)
        return str(refused.value)

    refuse_others(settings_of("nowhere:1"), "g", {P0: OURS})
    found = refusal({P0: THEIRS, P1: OURS})
    assert found.startswith(
        "in[0]: the group 'g' has the offset 9, which eos has not committed (1970-01-01T00:00:01Z). Whether eos has committed there "
        "before, the log of the group's offsets does not show. Another program was a member of the group, or has set it: what lies "
        "between may not be processed. Fix: "
    )
    assert "--to in:0@N; N: behind the last record whose output is there); or" in found
    found = refusal({P1: THEIRS})
    assert "The last one of eos's there is 5 (1970-01-01T00:00:02Z). " in found
    assert "--to in:1@5)" in found
    assert "and of 1 other partition." in refusal({P0: THEIRS, P1: THEIRS})
    assert "--to in:0@N,in:1@5; N: " in refusal({P0: THEIRS, P1: THEIRS})
    log[P1] = Before(9, 2_000, 3_000)
    assert "has set it: but nothing lies between the two. Fix: " in refusal({P1: THEIRS})


def test_a_mirror_of_positions_is_no_offset_to_begin_at(log: dict[Partition, Before]) -> None:
    with pytest.raises(ConfigError, match="only repeats a position of a database"):
        refuse_others(settings_of("nowhere:1"), "g", {P0: Committed(9, MIRROR)})


@pytest.mark.parametrize("adopt", [False, True])
def test_offsets_of_another_program_are_refused_at_a_takeover_whatever_was_adopted_at_the_start(
    log: dict[Partition, Before], *, adopt: bool
) -> None:
    def take_over(stored: dict[Partition, Committed]) -> None:
        foreign(settings_of("nowhere:1", ownership__adopt_offsets=adopt), taking_over(stored))

    take_over({P0: OURS, P1: THEIRS})
    with pytest.raises(ConfigError, match=r"in\[0\].* which eos has not committed"):
        take_over({P0: THEIRS})


def test_another_programs_offsets_are_not_copied_unless_a_person_adopts_them(
    log: dict[Partition, Before],
) -> None:
    """They were, where the log of the group's offsets could not be read, which was taken for a group without any of eos's."""

    def copy(copied: dict[Partition, Committed], *, adopt: bool = False) -> None:
        refuse_copied(settings_of("nowhere:1", ownership__adopt_offsets=adopt), "g", copied)

    copy({P0: OURS})
    for theirs in ({P0: THEIRS}, {P0: THEIRS, P1: OURS}, {P1: THEIRS}):
        with pytest.raises(ConfigError, match=r"which eos has not committed"):
            copy(theirs)
        copy(theirs, adopt=True)
    with pytest.raises(ConfigError, match=r"--to in:0@7,in:1@5\b"):  # all that the new group needs
        copy({P0: OURS, P1: THEIRS})

"""Offsets that another job, mode of ownership or program has committed are refused, unless a person adopts them."""

from __future__ import annotations

import pytest

from eos.core.surroundings import TakeOver
from eos.errors import ConfigError
from eos.group import others
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.group.mirror import MIRROR
from eos.group.offset_history import Before
from eos.guards.owners import adopted, refuse_foreign, refuse_mixed
from eos.guards.takeover import foreign
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
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


def start(stored: dict[Partition, Committed], *, adopt: bool = False) -> dict[Partition, Committed]:
    told: list[OffsetVector] = []
    settings = settings_of("nowhere:1", ownership__adopt_offsets=adopt)
    found = adopted(settings, "g", stored, told.append, own=[P0, P1])
    assert [dict(one) for one in told] == ([{p: one.offset for p, one in found.items()}] if found else [])
    return found


def test_offsets_of_another_program_are_refused_at_a_start_unless_a_person_adopts_them(
    log: dict[Partition, Before],
) -> None:
    assert start({P0: OURS}) == {}
    with pytest.raises(ConfigError) as refused:
        start({P0: THEIRS, P1: OURS})
    assert str(refused.value).startswith(
        "in[0]: the group 'g' has the offset 9, which eos has not committed (1970-01-01T00:00:01Z). Whether eos has committed there "
        "before, the log of the group's offsets does not show. Another program"
    )
    assert "--to TOPIC:N@OFFSET,…" in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        start({P1: THEIRS})
    assert "The last one of eos's there is 5 (1970-01-01T00:00:02Z). " in str(refused.value)
    assert "--to in:1@5)" in str(refused.value)
    with pytest.raises(ConfigError, match=r"and of 1 other partition\."):
        start({P0: THEIRS, P1: THEIRS})
    assert start({P0: THEIRS, P1: OURS}, adopt=True) == {P0: THEIRS}
    assert start({P0: OURS}, adopt=True) == {}


@pytest.mark.parametrize("adopt", [False, True])
def test_a_mirror_of_positions_is_no_offset_to_begin_at(log: dict[Partition, Before], *, adopt: bool) -> None:
    with pytest.raises(ConfigError, match="only repeats a position of a database"):
        start({P0: Committed(9, MIRROR)}, adopt=adopt)


def take_over(
    stored: dict[Partition, Committed],
    *,
    adopted: dict[Partition, Committed] | None = None,
    own: dict[Partition, int] | None = None,
) -> None:
    found = TakeOver(
        group="g",
        mode=OwnershipMode.GROUP,
        app="mine",
        partitions=[P0],
        stored=stored,
        positions=OffsetVector(),
        topic_ids={},
        known_ids=set(),
        adopted=adopted or {},
        last_own=own or {},
    )
    foreign(settings_of("nowhere:1", ownership__adopt_offsets=True), found)


def test_offsets_of_another_program_are_taken_over_only_as_they_were_adopted_at_the_start() -> None:
    take_over({P0: OURS})
    take_over({P0: THEIRS, P1: Committed(1, "")}, adopted={P0: THEIRS})
    with pytest.raises(ConfigError, match=r"in\[0\].* which eos has not committed\. Another program"):
        take_over({P0: THEIRS})
    with pytest.raises(ConfigError, match=r"offset 10, .*The last one of eos's there is 8\. "):
        take_over({P0: Committed(10, "")}, adopted={P0: THEIRS}, own={P0: 8})


def test_a_group_of_which_a_part_is_another_programs_is_not_copied_unless_a_person_adopts_it(
    log: dict[Partition, Before],
) -> None:
    def copy(stored: dict[Partition, Committed], *, adopt: bool = False) -> None:
        refuse_mixed(settings_of("nowhere:1", ownership__adopt_offsets=adopt), "g", stored)

    copy({P0: OURS})
    copy({P0: THEIRS, P1: THEIRS})
    with pytest.raises(ConfigError, match=r"in\[0\].*which eos has not committed"):
        copy({P0: THEIRS, P1: OURS})
    copy({P0: THEIRS, P1: OURS}, adopt=True)

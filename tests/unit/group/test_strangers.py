"""Which members of a group are instances of a job."""

from __future__ import annotations

import pytest

from eos.group.strangers import strangers
from eos.kafka.config import consumer_config
from eos.kafka.groups import Member
from eos.offsets import Partition
from eos.settings import Settings
from tests.support.settings import settings_of

SETTINGS = settings_of("nowhere:1")
INPUTS = [Partition("in", 0), Partition("in", 1)]


def member(client_id: str = "rdkafka", instance_id: str = "") -> Member:
    return Member(client_id, instance_id, "10.0.0.7", ())


def found(one: Member, group: str = "refunds", settings: Settings = SETTINGS) -> bool:
    """Whether it is a stranger."""
    return strangers(settings, group, [one], owned_by_members=True) == [one]


@pytest.mark.parametrize("group", ["refunds", "a group/with ü", "g" * 260])
@pytest.mark.parametrize("inputs", [[], INPUTS])
@pytest.mark.parametrize("ordinal", [0, 4711])
def test_static_instance_is_known_by_its_name_whatever_its_client_id(
    group: str, inputs: list[Partition], ordinal: int
) -> None:
    name = consumer_config(SETTINGS, group, ordinal, inputs)["group.instance.id"]
    assert not found(member(instance_id=name), group)
    assert not found(member(instance_id=f"{name}.3f0a"), group)  # joined anew
    assert found(member(instance_id=f"another-{ordinal}"), group)


def test_dynamic_instance_is_known_by_the_client_id_that_its_settings_give_it() -> None:
    assert not found(member(str(consumer_config(SETTINGS, "refunds", None)["client.id"])))
    named = settings_of(
        "nowhere:1", kafka__consumer={"client.id": "mine"}, kafka__client={"client.id": "less"}
    )
    assert consumer_config(named, "refunds", None)["client.id"] == "mine"
    assert not found(member("mine"), settings=named)
    assert found(member("less"), settings=named)
    assert found(member("eos"), settings=named)
    for given, known in (("", "rdkafka"), (" padded ", "padded ")):
        assert not found(member(known), settings=settings_of("nowhere:1", kafka__client={"client.id": given}))
    assert not found(member("less"), settings=settings_of("nowhere:1", kafka__client={"client.id": "less"}))


@pytest.mark.parametrize(
    "one",
    [
        member("console-consumer"),
        member("rdkafka"),
        member("consumer-refunds-1", "refunds"),
        member("consumer-refunds-1", "refunds-blue"),
        member("consumer-refunds-1", "refunds-blue-1"),
    ],
)
def test_others_are_strangers(one: Member) -> None:
    assert found(one)


def test_where_owners_are_no_members_every_member_is_a_stranger() -> None:
    one = member("eos")
    assert strangers(SETTINGS, "refunds", [one], owned_by_members=False) == [one]

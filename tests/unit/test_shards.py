"""Shard and transactional.id are inverse, and nothing else parses."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eos.errors import ConfigError
from eos.offsets import Partition
from eos.shards import (
    BatchShard,
    OrdinalShard,
    PartitionShard,
    Shard,
    SinkShard,
    StartShard,
    parse_transactional_id,
    shard_prefix,
)

CASES = settings(max_examples=40, deadline=None)

LETTERS = "abcxyzABCXYZ0123456789_-"
apps = st.text(LETTERS, min_size=1, max_size=60)
topics = st.text(f"{LETTERS}.", min_size=1, max_size=249)
groups = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=50)
partition_shards = st.builds(
    PartitionShard, apps, groups, st.builds(Partition, topics, st.integers(0, 100_000))
)
ordinal_shards = st.builds(OrdinalShard, apps, groups, st.integers(0, 999_999))
sink_shards = st.builds(SinkShard, apps, groups, st.integers(0, 999_999))
shards: st.SearchStrategy[Shard] = st.one_of(
    partition_shards,
    ordinal_shards,
    sink_shards,
    st.builds(BatchShard, apps, groups),
    st.builds(StartShard, apps, groups),
)


@given(shards)
@example(PartitionShard("app", "g", Partition("i.0.p.in.1", 2)))
@example(PartitionShard("app", "g.i.0", Partition("..", 0)))
@example(OrdinalShard("app", "a.b%2E c/~", 0))
@CASES
def test_id_parses_back_to_the_shard_it_was_built_from(shard: Shard) -> None:
    assert parse_transactional_id(shard.transactional_id) == shard


@given(st.text(max_size=30) | st.from_regex(r"[a-z%2E]{1,3}\.[a-z%2E]{1,6}\.[piosb]\.[a-z0-9.]{0,9}"))
@example("app.g.i.007")
@example("app.g.i.٣")
@example("app.%67.i.0")  # an escape that we would not write
@example("app.%FF.i.0")  # not UTF-8
@example("app.g.i.1000000")
@example("app.g.p.0")
@example("app.g.p.in.-1")
@example("app.g.s.other")
@example("app.g.b.other")
@example("app.g.o.-1")
@example("...")
@CASES
def test_text_is_an_id_only_as_we_build_it(text: str) -> None:
    try:
        shard = parse_transactional_id(text)
    except ConfigError:
        return
    assert shard.transactional_id == text


@pytest.mark.parametrize("kind", ["i.", "o.", "p.in."])
def test_number_beyond_what_python_converts_is_not_an_id(kind: str) -> None:
    """int() raises ValueError from 4301 digits on; the id may come from an operator's command line."""
    with pytest.raises(ConfigError):
        parse_transactional_id(f"app.g.{kind}{'1' * 5000}")


@given(shards)
@CASES
def test_every_id_begins_with_the_prefix_of_its_access_rules(shard: Shard) -> None:
    assert shard.transactional_id.startswith(shard_prefix(shard.app, shard.group))


# Names that begin alike, and groups that hold the separator or its escape.
alike = st.builds(
    OrdinalShard,
    st.sampled_from(["a", "ab", "a-b"]),
    st.sampled_from(["g", "g.i", "g%2Ei", "g.", "gg"]),
    st.integers(0, 9),
)


@given(alike, alike | shards)
@CASES
def test_prefix_reaches_no_shard_of_another_app_or_group(one: Shard, other: Shard) -> None:
    same = (one.app, one.group) == (other.app, other.group)
    assert other.transactional_id.startswith(shard_prefix(one.app, one.group)) == same


@pytest.mark.parametrize("app", ["", "a.b", "a b", "ä", "a" * 61])
def test_app_that_could_blur_the_fields_is_refused(app: str) -> None:
    with pytest.raises(ConfigError, match="app name"):
        OrdinalShard(app, "g", 0)


@pytest.mark.parametrize("group", ["", "a\nb", "\x00", "\ud800", "grüße", "集団"])
def test_group_that_no_transaction_could_commit_to_is_refused(group: str) -> None:
    with pytest.raises(ConfigError, match="group"):
        StartShard("app", group)


@pytest.mark.parametrize("ordinal", [-1, 1_000_000, 1_732_000_000])
def test_number_that_does_not_count_instances_is_refused(ordinal: int) -> None:
    with pytest.raises(ConfigError, match="EOS_ORDINAL"):
        OrdinalShard("app", "g", ordinal)


@pytest.mark.parametrize("partition", [Partition("in put", 0), Partition("", 0), Partition("in", -1)])
def test_partition_that_kafka_cannot_have_is_refused(partition: Partition) -> None:
    with pytest.raises(ConfigError):
        PartitionShard("app", "g", partition)


def test_id_longer_than_the_broker_takes_is_refused_with_the_fix() -> None:
    with pytest.raises(ConfigError, match="shorten"):
        OrdinalShard("app", "/" * 400, 0)


def test_shown_form_has_no_blanks() -> None:
    """It is a field of the offset metadata, which is cut at blanks."""
    shown = [
        str(PartitionShard("app", "a b", Partition("in", 3))),
        str(OrdinalShard("app", "a b", 7)),
        str(StartShard("app", "a b")),
    ]
    assert shown == ["in[3]", "#7", "start"]

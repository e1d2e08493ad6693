"""Topics as the cluster knows them: whether they exist, and their ids, compared with those of the topics that offsets count in.

A topic that is deleted and created anew keeps its name. librdkafka then fetches from the old position in the new log, and
the coordinator accepts the offsets (measured: the first 100 of 310 new records were never processed, without an error). Only
the id differs (KIP-516). So the id is read before the offsets when partitions are taken over, is stored with every committed
offset, and is read again between the fetch of records and the commit of their offsets. So is that of outputs, which a producer
goes on writing to in the same way (`eos.core.topics_used`). All readers of a process share one
client: about 0.3 ms of processor time for a topic of 12 partitions, 4 ms for 500.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from eos import retry
from eos.base.calls import Call
from eos.base.commands import suggested
from eos.base.deadline import Deadline
from eos.errors import ConfigError, OffsetGapError, RetriableError
from eos.group.metadata import OffsetMetadata
from eos.kafka.admin import Admin, TopicShape, shared_admin
from eos.kafka.classify import no_topic
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings

T = TypeVar("T")

CALL_S = 1.0  # of the first try; short, because the next one may ask another broker
_LONGEST_S = 16.0
_APPEAR_S = 3.0  # how long a broker's metadata may be behind
_APPEAR_AGAIN_S = 5.0  # of topics that were there a moment ago
_AGREE_S = 1.0  # for which brokers have to tell another id of a topic
_AGREE_PAUSE_S = 0.1


def known_topics(
    admin: Admin,
    topics: Collection[str],
    *,
    timeout_s: float,
    appear_s: float = _APPEAR_S,
    hidden: Iterable[str] = (),
) -> dict[str, TopicShape]:
    """The shapes of those of these topics that exist.

    Args:
        admin: the client that asks.
        topics: which; while one is missing, the cluster is asked again.
        timeout_s: for an answer, in seconds.
        appear_s: after so many seconds a topic counts as missing.
        hidden: as of `Admin.topics`.

    Raises:
        UnavailableError: no answer in ``timeout_s``.
        ConfigError: access was refused.
    """
    may_be_hidden = tuple(hidden)
    return _until_known(
        lambda slice_s: admin.topics(topics, slice_s, hidden=may_be_hidden), topics, timeout_s, appear_s
    )


def _until_known(
    ask: Callable[[float], dict[str, T]],
    topics: Collection[str],
    timeout_s: float,
    appear_s: float,
    slice_s: float = CALL_S,
) -> dict[str, T]:
    """The answer that has all the topics, or, after these seconds, whichever there is."""
    deadline, appears = Deadline(timeout_s), Deadline(min(appear_s, timeout_s / 2))

    def again(slice_s: float) -> dict[str, T]:
        answer = ask(slice_s)
        if (missing := sorted(set(topics) - answer.keys())) and not appears.passed:
            raise RetriableError(f"topic {', '.join(missing)} does not exist at the broker that was asked")
        return answer

    # Short slices at first: each one may ask another broker, and the first may be up without answering.
    return retry.resume(Call.METADATA, again, deadline=deadline, slice_s=slice_s, grows=True)


def known_partitions(admin: Admin, topics: Collection[str], *, timeout_s: float) -> list[Partition]:
    """Every partition of these topics, in their order.

    Raises:
        ConfigError: a topic does not exist, or access was refused.
        UnavailableError: no answer in ``timeout_s``.
    """
    shapes = known_topics(admin, topics, timeout_s=timeout_s) if topics else {}
    if missing := [topic for topic in topics if topic not in shapes]:
        raise no_topic(*missing)
    return [Partition(topic, number) for topic in topics for number in range(shapes[topic].partitions)]


class TopicIds:
    """Reads the ids of topics.

    Args:
        settings: how to reach the cluster.

    Attributes:
        first_s: how long the next question's first try waits: where brokers are slow, as long as they need. A client that has had no
            answer is replaced, and the new one has to connect before it asks.
    """

    def __init__(self, settings: Settings) -> None:
        self.first_s = CALL_S
        self._settings = settings
        self._admin: Admin | None = None

    def now(self, topics: Iterable[str], timeout_s: float) -> dict[str, str]:
        """The ids of the topics that exist.

        Raises:
            RetriableError: no answer in time.
            ConfigError: access was refused.
        """
        self._admin = self._admin or shared_admin(self._settings)
        began = time.monotonic()
        try:
            shapes = self._admin.topics(topics, timeout_s)
        finally:
            self.first_s = min(_LONGEST_S, max(CALL_S, 2 * (time.monotonic() - began)))
        return {topic: shape.topic_id for topic, shape in shapes.items()}

    def soon(self, topics: Collection[str], *, timeout_s: float) -> dict[str, str]:
        """The ids of the topics that exist; one that is missing is waited for, for a moment: it may be created anew.

        Raises:
            UnavailableError: no answer in ``timeout_s``.
            ConfigError: access was refused.
        """
        return _until_known(
            lambda slice_s: self.now(topics, slice_s), topics, timeout_s, _APPEAR_AGAIN_S, self.first_s
        )

    def of(
        self,
        topics: Collection[str],
        *,
        timeout_s: float,
        gone: Callable[[Iterable[str]], ConfigError] | None = None,
    ) -> dict[str, str]:
        """The ids of topics that all existed a moment ago; ``gone`` makes the error for missing ones that are not all inputs.

        Raises:
            UnavailableError: no answer in ``timeout_s``.
            ConfigError: a topic was deleted, or access was refused.
        """
        ids = self.soon(topics, timeout_s=timeout_s)
        if missing := set(topics) - ids.keys():
            raise (gone or deleted)(missing)
        return ids

    def agreed(
        self, expected: Collection[tuple[str, str]], ids: Mapping[str, str], *, timeout_s: float
    ) -> Mapping[str, str]:
        """As :func:`agreed_ids`, asked as :meth:`soon` does."""
        return agreed_ids(expected, ids, self._again(expected, timeout_s))

    def refuse_recreated(
        self, expected: Collection[tuple[str, str]], ids: Mapping[str, str], *, timeout_s: float
    ) -> None:
        """As :func:`refuse_where_agreed`, asked as :meth:`soon` does."""
        refuse_where_agreed(expected, ids, self._again(expected, timeout_s))

    def _again(
        self, expected: Collection[tuple[str, str]], timeout_s: float
    ) -> Callable[[], Mapping[str, str]]:
        return lambda: self.soon({topic for topic, _ in expected}, timeout_s=timeout_s)


def deleted(missing: Iterable[str]) -> ConfigError:
    """The error for input topics that were deleted while the job ran."""
    return ConfigError(
        f"an input topic was deleted while the job ran: {_named(missing)} does not exist. Kafka deletes the group's "
        "offsets with it. Fix: if it is created anew, start once with input.start = 'earliest' (--start earliest)"
    )


def refuse_where_agreed(
    expected: Collection[tuple[str, str]], ids: Mapping[str, str], ask: Callable[[], Mapping[str, str]]
) -> None:
    """As :func:`refuse_recreated`, where the brokers tell the other id for a moment: one may be behind, and tell a former id.

    Args:
        expected: as there.
        ids: that a broker has told.
        ask: asks again, mostly another broker.

    Raises:
        OffsetGapError: a topic was deleted and created anew.
        RetriableError: one broker has told another id, and one the expected one; which is behind is not known.
    """
    agreed = agreed_ids(expected, ids, ask)
    refuse_recreated(expected, agreed)
    if agreed is not ids:  # asked again: the first answer told another id
        raise RetriableError("brokers tell different ids of a topic: one of them is behind")


def agreed_ids(
    expected: Collection[tuple[str, str]], ids: Mapping[str, str], ask: Callable[[], Mapping[str, str]]
) -> Mapping[str, str]:
    """These ids; where one is not the expected one, those that are told as soon as all are, or a moment later."""
    deadline = Deadline(_AGREE_S)
    while any(topic_id and ids.get(topic) not in {None, "", topic_id} for topic, topic_id in expected):
        if deadline.passed:
            break
        time.sleep(_AGREE_PAUSE_S)
        ids = {**ids, **ask()}
    return ids


def _named(topics: Iterable[str]) -> str:
    return f"topic {', '.join(sorted(topics))}"


def stored_topic_ids(
    stored: Mapping[Partition, Committed | None], *, with_more: bool = False
) -> set[tuple[str, str]]:
    """(topic, id) from the metadata of committed offsets; offsets without an id are left out.

    ``with_more``: also where more stands behind it, as in the ledger of a stream.
    """
    # A commit writes one text for all partitions of a topic: 500 of them took 3.8 ms of each commit.
    texts = {(p.topic, committed.metadata) for p, committed in stored.items() if committed is not None}
    parsed = ((topic, OffsetMetadata.parse(text, with_more=with_more)) for topic, text in texts)
    return {(topic, metadata.topic) for topic, metadata in parsed if metadata is not None and metadata.topic}


def ids_of_owned(owned: OffsetVector) -> set[tuple[str, str]]:
    """(topic, id) of the topics that partitions are owned of."""
    topics = {partition.topic for partition in owned}
    return {(topic, topic_id) for topic, topic_id in owned.topic_ids.items() if topic in topics}


def may_be_of_another(owned: OffsetVector, fetched_under: Mapping[str, Sequence[str]]) -> bool:
    """Whether some of the records that were fetched may be of another topic than the owned offsets count in.

    The client has then heard of both ids, from brokers that are not equally up to date, and nothing says which record came under which.
    A broker that is behind may also be the last one it has heard. So the records are to be fetched again: those come under the right id.

    Args:
        owned: the offsets of the owned partitions.
        fetched_under: per topic, the ids under which records may have come; see `eos.kafka.consumer_log`.

    Raises:
        OffsetGapError: all of a topic are.
    """
    is_mixed = False
    for topic, expected in owned.topic_ids.items():
        ids = fetched_under.get(topic, ())
        others = [one for one in ids if one not in {expected, ""}]
        if expected and others and (topic, expected) in (known := ids_of_owned(owned)):
            if others == [*ids]:
                refuse_recreated(known, {topic: ids[-1]})
            is_mixed = True
    return is_mixed


def says_recreated(error: OffsetGapError, topic: str) -> bool:
    """Whether it is what `refuse_recreated` raises of this topic."""
    return str(error).startswith(_recreated(topic))


def _recreated(topic: str) -> str:
    return f"{topic}: the topic was deleted and created anew"


def refuse_recreated(expected: Iterable[tuple[str, str]], now: Mapping[str, str]) -> None:
    """Refuse offsets of a topic that was deleted and created anew.

    Args:
        expected: topics, and their ids when the offsets were committed or read.
        now: the ids that the topics have now; brokers without ids give "".

    Raises:
        OffsetGapError: names the first such topic.
    """
    for topic, topic_id in sorted(expected := set(expected)):
        ids = now.get(topic, "")
        if topic_id and ids and ids != topic_id:
            if (topic, ids) in expected:
                raise OffsetGapError(
                    f"{topic}: some of the group's offsets count in this topic, whose id is {ids}, and some in another one, whose id was "
                    f"{topic_id}: of a topic that was created anew not all were set, or some were copied from another cluster. Fix: set "
                    "those alone, while the job is stopped, to what the output shows; `eos offsets show --json` says which: "
                    + suggested("offsets set", "--to", f"{topic}:N@OFFSET", job=True)
                )
            raise OffsetGapError(
                f"{_recreated(topic)} (its id was {topic_id}, now it is {ids}). The group's "
                "offsets belong to the deleted topic; to continue from them would skip records of the new one, so the job stops. "
                "Fix: decide where to start in the new topic, and set the group's offsets while the job is stopped; for all of it: "
                + suggested("offsets set", "--only", topic, "--to", "earliest", job=True)
            )

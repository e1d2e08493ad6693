"""TopicsUsed: whether the topics of a transaction are still those that they were when it began to use them.

A topic that is deleted and created anew keeps its name, and a producer goes on writing to it: the records of one transaction
are then partly in the deleted log (measured: 100 of 200 records of a committed transaction were visible). So the id of an
output is known before the first record of a transaction is produced to it, and the ids of all topics, inputs and outputs, are
asked for in one request between the last record and the end of the transaction. All records of an output are then in one log;
a deletion that comes later takes all of them, as one after the commit would.

An output's id is asked for once; what the check of one transaction has read counts as known in the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from eos import retry
from eos.base.calls import Call
from eos.base.deadline import Deadline
from eos.base.listing import listed
from eos.errors import AbortableError, ConfigError, EosError, RetriableError, UnavailableError
from eos.group.topics import CALL_S, TopicIds, deleted
from eos.kafka.admin import shared_admin
from eos.settings import Settings

_ANSWER_S = 5.0
_NOT_TAKEN = frozenset(
    {"_MSG_TIMED_OUT", "_TIMED_OUT", "_QUEUE_FULL", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"}
)
_LEAST_IN_SYNC = "min.insync.replicas"
_MAX_NAMED = 3
# What librdkafka says of records for a topic that it does not find, or not with that partition.
_NOT_FOUND = frozenset({"_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_OR_PART"})


class TopicsUsed:
    """The topics of one producer's transactions.

    Args:
        settings: how to reach the cluster, and how long a transaction may live.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ids = TopicIds(settings)
        self._timeout_s = min(_ANSWER_S, settings.transaction.timeout_s / 2)
        self._known: dict[str, str] = {}  # of outputs
        self._written: set[str] = set()  # in the open transaction
        self._read: set[tuple[str, str]] = set()  # that the offsets of the open transaction count in

    def begin(self) -> None:
        """A transaction begins."""
        self._written.clear()
        self._read.clear()

    def write(self, topic: str) -> None:
        """The first record of the open transaction for this topic is about to be produced.

        A topic that is missing is the record's matter: it may exist by the time that librdkafka looks.

        Raises:
            AbortableError: its id could not be read.
        """
        if topic not in self._known:
            try:
                self._known |= self._now({topic})
            except (
                ConfigError
            ):  # access is refused to the records, too, and their error names what is to be granted
                return
        self._written.add(topic)

    def read(self, ids: Mapping[str, str]) -> None:
        """The offsets of the open transaction count in the topics with these ids."""
        self._read.update(ids.items())

    def ids_of(self, topics: Collection[str]) -> Mapping[str, str]:
        """The ids that input topics have now.

        Raises:
            AbortableError: they could not be read.
            ConfigError: a topic was deleted, or access was refused.
        """
        if not topics:
            return {}
        with _abortable(topics):
            return self._ids.of(topics, timeout_s=self._timeout_s)

    def refuse_recreated(self, expected: Collection[tuple[str, str]], ids: Mapping[str, str]) -> None:
        """Refuse offsets of input topics that have other ids now.

        Raises:
            OffsetGapError: a topic was deleted and created anew.
            AbortableError: brokers tell different ids of one.
        """
        with _abortable(topic for topic, _ in expected):
            self._ids.refuse_recreated(expected, ids, timeout_s=self._timeout_s)

    def last_look(self) -> None:
        """All records are written, and the transaction is about to be committed.

        Raises:
            OffsetGapError: an input was deleted and created anew.
            AbortableError: an output was; or no answer came.
            ConfigError: a topic was deleted, or access was refused.
        """
        topics = {topic for topic, _ in self._read} | self._written
        if not topics:
            return
        with _abortable(topics):
            ids = self._ids.of(topics, timeout_s=self._timeout_s, gone=self._gone)
            self._ids.refuse_recreated(self._read, ids, timeout_s=self._timeout_s)
        if (recreated := self._recreated(ids)) is not None:
            raise recreated
        self._known |= {topic: ids[topic] for topic in self._written}

    def explained(self, error: EosError) -> EosError:
        """Why records found no topic or no partition: their topic may be gone, or be another one. Else the error itself.

        One that says that records were not taken in time also says which partitions take none, if that is known.
        """
        if error.code in _NOT_TAKEN and (why := self._too_few_in_sync()):
            error.args = (f"{error}. {why}", *error.args[1:])
        # Of one that was missing at its first record, librdkafka's own error says so, where the time is long enough for it.
        asked = self._written if error.code in _NOT_TAKEN else self._written & self._known.keys()
        if error.code not in _NOT_FOUND | _NOT_TAKEN or not asked:
            return error
        try:
            # A transaction that is shorter than librdkafka's patience with a topic only hears that time is up. Then the
            # brokers may be away, so they are asked once.
            ids = (
                self._ids.soon(asked, timeout_s=self._timeout_s)
                if error.code in _NOT_FOUND
                else self._ids.now(asked, CALL_S)
            )
        except EosError:
            return error
        missing = asked - ids.keys()
        return self._gone(missing) if missing else self._recreated(ids) or error

    def _too_few_in_sync(self) -> str:
        """Which partitions that were written to have fewer replicas in sync than their topic asks for."""
        if not self._written:
            return ""
        admin = shared_admin(self._settings)
        few: list[str] = []
        with suppress(EosError):  # then the brokers are away, or may not be asked for a topic's configuration
            wanted = admin.topic_configs(self._written, CALL_S)
            for partition, (in_sync, replicas) in sorted(admin.in_sync(self._written, CALL_S).items()):
                # Brokers since 4.0 ask for no more than there are.
                least = min(int(wanted.get(partition.topic, {}).get(_LEAST_IN_SYNC, 1)), replicas)
                if in_sync < least:
                    few.append(
                        f"{partition}: {in_sync} of {replicas} replicas in sync, and {_LEAST_IN_SYNC} is {least}"
                    )
        return (
            f"{listed(few, _MAX_NAMED)}: it takes no record. Fix: bring back the brokers that are away"
            if few
            else ""
        )

    # --- inside ------------------------------------------------------------------------------------

    def _now(self, topics: Collection[str]) -> dict[str, str]:
        deadline = Deadline(self._timeout_s)
        with _abortable(topics):
            return retry.resume(
                Call.METADATA,
                lambda timeout_s: self._ids.now(topics, timeout_s),
                deadline=deadline,
                slice_s=self._ids.first_s,
                grows=True,
            )

    def _recreated(self, ids: Mapping[str, str]) -> AbortableError | None:
        for topic in sorted(self._written & self._known.keys() & ids.keys()):
            was, now = self._known[topic], ids[topic]
            if was and now and was != now:
                del self._known[topic]  # the next transaction begins with the new one
                return AbortableError(
                    f"{topic}: the output topic was deleted and created anew (its id was {was}, now it is {now}) in this "
                    "transaction, or since the last one. What was written to the deleted topic is gone, so the transaction is "
                    "aborted. Fix: make it again, as eos run does by itself; if earlier output is needed again too, set the "
                    "group's offsets back while the job is stopped"
                )
        return None

    def _gone(self, missing: Iterable[str]) -> ConfigError:
        missing = set(missing)
        if inputs := missing & {topic for topic, _ in self._read}:
            return deleted(inputs)
        lost = missing & self._known.keys()
        for topic in lost:
            del self._known[topic]
        what, then = (
            ("was deleted while it was written to", "; what was written to it earlier is gone")
            if lost
            else ("is missing", "")
        )
        return ConfigError(
            f"an output topic {what}: topic {', '.join(sorted(lost or missing))} does not exist. Nothing of the open transaction is "
            f"visible. Fix: create it, and start again{then}"
        )


@contextmanager
def _abortable(topics: Iterable[str]) -> Iterator[None]:
    try:
        yield
    except (UnavailableError, RetriableError) as error:
        named = ", ".join(sorted(topics))
        raise AbortableError(f"the topic ids of {named} could not be read: {error}") from error

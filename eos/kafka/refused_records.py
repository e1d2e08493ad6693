"""Records that a client or a broker refused: which they are, what may be the cause, and what they have done to their transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from eos.base.deadline import Deadline
from eos.errors import EosError, RecordRefusedError, UsageError
from eos.kafka.refused_times import with_the_cause
from eos.records import fingerprint

_REPORTS_S = 1.0
_STEP_S = 0.1  # no report for so long: they are all there


@dataclass(slots=True)
class RefusedBatch:
    """Records that were refused together: a refused batch fails all of its records, with one error (measured with librdkafka 2.16).

    Attributes:
        error: the one; it says which outputs it is about.
        topic: of the first one.
        lacks_key: whether one of them has no key.
        count: how many they are.
    """

    error: RecordRefusedError
    topic: str = ""
    lacks_key: bool = False
    count: int = 0

    def add(self, message: Message) -> None:
        """One more, by its delivery report."""
        topic = str(message.topic())
        self.topic = self.topic or topic
        self.lacks_key = self.lacks_key or message.key() is None
        self.count += 1
        self.error.outputs |= {fingerprint(topic, message.value(), message.key())}

    def await_all(self, unreported: Callable[[], int], serve: Callable[[float], object]) -> None:
        """Wait for the reports of the others: they come one by one, maybe in another thread, which `prepare_commit` runs in.

        Args:
            unreported: how many records of the client have no report yet.
            serve: runs what reports there are, and waits for one for so many seconds.
        """
        deadline, seen = Deadline(_REPORTS_S), 0
        while unreported() and seen != self.count and not deadline.passed:
            seen = self.count
            serve(_STEP_S)

    def with_the_cause(self, stamped: Collection[str]) -> EosError:
        """The error with what may be its cause. ``stamped``: topics for which timestamps were given."""
        return with_the_cause(
            self.error,
            self.topic,
            lacks_key=self.lacks_key,
            stamped=self.topic in stamped,
            together=self.count,
        )


def one_more(batch: RefusedBatch | None, error: RecordRefusedError, message: Message) -> RefusedBatch:
    """The batch with one more record of it, or a new one of another error."""
    if batch is None or batch.error is not error:
        batch = RefusedBatch(error)
    batch.add(message)
    return batch


def naming(
    topic: str,
    error: EosError,
    values: Sequence[bytes | str | None],
    keys: Sequence[bytes | str | None] | None,
    at: int,
) -> EosError:
    """A refusal by the client itself says neither the topic nor the record; that in a delivery report says both."""
    if not isinstance(error, RecordRefusedError) or error.outputs:
        return error
    named = RecordRefusedError(f"{topic}: {error}", code=error.code)
    named.outputs = {fingerprint(topic, values[at], keys[at] if keys else None)}
    return named


def of_a_wrong_type(topic: str, error: BaseException, at: int, count: int) -> UsageError:
    """What the client's produce() raises for arguments that it does not know."""
    return UsageError(
        f"{topic}: record {at} of {count} cannot be written: {type(error).__name__}: {error}. Fix: bytes, str or None as value and "
        "key, (name, bytes) pairs as headers, whole numbers as timestamp and partition"
    )


def why_failed(producer: Producer, error: KafkaError) -> KafkaError:
    """What an open transaction has failed of in the background, where a call said only that it is in no state for it.

    librdkafka says it to a begin, which changes nothing while a transaction is open (measured with 2.16).
    """
    try:
        producer.begin_transaction()
    except KafkaException as why:
        return why.args[0]  # type: ignore[no-any-return] # a KafkaError
    return error

"""The error tree: each class says what its holder must do.

EosError
├── ConfigError                 fix the named setting and start again
├── UsageError                  fix the calling code
├── RetriableError              make the same call again, a bounded number of times
├── AbortableError              abort, rewind, begin anew
│   ├── DeliveryError             a record of the transaction could not be delivered
│   │   └── RecordRefusedError      … and would not be at the next try either: fix the record or the topic
│   ├── RebalancedError           the group moved on while the transaction was open
│   └── TransformError            the user's transform raised for a record
├── ReopenError                 this producer is over, the claim on the shard need not be: reopen, rewind, begin anew
│   ├── TransactionExpiredError   the transaction outlived transaction.timeout.ms
│   └── CommitOutcomeUnknownError reopen and read the committed offsets; then it is known
├── OffsetGapError              decide by hand: the position is no longer in the log
└── FatalError                  stop
    ├── UnavailableError          the cluster did not answer until the deadline; start again later
    ├── FencedError               another owner holds the shard
    └── UnclassifiedError         an error whose meaning nobody has stated

AbortTransaction                not an error: the caller's quiet abort of its own block
"""

from __future__ import annotations

from typing import Any


class EosError(Exception):
    """The base of everything that eos raises on purpose.

    Attributes:
        code: librdkafka's name of the cause (``"_FENCED"``), or ``None`` where Kafka was not asked.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (workers, Spark tasks); keyword-only fields would be lost otherwise.
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def _rebuild(kind: type[EosError], args: tuple[Any, ...], state: dict[str, Any]) -> EosError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(EosError):
    """A setting is missing, unknown, unsafe or does not fit the cluster.

    The message names the setting and the fix.
    """


class UsageError(EosError):
    """The calling code broke a rule of the API; retrying cannot help."""


class RetriableError(EosError):
    """The same call may succeed when made again; the retry policy does so until the call's deadline."""


class AbortableError(EosError):
    """The transaction cannot commit any more: abort it, rewind, begin anew."""


class DeliveryError(AbortableError):
    """A record could not be delivered, so the transaction must not commit."""


class RecordRefusedError(DeliveryError):
    """A record would be refused at every try: too large, no such topic or partition."""


class RebalancedError(AbortableError):
    """The group's generation or assignment changed while the transaction was open."""


class TransformError(AbortableError):
    """The user's transform raised for one input record.

    Attributes:
        topic, partition, offset: the coordinates of the input record.
    """

    def __init__(self, message: str, *, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class ReopenError(EosError):
    """The producer instance cannot go on, for a cause that is no rival: close it, open a new one, compare."""


class TransactionExpiredError(ReopenError):
    """The transaction outlived transaction.timeout.ms, so the coordinator may have aborted it.

    librdkafka reports this with the code of a fence (KIP-588 is not supported there); only a
    comparison of the committed offsets after a reopen tells the two apart.
    """


class CommitOutcomeUnknownError(ReopenError):
    """The commit got no answer in time: it may have happened or not, and nothing here guesses."""


class OffsetGapError(EosError):
    """The next offset to read is no longer in the log: input was deleted before it was processed."""


class FatalError(EosError):
    """This producer, and the process's claim on the shard, is over: stop."""


class UnavailableError(FatalError):
    """The cluster gave no usable answer until the call's deadline. Nothing is lost; a later start goes on."""


class FencedError(FatalError):
    """Another owner of the shard exists. Its records and offsets stand; ours of the open transaction don't."""


class UnclassifiedError(FatalError):
    """Kafka returned an error that is neither retriable nor abortable nor known: treated as fatal."""


class AbortTransaction(Exception):  # noqa: N818 - a control signal, not an error
    """Raised by the caller inside a transaction block to abort it quietly."""

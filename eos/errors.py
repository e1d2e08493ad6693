"""The error tree: each class says what its holder must do.

EosError
├── ConfigError                 fix the named setting and start again
├── UsageError                  fix the calling code
├── TransformError              the transform raised for an input record: fix the record or the code
│   └── ProcessDiedError          the process died with an input record, again and again
├── RecordRefusedError          the client or the cluster refuses an output record at every try: fix the record or the topic
├── RetriableError              make the same call again, a bounded number of times
├── AbortableError              abort, rewind, begin anew
│   └── RebalancedError           the group moved on while the transaction was open
├── ReopenError                 this producer is over, the claim on the shard need not be: reopen, rewind, begin anew
│   ├── TransactionExpiredError   the transaction outlived transaction.timeout.ms
│   ├── UnprovenFenceError        the coordinator refused this producer, for which it need not have another owner
│   └── CommitOutcomeUnknownError reopen and read the committed offsets; then it is known
├── OffsetGapError              decide by hand: the position is no longer in the log
├── UnavailableError            stop: the cluster did not answer until the deadline; start again later
├── FencedError                 stop: another owner holds the shard
├── ProcessLimitError           stop: the process has no more memory, file descriptors or disk; start again
└── UnclassifiedError           stop: an error whose meaning is not known

AbortTransaction                not an error: the caller's quiet abort of its own block

ProcessDiedError, RebalancedError, TransactionExpiredError, UnprovenFenceError and ProcessLimitError are told apart inside eos only:
``eos`` does not name them, and a caller does the same as for their parent.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Any, ClassVar


class Action(StrEnum):
    """What the holder of an error does."""

    RESUME = "make the same call again"
    REDO = "abort, rewind, begin anew"
    REOPEN = "reopen the producer, compare, rewind, begin anew"
    STOP = "stop"


class EosError(Exception):
    """The base of everything that eos raises on purpose.

    Attributes:
        action: what its holder does, and all that the retry policy asks of it.
        code: librdkafka's name of the cause (``"_FENCED"``), or ``None`` where Kafka was not asked.
    """

    action: ClassVar[Action] = Action.STOP

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


class TransformError(EosError):
    """The user's transform raised for one input record; no further try will take it. Nothing of its transaction is visible.

    Attributes:
        topic: of the input record.
        partition: of the input record.
        offset: of the input record.
    """

    def __init__(self, message: str, *, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class ProcessDiedError(TransformError):
    """The process died while one input record was transformed alone, again and again."""


class RecordRefusedError(EosError):
    """An output record would be refused at every try: too large, no such topic or partition. Nothing of its transaction is visible.

    Attributes:
        outputs: hashes (`eos.records.fingerprint`) of the records that were refused together: all of a batch, where the
            broker does not say which one.
    """

    outputs: AbstractSet[str] = frozenset()


class RetriableError(EosError):
    """The same call may succeed when made again; the retry policy does so until the call's deadline."""

    action = Action.RESUME


class AbortableError(EosError):
    """The transaction cannot commit any more: abort it, rewind, begin anew."""

    action = Action.REDO


class RebalancedError(AbortableError):
    """The group's generation or assignment changed while the transaction was open."""


class ReopenError(EosError):
    """The producer instance cannot go on, and another owner need not be the cause: close it, open a new one, compare."""

    action = Action.REOPEN


class TransactionExpiredError(ReopenError):
    """The transaction outlived transaction.timeout.ms, so the coordinator may have aborted it.

    librdkafka reports this with the code of a fence (KIP-588 is not supported there); only a
    comparison of the committed offsets after a reopen tells the two apart.
    """


class UnprovenFenceError(ReopenError):
    """The coordinator has a newer epoch, which need not come from another owner: a comparison after a reopen shows it.

    A copy of the producer's own init that arrives late has the same effect, and so has a coordinator whose clock says that
    the transaction has expired.
    """


class CommitOutcomeUnknownError(ReopenError):
    """The commit got no answer that says what became of it: it may have happened or not.

    A reopen reads the outcome from the committed offsets, if the transaction carried any.
    """


# The end of its message, where it is not known whether the transaction carried any.
COMMITTED_SHOW = (
    "the group's committed offsets show which, where the transaction carried any, and else its output alone"
)


class OffsetGapError(EosError):
    """The next offset to read is no longer in the log: input was deleted before it was processed."""


class UnavailableError(EosError):
    """The cluster gave no usable answer until the call's deadline. Nothing is lost; a later start goes on.

    Attributes:
        unanswered: whether it is a question that could be asked again; else a limit has passed that ends the job.
        given_up: whether its time was not over: the process was asked to stop meanwhile.
    """

    unanswered = False
    given_up = False


class ProcessLimitError(EosError):
    """The process lacks something: memory, file descriptors, threads, a disk. Neither a record nor a broker is at fault."""


class FencedError(EosError):
    """Another owner of the shard exists. Its records and offsets stand; ours of the open transaction don't."""


# The end of its message, where the cluster says no more.
ONE_OWNER = (
    "Fix, unless this instance was replaced: let no other one run with its ordinal or its partition, and no other program "
    "with this transactional.id"
)


class UnclassifiedError(EosError):
    """Kafka returned an error that is neither retriable nor abortable nor known: treated as fatal."""


class AbortTransaction(Exception):  # noqa: N818 - a control signal, not an error
    """Raised by the caller inside a transaction block to abort it quietly."""


def reason_of(error: BaseException) -> str:
    """What was raised, in words. A class of users' code may fail to say more than its name."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - whatever its __str__ raises
        return type(error).__name__


class EndedBySignal(SystemExit):
    """Raised by a signal's handler, wherever the process is: in the import of the job's module, say, which has not called exit."""

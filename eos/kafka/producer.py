"""TransactionalClient: one confluent-kafka producer instance with its errors classified.

It holds no policy: no state machine, no rebuild, and no retries beside the resumed init. It knows what only the
instance can know: the fatal error it has shown, failed deliveries, how long its transaction has been open, and whether
a resend cannot be excluded.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import repeat
from operator import length_hint
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from eos.base.calls import Call
from eos.base.deadline import Deadline, since_boot_s
from eos.base.raised_at import of_a_signal_handler
from eos.base.threads import beside, made_beside
from eos.errors import AbortableError, ConfigError, EosError, RecordRefusedError, RetriableError, UsageError
from eos.home import Home, end_elsewhere, holds_client
from eos.kafka.access import Access
from eos.kafka.classify import (
    classify,
    classify_delivery,
    expired_id,
    lost_result,
    refused_connection,
    refused_options,
)
from eos.kafka.config import QUICKLY
from eos.kafka.group_offsets import Committed, GroupMetadata
from eos.kafka.idle import IDLE_CLIENTS
from eos.kafka.late_copies import FenceDoubt, ProducerIdentity, ResendWatch
from eos.kafka.librdkafka import require_sound_librdkafka
from eos.kafka.positions import epoch_or_none
from eos.kafka.refused_records import RefusedBatch, naming, of_a_wrong_type, one_more, why_failed
from eos.offsets import Partition
from eos.records import not_writable

_MAX_DRAIN_POLLS = 10_000  # more log lines and reports than one call can leave; bounds the loop all the same
_FULL_QUEUE_WAIT_S = 0.05
# Each poll gives Python's lock away, and costs as much as it takes to produce 200 records (0.13 ms, measured while catching up).
_POLL_EVERY_S = 0.01
_FIRST_LOOK_S = 0.01
_FATAL_EVENT_WAIT_S = 1.0
# The markers of a transaction are written behind the answer to its end. A request of the next one that comes before they are is
# answered CONCURRENT_TRANSACTIONS, and librdkafka asks again after 20 ms. Measured with transactions of 10 ms, one broker: a third
# of the commits took 20 ms longer; after this pause, which takes less than it saves, one in fifty (90th percentile 26 and 9 ms).
_MARKERS_S = 0.004
_STEP_S, _WRITTEN_STEP_S = 0.02, 0.002
# confluent-kafka cuts a flush of 0.2 s or more into such, and goes on with the next where a fatal error has been raised in one:
# Python's exception state is broken from then on (2.16).
_FLUSH_S = 0.19
# A last look counts for a commit that follows it so soon: what changes between the two is changed as behind the commit.
_LOOK_COUNTS_S = 0.1
_LEAST_COMMIT_S = 0.001  # what is left of a timeout that the flush has used up
_END_TXN_OF_4_0 = 5
# Requests for the first partition and the first record, and a pause of librdkafka in between.
_FIRST_WRITTEN_S = 0.5

_Column = Sequence[Any] | None


class TransactionalClient:
    """A transactional producer instance. Not thread-safe, except that one thread may end what another began.

    Args:
        config: librdkafka's options, with transactional.id.
        transaction_timeout_s: the transaction.timeout.ms of that config, in seconds.
        doubt: of all instances of one owner, whether a fence proves another owner.

    Raises:
        ConfigError: librdkafka refuses an option, or is a version known to break exactly-once.
    """

    def __init__(
        self, config: Mapping[str, Any], *, transaction_timeout_s: float, doubt: FenceDoubt | None = None
    ) -> None:
        self._timeout_s = transaction_timeout_s
        self._doubt = doubt or FenceDoubt()
        self._watch = ResendWatch()
        self._access = Access(config)
        self._refused: ConfigError | None = None
        self._fatal: KafkaError | None = None
        self._failed_delivery: EosError | None = None
        self._refused_batch: RefusedBatch | None = None
        self._stamped: set[str] = set()  # topics for which timestamps were given
        self._refused_whole: EosError | None = None
        self._written: set[str] = set()  # topics, in the open transaction
        self._queued = 0  # records, in the open transaction
        self.commit_called = False  # in the open transaction, or the last one
        self._looked_at = 0.0  # behind its last record
        self._reported_at = 0.0  # of the last record that was not delivered
        self._poll_at = 0.0
        self._begun_at: float | None = None
        self._ended_at = 0.0
        # Held by the owner while no transaction is open, and by the thread that serves then: what a call of the owner looks for
        # has been read when the call returns.
        self._serving = threading.RLock()
        self._home = Home.here
        self._closed = False
        options = {
            **QUICKLY,
            **config,
            "logger": self._watch,
            "error_cb": self._on_error,
            "on_delivery": self._on_failed_delivery,
            # Without it each delivered record would call into Python.
            "delivery.report.only.error": True,
            # Its default, rebootstrap, decommissions every broker once none is connected; send_offsets then never
            # returns (librdkafka issue 5511; measured with 2.16: one reset of all connections between transactions).
            "metadata.recovery.strategy": "none",
        }
        require_sound_librdkafka()
        try:
            self._producer = made_beside(lambda: Producer(options))
        except KafkaException as error:
            raise refused_options("producer", error) from error
        holds_client(self, "_producer")
        IDLE_CLIENTS.add(self)

    # --- the transactional calls -------------------------------------------------------------------

    def init(self, timeout_s: float) -> None:
        """Fence older instances of the id; finish or abort what they left. Resumable after a RetriableError."""
        # librdkafka looks for a broker at once, when none is connected yet, and then every 500 ms. Calling again makes
        # it look again, and sends nothing twice: what is in flight is waited for (rd_kafka_idemp_start since 2.0.0).
        # Measured: 18 ms for an init instead of 130 on average.
        deadline, slice_s = Deadline(timeout_s), _FIRST_LOOK_S
        while True:
            try:
                with self._serving:
                    self._call(Call.INIT, "init_transactions", max(0.001, min(slice_s, deadline.left_s)))
            except RetriableError as error:
                if not deadline.passed:
                    slice_s *= 2
                    continue
                if self._refused is not None:  # init would only go on timing out
                    raise (self._access.no_token() or self._refused) from error
                raise
            else:
                if self._watch.init_sent_again:
                    self._doubt.init_may_come_late(self._watch.init_sent_again)
                return

    def begin(self) -> None:
        """Begin a transaction; local, no request is sent. Waits for :attr:`settling_s`."""
        if self._closed:
            raise UsageError("the producer of this transaction was closed")
        if settling_s := self.settling_s:
            time.sleep(settling_s)
        with self._serving:
            self._drain()
            # What broke while no transaction was open had no request of one in flight.
            self._watch.forget()
            self._failed_delivery = None
            self._written.clear()
            self._stamped.clear()
            self._queued = 0
            self.commit_called = False
            self._looked_at = 0.0
            self._call(Call.BEGIN, "begin_transaction")
            self._begun_at = since_boot_s()

    def send_offsets(
        self, offsets: Mapping[Partition, Committed], group: GroupMetadata, timeout_s: float
    ) -> None:
        """Add the input offsets to the transaction. Once per transaction, as its last step: not resumable."""
        positions = [
            TopicPartition(*partition, stored.offset, stored.metadata, epoch_or_none(stored.leader_epoch))
            for partition, stored in offsets.items()
        ]
        try:
            self._call(Call.SEND_OFFSETS, "send_offsets_to_transaction", positions, group.opaque, timeout_s)
        except EosError as error:
            topics = {partition.topic for partition in offsets}
            named = self._access.named(
                error, Call.SEND_OFFSETS, topics=topics, written=self._written, group=group.group_id
            )
            raise named from error.__cause__

    def prepare_commit(self, last_look: Callable[[], None], over: Callable[[], bool]) -> None:
        """What :meth:`commit` begins with, beside :meth:`send_offsets`: its two round trips take longer.

        Args:
            last_look: as of :meth:`commit`, which calls it again if it does not follow soon.
            over: when to leave the rest to :meth:`commit`.

        Raises:
            EosError: a record could not be delivered; or of ``last_look``.
        """
        while self._guarded(Call.PRODUCE, "flush", _FLUSH_S):
            self.check_deliveries()
            if self._watch.failed or over():
                return
            self._look_for_the_lost(last_look)
        self._look(last_look)

    def commit(self, timeout_s: float, last_look: Callable[[], None] | None = None) -> None:
        """Flush and commit. Once :attr:`commit_called`, only commit may follow a RetriableError: it resumes the same commit.

        Args:
            timeout_s: seconds to wait.
            last_look: called when all records are written and before the commit is sent; what it raises leaves this call.

        Raises:
            AbortableError: records count as delivered that may not be written; see `eos.kafka.implicit_acks`.
        """
        began, deadline = time.monotonic(), Deadline(timeout_s)
        try:
            if not self.commit_called:
                self._flush(deadline, last_look)
                if taken := self._watch.implicit_ack:
                    raise AbortableError(f"librdkafka may have lost records that a broker refused: {taken}")
                if last_look is not None and time.monotonic() - self._looked_at >= _LOOK_COUNTS_S:
                    self._look(last_look)
                if self._fatal is not None:
                    self.check_deliveries()
                self.commit_called = self._watch.commit_begins()
            self._guarded(Call.COMMIT, "commit_transaction", max(_LEAST_COMMIT_S, deadline.left_s))
        finally:
            self._watch.took(Call.COMMIT, time.monotonic() - began)
        self._begun_at, self._ended_at = None, since_boot_s()

    def abort(self, timeout_s: float) -> None:
        """Abort. Resumable after a RetriableError."""
        self._wait_until_one_is_written(Deadline(min(_FIRST_WRITTEN_S, timeout_s)))
        self._drain()
        if self._watch.id_expired:
            raise expired_id(str(Call.ABORT))
        self._call(Call.ABORT, "abort_transaction", timeout_s)
        self._begun_at, self._ended_at = None, since_boot_s()
        self._drain()
        if self._watch.id_expired:
            raise expired_id(str(Call.ABORT))

    # --- producing ---------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        values: Sequence[bytes | str | None],
        keys: Sequence[bytes | str | None] | None = None,
        *,
        headers: Sequence[Any] | None = None,
        timestamps_ms: Sequence[int | None] | None = None,
        partitions: Sequence[int | None] | None = None,
        deadline: Deadline,
    ) -> None:
        """Queue records of one topic, by column, in order; waits for room until ``deadline``.

        One call of produce() per record, driven by map(): as fast as librdkafka's batch call (measured: 0.62
        against 0.74 microseconds), which ignores headers and partitions without a word and refuses timestamps.

        Raises:
            RecordRefusedError: a timestamp, a partition or a header name is one that librdkafka changes; nothing was queued.
            EosError: what the client says of a record, or the transaction has failed.
        """
        if (unfit := not_writable(timestamps_ms, partitions, headers)) is not None:
            refusal = RecordRefusedError(f"record {unfit[0]} of {len(values)}: {unfit[1]}")
            self._refused_whole = naming(topic, refusal, values, keys, unfit[0])
            raise self._refused_whole
        columns = _columns(values, keys, headers, timestamps_ms, partitions)
        self._written.add(topic)
        self._stamped |= set() if timestamps_ms is None else {topic}
        defaults = (None, None, -1, None, None, 0, None)
        start = 0
        while start < len(values):
            rest = [
                iter(column[start:] if start else column) if column is not None else repeat(default)
                for column, default in zip(columns, defaults, strict=False)
            ]
            try:
                deque(map(self._producer.produce, repeat(topic), *rest), maxlen=0)
            except BaseException as error:
                taken = len(values) - start - length_hint(rest[0])
                if of_a_signal_handler(error):  # which runs behind the call: what it has taken is queued
                    self._queued += taken
                    raise
                # The record that was refused has been taken from the iterators.
                start, record = start + taken - 1, start + taken - 1
                self._queued += taken - 1
                if isinstance(error, BufferError):
                    self._wait_for_room(deadline)
                    continue
                if isinstance(error, KafkaException):
                    refused = naming(topic, self._classified(Call.PRODUCE, error), values, keys, record)
                elif isinstance(error, (TypeError, ValueError, OverflowError)):
                    refused = of_a_wrong_type(topic, error, record, len(values))
                else:
                    raise
                if len(values) > 1:  # of a batch a part is queued: it must not commit, even if this is caught
                    self._failed_delivery = refused
                else:
                    self._refused_whole = refused
                raise refused from error
            else:
                self._queued += len(values) - start
                return

    def poll_now_and_then(self) -> None:
        """As :meth:`poll`, but callbacks are served every few milliseconds only: for between two calls of :meth:`produce`."""
        if time.monotonic() >= self._poll_at:
            self.poll()
        else:
            self.check_deliveries()

    def poll(self) -> None:
        """Serve callbacks without waiting.

        Raises:
            EosError: a record of the open transaction could not be delivered.
        """
        self._serve(0)
        self._poll_at = time.monotonic() + _POLL_EVERY_S
        self.check_deliveries()

    def check_deliveries(self) -> None:
        """Raise what has failed in the background, if anything: the instance, or the first delivery."""
        if self._fatal is not None:
            failed = classify(Call.PRODUCE, self._fatal, expired=self.expired, doubt=self._doubt.reason)
            raise self._access.named(failed, Call.PRODUCE, written=self._written)
        if self._failed_delivery is not None:
            raise self._with_the_cause(self._failed_delivery)

    # --- what the instance knows -------------------------------------------------------------------

    @property
    def settling_s(self) -> float:
        """For how many seconds more the next transaction should not begin: the coordinator may not be done with the last one."""
        return max(0.0, self._ended_at + _MARKERS_S - since_boot_s())

    @property
    def expired(self) -> bool:
        """Whether the transaction has been open for transaction.timeout.ms or longer."""
        return self._begun_at is not None and since_boot_s() - self._begun_at >= self._timeout_s

    @property
    def suspicion(self) -> str:
        """Why the instance is not fit for another transaction since the last begin; "" if it is.

        A resend cannot be excluded; or a record was not delivered: then librdkafka misses its sequence number,
        and fails the next transaction with OUT_OF_ORDER_SEQUENCE_NUMBER (measured with 2.16).
        """
        if self._failed_delivery is not None:
            return f"a record was not delivered: {self._failed_delivery.code or self._failed_delivery}"
        return self._watch.reason or self._watch.implicit_ack or self._watch.deaf

    @property
    def commit_sent_again(self) -> bool:
        """Whether the commit may have been sent more than once: an answer to it says nothing of the first time."""
        return self.commit_called and self._watch.sent_again

    def refused_whole(self, error: BaseException) -> bool:
        """Whether this error is the last refusal of :meth:`produce` that has queued nothing: the transaction is as before."""
        return error is self._refused_whole

    @property
    def forgets_offsets(self) -> bool:
        """Whether a broker may be older than 4.0: see `eos.core.forgotten`."""
        return self._watch.newest.get("EndTxn", 0) < _END_TXN_OF_4_0

    def identity(self, timeout_s: float) -> ProducerIdentity | None:
        """The producer id and epoch, also where librdkafka has raised it by itself; None if they did not come in ``timeout_s``."""
        with self._serving:
            Deadline(timeout_s).wait_for(lambda: self._watch.identity is not None, self._serve_a_while)
        return self._watch.identity

    def serve_idle(self) -> None:
        """Serve what waits while no transaction is open; nothing if another thread uses the instance."""
        if not self._serving.acquire(blocking=False):
            return
        try:
            if self._begun_at is None and not self._closed:
                self._drain()
        finally:
            self._serving.release()

    def close(self) -> None:
        """Let go of the instance without waiting for records; an open transaction is the caller's to abort."""
        if self._closed:
            return
        end_elsewhere(self._home)
        IDLE_CLIENTS.remove(self)
        with nullcontext() if sys.is_finalizing() else self._serving:  # as in IdleClients.remove
            self._closed = True
            with suppress(KafkaException):
                self._producer.purge()
            self._drain()
            instance = [self.__dict__.pop("_producer")]
        # Not close(): since 2.16 it calls abort_transaction itself and warns where that is refused, as after a
        # fence. Dropping the last reference destroys the instance; its callbacks are cut off by then. In another thread: in the
        # main one the destructor looks at signals, and leaves what a handler raises to the next call, as a SystemError.
        beside(instance.clear, name="eos-producer-close").wait()

    # --- inside ------------------------------------------------------------------------------------

    def _call(self, call: Call, method: str, *arguments: object) -> None:
        began = time.monotonic()
        try:
            self._guarded(call, method, *arguments)
        finally:
            # An abort throws away what is queued, which takes long where it is much, and asks the coordinator behind that.
            self._watch.took(call, time.monotonic() - max(began, self._reported_at))

    def _guarded(self, call: Call, method: str, *arguments: object) -> Any:
        if self._closed:
            raise UsageError("the producer of this transaction was closed")
        try:
            # By name: a bound method in this frame, which a traceback keeps, would keep the closed instance alive.
            return getattr(self._producer, method)(*arguments)
        except KafkaException as error:
            self._drain()
            raise self._classified(call, error) from error
        except BaseException as error:  # a signal handler's, or of a line of the log that is no text
            self._watch.missed(error)
            if isinstance(error, UnicodeDecodeError):  # in place of the call's own result
                raise lost_result(call, error, commit_sent=method == "commit_transaction") from error
            raise
        finally:
            self._drain()

    def _look(self, last_look: Callable[[], None]) -> None:
        if not self._watch.failed and self._failed_delivery is None:  # else the commit says what has failed
            last_look()
            self._looked_at = time.monotonic()

    def _look_for_the_lost(self, last_look: Callable[[], None] | None) -> None:
        """A record for a deleted topic is not reported before its time is up, or never: the look says so at once."""
        if last_look is not None and self._watch.lost_a_topic():
            last_look()

    def _flush(self, deadline: Deadline, last_look: Callable[[], None] | None) -> None:
        """Wait until all records are delivered, or the transaction has failed, which the commit says at once. Itself it sends none."""
        while unwritten := self._guarded(Call.PRODUCE, "flush", min(_FLUSH_S, deadline.left_s)):
            # librdkafka purges its queue when a transaction fails. A batch under way that is then to be sent again never is.
            if self._watch.failed:
                return
            self.check_deliveries()
            self._look_for_the_lost(last_look)
            if deadline.passed:
                raise RetriableError(
                    f"{Call.COMMIT}: {unwritten} records are not written yet, to {', '.join(sorted(self._written))}",
                    code="_TIMED_OUT",
                )

    def _classified(self, call: Call, error: KafkaException) -> EosError:
        kafka_error: KafkaError = error.args[0]
        open_in = self._begun_at is not None and call in (Call.PRODUCE, Call.SEND_OFFSETS)
        if in_background := open_in and kafka_error.code() == KafkaError._STATE:
            kafka_error = why_failed(self._producer, kafka_error)
        self._note_fatal(kafka_error)
        if in_background or kafka_error.txn_requires_abort():
            self._await_report(kafka_error)
        known = self._failed_delivery and self._with_the_cause(self._failed_delivery)
        # Before the init has succeeded there is nothing of ours that a comparison could find.
        doubt = self._doubt.reason if call is not Call.INIT else ""
        classified = classify(call, kafka_error, fatal=self._fatal, expired=self.expired, doubt=doubt)
        if call is not Call.SEND_OFFSETS:  # which knows more
            classified = self._access.named(classified, call, written=self._written)
        if in_background and isinstance(classified, RecordRefusedError):  # another one than the call's
            classified = AbortableError(str(classified), code=classified.code)
        # "_INCONSISTENT" only says that something failed; the delivery report says what.
        return known if known is not None and isinstance(classified, AbortableError) else classified

    def _await_report(self, error: KafkaError) -> None:
        """Which record a broker refused its report alone says. It is on its way when the transaction has failed."""
        of_a_record = isinstance(classify_delivery(error, topic=""), RecordRefusedError)
        self._drain()
        deadline = Deadline(_FATAL_EVENT_WAIT_S * of_a_record)
        deadline.wait_for(lambda: self._failed_delivery is not None, self._serve_a_while)

    def _drain(self) -> None:
        """Serve everything that waits: log lines and reports are handed over by poll, not before a call returns."""
        for _ in range(_MAX_DRAIN_POLLS):
            if not self._serve(0):
                return

    def _serve_a_while(self) -> None:
        self._serve(_STEP_S)

    def _serve(self, timeout_s: float) -> int:
        """Run waiting callbacks; returns how many events there were.

        After a fatal error poll() itself raises it, once (measured with 2.16.1), whatever call is running.
        """
        try:
            return self._producer.poll(timeout_s)
        except KafkaException as error:
            self._on_error(error.args[0])
            return 1
        except BaseException as error:
            self._watch.missed(error)
            if isinstance(error, UnicodeDecodeError):
                return 1
            raise

    def _note_fatal(self, error: KafkaError) -> None:
        self._fatal = self._fatal or (error if error.fatal() else None)
        if error.code() == KafkaError._FATAL:
            # produce() says only that there is a fatal error; the event that holds it is on its way.
            Deadline(_FATAL_EVENT_WAIT_S).wait_for(lambda: self._fatal is not None, self._serve_a_while)

    def _wait_until_one_is_written(self, deadline: Deadline) -> None:
        """Wait until a record of the open transaction is, if there are any.

        Before that librdkafka may still ask the coordinator to add its partition. An answer that comes while abort_transaction
        purges the queue makes it believe that there is nothing to abort: it sends no EndTxn, and the transaction stays open until
        its timeout. After CONCURRENT_TRANSACTIONS it ends one that the coordinator does not know, which is fatal. (2.16,
        rd_kafka_txn_handle_AddPartitionsToTxn; tests/canaries.)
        """
        while len(self._producer) >= self._queued > 0 and self._fatal is None and not deadline.passed:
            self._serve(_WRITTEN_STEP_S)

    def _wait_for_room(self, deadline: Deadline) -> None:
        self._serve(_FULL_QUEUE_WAIT_S)
        self.check_deliveries()
        if deadline.passed:
            raise AbortableError(
                "the producer's queue stayed full until the transaction's deadline: the brokers take too little",
                code="_QUEUE_FULL",
            )

    # Callbacks must not raise: an exception would replace, and free, the error of the call that serves them.

    def _on_error(self, error: KafkaError) -> None:
        self._refused = self._refused or refused_connection(Call.INIT, error)
        self._fatal = self._fatal or (error if error.fatal() else None)

    def _on_failed_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        self._reported_at = time.monotonic()
        if (known := self._failed_delivery) is not None:
            if isinstance(known, RecordRefusedError) and known.code == error.name():
                self._refused_batch = one_more(self._refused_batch, known, message)
            return
        self._fatal = self._fatal or (error if error.fatal() else None)
        topic = str(message.topic())
        failed = classify_delivery(error, topic=topic, expired=self.expired, doubt=self._doubt.reason)
        if isinstance(failed, RecordRefusedError):
            self._refused_batch = one_more(None, failed, message)
        self._failed_delivery = failed and self._access.named(failed, Call.PRODUCE, written=[topic])

    def _with_the_cause(self, failed: EosError) -> EosError:
        if (batch := self._refused_batch) is None or batch.error is not failed:
            return failed
        batch.await_all(lambda: 0 if self._closed else len(self._producer), self._serve)
        return batch.with_the_cause(self._stamped)


def _columns(
    values: _Column, keys: _Column, headers: _Column, timestamps_ms: _Column, partitions: _Column
) -> list[_Column]:
    """The arguments of the client's produce() behind the topic, by column."""
    if headers is None and timestamps_ms is None and partitions is None:
        return [values, keys]
    return [
        *(values, keys),
        partitions and [-1 if partition is None else partition for partition in partitions],
        None,  # two names for a callback
        None,
        timestamps_ms and [time_ms or 0 for time_ms in timestamps_ms],
        headers and [of_record or None for of_record in headers],
    ]

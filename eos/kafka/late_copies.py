"""Late copies: whether librdkafka may have sent a request twice, and whether a fence proves another owner.

librdkafka speaks EndTxn v1: two transactions of one producer share an epoch, so a request that it resent
by itself (after socket.timeout.ms, or after a disconnect) may reach the coordinator late and end the
*next* transaction: a lost write, a torn transaction or skipped input, without any error (measured with a
proxy that holds one frame). A resend shows in three places:

- a ``REQTMOUT`` log line (any log level from notice on);
- a ``FAIL`` log line of a broken connection; repeats within 30 s are suppressed unless ``debug=broker``
  is set, with which 4 of 4 resends left a line (2 of 4 without), at about three lines per transaction;
- the call takes longer than such calls take: the bound below catches what both lines missed.

An init that was sent again shows in a ``GETPID`` line with an error of librdkafka's own; with one of the broker's, the
request was answered, and no copy of it is under way (measured: a line in 4 of 4, after a reset, a cut and a timeout).

Log lines are handed over by poll(), not before a call returns: poll first, look after. A client from which no line has
come at all (with ``debug=broker`` its first connection leaves some) would not show a resend either.
Request statistics would show it as well, but they arrive on an interval, not before the next begin.

A fence only says that the coordinator has given the transactional.id a newer epoch. It does so for the init of another
owner. It does so too for a late copy of our own init: librdkafka sends the request again inside init_transactions, and a
copy that arrives inside a transaction aborts that (3 of 3 with a proxy that held one frame). And it does so when it ends a
transaction that has outlived its timeout, by the coordinator's own clock, which may have jumped or differ from ours.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from eos.base.calls import Call
from eos.kafka.api_versions import ApiVersions
from eos.kafka.classify import ID_EXPIRED
from eos.kafka.implicit_acks import IMPLICIT_ACK, ImplicitAcks

_SIGNS = {"REQTMOUT", "FAIL"}
_PRODUCER_ID = "GETPID"
_VERSION = "APIVERSION"
_NO_ANSWER = " Local: "  # so begins the text of each error that is librdkafka's own
# Each producer id and epoch that the instance gets, at its init and where it raises the epoch by itself (rd_kafka_idemp_pid_update).
_ACQUIRED = re.compile(r"Acquired PID\{Id:(\d+),Epoch:(\d+)\}", re.ASCII)
LAST_EPOCH = 32_766  # the coordinator gives out a new producer id after it
_FAILED = "TXNERR"
# Of a topic that is deleted one of these comes. For up to topic.metadata.propagation.max.ms librdkafka asks the coordinator to add
# its partition again and again, or sends the same batch (2.16: twice and 40 times a second); or it forgets the topic's partitions.
_NO_TOPIC = {
    "ADDPARTS": "Broker: Unknown topic or partition",
    "REQERR": "ProduceRequest failed: Broker: Unknown topic or partition",
    "PARTCNT": " changed from [1-9][0-9]* to 0$",
}
_LOOKED_FOR = {*_SIGNS, _PRODUCER_ID, _VERSION, _FAILED, *_NO_TOPIC, IMPLICIT_ACK}
_REMEMBERED_CALLS = 31
# Silent resends took 84 to 654 ms where a commit takes 5 to 30. A false alarm costs one rebuild (about 0.06 s),
# a missed resend may cost a record, but the log lines above are the reliable sign; so the bound is generous.
_SLOW_BASE_S = 0.5
_SLOW_FACTOR = 10
# Linux sends what was not acknowledged again for that long (tcp_retries2 = 15).
LATE_S = 925.0
# Two owners that live would fence each other without end if no fence were believed. As in eos.group.fenced_member.
_MAX_DOUBTED = 3
_WITHIN_S = 600.0


class ProducerIdentity(NamedTuple):
    """What the coordinator calls this instance: the epoch rises with every init of the transactional.id."""

    producer_id: int
    epoch: int


class ResendWatch:
    """Collects librdkafka's log lines and the durations of transactional calls.

    The object is given to the client as its ``logger``: librdkafka calls :meth:`log` from poll().

    Attributes:
        id_expired: whether the coordinator does not know the transactional.id under this producer's id any more.
    """

    def __init__(self) -> None:
        self._reason = ""
        self._sent_again = False
        self._heard = False
        self._init_sent_again = ""
        self._identity: ProducerIdentity | None = None
        self._failed = False
        self.id_expired = False
        self._no_topic = False
        self._versions = ApiVersions()
        self._implicit_acks = ImplicitAcks()
        self._durations: dict[Call, deque[float]] = {}

    @property
    def reason(self) -> str:
        """Why a resend cannot be excluded since the last :meth:`forget`; "" if it can."""
        return self._reason

    @property
    def deaf(self) -> str:
        """Why nothing would show a resend; "" if log lines come."""
        return "" if self._heard else "no log line of librdkafka has come, so none would show a resend"

    @property
    def init_sent_again(self) -> str:
        """The sign that init was sent more than once, so that a copy of it may arrive late; "" if there is none."""
        return self._init_sent_again

    @property
    def identity(self) -> ProducerIdentity | None:
        """What the instance got last; None if nothing has come."""
        return self._identity

    @property
    def implicit_ack(self) -> str:
        """What librdkafka said of records that it took as delivered unseen, since the last :meth:`forget`; "" if there are none."""
        return self._implicit_acks.first

    @property
    def failed(self) -> bool:
        """Whether librdkafka has said since the last :meth:`forget` that the transaction has failed: it commits no more."""
        return self._failed

    @property
    def sent_again(self) -> bool:
        """Whether librdkafka has said since :meth:`commit_begins` that a connection broke, or that a request was not answered."""
        return self._sent_again

    def commit_begins(self) -> bool:
        """The commit is about to be called. Returns whether it may be sent: of a transaction that has failed, the call only says why."""
        self._sent_again = False
        return not self._failed

    def lost_a_topic(self) -> bool:
        """Whether a topic was not there, by the answers that the client got since the last call of this."""
        lost, self._no_topic = self._no_topic, False
        return lost

    def missed(self, why: BaseException) -> None:
        """A call that serves log lines was left by an exception, maybe of :meth:`log`; librdkafka does not repeat that line."""
        self._implicit_acks.log(f"a line of its log may be lost by {type(why).__name__}")

    @property
    def newest(self) -> Mapping[str, int]:
        """The newest version of each request that every broker understands which the client has connected to."""
        return self._versions.newest

    def forget(self) -> None:
        """Begin anew: what was seen belonged to a time without a transaction, or to an older producer."""
        self._reason = ""
        self._failed = False
        self._implicit_acks.forget()

    def log(self, level: int, template: str, *args: object) -> None:
        """One log line of librdkafka; args are (facility, client name, text)."""
        self._heard = True
        facility = args[0] if args else ""
        if facility not in _LOOKED_FOR:  # most of some forty lines of a transaction
            return
        text = str(args[-1])
        if facility in _SIGNS:
            self._sent_again = True
            self._reason = self._reason or f"{facility}: {text}"
        if facility == _PRODUCER_ID:
            self._read_producer_id(text)
        if facility == _VERSION:
            self._versions.log(level, template, *args)
        if facility == _FAILED:
            self._failed = True
            self.id_expired |= f"({ID_EXPIRED}" in text
        if facility in _NO_TOPIC and re.search(_NO_TOPIC[facility], text):
            self._no_topic = True
        if facility == IMPLICIT_ACK:
            self._implicit_acks.log(text)

    def _read_producer_id(self, text: str) -> None:
        if _NO_ANSWER in text:
            self._init_sent_again = f"{_PRODUCER_ID}: {text}"
        if acquired := _ACQUIRED.search(text):
            before, new = self._identity, ProducerIdentity(int(acquired[1]), int(acquired[2]))
            self._identity = new
            # An abort for which librdkafka has initialised the id anew, and the coordinator did not know it any more.
            self.id_expired |= (
                before is not None and new.producer_id != before.producer_id and before.epoch < LAST_EPOCH
            )

    def took(self, call: Call, seconds: float) -> None:
        """A transactional call came back, with or without an error."""
        past = self._durations.setdefault(call, deque(maxlen=_REMEMBERED_CALLS))
        bound = max(_SLOW_BASE_S, _SLOW_FACTOR * median(past)) if past else _SLOW_BASE_S
        if seconds > bound and not self._reason:
            self._reason = f"{call} took {seconds:.3f} s, over {bound:.3f} s"
        past.append(seconds)


class FenceDoubt:
    """Why a fence proves nothing, and how often one was not believed.

    Args:
        always: the cause to name if nothing points to one; "" if such a fence is believed at once.
    """

    def __init__(self, always: str = "") -> None:
        self._always = always
        self._late_init = ""
        self._late_until = 0.0
        self._doubted_at: deque[float] = deque(maxlen=_MAX_DOUBTED)

    @property
    def reason(self) -> str:
        """What else than another owner may cause a fence now; "" if it is to be believed."""
        now = time.monotonic()
        if len(self._doubted_at) == _MAX_DOUBTED and now - self._doubted_at[0] < _WITHIN_S:
            return ""
        return self._late_init if now < self._late_until else self._always

    def init_may_come_late(self, sign: str) -> None:
        """A copy of an init may still be under way."""
        self._late_init = f"a copy of its own init that arrived late ({sign})"
        self._late_until = time.monotonic() + LATE_S

    def doubted(self) -> None:
        """A fence was not believed."""
        self._doubted_at.append(time.monotonic())

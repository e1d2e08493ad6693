"""Whether librdkafka may have sent a request of a transaction twice.

librdkafka speaks EndTxn v1: two transactions of one producer share an epoch, so a request that it resent
by itself (after socket.timeout.ms, or after a disconnect) may reach the coordinator late and end the
*next* transaction: a lost write, a torn transaction or skipped input, without any error (measured with a
proxy that holds one frame). A resend shows in three places:

- a ``REQTMOUT`` log line (any log level from notice on);
- a ``FAIL`` log line of a broken connection; repeats within 30 s are suppressed unless ``debug=broker``
  is set, with which 4 of 4 resends left a line (2 of 4 without), at about three lines per transaction;
- the call takes longer than such calls take: the bound below catches what both lines missed.

Log lines are handed over by poll(), not before a call returns: poll first, look after.
Request statistics would tell as well, but they arrive on an interval, not before the next begin.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from eos.calls import Call

_TELLING = {"REQTMOUT", "FAIL"}
_REMEMBERED_CALLS = 31
# Silent resends took 84 to 654 ms where a commit takes 5 to 30. A false alarm costs one rebuild (about 0.06 s),
# a missed resend may cost a record, but the log lines above are the reliable sign; so the bound is generous.
_SLOW_BASE_S = 0.5
_SLOW_FACTOR = 10


class ResendWatch:
    """Collects librdkafka's log lines and the durations of transactional calls.

    The object is given to the client as its ``logger``: librdkafka calls :meth:`log` from poll().
    """

    def __init__(self) -> None:
        self._reason = ""
        self._durations: dict[Call, deque[float]] = {}

    @property
    def reason(self) -> str:
        """Why a resend cannot be excluded since the last :meth:`forget`; "" if it can."""
        return self._reason

    def forget(self) -> None:
        """Begin anew: what was seen belonged to a time without a transaction, or to an older producer."""
        self._reason = ""

    def log(self, level: int, template: str, *args: object) -> None:  # noqa: ARG002 - the logger's interface
        """One log line of librdkafka; args are (facility, client name, text)."""
        facility = str(args[0]) if args else ""
        if facility in _TELLING and not self._reason:
            self._reason = f"{facility}: {args[-1]}"

    def took(self, call: Call, seconds: float) -> None:
        """A transactional call came back, with or without an error."""
        past = self._durations.setdefault(call, deque(maxlen=_REMEMBERED_CALLS))
        bound = max(_SLOW_BASE_S, _SLOW_FACTOR * median(past)) if past else _SLOW_BASE_S
        if seconds > bound and not self._reason:
            self._reason = f"{call} took {seconds:.3f} s, over {bound:.3f} s"
        past.append(seconds)

"""Make a call that librdkafka does not let a signal interrupt, and give it up when it is overdue."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait

from eos.deadline import Deadline
from eos.errors import ReopenError
from eos.threads import beside

_OVERDUE_S = 5.0  # after the call's own timeout


def uninterrupted(function: Callable[[], None], timeout_s: float) -> None:
    """Make a call that must run once and whole, while signals are still answered.

    send_offsets cannot be cut into slices (a second call is a second request). It runs in a thread, so that Ctrl-C is
    noticed at once; it is raised when the call is over. The call has its own timeout, which librdkafka does
    not keep when the group's coordinator was decommissioned (its issue 5511): then the producer instance is dropped.

    Args:
        function: makes the call.
        timeout_s: the timeout that the call has itself.

    Raises:
        ReopenError: the call is overdue.
    """
    done: Future[None] = Future()

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised by result()
            done.set_exception(error)
        else:
            done.set_result(None)

    beside(run, name="eos-send-offsets")
    deadline = Deadline(timeout_s + _OVERDUE_S)
    try:
        wait([done], deadline.left_s)
    except BaseException:
        wait([done], deadline.left_s)
        raise
    if not done.done():
        raise ReopenError(
            f"send offsets: not back {_OVERDUE_S:g} s after its own timeout (librdkafka issue 5511)"
        )
    done.result()

"""Make a call that librdkafka does not let a signal interrupt, and give it up when it is overdue."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait

from eos.base.deadline import Deadline
from eos.base.threads import future_beside
from eos.errors import EosError, ReopenError

_OVERDUE_S = 5.0  # after the call's own timeout
_LOOK_S = 0.2  # how late it is given up


def uninterrupted(
    function: Callable[[], None],
    timeout_s: float,
    given_up: Callable[[], bool],
    *,
    meanwhile: Callable[[Callable[[], bool]], None] = lambda _: None,
) -> None:
    """Make a call that must run once and whole, while signals are still answered.

    send_offsets cannot be cut into slices (a second call is a second request). It runs in a thread, so that Ctrl-C is
    noticed at once; it is raised when the call is over. The call has its own timeout, which librdkafka does
    not keep when the group's coordinator was decommissioned (its issue 5511): then the producer instance is dropped.

    Args:
        function: makes the call.
        timeout_s: the timeout that the call has itself.
        given_up: whether the process ends, and waits no longer.
        meanwhile: called here, beside the call, and given what says that the call is over, or given up.

    Raises:
        ReopenError: the call is overdue, or given up.
        EosError: of ``meanwhile``, if the call itself raised nothing.
    """
    deadline = Deadline(timeout_s + _OVERDUE_S)
    done = future_beside(function, name="eos-send-offsets")

    def over() -> bool:
        return done.done() or deadline.passed or given_up()

    refused: EosError | None = None
    try:
        try:
            meanwhile(over)
        except EosError as error:
            refused = error
        _wait(done, over)
    except BaseException:
        _wait(done, over)
        raise
    if not done.done():
        if given_up():
            raise ReopenError("send offsets: no answer yet, and the process ends")
        raise ReopenError(
            f"send offsets: not back {_OVERDUE_S:g} s after its own timeout (librdkafka issue 5511)"
        )
    done.result()
    if refused is not None:
        raise refused


def _wait(done: Future[None], over: Callable[[], bool]) -> None:
    # The wait comes first: a process that ends makes a last call or two, each with a moment for its answer.
    while not wait([done], _LOOK_S).done:
        if over():
            return

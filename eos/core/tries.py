"""Tries: how often, and for how long, an owner goes on without progress.

An error that a new transaction may put right is tried again so many times as the policy allows. A question that got no answer is
asked for longer. What an owner asks when it opens is waited for as long as another owner's transaction may take. Once it runs, one
promise holds for every question: ``input.offline_timeout_ms``, as for its consumer's connections.
"""

from __future__ import annotations

import time

from eos.errors import AbortableError, EosError, UnavailableError
from eos.retry import Attempts, OnRetry


class Tries:
    """Counts tries, and the time since the first question without an answer, until there is progress.

    Args:
        offline_s: seconds without an answer after which it is no use to go on.
        on_retry: called for every failure after which there is another try.
    """

    def __init__(self, offline_s: float, on_retry: OnRetry) -> None:
        self._offline_s = offline_s
        self._attempts = Attempts(on_retry)
        self._unanswered_since: float | None = None

    def sits_out(self, error: EosError) -> bool:
        """Whether the error says only that no answer has come, and not for too long yet."""
        if not _unanswered(error):
            return False
        if self._unanswered_since is None:
            self._unanswered_since = time.monotonic()
        return time.monotonic() - self._unanswered_since < self._offline_s

    def failed(self, error: EosError) -> float:
        """Count a try that has failed; returns how long to wait before the next one, in seconds.

        Raises:
            EosError: this very error: it was the last try, or nothing has answered for too long.
        """
        if _unanswered(error):
            raise error
        return self._attempts.failed(error)

    def answered(self) -> None:
        """The cluster has answered."""
        self._unanswered_since = None

    def succeeded(self) -> None:
        """There was progress."""
        self._attempts.succeeded()
        self.answered()


def _unanswered(error: EosError) -> bool:
    """Whether an error says only that no answer has come, itself or as why its transaction was aborted (a look before a commit)."""
    why = error.__cause__ if isinstance(error, AbortableError) else error
    return isinstance(why, UnavailableError) and why.unanswered

"""Outage: for how long a session that runs goes on without an answer of the cluster.

What an owner asks when it opens is waited for as long as another owner's transaction may take. Once it runs, one promise holds for
every question: ``input.offline_timeout_ms``, as for its consumer's connections. A question that ends sooner is asked again.
"""

from __future__ import annotations

import time

from eos.errors import EosError, UnavailableError


class Outage:
    """Counts from the first question without an answer until there is progress.

    Args:
        longest_s: seconds after which it is no use to go on.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._began: float | None = None

    def goes_on(self, error: EosError) -> bool:
        """Whether the error says only that no answer has come, and not for too long yet."""
        if not (isinstance(error, UnavailableError) and error.unanswered):
            return False
        if self._began is None:
            self._began = time.monotonic()
        return time.monotonic() - self._began < self._longest_s

    def over(self) -> None:
        """There was progress."""
        self._began = None

"""Alone: one session of a process works while all others wait, because a record of its input may end the process."""

from __future__ import annotations

import threading


class Alone:
    """Which sessions of the process have records in work, and which one has claimed to be the only one.

    Each partition of ``ownership.mode = "partition"`` has a session of its own. A record that ends the process would look as if
    those of the other sessions had ended it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._working: set[object] = set()
        self._claimed_by: object | None = None

    def begin(self, session: object) -> bool:
        """The session is about to fetch and transform; False: it has to wait, with nothing in work."""
        with self._lock:
            if self._claimed_by not in (None, session):
                self._working.discard(session)
                return False
            self._working.add(session)
            return True

    def end(self, session: object) -> None:
        """It has nothing in work."""
        with self._lock:
            self._working.discard(session)

    def claim(self, session: object) -> bool:
        """From now on no other session begins; returns whether none has anything in work."""
        with self._lock:
            self._claimed_by = self._claimed_by or session
            return self._claimed_by is session and not self._working - {session}

    def release(self, session: object) -> None:
        """The others may go on."""
        with self._lock:
            self._working.discard(session)
            if self._claimed_by is session:
                self._claimed_by = None


ALONE = Alone()  # of this process

"""ShardLoops: the loops of one process, a thread for each shard; more are started when the process gets more shards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from eos.base.deadline import Deadline
from eos.errors import UnavailableError
from eos.events import Listener, ShardsOwned
from eos.job import RunsShard
from eos.shards import Shard

_POLL_S = 0.2  # how late the end of a loop is noticed


class ShardLoops:
    """Runs a loop per shard until all have ended; the first that fails ends them all.

    Args:
        make: makes the loop of a shard.
        prefix: how the transactional.ids begin.
        stop: set it to end all loops in order; also set here when one fails.
        stop_s: seconds within which they must have ended then.
        listener: gets ShardsOwned.
    """

    def __init__(
        self,
        make: Callable[[Shard], RunsShard],
        *,
        prefix: str,
        stop: threading.Event,
        stop_s: float,
        listener: Listener,
    ) -> None:
        self._make = make
        self._prefix = prefix
        self._stop = stop
        self._stop_s = stop_s
        self._listener = listener
        self._threads: dict[Shard, threading.Thread] = {}
        self._errors: list[BaseException] = []

    def run(
        self,
        shards: Sequence[Shard],
        added: Callable[[], Iterable[Shard]] | None = None,
        every_s: float = 0.0,
    ) -> None:
        """Run a loop for each of the shards; a single one to which none is added runs in the calling thread.

        Args:
            shards: those to begin with.
            added: asked every ``every_s`` for more. With it this returns only when ``stop`` is set.
            every_s: seconds.

        Raises:
            UnavailableError: loops did not end in time.
            EosError: what ended a loop, or raised by ``added``.
        """
        if added is None and len(shards) == 1:
            self._announce(shards)
            self._make(shards[0]).run()
            self._announce([])
            return
        self._start(shards)
        until_look = Deadline(every_s)
        while not self._stop.wait(_POLL_S) and (self._threads or added is not None):
            self._forget_ended()
            if added is not None and until_look.passed:
                self._take_up(added)  # which announces: a process that owns nothing shows a sign of life
                until_look = Deadline(every_s)
        deadline = Deadline(self._stop_s)
        for thread in self._threads.values():
            thread.join(deadline.left_s)
            if thread.is_alive():
                self._errors.append(UnavailableError("shards did not end within the grace period"))
                break
        if self._errors:
            raise self._errors[0]

    def _start(self, shards: Iterable[Shard]) -> None:
        threads = {
            shard: threading.Thread(target=self._run, args=(self._make(shard),), daemon=True)
            for shard in shards
        }
        self._threads |= threads
        self._announce(self._threads)
        for thread in threads.values():
            thread.start()

    def _take_up(self, added: Callable[[], Iterable[Shard]]) -> None:
        try:
            self._start(added())
        except BaseException as error:  # noqa: BLE001 - raised when the loops have ended
            self._fail(error)

    def _run(self, loop: RunsShard) -> None:
        try:
            loop.run()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._errors.append(error)
        self._stop.set()

    def _forget_ended(self) -> None:
        ended = [shard for shard, thread in self._threads.items() if not thread.is_alive()]
        for shard in ended:
            del self._threads[shard]
        if ended and not self._stop.is_set():  # after a failure all of them end
            self._announce(self._threads)

    def _announce(self, shards: Iterable[Shard]) -> None:
        self._listener(ShardsOwned(self._prefix, tuple(shard.transactional_id for shard in shards)))

"""Script: three transactions of a player, and a request of the second that arrives inside the third."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from eos.testing.proxy.frames import Frame
from eos.testing.proxy.hold_proxy import ApiKey, Edge, Hold, HoldProxy, ends_with
from tests.proof.players import WAIT_S, Naive, Player

OF_OFFSETS = (ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT)
_ILLEGAL_GENERATION = 22  # an answer to offsets that ends a transaction by an abort
_BEFORE = 5  # records of transaction n-1


@dataclass(frozen=True, kw_only=True)
class Late:
    """A cell: which request comes late.

    Attributes:
        request: of transaction n.
        commits: whether transaction n commits.
        same: whether n+1 writes to the partition that n has written to; else to others first.
        mode: of ownership.
        signs: whether librdkafka's log lines are heard.
        seed: decides how much is written, when in n+1 the request arrives, and how n+1 ends.
        fence_every: `transaction.fence_every`.
    """

    request: ApiKey
    commits: bool
    same: bool
    mode: str
    signs: bool
    seed: int
    fence_every: str = "suspicion"

    def __str__(self) -> str:
        return (
            f"{self.request.name} of a transaction that {'commits' if self.commits else 'aborts'}, "
            f"{'same partition' if self.same else 'new partitions'}, {self.mode}, "
            f"{'with' if self.signs else 'without'} log lines, seed {self.seed}"
        )


def _nothing() -> None:
    pass


class Script:
    """Three transactions of a player, and the late request.

    Args:
        late: what comes late, and when.
        proxy: before the broker.
        transactional_id: whose requests count.
        naive: n+1 then ends, and the request then comes, as it does the most harm.
    """

    def __init__(self, late: Late, proxy: HoldProxy, transactional_id: str, *, naive: bool) -> None:
        self._late, self._proxy, self._id = late, proxy, transactional_id
        dice = random.Random(repr(late))
        self._first = dice.randint(6, 14)
        self._next = dice.randint(2, self._first - 1)
        # An abort of n does its harm if n+1 commits, and the other way round.
        ends_n = late.request is ApiKey.END_TXN
        self._next_commits = not (late.commits and ends_n) if naive or ends_n else dice.random() < 0.8
        self._at_end = late.request is ApiKey.TXN_OFFSET_COMMIT if naive else dice.random() < 0.5
        self._tail = 0 if late.same and (naive or dice.random() < 0.5) else dice.randint(1, 8)
        if self._next + self._tail == self._first:
            self._first += 1  # offsets that come late would be those that are there
        self._held: Hold | None = None
        self.fired = False

    def run(self, player: Player) -> None:
        if self._late.request is ApiKey.INIT_PRODUCER_ID:
            self._held = self._hold(ApiKey.INIT_PRODUCER_ID)
            player.open()
        else:
            player.open()
            self._transaction(player, [(_BEFORE, 0)], committed=True)
            self._held = self._hold(
                self._late.request,
                ends_with(committed=self._late.commits) if self._late.request is ApiKey.END_TXN else None,
            )
        self._nth(player)
        if self._held.is_held:
            self._following(player, self._held)
        self._proxy.clear_rules()
        player.restart_and_finish()

    def _nth(self, player: Player) -> None:
        if self._late.request in OF_OFFSETS and not self._late.commits and not isinstance(player, Naive):
            # Only an answer that refuses the offsets makes ours abort after it has sent them.
            self._proxy.edit_reply(
                ApiKey.TXN_OFFSET_COMMIT,
                lambda f, answer: f.with_error(answer, _ILLEGAL_GENERATION),
                where=self._ours,
            )
            self._transaction(player, [(self._first, 0)], committed=True)
        elif self._late.request is ApiKey.PRODUCE and not self._late.commits:
            self._lost_with(player)
        else:
            self._transaction(player, [(self._first, 0)], committed=self._late.commits)

    def _lost_with(self, player: Player) -> None:
        """Records of which the held request is the only copy: what is sent again does not arrive before the abort."""
        assert self._held is not None
        player.start(self._first)
        player.write(self._first, 0, delivered=False)
        self._held.wait_held(WAIT_S)
        self._proxy.cut(ApiKey.PRODUCE, Edge.REQUEST, times=1_000, where=self._ours)
        try:
            player.end(committed=False)
        except player.errors as error:
            player.recover(error)
        self._proxy.clear_rules()

    def _following(self, player: Player, held: Hold) -> None:
        to = (0, 0) if self._late.same else (1, 2)
        between: Callable[[], object] = _nothing
        if self._at_end:
            end = self._hold(ApiKey.END_TXN, reset_client=False)
            thread = threading.Thread(target=self._deliver_before, args=(end, held))
            thread.start()
        else:
            thread = None
            between = partial(self._deliver, held)
        parts = [(self._next, to[0]), *([(self._tail, to[1])] if self._tail else [])]
        self._transaction(player, parts, committed=self._next_commits, between=between)
        if thread is not None:
            thread.join(2 * WAIT_S)

    def _transaction(
        self,
        player: Player,
        parts: Iterable[tuple[int, int]],
        *,
        committed: bool,
        between: Callable[[], object] = _nothing,
    ) -> None:
        """One transaction; ``between`` is called behind its first part."""
        first, *rest = parts
        try:
            player.start(first[0] + sum(records for records, _ in rest))
            player.write(*first)
            between()
            for part in rest:
                player.write(*part)
            player.end(committed=committed)
        except player.errors as error:
            player.recover(error)

    def _deliver_before(self, end: Hold, held: Hold) -> None:
        try:
            end.wait_held(WAIT_S)
            self._deliver(held)
        except TimeoutError:
            pass  # it did not fire
        finally:
            end.release()

    def _deliver(self, held: Hold) -> None:
        ends = self._ends()
        held.release()
        held.wait_answer(WAIT_S)
        self.fired = self._ends() == ends

    def _ends(self) -> int:
        return len([one for one in self._proxy.requests(ApiKey.END_TXN) if one.transactional_id == self._id])

    def _hold(
        self, request: ApiKey, which: Callable[[Frame], bool] | None = None, *, reset_client: bool = True
    ) -> Hold:
        def matches(frame: Frame) -> bool:
            return self._ours(frame) and (which is None or which(frame))

        return self._proxy.hold(request, where=matches, reset_client=reset_client)

    def _ours(self, frame: Frame) -> bool:
        return frame.transactional_id == self._id

"""A5: a request of transaction n arrives inside transaction n+1, for every request that a transaction has.

A proxy holds the request and resets the client's connection, so librdkafka sends it again by itself; the first copy
reaches the broker while transaction n+1 is open. A cell counts only if it did: the broker has answered the copy after it
had taken the first records of n+1, and before it was shown the end of n+1.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import patch

from eos.events import Event, ProducerOpened, ProducerSuspect
from eos.kafka.late_copies import ResendWatch
from eos.testing.proxy.frames import Frame
from eos.testing.proxy.hold_proxy import ApiKey, Edge, Hold, HoldProxy, ends_with
from tests.proof.arena import Arena, shared_arena
from tests.proof.players import WAIT_S, ByLoop, ByOwnLoop, Naive, Player
from tests.proof.row import Cell, Outcome, Row
from tests.support.observer import assert_copied, create_topics, produce_plain, unique
from tests.support.settings import owning, settings_of, shard_of

REQUESTS = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.PRODUCE,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)
_OF_OFFSETS = (ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT)
_NAIVE_FAILS_BY = (ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN)
_ILLEGAL_GENERATION = 22  # an answer to offsets that ends a transaction by an abort
_INPUT = 45
_BEFORE = 5  # records of transaction n-1
_SEEDS = 6
_NAIVE_SEEDS = 3
_NOT_FIRED = "the request did not arrive inside the next transaction"


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


class _Script:
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
        if self._late.request in _OF_OFFSETS and not self._late.commits and not isinstance(player, Naive):
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


def judged(arena: Arena, group: str, source: str, out: str, records: int) -> list[str]:
    """What speaks against it that all of the input was copied once."""
    try:
        assert_copied(arena.bootstrap, group, source, out, records)
    except (AssertionError, TimeoutError) as found:
        return [str(found) or type(found).__name__]
    return []


@contextmanager
def _deaf(*, signs: bool) -> Iterator[None]:
    """Without librdkafka's log lines, if so asked."""
    with ExitStack() as stack:
        if not signs:
            stack.enter_context(patch.object(ResendWatch, "log", lambda *_: None))
        yield


def _prepared(arena: Arena) -> tuple[str, str, str]:
    source, out, group = unique("in"), unique("out"), unique("late")
    create_topics(arena.bootstrap, {source: 1, out: 4})
    produce_plain(arena.bootstrap, source, [b"%d" % n for n in range(_INPUT)])
    return source, out, group


def ours(late: Late, arena: Callable[[], Arena], _: Path) -> Outcome:
    """The cell for eos."""
    place = arena()
    source, out, group = _prepared(place)
    told: list[Event] = []
    shard = shard_of(late.mode, "late", group, source)
    with place.proxied() as proxy, _deaf(signs=late.signs):
        settings = settings_of(
            proxy.bootstrap_servers,
            input__start="earliest",
            transaction__timeout_ms=30_000,
            transaction__fence_every=late.fence_every,
            **owning(late.mode, source),
        )
        script = _Script(late, proxy, shard.transactional_id, naive=False)
        kind = ByOwnLoop if late.seed % 2 else ByLoop
        player = kind(settings, shard, source, out, told.append)
        try:
            script.run(player)
        finally:
            player.close()
    anomalies = judged(place, group, source, out, _INPUT)
    rebuilt = sum(isinstance(one, ProducerOpened) for one in told)
    suspect = dict.fromkeys(one.reason for one in told if isinstance(one, ProducerSuspect))
    note = f"{rebuilt} producers; {'; '.join(suspect)[:200]}"
    return Outcome(
        faults=int(script.fired),
        records=_INPUT,
        anomalies=anomalies,
        note=note if script.fired else f"{_NOT_FIRED}; {note}",
    )


def naive(late: Late, arena: Callable[[], Arena], _: Path) -> Outcome:
    """The same with the loop of the textbooks, which has to be convicted."""
    place = arena()
    source, out, group = _prepared(place)
    transactional_id = unique("naive")
    with place.proxied() as proxy:
        script = _Script(late, proxy, transactional_id, naive=True)
        player = Naive(
            proxy.bootstrap_servers,
            transactional_id,
            group,
            source,
            out,
            sends_offsets_first=late.request in _OF_OFFSETS,
        )
        try:
            script.run(player)
        finally:
            player.close()
    found = judged(place, group, source, out, _INPUT)
    return Outcome(
        faults=int(script.fired),
        records=_INPUT,
        convicted=bool(found),
        note="; ".join(found)[:300] if script.fired else _NOT_FIRED,
    )


def lates(seeds: Iterable[int]) -> Iterator[Late]:
    """Every combination, seed by seed: what is cut short has had a bit of all."""
    for seed, signs, mode, request, commits, same in product(
        seeds, (True, False), ("group", "partition"), REQUESTS, (True, False), (True, False)
    ):
        yield Late(
            request=request,
            commits=commits,
            same=same,
            mode=mode,
            signs=signs,
            seed=seed,
        )


def _cells() -> Iterator[Cell]:
    for seed, request, commits, same in product(
        range(_NAIVE_SEEDS), _NAIVE_FAILS_BY, (True, False), (True, False)
    ):
        late = Late(request=request, commits=commits, same=same, mode="naive", signs=True, seed=seed)
        yield Cell(name=f"naive: {late}", run=partial(naive, late, shared_arena), minutes=0.05)
    for late in lates(range(_SEEDS)):
        yield Cell(name=str(late), run=partial(ours, late, shared_arena), minutes=0.04)


A5 = Row(
    id="A5",
    title="a request of one transaction arrives inside the next one",
    goal=480,
    counts="requests that arrived late",
    cells=_cells,
)

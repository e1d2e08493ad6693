"""A5: a request of transaction n arrives inside transaction n+1, for every request that a transaction has.

A proxy holds the request and resets the client's connection, so librdkafka sends it again by itself; the first copy
reaches the broker while transaction n+1 is open. A cell counts only if it did: the broker has answered the copy after it
had taken the first records of n+1, and before it was shown the end of n+1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import patch

from eos.events import Event, ProducerOpened, ProducerSuspect
from eos.kafka.late_copies import ResendWatch
from eos.testing.proxy.frames import ApiKey
from tests.proof.arena import Arena, shared_arena
from tests.proof.late_script import OF_OFFSETS, Late, Script
from tests.proof.players import ByLoop, ByOwnLoop, Naive
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
_NAIVE_FAILS_BY = (ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN)
_INPUT = 45
_SEEDS = 5
_NAIVE_SEEDS = 3
_NOT_FIRED = "the request did not arrive inside the next transaction"


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
        script = Script(late, proxy, shard.transactional_id, naive=False)
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
        script = Script(late, proxy, transactional_id, naive=True)
        player = Naive(
            proxy.bootstrap_servers,
            transactional_id,
            group,
            source,
            out,
            sends_offsets_first=late.request in OF_OFFSETS,
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

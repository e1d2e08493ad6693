"""A8: a chain of three jobs, topic to topic to topic to topic, whose workers join, leave and are killed all the time.

Each level grows from three workers to six and shrinks to two, an accident every two seconds somewhere in the chain, while
the input is written. Each level is compared by itself: its output is exactly what its input makes, up to its offsets.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from tests.proof.arena import Arena, shared_arena
from tests.proof.row import Cell, Outcome, Row
from tests.support.jobs_for_faults import FaultJob, in_process, run_to_end, settings_for
from tests.support.observer import PlainRecord, create_topics, produce_plain, unique
from tests.support.processes import Child

PARTITIONS = 9
_LEVELS = 3
_START, _PEAK, _END = 3, 6, 2
_EVERY_S = 2.0
_SESSION_S = 3.0
_WAIT_S = 180.0
_CAUGHT_UP_S = 900.0
_KEYS = 999
_SEED = 9_848
KIP_848 = {
    "group__consumer__min__session__timeout__ms": "1000",
    "group__consumer__session__timeout__ms": str(int(_SESSION_S * 1000)),
    "group__consumer__min__heartbeat__interval__ms": "500",
    "group__consumer__heartbeat__interval__ms": "1000",
}


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A cell.

    Attributes:
        protocol: of the groups.
        own_loop: whether the workers are loops of the caller's own, or `eos.run`.
        records: of the first topic.
        most: workers of a level at the peak; the others shrink with it.
    """

    protocol: str
    own_loop: bool
    records: int
    most: int = _PEAK

    def __str__(self) -> str:
        kind = "loops of one's own" if self.own_loop else "eos.run"
        return f"{self.records:,} records, {self.protocol}, {kind}, up to {self.most} workers at each level"


class _Level:
    """A job of the chain and its workers."""

    def __init__(self, job: FaultJob, bootstrap: str, changes: dict[str, Any], stack: ExitStack) -> None:
        self.job, self._bootstrap, self._changes, self._stack = job, bootstrap, changes, stack
        self.running: dict[int, Child] = {}
        self.members: list[Child] = []
        self.against: list[str] = []

    def join(self) -> None:
        ordinal = next(number for number in range(100) if number not in self.running)
        child = self._stack.enter_context(
            in_process(self.job, self._bootstrap, ownership__ordinal=ordinal, **self._changes)
        )
        self.running[ordinal] = child
        self.members.append(child)

    def leave(self, dice: random.Random) -> None:
        child = self._taken(dice)
        child.terminate()
        if code := child.wait(_WAIT_S):
            self.against.append(f"a worker that was asked to stop ended with {code}: {child.lines[-3:]}")

    def kill(self, dice: random.Random) -> None:
        """Its replacement has its ordinal."""
        child = self._taken(dice)
        child.kill()
        child.wait(_WAIT_S)
        self.join()

    @property
    def moves(self) -> int:
        """How often partitions were taken from a worker."""
        return sum("PartitionsRevoked" in line for child in self.members for line in child.lines)

    def _taken(self, dice: random.Random) -> Child:
        child = self.running.pop(dice.choice(list(self.running)))
        if not child.alive:
            self.against.append(f"a worker has ended by itself: {child.lines[-3:]}")
        return child


def stormed(chain: Chain, arena: Callable[[], Arena], _: Path) -> Outcome:
    """The cell."""
    bootstrap = arena().bootstrap
    changes: dict[str, Any] = {
        "ownership__protocol": chain.protocol,
        "ownership__static_membership": False,  # who leaves gives its partitions up at once
        "input__fetch_records": 150,
    }
    if chain.protocol == "cooperative":
        changes["ownership__session_timeout_ms"] = int(_SESSION_S * 1000)
    dice = random.Random(_SEED + chain.records)
    topics = [unique(f"level{number}") for number in range(_LEVELS + 1)]
    audits, dead = [unique("audit") for _ in range(_LEVELS)], unique("dead")
    create_topics(bootstrap, {**dict.fromkeys(topics, PARTITIONS), **dict.fromkeys([*audits, dead], 1)})
    with ExitStack() as stack:
        levels = [
            _Level(
                FaultJob(
                    inputs=(topics[number],),
                    out=topics[number + 1],
                    audit=audits[number],
                    dead=dead,
                    batch=True,
                    pause_ms=15,
                    own_loop=chain.own_loop,
                ),
                bootstrap,
                changes,
                stack,
            )
            for number in range(_LEVELS)
        ]
        loading = threading.Thread(target=_load, args=(bootstrap, topics[0], chain.records))
        loading.start()
        faults = _storm(levels, chain.most, dice)
        loading.join(_CAUGHT_UP_S)
        against = [one for level in levels for one in level.against]
        processed = 0
        for level in levels:  # what a level has left is processed before the next one is asked
            while level.running:
                level.leave(dice)
            run_to_end(level.job, settings_for(bootstrap, **changes), timeout_s=_CAUGHT_UP_S)
            try:
                found = level.job.check(bootstrap, timeout_s=_CAUGHT_UP_S).processed
            except (AssertionError, TimeoutError) as error:
                against.append(f"{level.job.inputs[0]}: {error}")
                continue
            processed += found
            if found != chain.records:
                against.append(f"{level.job.inputs[0]}: {found} of {chain.records} records")
        moves = [level.moves for level in levels]
    return Outcome(
        faults=faults,
        records=processed,
        anomalies=against,
        note=f"partitions were taken {moves} times, by level",
    )


def _storm(levels: list[_Level], most: int, dice: random.Random) -> int:
    """Grow, shrink, and kill in between; returns how many accidents there were."""
    share = most / _PEAK
    start, end = max(1, round(_START * share)), max(1, round(_END * share))
    for level in levels:
        for _ in range(start):
            level.join()
        level.members[0].wait_line("SessionOpened", _WAIT_S)
    accidents: list[Callable[[], None]] = []
    for level in levels:
        steps: list[Callable[[], None]] = [
            *([level.join] * (most - start)),
            *([partial(level.leave, dice)] * (most - end)),
        ]
        for _ in range(most):  # as many kills, anywhere among them
            steps.insert(dice.randint(0, len(steps)), partial(level.kill, dice))
        accidents += steps
    # In turn, so that the levels storm together.
    each = len(accidents) // len(levels)
    for accident in (accidents[each * level + step] for step in range(each) for level in range(len(levels))):
        accident()
        time.sleep(_EVERY_S * dice.uniform(0.5, 1.5))
    return len(accidents)


def _load(bootstrap: str, topic: str, count: int) -> None:
    records = (PlainRecord(b"%d" % i, b"%d" % (i % _KEYS), i % PARTITIONS) for i in range(count))
    produce_plain(bootstrap, topic, records, timeout_s=_CAUGHT_UP_S)


def _cells() -> Iterator[Cell]:
    for (records, minutes, most), own_loop, protocol in product(
        ((30_000, 4, 2), (500_000, 12, _PEAK)), (False, True), ("cooperative", "consumer")
    ):
        chain = Chain(protocol=protocol, own_loop=own_loop, records=records, most=most)
        arena = partial(shared_arena, **(KIP_848 if protocol == "consumer" else {}))
        yield Cell(name=str(chain), run=partial(stormed, chain, arena), minutes=minutes)


A8 = Row(
    id="A8",
    title="a chain of three jobs whose workers join, leave and are killed every two seconds",
    goal=150,
    counts="joins, leaves and kills",
    cells=_cells,
)

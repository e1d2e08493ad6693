"""The model of the protocol (tests/model) against a real coordinator: each step is made there too, and its state compared.

A search of the model is worth what the model is. Here ways through it are taken which make every kind of step that its
coordinator knows, in every state: both owners and the network are played by bare frames, a late copy is the same frame
once more. After each step DescribeTransactions has to say what the model says, and each request gets the model's answer.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest

from eos.ops.check.transactions import TransactionsView
from tests.model.protocol import (
    EOS,
    OFFSETS,
    OUT,
    Api,
    Bounds,
    Cluster,
    Owner,
    Reply,
    Request,
    Rules,
    Step,
    Stored,
    TransactionState,
    World,
    steps,
)
from tests.support import raw_transactions as raw
from tests.support.by_hand import producer
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import committed_offsets, create_topics, read_committed, unique
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

MARKERS, EXPIRES = "markers are written", "the transaction expires"
TIMEOUT_MS = 60_000
EXPIRING_MS = 4_000  # longer than the steps before it take
PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
MEANINGS: Mapping[int, Reply] = {
    **dict.fromkeys((3, 6, 14, 15, 16), Reply.WAIT),  # a leader or coordinator is not there yet
    0: Reply.OK,
    46: Reply.OK,  # DUPLICATE_SEQUENCE_NUMBER
    47: Reply.FENCED,
    90: Reply.FENCED,
    45: Reply.INVALID,  # OUT_OF_ORDER_SEQUENCE_NUMBER
    48: Reply.INVALID,  # INVALID_TXN_STATE
    51: Reply.WAIT,
}
NO_CLAIM = EOS._replace(claim=False)
FEW = Bounds(inputs=1, resends=1, expiries=0, unanswered=0)


class Taken(NamedTuple):
    """One step of a way."""

    label: str
    before: World
    after: World


def ways(rules: Rules, bounds: Bounds, *, states_at_most: int) -> list[list[Taken]]:
    """Shortest ways that take each kind of step at least once. Markers come at once: nothing can hold them back here."""
    request = Request(Api.INIT, "A")
    a = Owner("A", Step.WAITING, request)
    first = World(Cluster(), (a, a._replace(name="B", flight=request._replace(owner="B"))))
    led_to: dict[World, Taken | None] = {first: None}
    kinds: dict[object, Taken] = {}
    waiting = deque([first])
    while waiting and len(led_to) < states_at_most:
        world = waiting.popleft()
        found = list(steps(world, rules, bounds))
        for label, after in [one for one in found if one[0] == MARKERS] or found:
            taken = Taken(label, world, after)
            kinds.setdefault(_kind(taken), taken)
            if after not in led_to:
                led_to[after] = taken
                waiting.append(after)
    chosen, covered = list[list[Taken]](), set[object]()
    for kind, taken in sorted(kinds.items(), key=lambda one: -len(_way(led_to, one[1]))):
        if kind not in covered:
            chosen.append(_way(led_to, taken))
            covered.update(map(_kind, chosen[-1]))
            if taken.after.cluster.state in PREPARED:
                after = dict(steps(taken.after, rules, bounds))[MARKERS]
                chosen[-1].append(Taken(MARKERS, taken.after, after))
    return chosen


def _kind(taken: Taken) -> object:
    """What the coordinator sees of a step: where it is, the request with its answer, and where it is then."""
    what = re.sub(r"^[AB]: | of [AB]| f\(\d+\)| \d+", "", taken.label)
    old, new = taken.before.cluster, taken.after.cluster
    return what, old.state, old.partitions, new.state, new.partitions


def _way(led_to: Mapping[World, Taken | None], last: Taken) -> list[Taken]:
    way = [last]
    while (before := led_to[way[-1].before]) is not None:
        way.append(before)
    return way[::-1]


class Replay:
    """One way, made on the broker."""

    def __init__(self, bootstrap: str, wire: raw.Wire, view: TransactionsView, way: Sequence[Taken]) -> None:
        self._bootstrap, self._wire, self._view, self._way = bootstrap, wire, view, way
        self._names = raw.Names(unique("replay"), unique("out"), unique("group"), unique("in"))
        create_topics(bootstrap, {self._names.out: 1, self._names.source: 1})
        self._timeout_ms = EXPIRING_MS if any(one.label == EXPIRES for one in way) else TIMEOUT_MS
        self._who = {"A": raw.Identity(), "B": raw.Identity()}
        self._copies: list[tuple[str, raw.Identity, bytes]] = []
        self._done: list[str] = []

    def run(self) -> None:
        """Every step, and what is left in the end."""
        for taken in self._way:
            self._done.append(taken.label)
            self._step(taken)
            self._compare(taken.after)
        self._abort_what_is_open()
        last = self._way[-1].after.cluster
        values = [int(one.value or b"") for one in read_committed(self._bootstrap, self._names.out)]
        assert values == last.committed_values, " | ".join(self._done)
        offset, metadata = self._wire.stored(self._names)
        assert (max(0, offset), metadata.decode()) == (last.stored.offset, _metadata(last.stored)), (
            " | ".join(self._done)
        )

    def _step(self, taken: Taken) -> None:
        label, before = taken.label, taken.before
        if label in (MARKERS, EXPIRES):
            return  # the broker's own affair: waited for
        if label.startswith("a late copy arrives: "):
            self._send_late(label.removeprefix("a late copy arrives: "))
            return
        owner = before.owners["AB".index(label[0])]
        request = owner.flight
        what = label[3:]
        if what.startswith(("resends", "gives up")):
            assert request is not None
            shown = re.sub(r"^(resends|gives up waiting for) ", "", what)
            self._copies.append((shown, self._who[owner.name], self._frame(request)))
        elif what.endswith("aborts what is open"):
            assert request is not None
            self._send(request, Reply.WAIT)
        elif request is not None and owner.step is Step.WAITING:
            self._send(request, Reply(what.rpartition(", ")[2]))

    def _send(self, request: Request, expected: Reply) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._wire.send(self._frame(request))
            reply = MEANINGS.get(answer.error)
            if reply is not Reply.WAIT or expected is Reply.WAIT or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        # Of an older epoch the broker says so, and the model that no transaction has the partition; an owner does the same.
        if expected is Reply.INVALID and request.api in (Api.PRODUCE, Api.SEND_OFFSETS):
            reply = Reply.INVALID if reply is Reply.FENCED and self._is_old(request.owner) else reply
        assert reply is expected, (f"the broker answers {answer.error}", " | ".join(self._done))
        if request.api is Api.INIT and reply is Reply.OK:
            self._who[request.owner] = answer.who

    def _is_old(self, owner: str) -> bool:
        (seen,) = self._view.describe([self._names.transactional_id]).values()
        return self._who[owner].epoch < seen.producer_epoch

    def _send_late(self, shown: str) -> None:
        """The newest copy of this request; the model has forgotten those of older epochs."""
        at = max(n for n, one in enumerate(self._copies) if one[0] == shown)
        _, _, frame = self._copies.pop(at)
        self._wire.send(frame)

    def _frame(self, request: Request) -> bytes:
        who = self._who[request.owner]
        match request.api:
            case Api.INIT:
                return raw.init(self._names, self._timeout_ms)
            case Api.ADD_PARTITION:
                return raw.add_partition(self._names, who)
            case Api.PRODUCE:
                return raw.produce(self._names, who, b"%d" % request.value, request.sequence)
            case Api.ADD_OFFSETS:
                return raw.add_offsets(self._names, who)
            case Api.SEND_OFFSETS:
                assert request.stored is not None
                return raw.send_offsets(self._names, who, request.stored.offset, _metadata(request.stored))
            case Api.COMMIT | Api.ABORT:
                return raw.end(self._names, who, commit=request.api is Api.COMMIT)

    def _compare(self, world: World) -> None:
        """What DescribeTransactions says, once the markers are written; of epochs only the order counts."""
        cluster = world.cluster
        if cluster.state in PREPARED:
            return
        deadline = time.monotonic() + PATIENCE_S
        name = self._names.transactional_id
        while True:
            seen = self._view.describe([name]).get(name)
            state = "Empty" if seen is None else seen.state
            if state == cluster.state or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        assert state == cluster.state, " | ".join(self._done)
        if seen is None:
            assert cluster.epoch < 0, " | ".join(self._done)
            return
        partitions = {OUT if one.topic == self._names.out else OFFSETS for one in seen.partitions}
        assert partitions == cluster.partitions, " | ".join(self._done)
        for owner in world.owners:
            if owner.epoch >= 0:
                real = self._who[owner.name]
                assert seen.producer_id == real.producer_id, " | ".join(self._done)
                assert _order(seen.producer_epoch, real.epoch) == _order(cluster.epoch, owner.epoch), (
                    " | ".join(self._done)
                )

    def _abort_what_is_open(self) -> None:
        self._send(Request(Api.INIT, "A"), Reply.OK)


def _metadata(stored: Stored) -> str:
    return f"{stored.owner} {stored.number}" if stored.owner else ""


def _order(one: int, other: int) -> int:
    return (one > other) - (one < other)


def replay(bootstrap: str, found: Sequence[Sequence[Taken]]) -> None:
    producer(bootstrap)  # the first use makes the brokers create their own topics
    committed_offsets(bootstrap, unique("group"), [(unique("in"), 0)])
    with raw.wire(bootstrap) as wire, TransactionsView(settings_for(bootstrap)) as view:
        for way in found:
            Replay(bootstrap, wire, view, way).run()


def test_coordinator_goes_the_ways_of_the_model(bootstrap: str) -> None:
    found = ways(NO_CLAIM, FEW, states_at_most=3_000)
    replay(bootstrap, sorted(found, key=len, reverse=True)[:6])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "bounds"),
    [
        (NO_CLAIM, FEW._replace(inputs=2)),
        (EOS, FEW._replace(unanswered=1)),
        (NO_CLAIM, FEW._replace(resends=2)),
        (NO_CLAIM, FEW._replace(expiries=1)),
        (EOS._replace(suspicion=False), FEW._replace(inputs=2)),
        (EOS._replace(records=2, offsets_after_each_record=True), FEW._replace(inputs=2)),
    ],
    ids=["two inputs", "unanswered calls", "two resends", "expiry", "no suspicion", "offsets sent twice"],
)
def test_coordinator_goes_all_kinds_of_steps_of_the_model(
    bootstrap: str, rules: Rules, bounds: Bounds
) -> None:
    found = ways(rules, bounds, states_at_most=60_000)
    assert len(found) > 5
    replay(bootstrap, found)

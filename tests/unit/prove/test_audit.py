"""Every anomaly that is written into a log by hand is found, and a log without one is not accused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import pytest

from eos.offsets import Partition
from eos.prove.audit import Audit, Visible, audit
from eos.prove.log import OFFSETS, Batch, ClusterLog, Commit, Decision, batches_of, decisions_of
from eos.prove.tagged import UNCOUNTED, Tag

IN, OUT, OUT2 = Partition("in", 0), Partition("out", 0), Partition("out", 1)
STORE = Partition(OFFSETS, 0)
GROUP = "group"
P, Q = 7, 8  # producers


def tag(offset: int, number: int = 0, of: int = 1) -> Tag:
    return Tag(IN, offset, number, of)


class Log:
    """A cluster's log, written step by step. ``seen``: what readers get, from the markers unless a test says otherwise."""

    def __init__(self) -> None:
        self.batches: defaultdict[Partition, list[Batch]] = defaultdict(list, {OUT: [], OUT2: [], STORE: []})
        self.decisions: list[Decision] = []
        self.seen: defaultdict[Partition, list[Visible]] = defaultdict(list)
        self._ends: defaultdict[Partition, int] = defaultdict(int)
        self._open: defaultdict[int, dict[Partition, list[Visible]]] = defaultdict(dict)
        self._began_ms: dict[int, int] = {}
        self._now_ms = 0

    def write(self, producer: int, partition: Partition, *tags: Tag) -> None:
        base = self._ends[partition]
        records = [Visible(base + n, one) for n, one in enumerate(tags)]
        self._append(partition, len(tags), producer, transactional=producer >= 0)
        if producer < 0:
            self.seen[partition] += records
        else:
            self._open[producer].setdefault(partition, []).extend(records)

    def store(self, producer: int, offset: int, group: str = GROUP) -> None:
        commits = (Commit(group, IN, offset),)
        self._append(STORE, 1, producer, transactional=producer >= 0, commits=commits)
        if producer >= 0:
            self._open[producer].setdefault(STORE, [])

    def end(self, producer: int, *, commit: bool = True, marked: Iterable[Partition] | None = None) -> None:
        """By default in every partition of the transaction."""
        written = self._open.pop(producer, {})
        self._now_ms += 1
        began_ms = self._began_ms.pop(producer)
        self.decisions.append(Decision(producer, began_ms, commit, frozenset(written), self._now_ms))
        for partition, records in written.items():
            if marked is None or partition in marked:
                marker = "COMMIT" if commit else "ABORT"
                self._append(partition, 1, producer, transactional=True, marker=marker)
                self.seen[partition] += sorted(records) if commit else []

    def transaction(self, producer: int, first: int, last: int) -> None:
        """The outputs of input [first, last), one each, and the offset."""
        self.write(producer, OUT, *map(tag, range(first, last)))
        self.store(producer, last)
        self.end(producer)

    def mark_again(self, producer: int) -> None:
        """The coordinator, elected anew, writes the markers of this producer's last transaction once more."""
        for partition in self.decisions[-1].partitions:
            self._append(partition, 1, producer, transactional=True, marker="COMMIT")

    def audited(self) -> Audit:
        log = ClusterLog(self.batches, self.decisions)
        return audit(log, GROUP, ["in"], ["out"], {p: sorted(self.seen[p]) for p in (OUT, OUT2)})

    def _append(
        self,
        partition: Partition,
        count: int,
        producer: int,
        *,
        transactional: bool,
        marker: str = "",
        commits: tuple[Commit, ...] = (),
    ) -> None:
        base = self._ends[partition]
        self._ends[partition] += count
        self._now_ms += 1
        if not marker:
            self._began_ms.setdefault(producer, self._now_ms)
        last = base + count - 1
        batch = Batch(partition, producer, 0, base, last, transactional, marker, commits, self._now_ms)
        self.batches[partition].append(batch)


def test_a_log_in_order_is_not_accused() -> None:
    log = Log()
    log.transaction(P, 0, 3)
    log.write(P, OUT, tag(3))  # aborted, and made again by its replacement
    log.store(P, 4)
    log.end(P, commit=False)
    log.write(Q, OUT, tag(3, 0, 3), tag(3, 1, 3))
    log.write(Q, OUT2, tag(3, 2, 3))
    log.store(Q, 5)  # 4 makes nothing
    log.end(Q)
    log.store(Q, 5)  # as it stands, so that it is not forgotten
    log.end(Q)
    log.store(-1, 99, group="another")
    found = log.audited()
    assert found.against == ()
    assert found.transactions == {"committed": 3, "aborted": 1}


def uncounted(*offsets: int) -> list[Tag]:
    return [tag(offset, 0, UNCOUNTED) for offset in offsets]


def test_of_outputs_whose_origin_only_is_known_their_transaction_is_judged_and_nothing_else() -> None:
    log = Log()
    log.write(P, OUT, *uncounted(0, 2, 1, 1))  # `eos verify` says that these are duplicated and reordered
    log.store(P, 3)
    log.end(P)
    assert log.audited().against == ()


def test_a_topic_that_is_not_declared_is_named_and_not_judged() -> None:
    log = Log()
    log.write(P, Partition("elsewhere", 1), tag(0))
    log.write(P, OUT, tag(0))
    log.store(P, 1)
    log.end(P)
    log.write(Q, IN, tag(0))  # another writer's, to the input
    log.end(Q)
    found = log.audited()
    assert (found.against, found.beside) == ((), ("elsewhere",))


def test_offset_that_was_too_high_until_the_next_commit_is_found() -> None:
    log = Log()
    log.write(P, OUT, *uncounted(0, 1, 2))
    log.store(P, 4)
    log.end(P)
    log.write(P, OUT, *uncounted(3, 4))
    log.store(P, 5)
    log.end(P)
    (found,) = [one for one in log.audited().against if "outputs belong to several commits" in one]
    assert found.startswith("1 x ")


def test_markers_that_a_coordinator_has_written_twice_are_no_anomaly() -> None:
    log = Log()
    log.transaction(P, 0, 3)
    log.mark_again(P)
    log.transaction(P, 3, 4)
    log.write(P, OUT, tag(4))
    log.store(P, 5)
    log.end(P, commit=False)
    log.transaction(P, 4, 6)
    log.mark_again(P)
    assert log.audited().against == ()


def g1a(log: Log) -> None:
    log.write(P, OUT, tag(3))
    log.end(P, commit=False)
    log.seen[OUT].append(Visible(log.batches[OUT][-2].base))


def hidden(log: Log) -> None:
    log.transaction(P, 3, 5)
    log.seen[OUT].pop()


def left_open(log: Log) -> None:
    log.write(P, OUT, tag(3))


def torn_by_a_missing_marker(log: Log) -> None:
    log.write(P, OUT, tag(3))
    log.write(P, OUT2, tag(4))
    log.store(P, 5)
    log.end(P, marked=[OUT, STORE])


def torn_by_a_marker_of_the_other_kind(log: Log) -> None:
    log.transaction(P, 3, 4)
    log.batches[STORE][-1] = log.batches[STORE][-1]._replace(marker="ABORT")


def torn_by_a_marker_too_many(log: Log) -> None:
    """It ends what was written since the last marker, and no coordinator has decided that."""
    log.transaction(P, 3, 4)
    log.write(P, OUT, tag(4))
    log.mark_again(P)
    log.store(P, 5)
    log.end(P)


def outside(log: Log) -> None:
    log.write(-1, OUT, tag(3))
    log.store(P, 4)
    log.end(P)


def offsets_outside(log: Log) -> None:
    log.write(P, OUT, tag(3))
    log.end(P)
    log.store(-1, 4)


def went_back(log: Log) -> None:
    log.store(P, 1)
    log.end(P)


def torn_record(log: Log) -> None:
    log.write(P, OUT, tag(3, 0, 2))
    log.store(P, 4)
    log.end(P)


def doubled(log: Log) -> None:
    log.write(P, OUT, tag(3), tag(3))
    log.store(P, 4)
    log.end(P)


def reordered(log: Log) -> None:
    log.write(P, OUT, tag(4), tag(3))
    log.store(P, 5)
    log.end(P)


def without_its_offset(log: Log) -> None:
    log.write(P, OUT, tag(3))
    log.end(P)


def offsets_in_the_next_transaction(log: Log) -> None:
    """As a loop does that commits its outputs first; nothing has come between the two."""
    log.write(P, OUT, tag(3))
    log.end(P)
    log.store(P, 4)
    log.end(P)


def by_another_producer(log: Log) -> None:
    log.write(P, OUT, tag(3))
    log.end(P)
    log.store(Q, 4)
    log.end(Q)


def in_the_next_transaction(log: Log) -> None:
    """The late commit of one transaction's end takes a part of the next one's outputs along."""
    log.write(P, OUT, tag(3))
    log.end(P)
    log.write(P, OUT, tag(4))
    log.store(P, 5)
    log.end(P)


def two_commits_in_one(log: Log) -> None:
    log.write(P, OUT, tag(3))
    log.store(P, 4)
    log.end(P, marked=[STORE])  # the marker of the output comes with the next one's
    log.write(P, OUT, tag(4))
    log.store(P, 5)
    log.end(P)
    log.decisions[-2] = log.decisions[-2]._replace(partitions=frozenset([STORE]))
    log.seen[OUT] = [Visible(0, tag(0)), Visible(1, tag(1)), Visible(2, tag(2))]
    log.seen[OUT] += [Visible(4, tag(3)), Visible(5, tag(4))]


@pytest.mark.parametrize(
    ("anomaly", "named"),
    [
        (g1a, "G1a"),
        (hidden, "readers do not see"),
        (left_open, "still open"),
        (torn_by_a_missing_marker, "not the coordinator's decisions (torn)"),
        (torn_by_a_marker_too_many, "not the coordinator's decisions (torn)"),
        (torn_by_a_marker_of_the_other_kind, "not the coordinator's decisions (torn)"),
        (outside, "output outside of any transaction"),
        (offsets_outside, "offsets outside of any transaction"),
        (went_back, "went back"),
        (torn_record, "a part of its outputs (torn)"),
        (doubled, "a duplicated output"),
        (reordered, "reordered"),
        (without_its_offset, "input that is not committed"),
        (offsets_in_the_next_transaction, "with outputs and without offsets"),
        (by_another_producer, "apart from its input's offset"),
        (in_the_next_transaction, "in several transactions"),
        (two_commits_in_one, "belong to several commits"),
    ],
)
def test_an_anomaly_that_was_written_into_the_log_is_found(
    anomaly: Callable[[Log], None], named: str
) -> None:
    log = Log()
    log.transaction(P, 0, 3)
    assert log.audited().against == ()
    anomaly(log)
    assert any(named in one for one in log.audited().against), log.audited().against


DUMPED = """
Dumping /data/some-topic-12/00000000000000000000.log
Log starting offset: 0
baseOffset: 0 lastOffset: 1 count: 2 producerId: 5 producerEpoch: 3 isTransactional: true isControl: false position: 0
| offset: 0 CreateTime: 1 keySize: 1 valueSize: 6 sequence: 0 headerKeys: []
| offset: 1 CreateTime: 1 keySize: 1 valueSize: 6 sequence: 0 headerKeys: []
baseOffset: 2 lastOffset: 2 count: 1 producerId: 5 producerEpoch: 3 isTransactional: true isControl: true position: 9
| offset: 2 CreateTime: 1 keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] endTxnMarker: ABORT coordinatorEpoch: 0
Dumping /data/__consumer_offsets-2/00000000000000000000.log
baseOffset: 7 lastOffset: 8 count: 2 producerId: -1 producerEpoch: -1 isTransactional: false isControl: false position: 9
| offset: 7 CreateTime: 1 headerKeys: [] key: {"type":"1","data":{"group":"g","topic":"in","partition":3}} payload: \
{"version":"4","data":{"offset":9,"metadata":"key: {} payload: {"}}
| offset: 8 CreateTime: 1 headerKeys: [] key: {"type":"2","data":{"group":"g"}} payload: {"version":"4","data":{}}
"""
STATE = """
| offset: 1 key: {"type":"0","data":{"transactionalId":"i"}} payload: {"version":"1","data":{"producerId":5,\
"transactionStatus":%d,"transactionPartitions":[{"topic":"out","partitionIds":[0,1]}],"transactionStartTimestampMs":44,\
"transactionLastUpdateTimestampMs":55}}
"""


def test_the_log_is_read_as_kafkas_tool_prints_it() -> None:
    some, offsets = Partition("some-topic", 12), Partition(OFFSETS, 2)
    assert batches_of(DUMPED) == {
        some: [Batch(some, 5, 3, 0, 1, True), Batch(some, 5, 3, 2, 2, True, "ABORT", (), 1, control=True)],
        offsets: [Batch(offsets, -1, -1, 7, 8, False, "", (Commit("g", Partition("in", 3), 9),))],
    }


def test_decisions_are_what_was_prepared_each_once() -> None:
    prepared = STATE % 2
    assert decisions_of(STATE % 1 + prepared + prepared + STATE % 4) == [
        Decision(5, 44, True, frozenset([OUT, OUT2]), 55)
    ]

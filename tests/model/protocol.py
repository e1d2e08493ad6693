"""A model of Kafka's transactions (V1) and of two owners of one shard, small enough to be searched to its end.

What is in it: the coordinator with the states of ``__transaction_state``, one output partition, one committed offset with
its metadata, two owners of the same transactional.id (partition ownership: the id is the whole fence), and a network in
which a request that the client library resends leaves a copy that may arrive at any later moment, or never. A pause or a
crash of an owner is an owner that takes no further step; a lost answer is a copy that arrives before the resent one.

What the brokers do is that of Apache Kafka 3.6 and newer with EndTxn v1, which is what librdkafka speaks: two transactions
of one init share an epoch. :func:`search` visits every state and returns the shortest way to one that breaks the invariant:
committed offset = c <=> the committed output is exactly f(input[0:c]).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

OUT, OFFSETS = "out", "offsets"  # the partitions that a transaction may hold


class TransactionState(StrEnum):
    """The states of a transactional.id at its coordinator."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


_PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class Api(StrEnum):
    """The requests of a transactional producer."""

    INIT = "InitProducerId"
    ADD_PARTITION = "AddPartitionsToTxn"
    PRODUCE = "Produce"
    ADD_OFFSETS = "AddOffsetsToTxn"
    SEND_OFFSETS = "TxnOffsetCommit"
    COMMIT = "EndTxn(commit)"
    ABORT = "EndTxn(abort)"


class Reply(StrEnum):
    """What a broker answers. WAIT is every retriable refusal: the request is sent again until it is answered otherwise."""

    OK = "ok"
    FENCED = "fenced"
    INVALID = "invalid"
    WAIT = "wait"


class Stored(NamedTuple):
    """A committed offset and its metadata: the owner that committed it, and the number of that commit."""

    offset: int = 0
    owner: str = ""
    number: int = 0


class Request(NamedTuple):
    """One request; ``value`` is the input offset that a record was made of, ``stored`` what an offset commit carries."""

    api: Api
    owner: str
    epoch: int = -1
    value: int = -1
    sequence: int = -1
    stored: Stored | None = None


class Record(NamedTuple):
    """A record of the output partition. Aborted ones are left out: no reader sees them."""

    value: int
    visible: bool = False  # while its transaction is open


class Cluster(NamedTuple):
    """What the brokers know."""

    state: TransactionState = TransactionState.EMPTY
    epoch: int = -1
    partitions: frozenset[str] = frozenset()
    log: tuple[Record, ...] = ()
    log_epoch: int = -1  # the newest that the output partition has seen
    sequence: int = 0  # the next of that epoch
    stored: Stored = Stored()
    pending: Stored | None = None  # sent in a transaction that is not complete
    offsets_epoch: int = -1

    @property
    def settled(self) -> bool:
        """Whether a read_committed reader sees all there is."""
        return self.pending is None and all(record.visible for record in self.log)

    @property
    def committed_values(self) -> list[int]:
        """The input offsets whose outputs a read_committed reader sees, in order."""
        return [record.value for record in self.log if record.visible]


class Step(StrEnum):
    """Where an owner is."""

    TAKE_OVER = "take over"  # after the first init: reads the committed offset
    COMPARE = "compare"  # after a later init
    DONE = "done"  # no input is left
    OVER = "over"  # its producer has to be rebuilt
    WAITING = "waiting"  # for the answer to ``flight``
    STOPPED = "stopped"


class Owner(NamedTuple):
    """A process that owns the shard, or thinks so."""

    name: str
    step: Step
    flight: Request | None = None
    epoch: int = -1
    position: int = 0  # the next input offset to process
    last: Stored = Stored()  # its own last commit, or what it took over
    pending: Stored | None = None  # sent in a commit whose outcome it does not know
    commits: int = 0
    sequence: int = 0
    suspect: bool = False  # a resend since the last init
    claimed: bool = False
    fences: int = 0  # that it has taken for unproven
    made: int = 0  # records in the open transaction


class Rules(NamedTuple):
    """What an owner does against the accidents. The defaults are the rules of eos."""

    suspicion: bool = True  # a producer that has resent is rebuilt before the next begin
    reopens: bool = True  # what failed is rebuilt and compared; else the owner stops at the first error
    compare_before: bool = True
    compare_after: bool = True
    outcome_is_read: bool = True  # of a commit without an answer; else it is taken for aborted
    claim: bool = True  # the found offset is committed again before the first record
    records: int = 1  # per transaction
    offsets_after_each_record: bool = False


EOS = Rules()
NAIVE = Rules(suspicion=False, reopens=False, compare_before=False, compare_after=False, claim=False)


class Bounds(NamedTuple):
    """How many accidents may happen on one way."""

    inputs: int = 2
    resends: int = 2
    expiries: int = 1
    unanswered: int = 1  # calls that the owner gives up waiting for
    fences: int = 1  # that an owner survives


class World(NamedTuple):
    """One state of everything."""

    cluster: Cluster
    owners: tuple[Owner, Owner]
    late: tuple[Request, ...] = ()  # copies on their way, sorted
    resends: int = 0
    expiries: int = 0
    unanswered: int = 0


class Anomaly(NamedTuple):
    """A state that must not be, and the steps that lead to it."""

    what: str
    trace: tuple[str, ...]


class Result(NamedTuple):
    """What a search found; no anomaly means that there is none within the bounds."""

    states: int
    anomaly: Anomaly | None


def search(rules: Rules, bounds: Bounds = Bounds(), *, states_at_most: int = 3_000_000) -> Result:  # noqa: B008 - a tuple
    """Visit every state that can be reached, in the order of distance.

    Raises:
        RuntimeError: there are more states than that; then nothing is shown.
    """
    a, b = (_send(Owner(name, Step.WAITING), Api.INIT) for name in "AB")
    first = World(Cluster(), (a, b))
    parents: dict[World, tuple[World, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        world = waiting.popleft()
        if wrong := broken(world.cluster):
            return Result(len(parents), Anomaly(wrong, _trace(parents, world)))
        for label, after in steps(world, rules, bounds):
            if after not in parents:
                parents[after] = (world, label)
                waiting.append(after)
        if len(parents) > states_at_most:
            raise RuntimeError(f"more than {states_at_most} states")
    return Result(len(parents), None)


def broken(cluster: Cluster) -> str:
    """What is wrong with a settled cluster; empty if nothing is."""
    if not cluster.settled:
        if cluster.state is not TransactionState.ONGOING and cluster.state not in _PREPARED:
            return "a record or an offset hangs: no transaction is open that could end it"
        return ""
    expected, found = list(range(cluster.stored.offset)), cluster.committed_values
    if found == expected:
        return ""
    if set(expected) - set(found):
        return f"lost: offset {cluster.stored.offset} is committed, and the output is {found}"
    return f"doubled or torn: offset {cluster.stored.offset} is committed, and the output is {found}"


def steps(world: World, rules: Rules, bounds: Bounds) -> Iterator[tuple[str, World]]:
    """Every step that may come next, with its label."""
    cluster = world.cluster
    if cluster.state in _PREPARED:
        yield "markers are written", world._replace(cluster=_complete(cluster))
    if cluster.state is TransactionState.ONGOING and world.expiries < bounds.expiries:
        expired = cluster._replace(state=TransactionState.PREPARE_ABORT, epoch=cluster.epoch + 1)
        yield "the transaction expires", world._replace(cluster=expired, expiries=world.expiries + 1)
    for at, request in enumerate(world.late):
        _, after = _serve(cluster, request)
        if after != cluster:  # else it is as if it never arrived
            left = world.late[:at] + world.late[at + 1 :]
            yield f"a late copy arrives: {_shown(request)}", _plain(world._replace(cluster=after, late=left))
    first, _ = world.owners
    began = (
        first.step is not Step.WAITING or first.epoch >= 0
    )  # the owners are alike: A is the one that begins first
    for number, owner in enumerate(world.owners if began else world.owners[:1]):
        for label, after_cluster, after_owner, resent, gave_up in _owner_steps(world, owner, rules, bounds):
            owners = (after_owner, world.owners[1]) if number == 0 else (world.owners[0], after_owner)
            late = world.late if resent is None else tuple(sorted((*world.late, resent)))
            after_world = world._replace(
                cluster=after_cluster,
                owners=owners,
                late=late,
                resends=world.resends + (resent is not None and not gave_up),
                unanswered=world.unanswered + gave_up,
            )
            yield f"{owner.name}: {label}", _plain(after_world)


def _plain(world: World) -> World:
    """The same world with less to tell it from others by.

    Copies of an older epoch can do nothing any more. Of epochs only the order counts, so they are numbered anew.
    """
    cluster = world.cluster
    late = tuple(r for r in world.late if r.api is Api.INIT or r.epoch >= cluster.epoch)
    epochs = {
        cluster.epoch,
        cluster.log_epoch,
        cluster.offsets_epoch,
        *(owner.epoch for owner in world.owners),
    }
    rank = {epoch: number for number, epoch in enumerate(sorted(epochs - {-1}))} | {-1: -1}
    if all(epoch == number for epoch, number in rank.items()):
        return world._replace(late=late)
    return world._replace(
        cluster=cluster._replace(
            epoch=rank[cluster.epoch],
            log_epoch=rank[cluster.log_epoch],
            offsets_epoch=rank[cluster.offsets_epoch],
        ),
        owners=(_renumbered(world.owners[0], rank), _renumbered(world.owners[1], rank)),
        late=tuple(r._replace(epoch=rank[r.epoch]) for r in late),
    )


def _renumbered(owner: Owner, rank: dict[int, int]) -> Owner:
    flight = owner.flight and owner.flight._replace(epoch=rank[owner.flight.epoch])
    return owner._replace(epoch=rank[owner.epoch], flight=flight)


# --- the brokers -----------------------------------------------------------------------------------------------


def _serve(cluster: Cluster, request: Request) -> tuple[Reply, Cluster]:
    match request.api:
        case Api.INIT:
            return _init(cluster)
        case Api.ADD_PARTITION:
            return _add(cluster, request, OUT)
        case Api.ADD_OFFSETS:
            return _add(cluster, request, OFFSETS)
        case Api.PRODUCE:
            return _append(cluster, request)
        case Api.SEND_OFFSETS:
            return _send_offsets(cluster, request)
        case Api.COMMIT | Api.ABORT:
            return _end(cluster, request)


def _init(cluster: Cluster) -> tuple[Reply, Cluster]:
    """An open transaction is aborted first, under a new epoch that nobody gets; the request is then sent again."""
    if cluster.state in _PREPARED:
        return Reply.WAIT, cluster
    if cluster.state is TransactionState.ONGOING:
        return Reply.WAIT, cluster._replace(state=TransactionState.PREPARE_ABORT, epoch=cluster.epoch + 1)
    return Reply.OK, cluster._replace(
        state=TransactionState.EMPTY, epoch=cluster.epoch + 1, partitions=frozenset()
    )


def _add(cluster: Cluster, request: Request, partition: str) -> tuple[Reply, Cluster]:
    if request.epoch != cluster.epoch:
        return Reply.FENCED, cluster
    if cluster.state in _PREPARED:
        return Reply.WAIT, cluster
    partitions = cluster.partitions if cluster.state is TransactionState.ONGOING else frozenset[str]()
    return Reply.OK, cluster._replace(state=TransactionState.ONGOING, partitions=partitions | {partition})


def _holds(cluster: Cluster, request: Request, partition: str) -> bool:
    """KIP-890, part 1: the partition's broker asks the coordinator whether the transaction has it."""
    return (
        cluster.state is TransactionState.ONGOING
        and cluster.epoch == request.epoch
        and partition in cluster.partitions
    )


def _append(cluster: Cluster, request: Request) -> tuple[Reply, Cluster]:
    if request.epoch < cluster.log_epoch:
        return Reply.FENCED, cluster
    expected = cluster.sequence if request.epoch == cluster.log_epoch else 0
    if request.sequence < expected:
        return Reply.OK, cluster  # a duplicate
    if request.sequence > expected or not _holds(cluster, request, OUT):
        return Reply.INVALID, cluster
    return Reply.OK, cluster._replace(
        log=(*cluster.log, Record(request.value)),
        log_epoch=request.epoch,
        sequence=expected + 1,
    )


def _send_offsets(cluster: Cluster, request: Request) -> tuple[Reply, Cluster]:
    """The last one wins: offset commits have no sequence numbers."""
    if request.epoch < cluster.offsets_epoch:
        return Reply.FENCED, cluster
    if not _holds(cluster, request, OFFSETS):
        return Reply.INVALID, cluster
    return Reply.OK, cluster._replace(pending=request.stored, offsets_epoch=request.epoch)


def _end(cluster: Cluster, request: Request) -> tuple[Reply, Cluster]:
    commit = request.api is Api.COMMIT
    if request.epoch != cluster.epoch:
        return Reply.FENCED, cluster
    if cluster.state in _PREPARED:
        return Reply.WAIT, cluster
    if cluster.state is TransactionState.ONGOING:
        prepared = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        return Reply.OK, cluster._replace(state=prepared)
    done = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    return (Reply.OK if cluster.state is done else Reply.INVALID), cluster


def _complete(cluster: Cluster) -> Cluster:
    """Markers to every partition of the transaction."""
    commit = cluster.state is TransactionState.PREPARE_COMMIT
    log, log_epoch, sequence = cluster.log, cluster.log_epoch, cluster.sequence
    stored, pending, offsets_epoch = cluster.stored, cluster.pending, cluster.offsets_epoch
    if OUT in cluster.partitions:
        log = tuple(Record(r.value, visible=True) for r in log if r.visible or commit)
        if cluster.epoch > log_epoch:
            log_epoch, sequence = cluster.epoch, 0
    if OFFSETS in cluster.partitions:
        if commit and pending is not None:
            stored = pending
        pending, offsets_epoch = None, max(offsets_epoch, cluster.epoch)
    return cluster._replace(
        state=TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        log=log,
        log_epoch=log_epoch,
        sequence=sequence,
        stored=stored,
        pending=pending,
        offsets_epoch=offsets_epoch,
    )


# --- the owners ------------------------------------------------------------------------------------------------

_OwnerStep = tuple[
    str, Cluster, Owner, Request | None, bool
]  # the copy that stays behind; whether it gave up


def _owner_steps(world: World, owner: Owner, rules: Rules, bounds: Bounds) -> Iterator[_OwnerStep]:
    cluster = world.cluster
    match owner.step:
        case Step.WAITING:
            yield from _waiting_steps(world, owner, rules, bounds)
        case Step.TAKE_OVER if cluster.pending is None:  # require-stable
            found = cluster.stored
            after = _next(owner._replace(position=found.offset, last=found), rules, bounds)
            yield f"takes over at {found.offset}", cluster, after, None, False
        case Step.COMPARE if cluster.pending is None:
            yield from _compare(cluster, owner, rules, bounds)
        case Step.OVER:
            if rules.compare_before and cluster.stored not in (owner.last, owner.pending):
                yield "sees another owner and stops", cluster, _stopped(owner), None, False
            else:
                yield "rebuilds", cluster, _send(owner, Api.INIT), None, False


def _waiting_steps(world: World, owner: Owner, rules: Rules, bounds: Bounds) -> Iterator[_OwnerStep]:
    request = owner.flight
    assert request is not None
    reply, cluster = _serve(world.cluster, request)
    if reply is not Reply.WAIT:
        after = _answered(owner, request, reply, cluster, rules, bounds)
        yield f"{_shown(request)}, {reply}", cluster, after, None, False
    elif cluster != world.cluster:
        yield f"{_shown(request)} aborts what is open", cluster, owner, None, False
    if world.resends < bounds.resends:
        after = owner._replace(suspect=True)
        yield f"resends {_shown(request)}", world.cluster, after, request, False
    if world.unanswered < bounds.unanswered and rules.reopens and request.api is not Api.INIT:
        # After a sent commit no abort may follow; its outcome is read after the rebuild.
        after = _over(owner) if request.api is Api.COMMIT else _send(owner._replace(suspect=True), Api.ABORT)
        yield f"gives up waiting for {_shown(request)}", world.cluster, after, request, True


def _answered(
    owner: Owner, request: Request, reply: Reply, cluster: Cluster, rules: Rules, bounds: Bounds
) -> Owner:
    if reply is not Reply.OK:
        return _refused(owner, reply, rules, bounds)
    match request.api:
        case Api.INIT:
            step = Step.TAKE_OVER if owner.epoch < 0 else Step.COMPARE
            return owner._replace(
                step=step, flight=None, epoch=cluster.epoch, suspect=False, sequence=0, made=0
            )
        case Api.ADD_PARTITION:
            return _send(owner, Api.PRODUCE)
        case Api.PRODUCE:
            made = owner.made + 1
            after = owner._replace(made=made, sequence=owner.sequence + 1)
            offsets_now = rules.offsets_after_each_record or _full(after, rules, bounds)
            return _send(after, Api.ADD_OFFSETS if offsets_now else Api.PRODUCE)
        case Api.ADD_OFFSETS:
            return _send(owner, Api.SEND_OFFSETS)
        case Api.SEND_OFFSETS:
            claim = rules.claim and not owner.claimed
            if claim or _full(owner, rules, bounds):
                return _send(owner._replace(pending=request.stored), Api.COMMIT)
            return _send(owner, Api.PRODUCE)
        case Api.COMMIT:
            assert owner.pending is not None
            return _next(_committed(owner), rules, bounds)
        case Api.ABORT:
            return _next(owner._replace(made=0, pending=None), rules, bounds)


def _refused(owner: Owner, reply: Reply, rules: Rules, bounds: Bounds) -> Owner:
    fenced = reply is Reply.FENCED
    if not rules.reopens or (fenced and owner.fences >= bounds.fences):
        return _stopped(owner)
    return _over(owner._replace(fences=owner.fences + fenced))


def _next(owner: Owner, rules: Rules, bounds: Bounds) -> Owner:
    """After a transaction, or at the first: what the owner does now."""
    if owner.suspect and rules.suspicion:
        return _over(owner)
    if rules.claim and not owner.claimed:
        return _send(owner, Api.ADD_OFFSETS)
    if owner.position < bounds.inputs:
        return _send(owner, Api.ADD_PARTITION)
    return owner._replace(step=Step.DONE, flight=None)


def _full(owner: Owner, rules: Rules, bounds: Bounds) -> bool:
    return owner.made == rules.records or owner.position + owner.made == bounds.inputs


def _compare(cluster: Cluster, owner: Owner, rules: Rules, bounds: Bounds) -> Iterator[_OwnerStep]:
    """What is stored must be this owner's own last commit, or the one whose outcome it did not learn."""
    if rules.outcome_is_read and owner.pending is not None and cluster.stored == owner.pending:
        yield "finds its commit done", cluster, _next(_committed(owner), rules, bounds), None, False
    elif cluster.stored == owner.last or not rules.compare_after:
        yield "goes on", cluster, _next(owner._replace(pending=None, made=0), rules, bounds), None, False
    else:
        yield "sees another owner and stops", cluster, _stopped(owner), None, False


def _committed(owner: Owner) -> Owner:
    assert owner.pending is not None
    return owner._replace(
        position=owner.pending.offset,
        last=owner.pending,
        pending=None,
        commits=owner.pending.number,
        claimed=True,
        made=0,
    )


def _send(owner: Owner, api: Api) -> Owner:
    request = Request(api, owner.name, owner.epoch)
    if api is Api.INIT:
        request = Request(api, owner.name)
    elif api is Api.PRODUCE:
        request = request._replace(value=owner.position + owner.made, sequence=owner.sequence)
    elif api is Api.SEND_OFFSETS:
        stored = Stored(owner.position + owner.made, owner.name, owner.commits + 1)
        request = request._replace(stored=stored)
    return owner._replace(step=Step.WAITING, flight=request)


def _over(owner: Owner) -> Owner:
    return owner._replace(step=Step.OVER, flight=None, made=0)


def _stopped(owner: Owner) -> Owner:
    return Owner(owner.name, Step.STOPPED)


# --- what a person reads -----------------------------------------------------------------------------------------


def _shown(request: Request) -> str:
    what = ""
    if request.api is Api.PRODUCE:
        what = f" f({request.value})"
    elif request.stored is not None:
        what = f" {request.stored.offset}"
    return f"{request.api}{what} of {request.owner}"


def _trace(parents: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    labels = []
    while (parent := parents[world]) is not None:
        world, label = parent
        labels.append(label)
    return tuple(reversed(labels))

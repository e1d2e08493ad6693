"""A5 on brokers that do not verify partitions: before Kafka 3.6, and with transaction.partition.verification.enable=false.

docs/guarantees-appendix.md says what is missing there: a record of an aborted transaction that arrives late can be committed with the
next one, and offsets that arrive late can stay open, so that the job starts no more (exit code 5; found by these cells).
The first has to happen, or the guarantee asks for too much; everything else has to hold. And all of it has to hold on the last
broker that verifies and has the group coordinator that 4.0 has left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

from eos.errors import UnavailableError
from eos.local import LocalKafka
from eos.prove import proving, tagged
from eos.prove import trial_cluster as arena_of_trials
from eos.prove.audit import Audit
from eos.prove.faults import FaultKind
from eos.prove.runtime import TRIAL_SETTINGS
from eos.prove.trial import Trial
from eos.testing.proxy.frames import ApiKey
from tests.proof.arena import BEFORE_VERIFICATION, UNVERIFIED, Arena, kafka_of, shared_arena
from tests.proof.late_packets import REQUESTS, ours
from tests.proof.late_script import Late
from tests.proof.row import Cell, Outcome, Row
from tests.support.own_broker import JARS
from tests.support.settings import settings_of

_OLD = f"Kafka {BEFORE_VERIFICATION}"
_OFF = "without verification"
_LAST_3 = "Kafka 3.9.2"
_KINDS = [kind for kind in FaultKind if kind not in {FaultKind.BROKER, FaultKind.INPUT}]
_FAULTS = 12
_RATE = 300
_REPOSITORY = Path(__file__).parents[2]


def _arena(broker: str) -> Arena:
    return (
        shared_arena(**dict([UNVERIFIED])) if broker == _OFF else shared_arena(broker.removeprefix("Kafka "))
    )


def _is_known(late: Late, broker: str) -> bool:
    """Whether this is what eos can't prevent on such a broker: nothing of n+1 is in the partition before the record."""
    return broker != _LAST_3 and late.request is ApiKey.PRODUCE and not late.commits and not late.same


def _late(late: Late, broker: str, directory: Path) -> Outcome:
    try:
        outcome = ours(late, partial(_arena, broker), directory)
    except LookupError as missing:
        return Outcome(faults=0, records=0, skipped=True, note=str(missing))
    except UnavailableError as error:
        # Offsets that came late, and whose partition the transaction they came into did not end: they are open for ever.
        if late.request is not ApiKey.TXN_OFFSET_COMMIT or broker == _LAST_3:
            raise
        return Outcome(faults=1, records=0, convicted=True, note=f"a known limit: {error}")
    if not _is_known(late, broker):
        return outcome
    return replace(
        outcome,
        anomalies=(),
        convicted=bool(outcome.anomalies),
        note=f"a known limit: {'; '.join(outcome.anomalies)}",
    )


def _unverifying(*args: Any, properties: Mapping[str, str], **options: Any) -> LocalKafka:
    return LocalKafka(*args, properties={**properties, **dict([UNVERIFIED])}, **options)


def _tried(broker: str, mode: str, seed: int, directory: Path) -> Outcome:
    """A trial of `eos prove` on such a broker."""
    settings = settings_of(
        **{
            **TRIAL_SETTINGS,
            "input.start": "earliest",
            "ownership.ordinal": 0,
            "ownership.mode": mode,
            **({"ownership.instances": 2} if mode == "partition" else {}),
        }
    )
    options = ["--set", f"ownership.mode={mode}"]
    options += ["--set", "ownership.instances=2"] if mode == "partition" else []
    trial = Trial(
        reference="eos.prove.tagged:job",
        job=tagged.job.identity(settings),
        app_dir=_REPOSITORY,
        options=options,
        seed=seed,
        faults=_FAULTS,
        minutes=None,
        kinds=[kind for kind in _KINDS if mode == "group" or kind is not FaultKind.REBALANCE],
        brokers=1,
        partitions=4,
        rate=_RATE,
        directory=directory / "trial",
        jars=JARS,
    )
    with ExitStack() as stack:
        try:
            made: Callable[..., LocalKafka] = (
                partial(LocalKafka, kafka_home=kafka_of(broker.removeprefix("Kafka ")))
                if broker != _OFF
                else _unverifying
            )
        except LookupError as missing:
            return Outcome(faults=0, records=0, skipped=True, note=str(missing))
        stack.enter_context(patch.object(arena_of_trials, "LocalKafka", made))
        if (
            broker != _OFF
        ):  # their DumpLogSegments prints otherwise; input and output are compared all the same
            stack.enter_context(patch("eos.prove.judge._audit", lambda *_: Audit(())))
        proof = proving.prove(trial, tagged.job, settings, tagged.sample_input)
    return Outcome(
        faults=sum(proof.happened.values()),
        records=proof.records,
        anomalies=(*proof.verdict.against, *proof.verdict.unfinished),
        committed_unknown=proof.verdict.unknown,
        recoveries_s=proof.recoveries,
        note=", ".join(f"{count} {kind}" for kind, count in proof.happened.items()),
    )


def _cells() -> Iterator[Cell]:
    for broker in (_OFF, _OLD, _LAST_3):
        for number, (request, commits, same) in enumerate(product(REQUESTS, (True, False), (True, False))):
            for signs in (True, False):
                late = Late(
                    request=request,
                    commits=commits,
                    same=same,
                    mode=("group", "partition")[(number + signs) % 2],
                    signs=signs,
                    seed=number % 2 + 20,
                )
                limit = ", a known limit" * _is_known(late, broker)
                yield Cell(name=f"{broker}: {late}{limit}", run=partial(_late, late, broker), minutes=0.05)
        for seed, mode in enumerate(("group", "partition")):
            yield Cell(
                name=f"{broker}: eos prove, {mode}, {_FAULTS} faults, seed {seed}",
                run=partial(_tried, broker, mode, seed),
                minutes=3,
            )


UNVERIFYING = Row(
    id="A5-old",
    title="a request arrives late at a broker that does not verify partitions, or is of 3.9",
    goal=180,
    counts="late requests, and faults of two trials each",
    cells=_cells,
)

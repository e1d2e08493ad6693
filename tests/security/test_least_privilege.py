"""The grants that `eos acl show` prints are enough, and each of them is needed.

Question: does a job whose principal has exactly these grants run, exactly once? And what happens without one of them?
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from eos.errors import ConfigError
from eos.exits import ExitCode, exit_code_of
from eos.kafka.admin import Mark
from eos.offsets import Partition
from eos.ops.check.grants import Grant, Purpose
from eos.ops.check.preflight import preflight
from eos.ops.check.status import status
from eos.ops.check.transactions import TransactionsView
from eos.ops.operate import hanging
from eos.ops.operate.choosing import chosen
from eos.ops.operate.offsets import write
from eos.ops.operate.skip import Skipping
from eos.ops.operate.target import target_of
from eos.ops.verifier.verify import verify
from tests.security.conftest import PROMPT_S, NewWorkplace, Stopwatch
from tests.support import observer, raw_transactions
from tests.support.observer import PlainRecord
from tests.support.raw_transactions import Names, wire

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("secured")]

_DEADLINE_S = 60.0
_FEW = 30  # denied requests in all that time; a retry storm has hundreds
_MODES = [
    ("group", "cooperative"),
    pytest.param("group", "consumer", marks=pytest.mark.slow),
    pytest.param("partition", "cooperative", marks=pytest.mark.slow),
]
_NEEDED = ["TransactionalId", "input", "output", "Group"]  # what the four grants of a loop are on
_CODES = [
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
]


def describing(grant: Grant) -> Grant:
    """The same grant without anything but looking."""
    return replace(grant, operations=("Describe",))


@pytest.mark.parametrize(("mode", "protocol"), _MODES)
def test_with_the_printed_grants_alone_a_job_runs_and_verifies_exactly_once(
    workplace: NewWorkplace, mode: str, protocol: str
) -> None:
    place = workplace()
    auditor = place.broker.add_user(f"{place.job.name}-auditor", "auditor")
    place.broker.grant(place.user.principal, place.grants())
    place.broker.grant(auditor.principal, place.grants(Purpose.VERIFY))

    settings = place.settings(ownership__mode=mode, ownership__protocol=protocol)
    preflight(place.job, settings)
    place.run(settings)

    place.assert_all_done()
    report = verify(place.job, place.settings(place.broker.sasl(auditor)), timeout_s=_DEADLINE_S)
    assert (report.exactly_once, report.records) == (True, place.records)
    assert place.denials(auditor.principal) == 0


def test_with_the_printed_grants_alone_the_status_of_a_job_is_seen(workplace: NewWorkplace) -> None:
    place = workplace()
    looker = place.broker.add_user(f"{place.job.name}-looker", "looker")
    place.broker.grant(place.user.principal, place.grants())
    place.broker.grant(looker.principal, place.grants(Purpose.STATUS))
    place.run(place.settings())
    found = status(place.job, place.settings(place.broker.sasl(looker)))
    assert [one.lag for one in found.partitions] == [0] * len(found.partitions)
    assert found.transactions
    assert found.unknown == ()  # what it may not see of other ids is denied for each of them, and left out


def test_with_the_printed_grants_alone_an_operator_moves_offsets(workplace: NewWorkplace) -> None:
    place = workplace()
    operator = place.broker.add_user(f"{place.job.name}-operator", "operator")
    place.broker.grant(place.user.principal, place.grants())
    place.broker.grant(operator.principal, place.grants(Purpose.OFFSETS))
    place.run(place.settings(ownership__static_membership=False))
    settings = place.settings(place.broker.sasl(operator))
    target = target_of(place.job, settings)

    plan = write(settings, target, lambda: chosen(settings, target, Mark.START))

    assert [move.to for move in plan.moves] == [0] * len(plan.moves)
    assert any(name.endswith(".i.0") for name in plan.fenced)
    assert plan.verify_from
    # What it may not see of other ids is denied for each of them, and left out.
    partitions = [(place.input, number) for number in range(len(plan.moves))]
    stored = observer.committed_offsets(place.broker.plain, place.job.name, partitions)
    assert [offset for offset, _ in stored.values()] == [0] * len(plan.moves)


@pytest.mark.parametrize("missing", ["TransactionalId", "Topic", "Group"])
def test_without_one_grant_no_offset_moves_and_the_grant_is_named(
    workplace: NewWorkplace, missing: str
) -> None:
    place = workplace()
    operator = place.broker.add_user(f"{place.job.name}-operator", "operator")
    place.broker.grant(place.user.principal, place.grants())
    grants = place.grants(Purpose.OFFSETS)
    gone = next(one for one in grants if one.resource == missing)
    place.broker.grant(operator.principal, [one for one in grants if one is not gone])
    place.run(place.settings(ownership__static_membership=False))
    settings = place.settings(place.broker.sasl(operator))
    target = target_of(place.job, settings)

    with pytest.raises(ConfigError) as caught:
        write(settings, target, lambda: chosen(settings, target, Mark.START))

    for part in (operator.principal, gone.resource, f"'{gone.name}"):
        assert part in str(caught.value)
    place.assert_all_done()


def test_operator_who_may_not_see_the_shards_does_not_overlook_one(workplace: NewWorkplace) -> None:
    """It may write the id that it commits with, so the brokers list that one and no other to it."""
    place = workplace()
    operator = place.broker.add_user(f"{place.job.name}-operator", "operator")
    place.broker.grant(place.user.principal, place.grants())
    shard, *rest = place.grants(Purpose.OFFSETS)
    place.broker.grant(operator.principal, [*rest, replace(shard, name=f"{shard.name}s.")])
    place.run(place.settings(ownership__static_membership=False))
    settings = place.settings(place.broker.sasl(operator))
    target = target_of(place.job, settings)
    with pytest.raises(ConfigError, match=rf"Write on TransactionalId '{shard.name}i\.0'"):
        write(settings, target, lambda: chosen(settings, target, Mark.START))
    place.assert_all_done()


def test_with_the_grants_of_a_run_an_operator_skips_a_record(workplace: NewWorkplace) -> None:
    place = workplace()
    place.broker.grant(place.user.principal, place.grants())
    place.run(place.settings(ownership__static_membership=False))
    observer.produce_plain(place.broker.plain, place.input, [PlainRecord(b"bad", partition=0)])
    (last,) = [
        offset
        for offset, _ in observer.committed_offsets(
            place.broker.plain, place.job.name, [(place.input, 0)]
        ).values()
    ]
    assert last is not None
    record = (Partition(place.input, 0), last)
    skipping = Skipping(place.settings(), place.job, record, reason="a test", without_letter=True)
    assert skipping.write().committed == last


@pytest.mark.parametrize("sees_all", [True, False])
def test_with_the_printed_grants_alone_an_operator_ends_transactions(
    workplace: NewWorkplace, sees_all: bool
) -> None:
    """Without Describe on every id the transaction may be open at a coordinator that does not say so."""
    place = workplace()
    operator = place.broker.add_user(f"{place.job.name}-operator", "operator")
    grants = [one for one in place.grants(Purpose.TRANSACTIONS) if sees_all or one.name != "*"]
    place.broker.grant(operator.principal, grants)
    shard = f"{place.job.name}.{place.job.name}.i.0"
    transactional_id = shard if sees_all else observer.unique("foreign")
    names = Names(transactional_id, place.output, place.job.name, place.input)
    unverified = "transaction.partition.verification.enable"
    plain = place.broker.plain
    with observer.broker_config(plain, unverified, "false"), wire(plain) as connection:
        who = raw_transactions.opened(plain, connection, names)
        assert connection.send(raw_transactions.produce(names, who, b"hangs", 0)).error == 0
    settings = place.settings(place.broker.sasl(operator))
    output = Partition(place.output, 0)
    with TransactionsView(settings) as view:
        if not sees_all:
            with pytest.raises(ConfigError, match="may not see it, and its last record"):
                hanging.abort(settings, view, output, 0, discard_committed=False)
            assert observer.watermarks(plain, place.output)[0] == (0, 1)
            return
        hanging.abort(settings, view, output, 0, discard_committed=False)
    assert observer.lso(plain, place.output)[0] == 2
    assert place.denials(operator.principal) == 0


def test_a_run_by_mutual_tls_needs_the_same_grants(workplace: NewWorkplace) -> None:
    place = workplace()
    certificate = place.broker.authority.issue(f"{place.job.name}-client")
    place.broker.grant(f"User:CN={place.job.name}-client", place.grants())
    place.run(place.settings(place.broker.mutual(certificate)))
    place.assert_all_done()


def test_preflight_says_what_it_may_not_see_and_its_own_grants_let_it_see_all(
    workplace: NewWorkplace,
) -> None:
    place = workplace()
    place.broker.grant(place.user.principal, place.grants())
    place.run(place.settings())  # the brokers' own topics are there once they were used
    blind = preflight(place.job, place.settings())
    assert sum("--for preflight" in warning for warning in blind) == 2

    place.broker.grant(place.user.principal, place.grants(Purpose.PREFLIGHT))
    seeing = preflight(place.job, place.settings())
    assert not any("could not be" in warning for warning in seeing)
    assert any("__transaction_state" in warning for warning in seeing)


@pytest.mark.parametrize(("mode", "protocol"), _MODES)
@pytest.mark.parametrize("missing", range(4), ids=_NEEDED)
def test_without_one_grant_the_job_stops_at_once_and_says_which(
    workplace: NewWorkplace, missing: int, mode: str, protocol: str
) -> None:
    place = workplace()
    grants = place.grants()
    gone = grants.pop(missing)
    place.broker.grant(place.user.principal, grants)
    began = Stopwatch()

    with pytest.raises(ConfigError) as caught:
        place.run(place.settings(ownership__mode=mode, ownership__protocol=protocol))

    assert began.seconds < PROMPT_S
    assert exit_code_of(caught.value) is ExitCode.CONFIGURATION
    assert caught.value.code == _CODES[missing]
    for part in (place.user.principal, gone.resource, f"'{gone.name}", "eos acl show"):
        assert part in str(caught.value)
    assert 1 <= place.denials() <= _FEW
    place.assert_nothing_done()


@pytest.mark.parametrize(
    ("missing", "operation", "on"),
    [
        pytest.param(0, "Write", "TransactionalId", marks=pytest.mark.slow),
        pytest.param(1, "Read", "Topic", marks=pytest.mark.slow),
        (2, "Write", "Topic"),
        pytest.param(3, "Read", "Group", marks=pytest.mark.slow),
    ],
    ids=_NEEDED,
)
def test_who_may_only_describe_may_not_work(
    workplace: NewWorkplace, missing: int, operation: str, on: str
) -> None:
    place = workplace()
    grants = place.grants()
    rest = [one for one in grants if one is not grants[missing]]
    place.broker.grant(place.user.principal, [*rest, describing(grants[missing])])
    began = Stopwatch()

    with pytest.raises(ConfigError) as caught:
        place.run(place.settings())

    assert began.seconds < PROMPT_S
    assert str(caught.value).startswith(f"{place.user.principal} is not allowed to ")
    assert f"{operation} on {on} '{grants[missing].name}" in str(caught.value)
    assert place.denials() <= _FEW
    place.assert_nothing_done()


@pytest.mark.parametrize(
    "missing", [pytest.param(one, marks=pytest.mark.slow) for one in ("input", "output")] + ["group"]
)
def test_without_one_grant_a_verification_stops_at_once_and_says_which(
    workplace: NewWorkplace, missing: str
) -> None:
    place = workplace()
    place.broker.grant(place.user.principal, place.grants())
    place.run(place.settings())
    auditor = place.broker.add_user(f"{place.job.name}-auditor", "auditor")
    needed = {
        place.input: "input",
        place.output: "output",
        place.job.name: "group",
    }
    grants = [one for one in place.grants(Purpose.VERIFY) if one.needed]
    (gone,) = [one for one in grants if needed[one.name] == missing]
    place.broker.grant(auditor.principal, [one for one in grants if one is not gone])
    began = Stopwatch()

    with pytest.raises(ConfigError) as caught:
        verify(place.job, place.settings(place.broker.sasl(auditor)), timeout_s=_DEADLINE_S)

    assert began.seconds < PROMPT_S
    for part in (auditor.principal, gone.resource, repr(gone.name), "eos acl show"):
        assert part in str(caught.value)
    assert place.denials(auditor.principal) <= _FEW

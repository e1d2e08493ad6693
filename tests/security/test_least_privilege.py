"""The grants that `eos acl show` prints are enough, and each of them is needed.

Question: does a job whose principal has exactly these grants run, exactly once? And what happens without one of them?
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from eos.check.grants import Grant, Purpose
from eos.check.preflight import preflight
from eos.check.status import status
from eos.errors import ConfigError
from eos.exits import ExitCode, exit_code_of
from eos.verifier.verify import verify
from tests.security.conftest import NewWorkplace, Stopwatch

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("secured"), pytest.mark.timeout(120)]

_PROMPT_S = 15.0  # 3 s on a quiet machine
_DEADLINE_S = 30.0
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

    assert began.seconds < _PROMPT_S
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

    assert began.seconds < _PROMPT_S
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

    assert began.seconds < _PROMPT_S
    for part in (auditor.principal, gone.resource, repr(gone.name), "eos acl show"):
        assert part in str(caught.value)
    assert place.denials(auditor.principal) <= _FEW

"""A login or a certificate that is refused: prompt, with the reason and the fix, and nothing happens to any record.

librdkafka goes on connecting for ever and says so in events only; a client certificate is refused by a TLS alert alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eos.core.producer import ShardProducer
from eos.errors import ConfigError, EosError, UnavailableError
from eos.exits import ExitCode, exit_code_of
from eos.ops.check.preflight import preflight
from eos.ops.check.transactions import TransactionsView
from eos.ops.verifier.verify import verify
from eos.shards import OrdinalShard
from tests.security.conftest import PROMPT_S, NewWorkplace, Stopwatch, Workplace
from tests.support.certificates import Authority
from tests.support.secured_broker import MISNAMED, OLD, SASL

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("secured")]

_DEADLINE_S = 60.0
_FEW_BYTES = 10_000  # on stderr; a retry storm writes twenty lines a second

Login = Callable[[Workplace, Path], dict[str, Any]]


def wrong_password(place: Workplace, _: Path) -> dict[str, Any]:
    return place.broker.sasl(place.user._replace(password="wrong"))  # noqa: S106 - it is nobody's


def unknown_user(place: Workplace, _: Path) -> dict[str, Any]:
    return place.broker.sasl(place.user._replace(name="nobody"))


def wrong_mechanism(place: Workplace, _: Path) -> dict[str, Any]:
    return place.broker.sasl(place.user) | {"kafka.sasl_mechanism": "SCRAM-SHA-256"}


def broker_of_another_authority(place: Workplace, directory: Path) -> dict[str, Any]:
    return place.broker.sasl(place.user) | {"kafka.ssl_ca_file": str(Authority(directory).certificate)}


def broker_that_has_expired(place: Workplace, _: Path) -> dict[str, Any]:
    return place.broker.sasl(place.user, OLD)


def broker_of_another_name(place: Workplace, _: Path) -> dict[str, Any]:
    return place.broker.sasl(place.user, MISNAMED)


def client_that_has_expired(place: Workplace, _: Path) -> dict[str, Any]:
    return place.broker.mutual(place.broker.authority.issue(f"{place.job.name}-old", expired=True))


def client_of_another_authority(place: Workplace, directory: Path) -> dict[str, Any]:
    return place.broker.mutual(Authority(directory).issue("stranger"))


def client_without_a_certificate(place: Workplace, _: Path) -> dict[str, Any]:
    with_one = place.broker.mutual(place.broker.authority.issue(f"{place.job.name}-client"))
    return {
        name: value for name, value in with_one.items() if "certificate" not in name and "key" not in name
    }


_QUICK = (wrong_password, broker_that_has_expired, client_that_has_expired)
_CASES = [
    (wrong_password, "refused the credentials", "kafka.sasl_password"),
    (unknown_user, "refused the credentials", "kafka.sasl_username"),
    (wrong_mechanism, "SCRAM-SHA-512", "kafka.sasl_mechanism"),
    (broker_of_another_authority, "certificate verify failed", "kafka.ssl_ca_file"),
    (broker_that_has_expired, "certificate verify failed", "expired"),
    (broker_of_another_name, "certificate verify failed", "host names"),
    (client_that_has_expired, "expired", "kafka.ssl_certificate_file"),
    (client_of_another_authority, "refused this client's certificate", "kafka.ssl_certificate_file"),
    (client_without_a_certificate, "missing", "kafka.ssl_certificate_file"),
]


@pytest.mark.parametrize(
    ("login", "reason", "fix"),
    [
        pytest.param(*case, id=case[0].__name__, marks=[] if case[0] in _QUICK else pytest.mark.slow)
        for case in _CASES
    ],
)
def test_a_refused_connection_is_told_at_once_with_its_reason_and_fix(
    workplace: NewWorkplace,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    login: Login,
    reason: str,
    fix: str,
) -> None:
    place = workplace(records=1)
    place.broker.grant(place.user.principal, place.grants())
    settings = place.settings(login(place, tmp_path), transaction__timeout_ms=60_000)
    capfd.readouterr()

    for work in (
        lambda: preflight(place.job, settings, timeout_s=_DEADLINE_S),
        lambda: place.run(settings),
        lambda: verify(place.job, settings, timeout_s=_DEADLINE_S),
    ):
        began = Stopwatch()
        with pytest.raises(ConfigError) as caught:
            work()
        assert began.seconds < PROMPT_S
        assert exit_code_of(caught.value) is ExitCode.CONFIGURATION
        assert reason in str(caught.value)
        assert fix in str(caught.value)

    assert len(capfd.readouterr().err) < _FEW_BYTES
    place.assert_nothing_done()


def test_a_producer_alone_is_told_too(workplace: NewWorkplace) -> None:
    place = workplace(records=1)
    settings = place.settings(wrong_password(place, Path()), transaction__timeout_ms=60_000)
    began = Stopwatch()
    with pytest.raises(ConfigError, match="refused the credentials"):
        ShardProducer(settings, OrdinalShard(place.job.name, place.job.name, 0)).open()
    assert began.seconds < PROMPT_S


@pytest.mark.parametrize(
    ("protocol", "spoken"),
    [
        ("PLAINTEXT", "SASL_SSL"),
        ("SASL_PLAINTEXT", "PLAINTEXT"),
        ("SASL_SSL", "PLAINTEXT"),
        pytest.param("SSL", "SASL_SSL", marks=pytest.mark.slow),
        pytest.param("SSL", "PLAINTEXT", marks=pytest.mark.slow),
        pytest.param("SASL_PLAINTEXT", "SASL_SSL", marks=pytest.mark.slow),
    ],
)
def test_a_listener_that_speaks_otherwise_is_named_with_what_it_speaks(
    workplace: NewWorkplace, protocol: str, spoken: str
) -> None:
    place = workplace(records=1)
    login = place.broker.sasl(place.user) if protocol.startswith("SASL") else {}
    login |= (
        {"kafka.ssl_ca_file": str(place.broker.authority.certificate)} if protocol.endswith("SSL") else {}
    )
    if not protocol.endswith("SSL"):
        login.pop("kafka.ssl_ca_file", None)
    servers = place.broker.cluster.servers_at(SASL) if spoken == "SASL_SSL" else place.broker.plain
    login |= {"kafka.bootstrap_servers": servers, "kafka.security_protocol": protocol}
    began = Stopwatch()
    with pytest.raises(
        ConfigError,
        match=rf"^kafka.security_protocol = {protocol}, and the listener .* speaks {spoken}[. ].*Fix: ",
    ):
        preflight(place.job, place.settings(login), timeout_s=_DEADLINE_S)
    assert began.seconds < PROMPT_S


def test_a_listener_where_nobody_is_is_not_guessed_at(workplace: NewWorkplace) -> None:
    place = workplace(records=1)
    with pytest.raises(UnavailableError, match=r"is kafka.security_protocol = PLAINTEXT what that listener"):
        preflight(place.job, place.settings({"kafka.bootstrap_servers": "127.0.0.1:1"}), timeout_s=3.0)


def test_transactions_are_seen_by_sasl_and_by_mutual_tls(workplace: NewWorkplace) -> None:
    place = workplace(records=1)
    certificate = place.broker.authority.issue(f"{place.job.name}-client")
    ids = [one for one in place.grants() if one.resource == "TransactionalId"]
    place.broker.grant(place.user.principal, place.grants())
    place.broker.grant(f"User:CN={place.job.name}-client", ids)
    place.run(place.settings())
    for login in (place.broker.sasl(place.user), place.broker.mutual(certificate)):
        with TransactionsView(place.settings(login)) as view:
            assert f"{place.job.name}.{place.job.name}.i.0" in view.transactional_ids()


def test_a_view_of_transactions_says_why_it_is_refused(workplace: NewWorkplace) -> None:
    place = workplace(records=1)
    settings = place.settings(wrong_password(place, Path()))
    began = Stopwatch()
    with pytest.raises(EosError, match=r"kafka\.sasl_password"):
        TransactionsView(settings, timeout_s=6.0).close()  # kafka-python tries again for as long
    assert began.seconds < PROMPT_S

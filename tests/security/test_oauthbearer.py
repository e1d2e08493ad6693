"""OAUTHBEARER with librdkafka's options: all of eos goes through one login, also what librdkafka cannot ask.

The listener is Kafka's own for tokens without a signature. What the brokers verify of a token is none of eos's business.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from eos.core.producer import ShardProducer
from eos.errors import ConfigError, EosError, UnavailableError
from eos.exits import ExitCode, exit_code_of
from eos.ops.check.preflight import preflight
from eos.ops.check.status import status
from eos.ops.check.transactions import TransactionsView
from eos.ops.verifier.verify import verify
from eos.shards import OrdinalShard
from tests.security.conftest import PROMPT_S, NewWorkplace, Stopwatch, Workplace
from tests.support import jobs_for_tests, observer
from tests.support.patience import PATIENCE_S
from tests.support.secured_broker import SecuredBroker
from tests.support.secured_job import REFERENCE, SecuredJob, ended, eos_process
from tests.support.token_endpoint import TokenEndpoint, token_endpoint

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("secured")]

_SECRET = "S3CR3T/of+a=client"  # noqa: S105 - made up
_DEADLINE_S = 6.0
_SETTING = "kafka.client.sasl.oauthbearer"


@pytest.fixture
def endpoint(secured: SecuredBroker) -> Iterator[TokenEndpoint]:
    """By https, of the brokers' authority."""
    certificate = secured.authority.issue(observer.unique("idp"), "IP:127.0.0.1")
    with token_endpoint(certificate.both) as one:
        yield one


def login(broker: SecuredBroker, endpoint: TokenEndpoint, client: str) -> dict[str, Any]:
    authority = {"kafka.client.https.ca.location": str(broker.authority.certificate)}
    return broker.oauth(endpoint.settings(client, _SECRET) | authority)


def placed(place: Workplace, endpoint: TokenEndpoint) -> dict[str, Any]:
    """The login of the workplace's user, who has the grants of a run."""
    endpoint.clients[place.user.name] = _SECRET
    place.broker.grant(place.user.principal, place.grants())
    return login(place.broker, endpoint, place.user.name)


def test_check_run_and_the_commands_of_an_operator_work_and_show_no_secret(
    secured: SecuredBroker, endpoint: TokenEndpoint
) -> None:
    work = SecuredJob(secured, "unused")
    endpoint.clients[work.user.name] = _SECRET
    env = work.environment(login(secured, endpoint, work.user.name))
    shard = f"{jobs_for_tests.copying.name}.{work.topic}.i.0"
    said = []

    def eos(*arguments: str) -> str:
        code, lines = ended(*arguments, env=env)
        assert code == ExitCode.DONE, lines
        said.append(lines)
        return lines

    assert "version could not be checked" not in eos("check", REFERENCE)
    eos("run", REFERENCE, "--until-caught-up")
    assert "CompleteCommit" in eos("transactions", "list", REFERENCE)
    assert "CompleteCommit" in eos("transactions", "explain", shard)
    assert "fenced; none was open" in eos("transactions", "end", shard, "--yes", "--fence-owner")
    assert "could not be asked" not in eos("status", REFERENCE)

    found = observer.assert_exactly_once(
        secured.plain,
        work.topic,
        [work.topic],
        [f"{work.topic}.copies", f"{work.topic}.audit"],
        lambda record: jobs_for_tests.expected(record, work.topic),
    )
    assert found.processed == 1
    assert endpoint.given
    for secret in (_SECRET, *endpoint.given, *(token.split(".")[1] for token in endpoint.given)):
        assert secret not in "\n".join(said)


def test_a_job_runs_with_tokens_that_do_not_live_as_long_as_it(
    workplace: NewWorkplace, endpoint: TokenEndpoint
) -> None:
    """The broker ends connections whose token has expired, so each client renews its own."""
    place = workplace()
    settings = place.settings(placed(place, endpoint))
    endpoint.life_s = 10.0
    preflight(place.job, settings)
    place.run(settings)
    place.assert_all_done()
    with TransactionsView(settings) as view:
        before = len(endpoint.given)
        deadline = Stopwatch()
        while deadline.seconds < endpoint.life_s + 1:
            assert f"{place.job.name}.{place.job.name}.i.0" in view.transactional_ids()
    assert len(endpoint.given) > before


def test_unsecured_tokens_work_too(workplace: NewWorkplace) -> None:
    place = workplace()
    place.broker.grant(place.user.principal, place.grants())
    options = {
        "kafka.client.enable.sasl.oauthbearer.unsecure.jwt": "true",
        "kafka.client.sasl.oauthbearer.config": f"principal={place.user.name} extension_traceId=1",
    }
    settings = place.settings(place.broker.oauth(options))
    assert not [one for one in preflight(place.job, settings) if "version could not be checked" in one]
    place.run(settings)
    place.assert_all_done()
    with TransactionsView(settings) as view:
        assert view.transactional_ids()


def test_a_wrong_secret_is_told_at_once_with_the_answer_of_the_endpoint(
    workplace: NewWorkplace, endpoint: TokenEndpoint
) -> None:
    place = workplace(records=1)
    settings = place.settings(placed(place, endpoint), transaction__timeout_ms=60_000)
    endpoint.clients[place.user.name] = "another"
    for work in (
        lambda: preflight(place.job, settings, timeout_s=60.0),
        lambda: place.run(settings),
        lambda: verify(place.job, settings, timeout_s=60.0),
        lambda: TransactionsView(settings).close(),
        lambda: ShardProducer(settings, OrdinalShard(place.job.name, place.job.name, 0)).open(),
    ):
        began = Stopwatch()
        with pytest.raises(ConfigError) as caught:
            work()
        assert began.seconds < PROMPT_S
        assert exit_code_of(caught.value) is ExitCode.CONFIGURATION
        for part in (f"{_SETTING}.client.secret", "invalid_client", "401"):
            assert part in str(caught.value)
        assert _SECRET not in str(caught.value)
    place.assert_nothing_done()


def test_a_wrong_secret_ends_commands_with_the_setting_that_is_wrong(
    secured: SecuredBroker, endpoint: TokenEndpoint
) -> None:
    work = SecuredJob(secured, "unused")
    env = work.environment(login(secured, endpoint, work.user.name))
    for arguments in (("check", REFERENCE), ("transactions", "list"), ("run", REFERENCE)):
        code, lines = ended(*arguments, env=env)
        assert code == ExitCode.CONFIGURATION
        assert f"{_SETTING}.client.secret: the token endpoint {endpoint.url} answers 401" in lines
        assert "invalid_client" in lines
        assert _SECRET not in lines


@pytest.mark.parametrize("accident", ["silent", pytest.param("away", marks=pytest.mark.slow)])
def test_an_endpoint_that_does_not_answer_ends_with_unavailable_within_the_deadline(
    workplace: NewWorkplace, endpoint: TokenEndpoint, accident: str
) -> None:
    place = workplace(records=1)
    given = placed(place, endpoint)
    endpoint.byte_every_s = 600.0
    if accident == "away":
        given[f"{_SETTING}.token.endpoint.url"] = "http://127.0.0.1:1/token"
    settings = place.settings(given)
    for work in (
        lambda: preflight(place.job, settings, timeout_s=_DEADLINE_S),
        lambda: TransactionsView(settings, timeout_s=_DEADLINE_S).close(),
    ):
        began = Stopwatch()
        with pytest.raises(UnavailableError) as caught:
            work()
        assert began.seconds < 20  # which librdkafka waits for it
        assert exit_code_of(caught.value) is ExitCode.UNAVAILABLE
        assert f"no token from {given[f'{_SETTING}.token.endpoint.url']}: " in str(caught.value)
        assert "Kafka does not answer" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.timing
def test_a_reader_is_given_up_without_librdkafka_s_wait_for_a_silent_endpoint(
    workplace: NewWorkplace, endpoint: TokenEndpoint
) -> None:
    """It waits for 20 s, and closing its client waits with it."""
    place = workplace(records=1)
    settings = place.settings(placed(place, endpoint))
    endpoint.byte_every_s = 600.0
    began = Stopwatch()
    with pytest.raises(UnavailableError, match=f"no token from {endpoint.url}: "):
        status(place.job, settings, timeout_s=_DEADLINE_S)
    assert began.seconds < 2 * _DEADLINE_S + 2


@pytest.mark.slow
def test_a_job_whose_token_endpoint_goes_away_ends_as_unavailable_and_goes_on_later(
    secured: SecuredBroker,
) -> None:
    work = SecuredJob(secured, "unused")
    copies = f"{work.topic}.copies"
    with contextlib.ExitStack() as serving:
        endpoint = serving.enter_context(token_endpoint())
        endpoint.clients[work.user.name], endpoint.life_s = _SECRET, 10.0
        env = work.environment(secured.oauth(endpoint.settings(work.user.name, _SECRET)))
        port = urlsplit(endpoint.url).port or 0
        with eos_process("run", REFERENCE, env=env) as job:
            deadline = Stopwatch()
            while not observer.read_committed(secured.plain, copies, settled=False):
                assert deadline.seconds < PATIENCE_S
            given = len(endpoint.given)
            while len(endpoint.given) < given + 4:  # it renews its tokens
                assert deadline.seconds < PATIENCE_S
                time.sleep(0.1)
            assert job.alive
            serving.close()
            assert job.wait(PATIENCE_S) == ExitCode.UNAVAILABLE
            lines = "\n".join(job.lines)
            assert f"no token from {endpoint.url}: " in lines
            assert not [secret for secret in (_SECRET, *endpoint.given) if secret in lines]
    observer.produce_plain(secured.plain, work.topic, [b"later"])
    with token_endpoint(port=port) as endpoint:
        endpoint.clients[work.user.name] = _SECRET
        code, lines = ended("run", REFERENCE, "--until-caught-up", env=env)
        assert code == ExitCode.DONE, lines
    found = observer.assert_exactly_once(
        secured.plain,
        work.topic,
        [work.topic],
        [copies, f"{work.topic}.audit"],
        lambda record: jobs_for_tests.expected(record, work.topic),
    )
    assert found.processed == 2


@pytest.mark.slow
def test_commands_end_with_unavailable_while_the_endpoint_is_silent(
    secured: SecuredBroker, endpoint: TokenEndpoint
) -> None:
    work = SecuredJob(secured, "unused")
    env = work.environment(login(secured, endpoint, work.user.name))
    endpoint.byte_every_s = 600.0
    for arguments in (("transactions", "list"), ("check", REFERENCE)):
        code, lines = ended(*arguments, env=env)
        assert code == ExitCode.UNAVAILABLE
        assert f"no token from {endpoint.url}" in lines


def test_a_token_that_the_broker_refuses_is_told_as_such(
    workplace: NewWorkplace, endpoint: TokenEndpoint
) -> None:
    """It names another principal claim than the broker's: a login that the endpoint takes, and the broker does not."""
    place = workplace(records=1)
    given = placed(place, endpoint) | {f"{_SETTING}.sub.claim.name": "azp"}
    endpoint.principal_claim = "azp"
    settings = place.settings(given)
    for work in (
        lambda: preflight(place.job, settings, timeout_s=60.0),
        lambda: TransactionsView(settings, timeout_s=_DEADLINE_S).close(),
    ):
        with pytest.raises(EosError) as caught:
            work()
        assert isinstance(caught.value, ConfigError)
        assert "sasl.oauthbearer" in str(caught.value)
        assert "invalid_token" in str(caught.value)

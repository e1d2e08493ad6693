"""The view of transactions: its options in kafka-python's words, and a cluster that is not there."""

from __future__ import annotations

import gc
import json
import threading
from pathlib import Path

import pytest

from eos.base.deadline import Deadline
from eos.errors import ConfigError, UnavailableError
from eos.ops.check.kafka_python import client_options
from eos.ops.check.transactions import TransactionsView
from eos.settings import Settings
from tests.support.patience import PATIENCE_S
from tests.support.settings import settings_of


def settings(bootstrap_servers: str = "a:1, b:2", **kafka: str) -> Settings:
    return settings_of(bootstrap_servers, **{f"kafka.{name}": value for name, value in kafka.items()})


def test_plaintext() -> None:
    assert client_options(settings()) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "PLAINTEXT",
        "ssl_check_hostname": True,
    }


def test_scram_over_tls(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("-----BEGIN CERTIFICATE-----")
    options = client_options(
        settings(
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username="me",
            sasl_password="sesame",  # noqa: S106 - made up
            ssl_ca_file=str(authority),
        )
    )
    assert options == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": "sesame",
        "ssl_cafile": str(authority),
        "ssl_check_hostname": True,
    }


def test_mutual_tls(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.pem" for name in ("certificate", "key")}
    for path in files.values():
        path.write_text("-----BEGIN x-----")
    options = client_options(
        settings(
            security_protocol="SSL",
            ssl_certificate_file=str(files["certificate"]),
            ssl_key_file=str(files["key"]),
            ssl_key_password="sesame",  # noqa: S106 - made up
            client='{"ssl.endpoint.identification.algorithm": "none"}',
        )
    )
    assert options == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SSL",
        "ssl_certfile": str(files["certificate"]),
        "ssl_keyfile": str(files["key"]),
        "ssl_password": "sesame",
        "ssl_check_hostname": False,
    }


def test_a_mechanism_that_cannot_be_handed_over_is_refused_with_the_commands_and_the_way_out() -> None:
    with pytest.raises(ConfigError) as caught:
        client_options(settings(security_protocol="SASL_SSL", sasl_mechanism="GSSAPI"))
    assert str(caught.value).startswith("kafka.sasl_mechanism = GSSAPI: ")
    for part in ("eos transactions list, explain, end and abort", "eos offsets set and copy", "eos skip"):
        assert part in str(caught.value)
    assert "kafka-transactions.sh" in str(caught.value)


def test_oauthbearer_hands_over_who_gets_the_tokens_with_their_extensions() -> None:
    config = "principal=me extension_logicalCluster=lkc extension_pool=p"
    given = {"enable.sasl.oauthbearer.unsecure.jwt": True, "sasl.oauthbearer.config": config}
    options = client_options(
        settings(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", client=json.dumps(given))
    )
    from kafka.net.sasl.oauth import SaslMechanismOAuth  # as late as eos imports it

    sent = SaslMechanismOAuth(**options).auth_bytes()
    assert sent.startswith(b"n,,\x01auth=Bearer eyJhbGciOiJub25lIn0.")
    assert sent.endswith(b".\x01logicalCluster=lkc\x01pool=p\x01\x01")


# kafka-python leaves the socket of a refused connection to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_cluster_that_is_away_is_unavailable_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    server = "127.0.0.1:1"
    with pytest.raises(UnavailableError, match=server):
        TransactionsView(settings(bootstrap_servers=server), timeout_s=0.5)
    # The thread that serves idle clients is the process's, and may be of another test's client. One that makes a call beside waits
    # for the next one, not for long.
    assert Deadline(PATIENCE_S).wait_for(
        lambda: {one.name for one in set(threading.enumerate()) - before} <= {"eos-idle"}
    )
    gc.collect()  # here and now, where the warning is expected

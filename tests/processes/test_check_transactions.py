"""The view of transactions: its options in kafka-python's words, and a cluster that is not there."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest

from eos.check.transactions import TransactionsView, client_options
from eos.errors import ConfigError, UnavailableError
from eos.local.ports import free_port
from eos.settings import Settings
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
    authority.write_text("")
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
        path.write_text("")
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


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "GSSAPI"])
def test_a_mechanism_that_cannot_be_handed_over_is_refused(mechanism: str) -> None:
    with pytest.raises(ConfigError, match=mechanism):
        client_options(settings(security_protocol="SASL_SSL", sasl_mechanism=mechanism))


# kafka-python leaves the socket of a refused connection to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_cluster_that_is_away_is_unavailable_and_leaves_no_thread() -> None:
    before = threading.active_count()
    server = f"127.0.0.1:{free_port()}"
    with pytest.raises(UnavailableError, match=server):
        TransactionsView(settings(bootstrap_servers=server), timeout_s=0.5)
    assert threading.active_count() == before
    gc.collect()  # here and now, where the warning is expected

"""Addresses: what is none is refused with what was probably meant."""

from __future__ import annotations

import pytest

from eos.base.addresses import address, checked_servers
from eos.errors import ConfigError
from eos.settings import Settings


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", ""),
        ("localhost:9092", "localhost:9092"),
        ("a:1, b.example.com.:65535 ,10.0.0.1:9092", "a:1,b.example.com.:65535,10.0.0.1:9092"),
        ("[::1]:9092,[fe80::1%eth0]:9093", "[::1]:9092,[fe80::1%eth0]:9093"),
        ("kafka_1:9092", "kafka_1:9092"),
    ],
)
def test_addresses_are_kept(given: str, kept: str) -> None:
    assert checked_servers(given) == kept


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("a:99999", "'99999' is no port. Fix: host:port with 1 to 65535"),
        ("a:0", "'0' is no port"),
        ("a:x", "'x' is no port"),
        ("a:", "'' is no port"),
        ("a:1;b:2", "one comma between two addresses"),
        ("a:1 b:2", "one comma between two addresses"),
        ("a;b:2", "'a;b' is no host name"),
        ("kafka", "'kafka' has no port. Fix: 'kafka:9092'"),
        ("[::1]", "'[::1]' has no port. Fix: '[::1]:9092'"),
        ("::1:9092", "Fix: an IPv6 address in brackets, '[::1]:9092'"),
        ("::1", "Fix: an IPv6 address in brackets, '[::1]:9092'"),
        ("a:1,,b:2", "has an empty address"),
        ("a:1,", "has an empty address"),
        ("SASL_SSL://a:1", "begins with a protocol. Fix: 'a:1', and kafka.security_protocol"),
        ("http://a:1/x", "is the address of a web server"),
        ("-a:1", "'-a' is no host name"),
        ("[x]:1", "is no host name"),
    ],
)
def test_what_is_no_address_is_refused_before_anything_connects(given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"^kafka\.bootstrap_servers") as raised:
        Settings.load(environ={}, overrides={"kafka.bootstrap_servers": given})
    assert said in str(raised.value)


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert (address("::1", 9092), address("a", 9092)) == ("[::1]:9092", "a:9092")

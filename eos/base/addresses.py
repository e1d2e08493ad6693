"""Addresses of brokers and servers: ``host:port``, an IPv6 address in brackets."""

from __future__ import annotations

import re

_MAX_PORT = 65_535
_DEFAULT_PORT = 9092  # of Kafka's listeners, for what a fix says
_WEB = re.compile(r"https?://([^/,]*)", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+_.-]*://")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9.])?")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")


def address(host: str, port: int) -> str:
    """As an address is written."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def checked_servers(servers: str) -> str:
    """A list of addresses, ``host:port[,host:port…]``, without blanks.

    Raises:
        ValueError: one is none; the message ends in a fix.
    """
    if found := _WEB.match(servers):
        raise ValueError(f"is the address of a web server, {found[0]!r}. Fix: host:port, as in {found[1]!r}")
    return ",".join(_checked(part.strip()) for part in servers.split(",")) if servers.strip() else ""


def _checked(text: str) -> str:
    if not text:
        raise ValueError("has an empty address in its list. Fix: host:port, with one comma between two")
    if scheme := _SCHEME.match(text):
        raise ValueError(
            f"{text!r} begins with a protocol. Fix: {text[scheme.end() :]!r}, and kafka.security_protocol for the protocol"
        )
    host, colon, port = text.rpartition(":")
    if text.count(":") > 1 and not text.startswith("["):
        meant = f"[{host}]:{port}" if port.isdecimal() and len(port) > 1 else f"[{text}]:{_DEFAULT_PORT}"
        raise ValueError(
            f"{text!r} is no address. Fix: an IPv6 address in brackets, {meant!r}; one comma between two addresses"
        )
    if not colon or text.endswith("]"):
        raise ValueError(
            f"{text!r} has no port. Fix: '{text}:{_DEFAULT_PORT}', if that is its listener's port"
        )
    if not (port.isascii() and port.isdecimal() and 0 < int(port) <= _MAX_PORT):
        raise ValueError(f"{text!r}: {port!r} is no port. Fix: host:port with 1 to {_MAX_PORT}")
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else ""
    if not (_IPV6.fullmatch(name) if name else _HOST.fullmatch(host)):
        raise ValueError(
            f"{text!r}: {host!r} is no host name. Fix: host:port, with a comma between two addresses"
        )
    return text

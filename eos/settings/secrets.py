"""Secrets: which names hold one, how it is hidden, and how it is read from a file.

Nothing here refuses a file for its mode: Kubernetes mounts secrets as links into a tmpfs that other
users of the container may read. On a machine of your own, keep the file at mode 0600.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

HIDDEN = "**********"
_MAX_SECRET_BYTES = 65_536  # a key chain in PEM fits; a log file given by mistake does not

_SENSITIVE = re.compile(
    r"password|passwd|passphrase|secret|token|jaas|credential|pem\b|keystore[._]key\b|user\.?info|private|"
    r"(api|access|account|encryption|signing|shared)[._-]?key|oauthbearer[._]config|assertion|"
    r"(?<![a-z])pwd(?![a-z])|(?<![a-z])(pass|auth|authorization|cookie|sas|dsn|signature)(?![a-z])|bearer|"
    r"conn(ection)?[._-]?(str(ing)?|ur[il])(?![a-z])|(?<![a-z])sql\.url(?![a-z])",
    re.IGNORECASE,
)
_NAMES_A_FILE = re.compile(r"(file|location|path|dir)$", re.IGNORECASE)
# What a URL's query or a connection string assigns to such a name: ?token=…, Password=…;
_ASSIGNED = re.compile(r"(?P<name>[\w.-]+)=(?P<value>[^&;\s]+)")
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")


def is_sensitive(name: str) -> bool:
    """Whether a setting of this name is likely to hold a secret (and not the path of one)."""
    return bool(_SENSITIVE.search(name)) and not _NAMES_A_FILE.search(name)


def hidden(name: str, value: object) -> object:
    """The value as it may be printed: secrets hidden, paths as text, tables hidden key by key."""
    match value:
        case None:
            return None
        case SecretStr():
            return HIDDEN
        case Mapping():
            return {key: hidden(str(key), inner) for key, inner in value.items()}
        case _ if is_sensitive(name):
            return HIDDEN
        case list() | tuple():
            return [hidden(name, inner) for inner in value]
        case Path():
            return str(value)
        case str():
            return (
                _ASSIGNED.sub(_without_value, _USERINFO.sub(f"{HIDDEN}@", value))
                if "=" in value or "@" in value
                else value
            )
    return value


def _without_value(found: re.Match[str]) -> str:
    return f"{found['name']}={HIDDEN}" if is_sensitive(found["name"]) else found[0]


def revealed(secret: SecretStr | None) -> Any:
    """The secret itself; only for the dict that a client is built from."""
    return None if secret is None else secret.get_secret_value()


def read_secret(path: Path) -> str:
    """The text of a secret file without its one trailing newline.

    Raises:
        ValueError: the file cannot be read as one secret; the message says why and holds nothing of it.
    """
    try:
        if not path.is_file():
            raise ValueError(f"{path} {'is not a file' if path.exists() else 'does not exist'}")
        raw = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from None
    if len(raw) > _MAX_SECRET_BYTES:
        raise ValueError(f"{path} has {len(raw)} bytes; a secret has at most {_MAX_SECRET_BYTES}")
    try:
        text = raw.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None  # the chained error would print the bytes
    if not text:
        raise ValueError(f"{path} is empty")
    return text

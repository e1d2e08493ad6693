"""Tokens of OAUTHBEARER, by the options with which librdkafka gets its own: for a client that is not librdkafka's.

Also to say why librdkafka has none: its own error says neither which setting is wrong nor whether the endpoint has answered,
and of one that is silent it says nothing for 20 s.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from eos.errors import EosError
from eos.kafka.token_endpoint import METHOD, OPTION, Endpoint, Token, spellings, wrong

MECHANISM = "OAUTHBEARER"
_ALIASES = {
    f"{OPTION}client.credentials.client.id": f"{OPTION}client.id",
    f"{OPTION}client.credentials.client.secret": f"{OPTION}client.secret",
}
# Of these librdkafka knows more values than its default, which alone is known here.
_ONE_WAY = {f"{OPTION}grant.type": "client_credentials", f"{OPTION}metadata.authentication.type": "none"}
_UNSECURED, _CONFIG = "enable.sasl.oauthbearer.unsecure.jwt", f"{OPTION}config"
_TRUE = frozenset({"true", "t", "1"})  # as librdkafka reads a boolean
_EXTENSIONS, _EXTENSION = f"{OPTION}extensions", "extension_"
_EXTENSION_NAME = re.compile(r"(?!auth$)[A-Za-z]+")  # RFC 7628
_EXTENSION_VALUE = re.compile(r"[\x20-\x7e\t\r\n]*")
# What a token without a signature is made of, with librdkafka's defaults.
_UNSECURED_PARTS = {
    "principal": "",
    "principalClaimName": "sub",
    "scope": "",
    "scopeClaimName": "scope",
    "lifeSeconds": "3600",
}
_REFRESH_S = 5.0


class Tokens:
    """The tokens of one login. Neither its text nor its errors hold a secret.

    Args:
        config: librdkafka's options, of a login that is not `librdkafka_alone`.

    Raises:
        ConfigError: an option is missing or wrong.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        options = _options(config)
        self._make: Callable[[float], Token]
        if _is_oidc(options):
            self._make = Endpoint(options).token
            pairs = [one.partition("=") for one in options.get(_EXTENSIONS, "").split(",") if one.strip()]
            self._extensions = _checked(
                {name.strip(): value.strip() for name, _, value in pairs}, _EXTENSIONS
            )
        elif options.get(_UNSECURED, "").lower() in _TRUE:
            self._make, self._extensions = _unsecured(options.get(_CONFIG, ""))
        else:
            raise wrong(METHOD, "takes its tokens from a callback, and eos has none", "oidc")
        self._lock = threading.Lock()
        self._last: Token | None = None

    def token(self, timeout_s: float = _REFRESH_S) -> str:
        """A token that stays valid for a while.

        Raises:
            ConfigError: the endpoint refuses the client, or its answer is of no use.
            UnavailableError: no answer in time.
        """
        with self._lock:
            if self._last is None or time.time() >= self._last.until_s:
                self._last = self._make(timeout_s)
            return self._last.value

    def extensions(self) -> dict[str, str]:
        """What is sent beside a token."""
        return dict(self._extensions)


def librdkafka_alone(config: Mapping[str, Any]) -> str:
    """What makes it a login that librdkafka alone can carry out, as a setting with its value; "" if nothing does."""
    if not _is_oidc(config):
        return ""
    given = {name: str(config.get(name, known)) for name, known in _ONE_WAY.items()}
    others = (
        f"kafka.client.{name} = {value}" for name, value in given.items() if value.lower() != _ONE_WAY[name]
    )
    return next(others, "")


def why_no_token(config: Mapping[str, Any], timeout_s: float) -> EosError | None:
    """What keeps a client with these options from a token; None if nothing does, or librdkafka alone can know."""
    if config.get("sasl.mechanism") != MECHANISM or librdkafka_alone(config):
        return None
    try:
        Tokens(config).token(timeout_s)
    except EosError as error:
        return error
    return None


def secrets_in(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What librdkafka's log lines must not hold: they quote the answer of the endpoint."""
    return spellings(_options(config)) if _is_oidc(config) else ()


def _options(config: Mapping[str, Any]) -> dict[str, str]:
    return {_ALIASES.get(name, name): str(value) for name, value in config.items()}


def _is_oidc(config: Mapping[str, Any]) -> bool:
    return str(config.get(METHOD, "")).lower() == "oidc"


def _unsecured(config: str) -> tuple[Callable[[float], Token], Mapping[str, str]]:
    """What makes tokens without a signature, as librdkafka's handler for trials does; and their extensions."""
    given = dict(pair.partition("=")[::2] for pair in config.split())
    extensions = {
        name.removeprefix(_EXTENSION): given.pop(name) for name in [*given] if name.startswith(_EXTENSION)
    }
    parts = _UNSECURED_PARTS | given
    life = parts["lifeSeconds"]
    known = parts.keys() == _UNSECURED_PARTS.keys() and '"' not in "".join(parts.values())
    if not (known and parts["principal"] and life.isdecimal() and int(life)):
        fix = f"principal=NAME, and perhaps {', '.join(list(_UNSECURED_PARTS)[1:])}, {_EXTENSION}NAME=…"
        raise wrong(_CONFIG, "is not what librdkafka makes unsecured tokens of", fix)
    scopes = list(dict.fromkeys(filter(None, parts["scope"].split(","))))

    def make(_: float) -> Token:
        now_s = time.time()
        claims = {parts["principalClaimName"]: parts["principal"], "iat": now_s, "exp": now_s + int(life)}
        payload = json.dumps(claims | ({parts["scopeClaimName"]: scopes} if scopes else {}))
        header, body = (
            base64.urlsafe_b64encode(one.encode()).decode().rstrip("=") for one in ('{"alg":"none"}', payload)
        )
        return Token.living(f"{header}.{body}.", int(life))

    return make, _checked(extensions, _CONFIG)


def _checked(extensions: Mapping[str, str], option: str) -> Mapping[str, str]:
    for name, value in extensions.items():
        if not (_EXTENSION_NAME.fullmatch(name) and _EXTENSION_VALUE.fullmatch(value)):
            raise wrong(
                option,
                "has an extension whose name is not of letters, or whose value not of ASCII",
                "NAME=value",
            )
    return extensions

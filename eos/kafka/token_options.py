"""The options of librdkafka that say where a token of OAUTHBEARER comes from, and what has come."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, quote_plus

from eos.errors import ConfigError
from eos.settings.problems import Problem, config_error

NO_TOKEN_CODE = "_AUTHENTICATION"  # noqa: S105 - librdkafka's own code where it has none
OPTION = "sasl.oauthbearer."
METHOD = f"{OPTION}method"
ID, SECRET, URL = f"{OPTION}client.id", f"{OPTION}client.secret", f"{OPTION}token.endpoint.url"
_LIFE_USED = 0.8  # of a token, until a new one is asked for; librdkafka's figure


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and until when it is used."""

    value: str = field(repr=False)
    until_s: float

    @classmethod
    def living(cls, value: str, life_s: float) -> Token:
        """One that is valid for so many seconds from now on."""
        return cls(value, time.time() + _LIFE_USED * life_s)


def wrong(option: str, what: str, fix: str) -> ConfigError:
    """The error for an option of librdkafka; ``what`` holds no secret."""
    return config_error([Problem(f"kafka.client.{option}", what, fix)])


def spellings(options: Mapping[str, str]) -> tuple[str, ...]:
    """The secret of a client as it may be quoted by an endpoint that repeats what it was sent."""
    secret = options.get(SECRET, "")
    basic = base64.b64encode(f"{options.get(ID, '')}:{secret}".encode()).decode()
    return (basic, quote(secret, safe=""), quote_plus(secret), secret) if secret else ()

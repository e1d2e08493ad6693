"""A token endpoint (OAuth 2.0, OIDC), asked for client credentials as librdkafka asks it."""

from __future__ import annotations

import base64
import http.client
import json
import queue
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, quote_plus, urlsplit, urlunsplit

from eos.errors import ConfigError, UnavailableError
from eos.settings.problems import Problem, config_error
from eos.settings.secrets import HIDDEN

T = TypeVar("T")

NO_TOKEN_CODE = "_AUTHENTICATION"  # noqa: S105 - librdkafka's own code where it has none
OPTION = "sasl.oauthbearer."
METHOD = f"{OPTION}method"
_ID, _SECRET, _URL = f"{OPTION}client.id", f"{OPTION}client.secret", f"{OPTION}token.endpoint.url"
_SCOPE, _SUBJECT = f"{OPTION}scope", f"{OPTION}sub.claim.name"
_CA, _CA_PEM = "https.ca.location", "https.ca.pem"
_LIFE_USED = 0.8  # of a token, until a new one is asked for; librdkafka's figure
_MAX_ANSWER_BYTES = 1_000_000
_MAX_QUOTED_CHARS = 300
_OK, _REFUSED = range(200, 300), frozenset({400, 401, 403})
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})  # librdkafka's: it tries again


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
    secret = options.get(_SECRET, "")
    basic = base64.b64encode(f"{options.get(_ID, '')}:{secret}".encode()).decode()
    return (basic, quote(secret, safe=""), quote_plus(secret), secret) if secret else ()


class Endpoint:
    """The token endpoint of one login (as in rdkafka_sasl_oauthbearer_oidc.c).

    Args:
        options: librdkafka's.

    Raises:
        ConfigError: an option is missing or wrong.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        for name in (_URL, _ID, _SECRET):
            if not options.get(name):
                raise wrong(name, f"is missing, and {METHOD} = oidc needs it", "give it")
        parts = urlsplit(options[_URL])
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise wrong(_URL, "is not the address of a web server", "https://host/path")
        # What stands before the host is no login: librdkafka sends id and secret in the header, and so do we.
        host = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit(parts._replace(netloc=host, fragment=""))
        self._shown = urlunsplit((parts.scheme, host, parts.path, "", ""))
        self._hidden = spellings(options)
        self._headers = {
            "Accept": "application/json",
            "Authorization": f"Basic {self._hidden[0]}",
            "Content-Type": "application/x-www-form-urlencoded",
            "User-Agent": "eos",
        }
        # As it was written: librdkafka does not quote it either.
        scope = options.get(_SCOPE, "")
        self._form = f"grant_type=client_credentials{f'&scope={scope}' if scope else ''}".encode()
        self._context = _context(options) if parts.scheme == "https" else None
        self._subject = options.get(_SUBJECT, "sub")

    def token(self, timeout_s: float) -> Token:
        """A new token.

        Raises:
            ConfigError: the endpoint refuses the client, or its answer is of no use.
            UnavailableError: no answer in time.
        """
        # No cause is kept: its text, or what it holds, may quote what was sent or answered.
        try:
            status, answer = _within(timeout_s, lambda: self._ask(timeout_s))
        except ssl.SSLCertVerificationError as error:
            what = f"the certificate of {self._shown} is not accepted: {error.verify_message}"
            raise wrong(_CA, what, "the certificates of the endpoint's authority, PEM") from None
        except TimeoutError:
            raise self._away(f"no answer in {timeout_s:.1f} s") from None
        except OSError as error:
            raise self._away(self._said(str(error))) from None
        except (http.client.HTTPException, ValueError) as error:
            raise self._away(type(error).__name__) from None
        if status in _OK:
            return self._token_in(answer)
        said = f"answers {status} {self._said(answer.decode(errors='replace'))}".rstrip()
        if status in _LATER:
            raise self._away(f"it {said}")
        what = f"the token endpoint {self._shown} {said}"
        if status in _REFUSED:
            raise wrong(_SECRET, what, f"this, or {_ID}, or {_SCOPE}")
        raise wrong(_URL, what, "the address of the endpoint itself")

    def _ask(self, timeout_s: float) -> tuple[int, bytes]:
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if self._context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=self._context))
        request = urllib.request.Request(self._url, self._form, self._headers)  # noqa: S310 - http or https, see above
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as answer:
                return answer.status, answer.read(_MAX_ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(_MAX_ANSWER_BYTES)
        except urllib.error.URLError as error:
            raise error.reason if isinstance(error.reason, OSError) else OSError(str(error.reason)) from None

    def _token_in(self, answer: bytes) -> Token:
        # Nothing is quoted of an answer that may hold a token.
        not_as_needed = f"the answer of {self._shown} is not"
        try:
            value = json.loads(answer)["access_token"]
            _, payload, _ = value.split(".")
            claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
            life_s, subject = float(claims["exp"]) - time.time(), claims[self._subject]
        except (ValueError, KeyError, TypeError, AttributeError):
            value, life_s, subject = "", 0.0, ""
        if not (value.isascii() and value.isprintable() and isinstance(subject, str) and subject):
            what = f"{not_as_needed} a JWT as access_token with the claims exp and {self._subject}, as librdkafka needs it"
            raise wrong(_URL, what, f"an endpoint that gives these, or {_SUBJECT}") from None
        if life_s <= 0:
            what = f"{not_as_needed} a valid token: it has expired {-life_s:.0f} s ago"
            raise wrong(_URL, what, "the clocks of this machine and of the endpoint")
        return Token.living(value, life_s)

    def _away(self, why: str) -> UnavailableError:
        text = f"no token from {self._shown}: {why}. Fix: see why, or kafka.client.{_URL}"
        return UnavailableError(text, code=NO_TOKEN_CODE)

    def _said(self, text: str) -> str:
        """What the other side says, in one line that does not repeat our secret."""
        for secret in self._hidden:
            text = text.replace(secret, HIDDEN)
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_MAX_QUOTED_CHARS]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The secret is for the address that is set, and for no other. librdkafka does not follow either."""

    def redirect_request(self, *_: object) -> None:
        return None


def _context(options: Mapping[str, str]) -> ssl.SSLContext:
    """What is trusted to be the endpoint: what librdkafka trusts."""
    location = options.get(_CA, "")
    option = _CA if location else _CA_PEM
    try:
        if option == _CA_PEM or location == "probe":
            return ssl.create_default_context(cadata=options.get(_CA_PEM) or None)
        if Path(location).is_dir():
            return ssl.create_default_context(capath=location)
        return ssl.create_default_context(cafile=location)
    except (OSError, ValueError) as error:
        what = f"cannot be read as PEM ({type(error).__name__})"
        raise wrong(option, what, "the certificates of the endpoint's authority") from None


def _within(timeout_s: float, call: Callable[[], T]) -> T:
    """Its answer in time: no timeout of a socket bounds the look-up of a name, nor an answer that comes byte by byte."""
    answers: queue.SimpleQueue[T | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(call())
        except Exception as error:  # noqa: BLE001 - raised by who waits for it
            answers.put(error)

    threading.Thread(target=ask, name="eos-token", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, Exception):
        raise answer
    return answer

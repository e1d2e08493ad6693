"""Who was refused what: an authorization error says neither, but the client that met it knows both. Or who has no token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eos.base.calls import Call
from eos.errors import ConfigError, EosError, RetriableError, UnavailableError
from eos.kafka.tokens import why_no_token

_TRANSACTIONAL_ID = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
_TOPIC = "TOPIC_AUTHORIZATION_FAILED"
_GROUP = "GROUP_AUTHORIZATION_FAILED"
_CLUSTER = "CLUSTER_AUTHORIZATION_FAILED"
_TOKEN_S = 5.0
_LOOKING = frozenset({Call.METADATA, Call.COMMITTED})


class Access:
    """The access of one client.

    Args:
        config: librdkafka's options.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.principal = _principal(config)
        self._config = config
        self._token_asked = False
        self._awaited: EosError | None = None
        self._transactional_id = str(config.get("transactional.id", ""))
        self._group = str(config.get("group.id", ""))

    def no_token(self) -> EosError | None:
        """Why the client has no token to log in with, asked anew; None if that is not what is wrong."""
        return why_no_token(self._config, _TOKEN_S)

    def awaited_token(self) -> EosError | None:
        """The same for a call that had no answer, asked once until `answered`; retriable, where a token may come yet."""
        if not self._token_asked:
            self._token_asked, self._awaited = True, self.no_token()
        if self._awaited is not None and self.waits_for_a_token:
            return RetriableError(str(self._awaited), code=self._awaited.code)
        return self._awaited

    @property
    def waits_for_a_token(self) -> bool:
        """Whether that was the answer of `awaited_token`."""
        return isinstance(self._awaited, UnavailableError)

    def answered(self) -> None:
        """A call had an answer, or the client is connected: what kept it from a token does not any more."""
        self._token_asked, self._awaited = False, None

    def named(
        self,
        error: EosError,
        call: Call,
        *,
        topics: Iterable[str] = (),
        written: Iterable[str] = (),
        group: str = "",
    ) -> EosError:
        """The error with principal, operation and resource in front; one that is about no access, or has them, as it is.

        Args:
            error: what a call was classified as.
            call: the call.
            topics: that it reads or looks at, if known; the broker does not say which of them it refuses.
            written: topics that it may be about because the transaction writes to them.
            group: that it is about, if not the client's own.
        """
        if type(error) is not ConfigError or str(error).startswith(self.principal):
            return error
        on_topics = [("Describe" if call in _LOOKING else "Read", topics), ("Write", written)]
        refused = {
            _TRANSACTIONAL_ID: f"Write on TransactionalId {self._transactional_id!r}",
            _TOPIC: " or ".join(f"{operation} on Topic {_quoted(of)}" for operation, of in on_topics if of)
            or "use a topic of the job",
            _GROUP: f"{'Describe' if call in _LOOKING else 'Read'} on Group {(group or self._group)!r}",
            _CLUSTER: "act on the Cluster",
        }.get(error.code or "")
        if refused is None:
            return error
        return ConfigError(f"{self.principal} is not allowed to {refused}: {error}", code=error.code)


def _quoted(topics: Iterable[str]) -> str:
    return ", ".join(repr(topic) for topic in sorted(topics))


def _principal(config: Mapping[str, Any]) -> str:
    protocol = str(config.get("security.protocol", "PLAINTEXT"))
    if protocol.startswith("SASL"):
        user = config.get("sasl.username")
        return f"User:{user}" if user else "the principal of the SASL login"
    if certificate := config.get("ssl.certificate.location"):
        return f"the principal of {certificate}"
    return "User:ANONYMOUS"

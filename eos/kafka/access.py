"""Who was refused what: an authorization error says neither, but the client that met it knows both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eos.calls import Call
from eos.errors import ConfigError, EosError

_TRANSACTIONAL_ID = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
_TOPIC = "TOPIC_AUTHORIZATION_FAILED"
_GROUP = "GROUP_AUTHORIZATION_FAILED"
_CLUSTER = "CLUSTER_AUTHORIZATION_FAILED"
_LOOKING = frozenset({Call.METADATA, Call.COMMITTED})


class Access:
    """The access of one client.

    Args:
        config: librdkafka's options.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.principal = _principal(config)
        self._transactional_id = str(config.get("transactional.id", ""))
        self._group = str(config.get("group.id", ""))

    def named(self, error: EosError, call: Call, *, topics: Iterable[str] = (), group: str = "") -> EosError:
        """The error with principal, operation and resource in front; one that is about no access, or is named already, as it is.

        Args:
            error: what a call was classified as.
            call: the call.
            topics: that it was about, if known; the broker does not say which of them it refuses.
            group: that it was about, if not the client's own.
        """
        if type(error) is not ConfigError or str(error).startswith(self.principal):
            return error
        quoted = ", ".join(repr(topic) for topic in sorted(topics)) or "a topic of the job"
        refused = {
            _TRANSACTIONAL_ID: f"Write on TransactionalId {self._transactional_id!r}",
            _TOPIC: f"{_on_topic(call)} on Topic {quoted}",
            _GROUP: f"{'Describe' if call in _LOOKING else 'Read'} on Group {(group or self._group)!r}",
            _CLUSTER: "act on the Cluster",
        }.get(error.code or "")
        if refused is None:
            return error
        return ConfigError(f"{self.principal} is not allowed to {refused}: {error}", code=error.code)


def _on_topic(call: Call) -> str:
    if call is Call.PRODUCE:
        return "Write"
    return "Describe" if call in _LOOKING else "Read"


def _principal(config: Mapping[str, Any]) -> str:
    protocol = str(config.get("security.protocol", "PLAINTEXT"))
    if protocol.startswith("SASL"):
        user = config.get("sasl.username")
        return f"User:{user}" if user else "the principal of the SASL login"
    if certificate := config.get("ssl.certificate.location"):
        return f"the principal of {certificate}"
    return "User:ANONYMOUS"

"""Reach: whether a cluster answers at all, asked before anything else; who it does not answer learns at which address."""

from __future__ import annotations

import logging
import time

from eos.base.calls import Call
from eos.base.deadline import Deadline
from eos.errors import ConfigError, EosError, UnavailableError
from eos.kafka.admin import Admin
from eos.kafka.token_endpoint import NO_TOKEN_CODE
from eos.ops.check.listener import listener_at
from eos.ops.check.transactions import no_answer
from eos.retry import resume
from eos.settings import Settings

_FIRST_S = 5.0  # without an answer, until the listener is asked what it speaks
_LISTENER_S = 4.0

log = logging.getLogger("eos.ops.check")


def await_brokers(
    settings: Settings, *, timeout_s: float = 15.0, admin: Admin | None = None
) -> tuple[int, ...]:
    """The ids of the cluster's brokers, once one has answered; by the caller's own admin client, if it has one.

    Raises:
        UnavailableError: no broker answered in time.
        ConfigError: the listener speaks another security protocol, or the credentials are refused.
    """
    admin = admin or Admin.of(settings)
    began, deadline = time.monotonic(), Deadline(timeout_s)

    def ask(within: Deadline) -> tuple[int, ...]:
        # In short slices: librdkafka reports a refused connection at the end of the first one.
        return resume(Call.METADATA, admin.brokers, deadline=within, slice_s=1.0)

    try:
        return ask(Deadline(min(_FIRST_S, deadline.left_s)))
    except (ConfigError, UnavailableError) as error:
        _refuse_wrong_protocol(settings, error)
        if isinstance(error, ConfigError):
            raise
        log.warning("waiting for %s (kafka.bootstrap_servers): %s", settings.kafka.bootstrap_servers, error)
    try:
        return ask(deadline)
    except UnavailableError as error:
        if error.code == NO_TOKEN_CODE:  # it was not a broker that did not answer
            raise
        # Of both asks together: the second one's own time is less than what the reader has waited.
        last = error.__cause__ if isinstance(error.__cause__, EosError) else error
        raise UnavailableError(
            no_answer(settings, last, waited_s=time.monotonic() - began), code=error.code
        ) from error


def _refuse_wrong_protocol(settings: Settings, error: EosError) -> None:
    """Say what the listener speaks, if it is not what is set: a client finds out only that nobody answers it."""
    server, protocol = settings.kafka.bootstrap_servers.split(",")[0], settings.kafka.security_protocol
    found = listener_at(server, _LISTENER_S)
    if found is not None and found.protocol != protocol:
        raise ConfigError(
            f"kafka.security_protocol = {protocol}, and the listener at {server} (kafka.bootstrap_servers) speaks "
            f"{found}. Fix: kafka.security_protocol = {found.protocol}, with what belongs to it, or another listener's port",
            code=error.code,
        ) from error

"""Fence: an init in the place of a shard's next owner, which ends what is open there and whoever had it."""

from __future__ import annotations

from eos import retry
from eos.base.calls import Call
from eos.base.deadline import Deadline
from eos.kafka.config import producer_config
from eos.kafka.late_copies import ProducerIdentity
from eos.kafka.producer import TransactionalClient
from eos.settings import Settings

_IDENTITY_S = 5.0


def fence(settings: Settings, transactional_id: str) -> ProducerIdentity | None:
    """Initialise a transactional.id and go away again.

    Returns:
        What the coordinator gave; None if librdkafka did not say.

    Raises:
        UnavailableError: the coordinator did not answer in ``open_timeout_s`` of the settings.
        EosError: what it answered.
    """
    config = producer_config(settings, transactional_id)
    client = TransactionalClient(config, transaction_timeout_s=settings.transaction.timeout_s)
    try:
        retry.resume(Call.INIT, client.init, deadline=Deadline(settings.open_timeout_s))
        return client.identity(_IDENTITY_S)
    finally:
        client.close()

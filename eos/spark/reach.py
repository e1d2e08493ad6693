"""Reach: whether this process, a driver or a task, gets to the brokers that a transaction writes to."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from eos import retry
from eos.errors import EosError
from eos.kafka.admin import Admin, Mark
from eos.settings import Settings
from eos.spark.failures import encoded

# How long each of three answers is waited for. They come in milliseconds; what is silent for longer is a name that does not
# resolve here, or a firewall that drops packets.
_ANSWER_S = 5.0


def reach(settings: Settings, outputs: Sequence[str]) -> None:
    """Ask for the brokers' metadata, and the leaders of the outputs for their offsets.

    A listener that is reachable may name others that are not, and a transaction writes to all of them.

    Raises:
        EosError: no answer within seconds, or a refusal.
    """
    admin = Admin.of(settings)
    retry.ask(admin.brokers, timeout_s=_ANSWER_S)
    partitions = retry.ask(lambda slice_s: admin.partitions(outputs, slice_s), timeout_s=_ANSWER_S)
    retry.ask(lambda slice_s: admin.offsets_at(Mark.HIGH_WATERMARK, partitions, slice_s), timeout_s=_ANSWER_S)


def unreached(question: bytes) -> str:
    """In a task: why Kafka is out of reach; "" if it is not. A raised error would be tried four times."""
    settings, outputs = pickle.loads(question)  # noqa: S301 - of the driver, as all that a task gets
    try:
        reach(settings, outputs)
    except EosError as error:
        return encoded(error)
    return ""

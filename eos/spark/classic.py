"""Classic: what eos asks of every session and frame that it is given: that it is none of Spark Connect."""

from __future__ import annotations

import pickle
from typing import NoReturn

from eos.errors import ConfigError

_CONNECT = "pyspark.sql.connect"


class SentAwayError(ConfigError, pickle.PicklingError):
    """What works in the driver's process alone was to be sent to another one. PySpark lets pickle's own errors pass as they are."""


def require_classic(given: object) -> None:
    """Refuse a session, or a frame, of Spark Connect.

    Its client has no physical plan to look at, so a shard that is split over two tasks would not be seen, and no Java machine to
    ask for checkpoints and batches.

    Raises:
        ConfigError: it is one.
    """
    if type(given).__module__.startswith(_CONNECT):
        raise ConfigError(
            "this is a Spark Connect session, in which the physical plan cannot be looked at, and with it not whether "
            f"every row of a shard reaches one task. {_FIX}"
        )


def refuse_sending(what: str) -> NoReturn:
    """Refuse to be pickled.

    Raises:
        SentAwayError: always.
    """
    raise SentAwayError(
        f"{what} works in the driver's process alone, and was to be sent to another one. Spark Connect sends there what foreachBatch is "
        f"given, and a task what its function names. {_FIX}; and in a function of a task no sink"
    )


_FIX = (
    "Fix: run the driver with the cluster (spark-submit, or a session without SPARK_REMOTE and spark.remote)"
)

"""Records that a broker refused for their timestamps: whether a record is at fault, or a clock.

A broker compares each record's timestamp with its own clock (message.timestamp.before.max.ms and after.max.ms). It says
INVALID_TIMESTAMP where some records of a batch are out of bounds, but INVALID_RECORD where all of several are, as it does for a
record without a key in a compacted topic. The report of a record that was refused has no timestamp any more (measured with
Kafka 4.2 and librdkafka 2.16).
"""

from __future__ import annotations

from eos.errors import ConfigError, EosError, RecordRefusedError

FOR_THEIR_TIME = {"INVALID_TIMESTAMP", "INVALID_RECORD"}
_BOUNDS = "the topic's message.timestamp.before.max.ms or message.timestamp.after.max.ms"


def wrong_clock(topic: str, code: str | None) -> ConfigError:
    """The error where records with this machine's own time are refused."""
    return ConfigError(
        f"{topic}: the broker refused records for their timestamps ({code}), which are this machine's own time: its clock and that of "
        f"the broker which leads the partition differ by more than {_BOUNDS} allows. No record is at fault, and nothing is lost. "
        "Fix: compare `date -u` here and on the broker, and set the clock that is wrong (chrony, NTP)",
        code=code,
    )


def with_the_cause(error: EosError, topic: str, *, lacks_key: bool, stamped: bool) -> EosError:
    """A refusal with what may be its cause; other errors as they are.

    Args:
        error: what the delivery report was classified as.
        topic: where the records were written to.
        lacks_key: a record of those that were refused together has no key.
        stamped: the transaction has given timestamps to records of the topic. Else they have the client's own time.
    """
    if not isinstance(error, RecordRefusedError) or error.code not in FOR_THEIR_TIME:
        return error
    keys = lacks_key and error.code == "INVALID_RECORD"
    if not keys and not stamped:
        return wrong_clock(topic, error.code)
    timestamp = f"a timestamp is further from the broker's clock than {_BOUNDS} allows"
    causes = f"a record has no key and the topic is compacted, or {timestamp}" if keys else timestamp
    named = RecordRefusedError(
        f"{error}: {causes}. Fix: {'a key; or ' if keys else ''}the timestamp that the record was given; or the clock of this machine "
        "or of the broker, which `date -u` shows",
        code=error.code,
    )
    named.outputs = error.outputs
    return named

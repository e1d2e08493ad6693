"""Records that a broker refused for their timestamps: whether a record is at fault, or a clock.

A broker compares each record's timestamp with its own clock (message.timestamp.before.max.ms and after.max.ms). It says
INVALID_TIMESTAMP where some records of a batch are out of bounds, or the only one is, but INVALID_RECORD where all of several are, as
it does for a record without a key in a compacted topic, and as brokers do that validate records by a schema. The report of a record that was refused has no timestamp any more (measured with
Kafka 4.2 and librdkafka 2.16).
"""

from __future__ import annotations

from eos.errors import ConfigError, EosError, RecordRefusedError

_BOUNDS = "the topic's message.timestamp.before.max.ms or message.timestamp.after.max.ms"


def wrong_clock(topic: str, code: str | None) -> ConfigError:
    """The error where records with this machine's own time are refused."""
    or_else = (
        "No record is at fault"
        if code == "INVALID_TIMESTAMP"
        else "Only a broker that validates records itself, by a schema, refuses several at once with this code as well"
    )
    return ConfigError(
        f"{topic}: the broker refused records for their timestamps ({code}), which are this machine's own time: its clock and that of "
        f"the broker which leads the partition differ by more than {_BOUNDS} allows. {or_else}. Nothing is lost. "
        "Fix: compare `date -u` here and on the broker, and set the clock that is wrong (chrony, NTP)",
        code=code,
    )


def may_be_for_its_time(code: str | None, *, together: int) -> bool:
    """Whether records that were refused with this code, so many at once, may have been refused for their timestamps."""
    return code == "INVALID_TIMESTAMP" or (code == "INVALID_RECORD" and together > 1)


def with_the_cause(error: EosError, topic: str, *, lacks_key: bool, stamped: bool, together: int) -> EosError:
    """A refusal with what may be its cause; other errors as they are.

    Args:
        error: what the delivery report was classified as.
        topic: where the records were written to.
        lacks_key: a record of those that were refused together has no key.
        together: how many were.
        stamped: the transaction has given timestamps to records of the topic. Else they have the client's own time.
    """
    if not isinstance(error, RecordRefusedError) or not may_be_for_its_time(error.code, together=together):
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

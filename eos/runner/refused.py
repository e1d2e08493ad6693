"""Find the input record of an output that the cluster has refused, after the refusal."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import chain

from eos.base.deadline import Deadline
from eos.core.pipeline import Pipeline
from eos.errors import AbortableError, EosError, RecordRefusedError
from eos.kafka.admin import shared_admin
from eos.kafka.refused_times import may_be_for_its_time, wrong_clock
from eos.poison import PoisonFilter
from eos.records import InputBatch, OutputRecord, fingerprint
from eos.settings import Settings
from eos.transform import Applied

_LOOK_S = 10.0  # an error that is complete is not worth a longer wait for its exit code
_FETCH_S = 0.2
_CONFIGS_S = 5.0
# A record with this machine's own time may have waited for as long as a transaction lives before it was refused.
_OWN_TIME_MS = 15 * 60_000
_EMPTY_FETCHES = 25  # in a row: the first one after a failure only rewinds, and an answer may take seconds


def _bytes(output: OutputRecord) -> float:
    return len(output.key or b"") + len(output.value or b"")


def _lacks_a_key(output: OutputRecord) -> float:
    return float(output.key is None)


def _from_now(output: OutputRecord) -> float:
    return 0.0 if output.timestamp_ms is None else abs(output.timestamp_ms - time.time() * 1000)


# The broker refuses a batch of records as one and does not say which of them is at fault (measured with librdkafka 2.16).
_CHOSEN: dict[str, tuple[Callable[[OutputRecord], float], str]] = {
    "INVALID_RECORD": (_lacks_a_key, "the first without a key, if there is one,"),
    "MSG_SIZE_TOO_LARGE": (_bytes, "the largest"),
    "INVALID_TIMESTAMP": (_from_now, "the one whose timestamp is the farthest from now"),
}


def naming_its_input(
    error: RecordRefusedError,
    pipeline: Pipeline,
    transform: Applied,
    settings: Settings,
    *,
    fetch_records: int,
) -> EosError:
    """The refusal with the coordinates of the input record, if it is found again; or the error that a clock is wrong.

    The owner goes back to the committed offsets. The same input is transformed once more, and nothing is produced. To keep, for
    each output, which record it was made of would cost every record; this costs those of one transaction.
    """
    if not error.outputs:
        return error
    look = _Look(PoisonFilter(transform, settings.poison.policy, shard="", listener=lambda _: None), error)
    deadline, empty = Deadline(_LOOK_S), 0
    try:
        pipeline.owner.recover(AbortableError(str(error)))  # a refusal itself asks for no rewind
        while not look.done and empty < _EMPTY_FETCHES and not deadline.passed and not pipeline.owner.ended:
            batch = pipeline.fetch(fetch_records, _FETCH_S, 0.0)
            empty = 0 if batch else empty + 1
            look.at(batch)
    except EosError:
        pass  # the refusal counts, not what kept its origin from being found
    if look.clock_alone(settings):
        return wrong_clock(look.topic, error.code)
    if not look.found:
        return error
    named = RecordRefusedError(f"{look.found}: {error}", code=error.code)
    named.outputs = error.outputs
    return named


class _Look:
    """Goes through the input again for the outputs of a refusal; ``found`` is the place of the likeliest one."""

    def __init__(self, poison: PoisonFilter, error: RecordRefusedError) -> None:
        self._poison = poison
        self._code = error.code
        self._missing = set(error.outputs)
        self.topic = ""
        self._lacks_key = False
        self._farthest_ms = 0.0  # from now, of a timestamp
        self._weigh: Callable[[OutputRecord], float] | None
        self._weigh, why = _CHOSEN.get(error.code or "", (None, "the first"))
        self._together = len(error.outputs)
        self._chosen = f", {why} of {self._together} refused together" if self._together > 1 else ""
        self._best = -1.0
        self.found = ""

    @property
    def done(self) -> bool:
        return not self._missing or bool(self.found and self._weigh is None)

    def clock_alone(self, settings: Settings) -> bool:
        """Whether the outputs were refused for their timestamps, and all of them have this machine's own time.

        All must have been seen: the one with a timestamp of its own may be among the others.
        """
        for_its_time = may_be_for_its_time(self._code, together=self._together)
        if self._missing or not for_its_time or self._farthest_ms > _OWN_TIME_MS:
            return False
        if self._code == "INVALID_TIMESTAMP" or not self._lacks_key:
            return True
        with suppress(EosError):
            config = shared_admin(settings).topic_configs([self.topic], _CONFIGS_S).get(self.topic)
            return config is not None and "compact" not in config.get("cleanup.policy", "compact")
        return False

    def at(self, batch: InputBatch) -> None:
        """Look at a batch, and at its records if it makes one of the outputs."""
        if not batch or not (outputs := self._refused_of(batch)):
            return
        for record in batch:
            for output in self._refused_of(InputBatch.of([record])):
                self._take(output, f"{InputBatch.of([record]).place}: an output of this record")
        if not self.found:  # a batch function that is no map over records
            what = f"{batch.place}: an output of this batch, which none of its records makes alone,"
            self._take(outputs[0], what)

    def _refused_of(self, batch: InputBatch) -> list[OutputRecord]:
        flat = chain.from_iterable(self._poison.apply(batch))
        return [one for one in flat if fingerprint(one.topic, one.value, one.key) in self._missing]

    def _take(self, output: OutputRecord, what: str) -> None:
        self._missing.discard(fingerprint(output.topic, output.value, output.key))
        self.topic = output.topic
        self._lacks_key = self._lacks_key or output.key is None
        self._farthest_ms = max(self._farthest_ms, _from_now(output))
        excess = self._weigh(output) if self._weigh else 0.0
        if excess > self._best:
            self._best = excess
            self.found = f"{what} ({_bytes(output):.0f} bytes{self._chosen}) was refused"

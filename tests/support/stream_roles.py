"""Roles: a streaming query whose inputs, outputs and name may be others at each start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.spark.jobs import StreamJob
from eos.spark.running import RunOptions, run
from eos.spark.stream.log_rules import LedgerError
from tests.support.observer import PlainRecord, create_topics, produce_plain, read_committed, unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eos.settings import Settings

ROWS = 7  # other than any number of a batch


class Roles:
    """A query whose inputs and outputs are others at each start; all of its rows go to one topic."""

    def __init__(self, spark: SparkSession, settings: Settings, bootstrap: str, directory: Path) -> None:
        self.spark, self.settings, self.bootstrap = spark, settings, bootstrap
        self.checkpoint = str(directory / "checkpoint")
        self.source, self.changing, self.output = unique("in"), unique("changing"), unique("out")
        self.name, self.given = unique("roles"), list[bytes]()
        create_topics(bootstrap, {self.source: 1, self.changing: 1, self.output: 1})

    def give(self, topic: str) -> None:
        values = [b"%s %d" % (topic.encode(), len(self.given) + n) for n in range(ROWS)]
        produce_plain(self.bootstrap, topic, [PlainRecord(value, value) for value in values])
        self.given += values

    def job(self, inputs: Sequence[str], outputs: Sequence[str]) -> StreamJob:
        output = self.output
        return StreamJob(
            name=self.name,
            inputs=inputs,
            outputs=outputs,
            transform=lambda frame: frame.select("key", "value", F.lit(output).alias("topic")),
        )

    def run(
        self, inputs: Sequence[str], outputs: Sequence[str], adopt: str | None = None, *, skip: bool = False
    ) -> None:
        """Until it has caught up."""
        how = RunOptions(checkpoint=self.checkpoint, until_caught_up=True, adopt=adopt, skip_deleted=skip)
        run(self.job(inputs, outputs), self.spark, self.settings, how)

    def refused(self, inputs: Sequence[str], outputs: Sequence[str], why: str) -> str:
        """The token to adopt that the refusal names; "" if it names none."""
        with pytest.raises(LedgerError, match=why) as refusal:
            self.run(inputs, outputs)
        return str(refusal.value).partition("adopt='")[2].partition("'")[0]

    def expect(self) -> None:
        """The output has exactly the records of the input, each once."""
        assert sorted(r.value or b"" for r in read_committed(self.bootstrap, self.output)) == sorted(
            self.given
        )

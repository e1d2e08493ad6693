"""The list of contenders. To add one: a module beside this one (see `bench.contender`) and a line here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Contender:
    """A way to copy records.

    Attributes:
        name: what the command line and the tables call it.
        module: its module in this package; runs as a process of its own.
        what: one line for the table.
        rate_targets: contender -> the least ratio of this one's rate to that one's that we aim at.
        cpu_targets: contender -> the largest ratio of client CPU seconds per record that we aim at.
        launch: the command that takes the place of this Python and ``module``.
    """

    name: str
    module: str
    what: str
    rate_targets: Mapping[str, float] = field(default_factory=dict)
    cpu_targets: Mapping[str, float] = field(default_factory=dict)
    launch: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """What starts its process; the arguments follow."""
        return self.launch or (sys.executable, "-m", f"bench.contenders.{self.module}")


CONTENDERS: Mapping[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender("a", "raw_defaults", "raw loop, client defaults (confluent's example, in batches)"),
        Contender("b", "raw_tuned", "a with fetch.queue.backoff.ms=2"),
        Contender(
            "b-batch", "raw_batch", "b, through a batch function with columns: what those cost by themselves"
        ),
        Contender("b-record", "raw_record", "b, through a function of one record: what that costs by itself"),
        Contender("b-look", "raw_looks", "b, with a look at the topics' ids before each commit"),
        Contender("c", "raw_plain", "b without transactions (at least once at best)"),
        Contender("d", "raw_json", "b with orjson.loads and orjson.dumps per record"),
        Contender("d-batch", "raw_json_batch", "b-batch with the JSON of d"),
        Contender("d-record", "raw_json_record", "b-record with the JSON of d"),
        Contender(
            "eos",
            "eos_batch",
            "eos, batch function",
            rate_targets={"a": 5.0, "b": 0.95},
            cpu_targets={"b": 1.05},
        ),
        Contender(
            "eos-record",
            "eos_record",
            "eos, function of one record",
            rate_targets={"b": 0.7},
            cpu_targets={"b": 1.4},
        ),
        Contender("eos-json", "eos_json", "eos, batch function with the JSON of d", rate_targets={"d": 1.05}),
        Contender(
            "eos-json-record",
            "eos_json_record",
            "eos, function of one record with the JSON of d",
            rate_targets={"d": 0.75},
        ),
        Contender("eos-2", "eos_workers", "eos, batch function, 2 workers"),
    )
}

REFERENCES = ("a", "b", "b-batch", "b-record", "b-look", "c", "d", "d-batch", "d-record")
"""The contenders that the others are compared with."""

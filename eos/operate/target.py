"""Target: the job whose group an operator works on."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from eos.errors import ConfigError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.job import Declaration, Job
from eos.settings import Settings

_SHARD = "operator"  # in the metadata: `eos status` says who has committed


@dataclass(frozen=True, slots=True)
class Target:
    """A job by what its offsets say of it.

    Attributes:
        app: its name.
        group: whose offsets are its place.
        mode: how its owners own their input.
        inputs, outputs: its topics.
        by_spark: whether its owners are tasks of Spark.
    """

    app: str
    group: str
    mode: OwnershipMode
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    by_spark: bool

    @classmethod
    def of(cls, job: Declaration, settings: Settings) -> Target:
        """The target that a job is.

        Raises:
            ConfigError: it is a streaming query, whose place is no offset of a group.
        """
        unit = getattr(job, "commit", None)
        if not isinstance(job, Job) and unit is None:
            raise ConfigError(
                f"{job.name!r} is a streaming query: its place is in its checkpoint and its ledger, which belong together, and "
                "not in the offsets of a group. Fix: docs/RUNBOOK.md, 'Spark streams'"
            )
        return cls(
            job.name,
            settings.group_for(job.name),
            OwnershipMode(unit or settings.ownership.mode),
            tuple(sorted(job.inputs)),
            tuple(sorted(job.written_topics)),
            unit is not None,
        )

    def metadata(self) -> OffsetMetadata:
        """What is stored with offsets that an operator commits: the job's next owner takes them for its own."""
        # The owner of a Spark task's offsets is "<run>t<task>", by which a verification knows that a shuffle kept no order.
        owner = secrets.token_hex(6) + ("t0" if self.by_spark else "")
        return OffsetMetadata(self.mode, _SHARD, owner, app=self.app)

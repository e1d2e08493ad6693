"""A kind of job that eos does not have: it reads as a loop does, and commits to a database. It is this one class."""

from __future__ import annotations

from dataclasses import dataclass

from eos.identity import Identity, Kind, Naming


@dataclass(frozen=True)
class Inserting:
    """Rows from a topic."""

    source: str
    name: str = "inserting"
    kind: Kind = Kind.LOOP
    applied: None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def read_topics(self) -> frozenset[str]:
        return frozenset(self.inputs)

    @property
    def written_topics(self) -> frozenset[str]:
        return frozenset()

    def identity(self, settings: Naming) -> Identity:
        return Identity(
            kind=self.kind,
            app=self.name,
            group=settings.group_for(self.name),
            commits={},
            mode=settings.ownership.mode,
            inputs=self.inputs,
            read=self.inputs,
            outputs=(),
            transactional=False,
            fixed="has its place in its database",
        )


job = Inserting("in")

"""Begun: the file by which a sink notes in a query's checkpoint that it has begun to write, and to which topics.

The ledger alone cannot tell a first batch that was never begun from one whose entries are forgotten. Nor does it show that
two sinks of one query write to the same topic: a sink that was renamed, or that a second driver runs under another name, has
another ledger, in which nothing is written yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from eos.spark.checkpoint import Checkpoint

_START, _END = "eos-ledger-", "begun"
_OUTPUTS, _BESIDE = "outputs:", "beside:"


class BegunNote:
    """The note of one sink.

    Args:
        checkpoint: the query's.
        prefix: of the sink's transactional.ids, `LedgerStore.prefix`.
        outputs: the topics that the sink writes to.
    """

    def __init__(self, checkpoint: Checkpoint, prefix: str, outputs: Iterable[str]) -> None:
        self._checkpoint = checkpoint
        self._prefix = prefix
        self._outputs = frozenset(outputs)
        self.name = f"{_START}{prefix}{_END}"

    def __str__(self) -> str:
        return f"{self._checkpoint}/{self.name}"

    def text(self) -> str | None:
        """What is noted; None: the sink has not begun. Raises as `Checkpoint.text` does."""
        return self._checkpoint.text(self.name)

    def has_outputs(self, text: str) -> bool:
        """Whether a note names the topics that the sink writes to now."""
        return _words(text, _OUTPUTS) == self._outputs

    def write(self, ledger: str, beside: Iterable[str]) -> None:
        """Note that the sink begins. Raises as `Checkpoint.write` does.

        Args:
            ledger: where its ledger is.
            beside: the sinks that it writes to the same topics with, because a person has said so.
        """
        accepted = sorted({*beside, *_words(self.text() or "", _BESIDE)})
        lines = [ledger, f"{_OUTPUTS} {' '.join(sorted(self._outputs))}", f"{_BESIDE} {' '.join(accepted)}"]
        self._checkpoint.write(self.name, "\n".join(lines))

    def delete(self) -> None:
        """As if the sink had not begun. Raises as `Checkpoint.delete` does."""
        self._checkpoint.delete(self.name)

    def rivals(self) -> Mapping[str, frozenset[str]]:
        """The other sinks of the query that write to a topic of this one, with those topics; by the prefix of their ids.

        Without those of which this note or theirs says that a person wants both. Raises as `Checkpoint.names` does.
        """
        accepted = _words(self.text() or "", _BESIDE)
        found: dict[str, frozenset[str]] = {}
        for name in self._checkpoint.names():
            prefix = name.removeprefix(_START).removesuffix(_END)
            if name == self.name or name != f"{_START}{prefix}{_END}" or prefix in accepted:
                continue
            theirs = self._checkpoint.text(name) or ""
            if (shared := _words(theirs, _OUTPUTS) & self._outputs) and self._prefix not in _words(
                theirs, _BESIDE
            ):
                found[prefix] = shared
        return found


def _words(text: str, key: str) -> frozenset[str]:
    return frozenset(
        word for line in text.splitlines() if line.startswith(key) for word in line.removeprefix(key).split()
    )

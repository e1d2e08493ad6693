"""ForgottenOffsets: committed offsets that the group's coordinator has forgotten, although the transaction is committed.

Brokers before Apache Kafka 4.0 keep a transaction's offsets in memory until its marker comes, by producer id. A late copy of an
older TxnOffsetCommit of that id that arrives in between is refused for its epoch, and what is pending of its partitions is dropped
with it (GroupMetadata.failPendingTxnOffsetCommit of the coordinator that 4.0 has left out). The output is visible then, and the
group stands where it stood: whoever takes over processes that input again. Measured with a proxy that held one frame, on 3.5.2,
3.6.2, 3.7.2 and 3.9.2; none on 4.2.1 (`tests/proof/late_packets.py`).

No client can prevent it. So, as long as a copy may be under way, what the group has stored is read after each commit.
"""

from __future__ import annotations

from eos.base.deadline import Deadline
from eos.core.ledger import Ledger
from eos.group.committed import committed_offsets
from eos.kafka.consumer import ConsumerClient, lone_reader
from eos.kafka.late_copies import LATE_S
from eos.offsets import Partition
from eos.settings import Settings

_READ_S = 5.0


class ForgottenOffsets:
    """Looks for them after a commit, for a while after each init: it begins an epoch, and copies of older ones may come late.

    Args:
        settings: how to reach the cluster.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._over = Deadline(0.0)
        self._readers: dict[str, ConsumerClient] = {}  # by group

    def epoch_begins(self) -> None:
        """The transactional.id has a new epoch."""
        self._over = Deadline(LATE_S)

    def of(self, group_id: str, ledger: Ledger) -> list[Partition]:
        """Those partitions of the last commit for which the group has what it had before.

        Raises:
            UnavailableError: no answer in 5 s.
        """
        if self._over.passed:
            self.close()
            return []
        if group_id not in self._readers:
            self._readers[group_id] = lone_reader(self._settings, group_id, stable=True)
        stored = committed_offsets(self._readers[group_id], ledger.last_committed, timeout_s=_READ_S)
        return ledger.forgotten(stored)

    def close(self) -> None:
        """Let go of the clients."""
        while self._readers:
            self._readers.popitem()[1].close()

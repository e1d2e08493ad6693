"""What every owner is given that writes to Kafka: the place where a guard or a watch is added."""

from __future__ import annotations

from eos.core.ledger import Ledger
from eos.core.producer import ShardProducer
from eos.core.surroundings import Surroundings
from eos.events import Listener
from eos.group.committed import OffsetStore
from eos.guards.enter import enter
from eos.guards.expired import expired
from eos.guards.seen import gone_back
from eos.guards.takeover import foreign, new_and_deleted, recreated
from eos.guards.truncated import truncated
from eos.kafka.consumer import ConsumerClient
from eos.settings import Settings
from eos.shards import Shard
from eos.watches.catch_up import CatchUp
from eos.watches.input_topics import InputTopics
from eos.watches.stalls import StallWatch
from eos.watches.strangers import Strangers
from eos.watches.unowned import Unowned
from eos.watches.unreached import Unreached


class ToKafka:
    """Output and offsets in one transaction of Kafka; a client reads its group's offsets itself."""

    def store(self, reader: ConsumerClient) -> OffsetStore:
        return reader

    def notes(self, _: object) -> tuple[()]:
        return ()

    def writer(
        self, settings: Settings, shard: Shard, *, listener: Listener, ledger: Ledger
    ) -> ShardProducer:
        return ShardProducer(settings, shard, listener=listener, ledger=ledger, compare_when_fenced=True)


SURROUNDINGS = Surroundings(
    destination=ToKafka(),
    enter=enter,
    guards=(expired, recreated, foreign, new_and_deleted, gone_back, truncated),
    watches=(InputTopics, Unowned.of, Strangers, StallWatch, Unreached),
    catch_up=CatchUp.of,
)

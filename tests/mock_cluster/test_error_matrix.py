"""Every error code at every request of a transaction: what comes out, and that the producer goes on or stops.

The mock answers with any code at any request, also with those that no broker sends there; what matters is
that nothing is left without a class. ``None`` is a transaction that commits, because librdkafka has tried again.
"""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError

from eos.core.producer import ProducerState
from eos.core.transaction import TransactionState
from eos.errors import (
    AbortableError,
    CommitOutcomeUnknownError,
    ConfigError,
    EosError,
    FencedError,
    RebalancedError,
    ReopenError,
)
from eos.testing.proxy.frames import ApiKey
from tests.mock_cluster.conftest import NewShard
from tests.support.mock_cluster import MockCluster
from tests.support.mock_shard import TIMEOUT_MS

E = KafkaError
Expected = type[EosError] | None

_COORDINATOR = (E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR)
_PASSING = (*_COORDINATOR, E.CONCURRENT_TRANSACTIONS, E.REQUEST_TIMED_OUT, E._TRANSPORT)
_FENCES = (E.INVALID_PRODUCER_EPOCH, E.PRODUCER_FENCED)
_ACCESS = (E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.CLUSTER_AUTHORIZATION_FAILED)
_RESOURCE_ACCESS = (E.TOPIC_AUTHORIZATION_FAILED, E.GROUP_AUTHORIZATION_FAILED)
_MOVED_ON = (E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID)
_FORGOTTEN = (E.INVALID_PRODUCER_ID_MAPPING, E.UNKNOWN_PRODUCER_ID)
_OTHERS = (
    E.TRANSACTION_ABORTABLE,
    E.UNKNOWN,
    E.UNKNOWN_TOPIC_OR_PART,
    E.NOT_LEADER_FOR_PARTITION,
    E.OUT_OF_ORDER_SEQUENCE_NUMBER,
)
CODES = (
    *_PASSING,
    *_FENCES,
    *_ACCESS,
    *_RESOURCE_ACCESS,
    *_MOVED_ON,
    *_FORGOTTEN,
    E.INVALID_TXN_STATE,
    *_OTHERS,
)


def cells(*groups: tuple[Expected, tuple[int, ...]], otherwise: Expected) -> dict[int, Expected]:
    found: dict[int, Expected] = dict.fromkeys(CODES, otherwise)
    for expected, codes in groups:
        found.update(dict.fromkeys(codes, expected))
    return found


MATRIX: dict[ApiKey, dict[int, Expected]] = {
    ApiKey.INIT_PRODUCER_ID: cells((FencedError, _FENCES), (ConfigError, _ACCESS), otherwise=None),
    ApiKey.ADD_PARTITIONS_TO_TXN: cells(
        (None, (*_PASSING, E.UNKNOWN_TOPIC_OR_PART)),
        (FencedError, _FENCES),
        (ConfigError, _ACCESS + _RESOURCE_ACCESS),
        (RebalancedError, _MOVED_ON),
        (ReopenError, (E.INVALID_TXN_STATE, E.INVALID_PRODUCER_ID_MAPPING)),
        (AbortableError, (E.REQUEST_TIMED_OUT,)),
        otherwise=AbortableError,
    ),
    ApiKey.PRODUCE: cells(
        (None, (*_PASSING, E.UNKNOWN_TOPIC_OR_PART, E.NOT_LEADER_FOR_PARTITION)),
        (FencedError, _FENCES),
        (ConfigError, _ACCESS + _RESOURCE_ACCESS),
        (ReopenError, (E.OUT_OF_ORDER_SEQUENCE_NUMBER, E.INVALID_PRODUCER_ID_MAPPING)),
        (AbortableError, (E.CONCURRENT_TRANSACTIONS,)),
        otherwise=AbortableError,
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: cells(
        (None, (*_PASSING, E.UNKNOWN_TOPIC_OR_PART)),
        (FencedError, _FENCES),
        (ConfigError, _ACCESS + _RESOURCE_ACCESS),
        (RebalancedError, _MOVED_ON),
        (ReopenError, (E.INVALID_TXN_STATE, E.INVALID_PRODUCER_ID_MAPPING)),
        otherwise=AbortableError,
    ),
    ApiKey.TXN_OFFSET_COMMIT: cells(
        (None, (*_PASSING, E.UNKNOWN_TOPIC_OR_PART)),
        (FencedError, _FENCES),
        (ConfigError, _ACCESS + _RESOURCE_ACCESS),
        (RebalancedError, _MOVED_ON),
        (ReopenError, (E.INVALID_TXN_STATE, E.INVALID_PRODUCER_ID_MAPPING)),
        otherwise=AbortableError,
    ),
    ApiKey.END_TXN: cells(
        (None, _PASSING),
        (AbortableError, (E.REQUEST_TIMED_OUT,)),
        (FencedError, _FENCES),
        (ConfigError, _ACCESS + _RESOURCE_ACCESS),
        (RebalancedError, _MOVED_ON),
        (CommitOutcomeUnknownError, (E.INVALID_TXN_STATE,)),
        (ReopenError, (E.INVALID_PRODUCER_ID_MAPPING,)),
        otherwise=AbortableError,
    ),
}
_PROMPT_S = TIMEOUT_MS / 1000 / 2  # what waited for no time-out


@pytest.mark.slow
@pytest.mark.parametrize("code", CODES, ids=lambda code: str(KafkaError(code).name()))
@pytest.mark.parametrize("api", MATRIX, ids=lambda api: str(api.name))
def test_cell(api: ApiKey, code: int, cluster: MockCluster, new_shard: NewShard) -> None:
    expected = MATRIX[api][code]
    shard = new_shard()
    if api is not ApiKey.INIT_PRODUCER_ID:
        shard.producer.open()
        shard.take_over()
    cluster.push_errors(api, code)
    began = time.monotonic()
    if expected is None:
        assert shard.run(offset=5).state is TransactionState.COMMITTED
        assert len(cluster.requests(api)) >= 2
        return
    with pytest.raises(EosError) as raised:
        shard.run(offset=5)
    assert isinstance(raised.value, expected), repr(raised.value)
    assert time.monotonic() - began < _PROMPT_S, repr(raised.value)
    assert (shard.producer.state is ProducerState.FENCED) is (expected is FencedError)
    if issubclass(expected, AbortableError | ReopenError):
        assert shard.run().state is TransactionState.COMMITTED

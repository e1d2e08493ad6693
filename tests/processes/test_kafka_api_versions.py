"""Which requests the brokers understand, as librdkafka's log has it: the preflight refuses old ones by it."""

from __future__ import annotations

import pytest

from eos.errors import ConfigError
from eos.kafka.admin import Admin
from eos.kafka.api_versions import ApiVersions
from eos.ops.check.preflight import check_broker_version
from eos.testing.proxy.frames import ApiKey
from tests.support.mock_cluster import MockCluster
from tests.support.patience import PATIENCE_S


def understood(cluster: MockCluster) -> dict[str, int]:
    versions = ApiVersions()
    admin = Admin({"bootstrap.servers": cluster.bootstrap_servers, **versions.options})
    assert admin.brokers(PATIENCE_S)
    admin.serve_log()
    return versions.newest


def test_what_the_brokers_offer_is_read_from_the_log() -> None:
    with MockCluster(brokers=1) as cluster:
        cluster.set_api_versions(ApiKey.OFFSET_FETCH, 0, 7)
        cluster.set_api_versions(ApiKey.TXN_OFFSET_COMMIT, 0, 3)
        cluster.set_api_versions(ApiKey.INIT_PRODUCER_ID, 0, 4)
        found = understood(cluster)
    assert (found["OffsetFetch"], found["TxnOffsetCommit"], found["InitProducerId"]) == (7, 3, 4)
    check_broker_version(found)


@pytest.mark.parametrize("newest", [2, -1])
def test_a_broker_without_kip_447_is_refused_by_the_log(newest: int) -> None:
    with MockCluster(brokers=1) as cluster:
        cluster.set_api_versions(ApiKey.OFFSET_FETCH, 0, 7)
        cluster.set_api_versions(ApiKey.TXN_OFFSET_COMMIT, min(newest, 0), newest)
        found = understood(cluster)
    with pytest.raises(ConfigError, match="TxnOffsetCommit"):
        check_broker_version(found)


def test_of_two_brokers_the_older_one_counts() -> None:
    versions = ApiVersions()
    for newest in (9, 6, 8):
        line = f"[thrd:a]: a:9092/1:   ApiKey OffsetFetch (9) Versions 0..{newest}"
        versions.log(10, "%s %s %s", "APIVERSION", "rdkafka#producer-1", line)
    versions.log(10, "%s %s %s", "FEATURE", "rdkafka#producer-1", "[thrd:a]: a:9092/1: Feature ApiVersion")
    assert versions.newest == {"OffsetFetch": 6}

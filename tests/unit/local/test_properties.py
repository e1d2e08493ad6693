"""Server properties: what a small machine gets, what one may change and what not."""

from __future__ import annotations

from pathlib import Path

import pytest

from eos.errors import ConfigError
from eos.local.ports import NodePorts
from eos.local.properties import check_extra, log4j_properties, parse, render, server_properties

ONE = {1: NodePorts(20001, 20002)}
THREE = {i: NodePorts(20000 + i, 20010 + i) for i in (1, 2, 3)}


def test_one_broker_needs_no_replicas() -> None:
    properties = server_properties(1, ONE, Path("/data"), {})
    assert properties["offsets.topic.replication.factor"] == "1"
    assert properties["transaction.state.log.min.isr"] == "1"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:20002"


def test_three_brokers_survive_one() -> None:
    properties = server_properties(2, THREE, Path("/data"), {})
    assert properties["default.replication.factor"] == "3"
    assert properties["min.insync.replicas"] == "2"
    assert properties["transaction.state.log.replication.factor"] == "3"
    assert properties["offsets.topic.replication.factor"] == "3"
    assert properties["controller.quorum.voters"].count("@") == 3
    assert properties["node.id"] == "2"


@pytest.mark.parametrize("nodes", [ONE, THREE, {1: NodePorts(20001, 20002, 20003, 20004)}])
def test_every_listener_is_on_loopback(nodes: dict[int, NodePorts]) -> None:
    properties = server_properties(1, nodes, Path("/data"), {})
    for name in ("listeners", "advertised.listeners"):
        assert all("://127.0.0.1:" in listener for listener in properties[name].split(","))


def test_proxied_listener_is_bound_at_one_port_and_advertised_at_another() -> None:
    properties = server_properties(1, {1: NodePorts(20001, 20002, 20003, 20004)}, Path("/data"), {})
    assert properties["listeners"].endswith("PROXY://127.0.0.1:20003")
    assert properties["advertised.listeners"].endswith("PROXY://127.0.0.1:20004")


def test_extra_properties_win() -> None:
    extra = {"transaction.state.log.num.partitions": "1", "log.retention.ms": "5"}
    assert extra.items() <= server_properties(1, ONE, Path("/data"), extra).items()


def test_properties_that_hold_the_cluster_together_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"listeners, node\.id"):
        check_extra({"node.id": "7", "listeners": "PLAINTEXT://0.0.0.0:9092", "num.io.threads": "2"})


def test_rendered_text_is_read_back() -> None:
    properties = {"log.dirs": "/with space/data", "a.b": "c=d"}
    assert parse("#comment\n\n" + render(properties)) == properties


def test_special_characters_are_escaped_as_java_reads_them() -> None:
    assert render({"path": "C:\\x\ny"}) == "path=C:\\\\x\\ny\n"


def test_log_goes_to_the_file_alone() -> None:
    text = log4j_properties(Path("/logs/server.log"))
    assert "appender.file.fileName=/logs/server.log\n" in text
    assert "Console" not in text


def test_further_listeners_are_advertised_as_they_are_bound_with_their_own_protocol() -> None:
    ports = NodePorts(20001, 20002, others={"SECURED": 20003})
    properties = server_properties(1, {1: ports}, Path("/data"), {}, {"SECURED": "SASL_SSL"})
    for name in ("listeners", "advertised.listeners"):
        assert "SECURED://127.0.0.1:20003" in properties[name].split(",")
    assert "SECURED:SASL_SSL" in properties["listener.security.protocol.map"].split(",")

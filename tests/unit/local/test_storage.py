"""Data directories: half formatted, foreign or of another cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eos.errors import ConfigError
from eos.local.layout import Layout
from eos.local.storage import existing_cluster_id, new_cluster_id


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def _formatted(layout: Layout, node_id: int, cluster_id: str = "c1", *, started: bool = True) -> Path:
    data = layout.data(node_id)
    data.mkdir(parents=True)
    (data / "meta.properties").write_text(f"#\nnode.id={node_id}\nversion=1\ncluster.id={cluster_id}\n")
    if started:
        (data / "__cluster_metadata-0").mkdir()
    return data


def test_fresh_directory_has_no_cluster(layout: Layout) -> None:
    assert existing_cluster_id(layout, [1]) is None


def test_formatted_directory_names_its_cluster(layout: Layout) -> None:
    for node_id in (1, 2, 3):
        _formatted(layout, node_id)
    assert existing_cluster_id(layout, [1, 2, 3]) == "c1"


def test_interrupted_format_is_done_again(layout: Layout) -> None:
    """Only Kafka's first files are there, no log: nothing can be lost."""
    layout.data(1).mkdir(parents=True)
    (layout.data(1) / "bootstrap.checkpoint").touch()
    assert existing_cluster_id(layout, [1]) is None


def test_interrupted_format_of_three_is_completed(layout: Layout) -> None:
    _formatted(layout, 1, started=False)
    layout.data(2).mkdir(parents=True)
    assert existing_cluster_id(layout, [1, 2, 3]) == "c1"


def test_logs_without_meta_properties_are_not_formatted_over(layout: Layout) -> None:
    data = _formatted(layout, 1)
    (data / "meta.properties").unlink()
    with pytest.raises(ConfigError, match=f"{data} holds logs but no meta.properties.*delete {layout.root}"):
        existing_cluster_id(layout, [1])


def test_nodes_of_different_clusters_are_refused(layout: Layout) -> None:
    for node_id in (1, 2, 3):
        _formatted(layout, node_id, f"c{node_id}")
    with pytest.raises(ConfigError, match=r"different clusters.*c2.*Fix: choose another directory"):
        existing_cluster_id(layout, [1, 2, 3])


def test_directory_of_another_node_is_refused(layout: Layout) -> None:
    data = _formatted(layout, 1)
    (data / "meta.properties").write_text("node.id=2\ncluster.id=c1\n")
    with pytest.raises(ConfigError, match="is not that of node 1"):
        existing_cluster_id(layout, [1])


@pytest.mark.parametrize(("there", "wanted"), [([1], [1, 2, 3]), ([1, 2, 3], [1])])
def test_quorum_of_another_size_is_refused(layout: Layout, there: list[int], wanted: list[int]) -> None:
    for node_id in there:
        _formatted(layout, node_id)
    with pytest.raises(ConfigError, match=re.escape(f"the brokers {there}, not of {wanted}")):
        existing_cluster_id(layout, wanted)


def test_cluster_ids_are_kafka_uuids() -> None:
    ids = {new_cluster_id() for _ in range(200)}
    assert len(ids) == 200
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", cluster_id) for cluster_id in ids)

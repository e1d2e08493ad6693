"""Format the data directories of a cluster, unless they are formatted; refuse those that do not fit."""

from __future__ import annotations

import base64
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from eos.errors import ConfigError
from eos.local.layout import Layout
from eos.local.properties import parse

_FORMAT_TIMEOUT_S = 60.0  # takes 1 s
_METADATA_LOG = "__cluster_metadata-0"  # there once a node has started for the first time


def existing_cluster_id(layout: Layout, node_ids: Sequence[int]) -> str | None:
    """The id of the cluster whose data is there, or None if nothing is.

    What an interrupted format left behind is removed, if no node has ever run on it.

    Raises:
        ConfigError: the data is not that of one cluster with these nodes. The message names the directory.
    """
    found: dict[int, str] = {}
    started = False
    for node in layout.nodes():
        node_id = int(node.name.removeprefix("broker-"))
        data = layout.data(node_id)
        meta = data / "meta.properties"
        if meta.is_file():
            found[node_id] = _cluster_id(meta, node_id, layout)
            started = started or (data / _METADATA_LOG).exists()
        elif data.exists() and any(path.is_dir() for path in data.iterdir()):
            raise _refused(
                layout, f"{data} holds logs but no meta.properties: it is half formatted or damaged"
            )
    if len(set(found.values())) > 1:
        ids = ", ".join(f"{layout.data(i)}: {cluster_id}" for i, cluster_id in found.items())
        raise _refused(layout, f"the nodes belong to different clusters ({ids})")
    if started and set(found) != set(node_ids):
        # Static voters are part of the metadata log: a quorum of one cannot become a quorum of three.
        raise _refused(layout, f"the data is that of the brokers {sorted(found)}, not of {sorted(node_ids)}")
    if not started:
        for node_id in found.keys() - set(node_ids):
            shutil.rmtree(layout.node(node_id))
    return next(iter(found.values()), None)


def format_missing(layout: Layout, cluster_id: str, node_ids: Sequence[int], java: Sequence[str]) -> None:
    """Run Kafka's own format for every node that has no meta.properties, all at once.

    Their server.properties are written already; ``java`` is the command line up to the main class.

    Raises:
        ConfigError: Kafka refused. The message shows what it said.
    """
    missing = [i for i in node_ids if not (layout.data(i) / "meta.properties").is_file()]
    with ExitStack() as started:
        running = {}
        for node_id in missing:
            shutil.rmtree(layout.data(node_id), ignore_errors=True)  # the rest of an interrupted format
            tool = [
                "kafka.tools.StorageTool",
                "format",
                "-t",
                cluster_id,
                "-c",
                str(layout.properties(node_id)),
            ]
            running[node_id] = started.enter_context(
                subprocess.Popen(
                    [*java, *tool],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            started.callback(running[node_id].kill)
        for node_id, process in running.items():
            try:
                said, _ = process.communicate(timeout=_FORMAT_TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                raise ConfigError(
                    f"Kafka did not format {layout.root} within {_FORMAT_TIMEOUT_S:.0f} s"
                ) from error
            if process.returncode != 0:
                raise ConfigError(f"Kafka could not format {layout.data(node_id)}: {said.strip()}")


def new_cluster_id() -> str:
    """A random id in Kafka's form: 16 bytes in URL-safe base64 (org.apache.kafka.common.Uuid)."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return f"A{text[1:]}" if text.startswith("-") else text  # a leading dash would read as an option


def _cluster_id(meta: Path, node_id: int, layout: Layout) -> str:
    properties = parse(meta.read_text())
    if properties.get("node.id") != str(node_id) or "cluster.id" not in properties:
        raise _refused(layout, f"{meta} is not that of node {node_id}")
    return properties["cluster.id"]


def _refused(layout: Layout, problem: str) -> ConfigError:
    return ConfigError(
        f"{problem}. Fix: choose another directory, or delete {layout.root} (its records are gone then)."
    )

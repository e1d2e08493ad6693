"""The image of the loop: what it promises to whoever deploys it, seen on a real broker and from outside."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from eos.ops.check.transactions import TransactionsView
from eos.ops.verifier.verify import verify
from eos.settings import Settings
from eos.shards import OrdinalShard, parse_transactional_id
from jobs import refunds
from jobs.settlements import settlements
from tests.support import observer
from tests.support.docker_cli import (
    APP_IMAGE,
    KAFKA_IMAGE,
    Broker,
    Container,
    broker,
    container,
    docker,
    missing,
    network,
    wait_for,
)
from tests.support.observer import PlainRecord
from tests.support.patience import PATIENCE_S

_REASON = missing(APP_IMAGE, KAFKA_IMAGE)
pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("app-image"),
    pytest.mark.skipif(bool(_REASON), reason=_REASON),
]

_REPOSITORY = Path(__file__).parents[2]
_CONFIG = "conf/refunds.toml"
_PARTITIONS = 4
_ORDINAL = 3
# The arguments of the pod, as the manifest has them, and the settings where it mounts them.
_RUN = next(
    tuple(one["spec"]["template"]["spec"]["containers"][0]["args"])
    for one in yaml.safe_load_all((_REPOSITORY / "docker/kubernetes/refunds.yaml").read_text())
    if one["kind"] == "StatefulSet"
)
_MOUNTED = ("--volume", f"{_REPOSITORY / 'conf'}:/etc/eos:ro")
# As the manifests have it: nothing can be written, not even to a tmpfs, and nothing is allowed beyond.
_LOCKED_DOWN = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
_AS_POD = (*_LOCKED_DOWN, *_MOUNTED, "--hostname", f"refunds-{_ORDINAL}", "--health-interval", "1s")
_GRACE_S = 45
# A whole key, not the mere words, which every TLS library holds.
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=\s]{100,}")

_UNWANTED = re.compile(
    r"(^|/)s?bin/(pip|gcc|cc|ld|curl|wget)$|site-packages/(pip|setuptools)/|\.cache/|^stage/|^(opt|app)/.*\.whl$"
    r"|(^|/)(pip\.conf|\.netrc|\.pypirc|\.git|\.env)$"
)
_HOLDS_A_TEST_KEY = re.compile(r"/librdkafka-[0-9a-f]+\.so")  # that of its own unit tests, compiled in


@pytest.fixture(scope="module")
def bridge() -> Iterator[str]:
    with network() as found:
        yield found


@pytest.fixture(scope="module")
def kafka_container(bridge: str) -> Iterator[Broker]:
    with broker(bridge) as running:
        yield running


@pytest.fixture(scope="module")
def loaded(kafka_container: Broker) -> int:
    """The topics of the job, and settlements in them; returns how many."""
    topics = refunds.job.read_topics | refunds.job.written_topics
    observer.create_topics(kafka_container.outside, dict.fromkeys(topics, _PARTITIONS))
    records = [PlainRecord(value, key) for key, value in settlements(20_000, seed=11)]
    observer.produce_plain(kafka_container.outside, refunds.SETTLEMENTS, records, timeout_s=120)
    return len(records)


def _processed(at: Broker) -> int:
    partitions = [(refunds.SETTLEMENTS, p) for p in range(_PARTITIONS)]
    found = observer.committed_offsets(at.outside, "refunds", partitions)
    return sum(offset or 0 for offset, _ in found.values())


def _settings(at: Broker) -> Settings:
    return Settings.load(
        _REPOSITORY / _CONFIG, {"kafka.bootstrap_servers": at.outside, "ownership.ordinal": _ORDINAL}, {}
    )


def test_pod_is_stopped_in_the_middle_and_its_replacement_ends_the_job_exactly_once(
    kafka_container: Broker, bridge: str, loaded: int
) -> None:
    """Non-root, nothing writable, its number from the host name, healthy; SIGTERM ends it in order."""
    environment = {
        "EOS_KAFKA__BOOTSTRAP_SERVERS": kafka_container.inside,
        "EOS_WORKERS__COUNT": "1",
        "EOS_TRANSACTION__MAX_RECORDS": "500",  # many transactions, so that SIGTERM comes between the first and the last
        "EOS_INPUT__FETCH_RECORDS": "100",
    }
    pod = (*_AS_POD, "--network", bridge)

    with container(APP_IMAGE, *_RUN, "--start", "earliest", options=pod, environment=environment) as first:
        wait_for(lambda: _processed(kafka_container) > 0, PATIENCE_S, first.last_words)
        code, seconds = first.stop(_GRACE_S)
        assert code == 0, first.last_words()
        assert seconds < _GRACE_S
    begun = _processed(kafka_container)
    assert 0 < begun < loaded
    with TransactionsView(_settings(kafka_container)) as view:
        assert view.lingering() == []
        shards = [parse_transactional_id(found) for found in view.transactional_ids("refunds.")]
    assert [shard.ordinal for shard in shards if isinstance(shard, OrdinalShard)] == [_ORDINAL]

    with container(APP_IMAGE, *_RUN, options=pod, environment=environment) as second:
        second.wait_healthy(PATIENCE_S)
        assert second.run("id", "-u") != "0"
        assert second.inspect(".HostConfig.ReadonlyRootfs") is True
        wait_for(lambda: _processed(kafka_container) >= loaded, PATIENCE_S, second.last_words)
        assert second.stop(_GRACE_S)[0] == 0, second.last_words()

    report = verify(refunds.job, _settings(kafka_container), timeout_s=PATIENCE_S)
    assert report.exactly_once, report
    assert report.records == loaded


def test_sigterm_while_it_waits_for_its_brokers_ends_it_at_once() -> None:
    """As process 1 it would be deaf to SIGTERM until its workers run."""
    environment = {"EOS_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    with container(APP_IMAGE, *_RUN, options=_AS_POD, environment=environment) as waiting:
        wait_for(lambda: _catches_sigterm(waiting), PATIENCE_S, waiting.last_words)
        code, seconds = waiting.stop(_GRACE_S)
    assert code == 143
    assert seconds < _GRACE_S / 2


def _catches_sigterm(one: Container) -> bool:
    """Whether process 1 has a handler: the kernel would not even deliver the signal to it without one."""
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)", one.run("cat", "/proc/1/status"), flags=re.MULTILINE)
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_container_under_a_random_name_is_refused_and_told_why() -> None:
    """Two of them would both be number 0, and fence each other until one is gone."""
    environment = {"EOS_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    with container(APP_IMAGE, *_RUN, options=(*_LOCKED_DOWN, *_MOUNTED), environment=environment) as refused:
        assert refused.wait(PATIENCE_S) == 2
        assert "EOS_ORDINAL" in refused.logs()


def test_health_check_fails_where_nothing_answers() -> None:
    entry = ("--entrypoint", "sleep")
    with container(APP_IMAGE, "60", options=(*_AS_POD, *entry)) as silent:
        wait_for(lambda: bool(silent.inspect(".State.Health.Log")), PATIENCE_S, silent.last_words)
        (first, *_) = silent.inspect(".State.Health.Log")
    assert first["ExitCode"] == 1
    assert "no answer on port 9464" in first["Output"]


def test_without_a_command_it_prints_the_help() -> None:
    with container(APP_IMAGE, options=_LOCKED_DOWN) as helping:
        assert helping.wait(PATIENCE_S) == 0
        assert "Usage: eos" in helping.logs()


def test_image_holds_no_tools_to_build_with_and_no_credentials() -> None:
    """Every layer is looked at: what a later one deletes is still there."""
    history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", APP_IMAGE)
    assert not re.search(r"(?i)password|secret|token|://[^/ ]+@", history)
    found: set[str] = set()
    with subprocess.Popen(["docker", "save", APP_IMAGE], stdout=subprocess.PIPE) as saving:
        assert saving.stdout is not None
        with tarfile.open(fileobj=saving.stdout, mode="r|") as image:
            for layer in image:
                if layer.name.endswith("layer.tar") or layer.name.startswith("blobs/"):
                    content = image.extractfile(layer)
                    if content is not None:
                        found |= set(_unwanted(content.read()))
    assert saving.returncode == 0
    assert found == set()


def _unwanted(layer: bytes) -> Iterator[str]:
    if layer.startswith(b"{"):
        return  # the image's own description
    with tarfile.open(fileobj=io.BytesIO(layer)) as files:
        for file in files:
            path = file.name.removeprefix("./")
            if _UNWANTED.search(path):
                yield path
            elif file.isfile() and path.startswith(("opt/", "app/")) and not _HOLDS_A_TEST_KEY.search(path):
                content = files.extractfile(file)
                if content is not None and _PRIVATE_KEY.search(content.read()):
                    yield path

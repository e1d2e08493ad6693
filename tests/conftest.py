"""What broker tests share: one real broker for the whole run, a proxy in front of it, fresh names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import hypothesis
import pytest

from eos.base.commands import Started, started_with
from eos.kafka import late_copies
from eos.ops.observe.log_lines import Lines
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.support import observer

if TYPE_CHECKING:
    from eos.local import LocalKafka
    from eos.testing import KafkaCluster
    from eos.testing.choice import Choice
    from tests.support.command_line import Eos

pytest_plugins = ["tests.support.hang_guard"]

# `make test` is red for what has changed, not for a new example, and not because a busy machine draws examples slowly.
hypothesis.settings.register_profile(
    "gate",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much],
)

HEAP_MB = 512
_CALM_S = 30.0
_REPOSITORY = Path(__file__).parents[1]


class NewTopic(Protocol):
    """Create a topic with a fresh name that starts with ``name``; returns the name."""

    def __call__(self, name: str = "topic", partitions: int = 1) -> str: ...


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked ``docker`` run where a container engine answers; the summary says why they were skipped."""
    if item.get_closest_marker("docker") is not None:
        from eos.testing import engine

        try:
            engine.find_image()
        except engine.NoEngineError as error:
            pytest.skip(str(error))


@pytest.fixture
def eos(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Eos:
    """The `eos` command, inside the test's own process."""
    from tests.support.command_line import command_line

    return command_line(monkeypatch, capsys)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """The process's logging is as it was, whatever a test configured."""
    loggers = [logging.getLogger(), logging.getLogger("eos")]
    lines = {name: getattr(Lines, name) for name in ("stream", "level", "human", "colors")}
    before = [(logger.level, list(logger.handlers), logger.disabled) for logger in loggers]
    yield
    for logger, (level, handlers, disabled) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.disabled = disabled
    for name, value in lines.items():
        setattr(Lines, name, value)


@pytest.fixture(autouse=True)
def _without_a_command_line() -> Iterator[None]:
    """Errors name commands as in a process without a command line, whatever a test has started before."""
    yield
    started_with(Started())


@pytest.fixture(autouse=True)
def _calm_watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that takes half a second is no sign of a resend on a busy machine; the bound's own tests are in tests/unit."""
    if "unit" not in request.path.parts:
        monkeypatch.setattr(late_copies, "_SLOW_BASE_S", _CALM_S)


@pytest.fixture(scope="session")
def proxy_port() -> int:
    """The port that the broker's second listener advertises. No proxy listens there, see ``proxy``."""
    from eos.local.ports import free_port

    return free_port()


@pytest.fixture(scope="session")
def kafka(
    tmp_path_factory: pytest.TempPathFactory, proxy_port: int, eos_kafka: Choice
) -> Iterator[LocalKafka]:
    """One broker (id 1) as a process of its own, started once per run; its jars are kept in ``.eos/jars``."""
    from tests.support.own_broker import own_broker

    if eos_kafka.image is not None:
        pytest.skip(
            "looks into the broker's files, or stands between it and its clients: --eos-kafka=process"
        )
    with own_broker(tmp_path_factory.mktemp("kafka"), heap_mb=HEAP_MB, proxy_ports=[proxy_port]) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def eos_cluster_backend(request: pytest.FixtureRequest, eos_kafka: Choice) -> LocalKafka | None:
    """The plugin's cluster is ``kafka`` where that is there: one broker per run is enough."""
    if eos_kafka.image is not None:
        return None
    broker: LocalKafka = request.getfixturevalue("kafka")
    return broker


@pytest.fixture(scope="session")
def bootstrap(eos_cluster: KafkaCluster) -> str:
    """The broker's own address; with ``--eos-kafka=docker`` that of one in a container."""
    return eos_cluster.bootstrap_servers


@pytest.fixture
def proxy(kafka: LocalKafka, proxy_port: int) -> Iterator[HoldProxy]:
    """A proxy without rules; clients that bootstrap from it stay behind it.

    It listens at a port of its own, and tells clients that one in place of the advertised one: a client that an earlier test has
    left behind finds no server at the port it knows, and no rule takes its requests for those of the test.
    """
    with HoldProxy(0, kafka.proxied_listeners[proxy_port], advertised=proxy_port) as running:
        yield running


@pytest.fixture
def names() -> Callable[[str], str]:
    """A maker of names for topics, groups and transactional ids that no other test uses."""
    return observer.unique


@pytest.fixture
def topic(bootstrap: str) -> NewTopic:
    """A maker of topics that no other test uses."""

    def create(name: str = "topic", partitions: int = 1) -> str:
        fresh = observer.unique(name)
        observer.create_topics(bootstrap, {fresh: partitions})
        return fresh

    return create

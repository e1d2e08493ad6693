"""The pytest plugin of eos: options, and fixtures that start a Kafka when a test asks for one.

It lives outside of the package ``eos`` because pytest imports it in every run where eos is installed. It imports
nothing but pytest until a test asks for Kafka or an option is given, and prints nothing until then.

Under pytest-xdist each worker process has a cluster of its own: what one test does to its brokers does not reach the
tests of another worker.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from eos.testing.backend import Backend
    from eos.testing.choice import Choice
    from eos.testing.cluster import KafkaCluster

_WHERE, _IMAGE, _BROKERS = "eos_kafka", "eos_kafka_image", "eos_kafka_brokers"
_OPTIONS = {
    _WHERE: (
        "WHERE",
        (
            "where Kafka runs: auto (default: containers if an engine answers and has the image, else processes), "
            "docker, process"
        ),
    ),
    _IMAGE: (
        "IMAGE",
        (
            "an image with the interface of apache/kafka; pulled if the engine lacks it (default: the official one "
            "or eos-kafka, whichever is there)"
        ),
    ),
    _BROKERS: ("N", "brokers of the cluster: 1 (default), or 3 with 3 replicas"),
}

_choice = pytest.StashKey["Choice | str"]()
_cluster = pytest.StashKey["KafkaCluster"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Each option can also be an environment variable or an ini setting; the command line goes first."""
    group = parser.getgroup("eos", "exactly-once tests on a real Kafka (eos.testing)")
    for name, (metavar, text) in _OPTIONS.items():
        group.addoption(
            "--" + name.replace("_", "-"),
            dest=name,
            metavar=metavar,
            help=f"{text}. Variable: {_variable(name)}. Ini: {name}",
        )
        parser.addini(name, text)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse wrong values before anything is collected."""
    if (where := _option(config, _WHERE)) not in {None, "auto", "docker", "process"}:
        raise pytest.UsageError(f"--eos-kafka={where}: choose auto, docker or process")
    if (brokers := _option(config, _BROKERS)) not in {None, "1", "3"}:
        raise pytest.UsageError(f"--eos-kafka-brokers={brokers}: choose 1 or 3")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Where Kafka comes from, and why, where an option says that the run needs one."""
    return _described(config) if any(_option(config, name) for name in _OPTIONS) else None


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> str | None:
    """The same line where no option is given but a test asks for Kafka."""
    asked = any(eos_kafka.__name__ in getattr(item, "fixturenames", ()) for item in items)
    return _described(config) if asked and _choice not in config.stash else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Under xdist: if the header has named a choice, every worker takes the same one."""
    choice = node.config.stash.get(_choice, None)
    if choice is not None:  # only plain values can be sent to a worker
        sent = choice if isinstance(choice, str) else (str(choice.kind), choice.image, choice.why)
        node.workerinput[_WHERE] = sent


@pytest.fixture(scope="session")
def eos_kafka(request: pytest.FixtureRequest) -> Choice:
    """Where Kafka runs in this run, and why."""
    choice = _chosen(request.config)
    if isinstance(choice, str):
        pytest.fail(choice, pytrace=False)
    return choice


@pytest.fixture(scope="session")
def eos_cluster_properties() -> Mapping[str, str]:
    """Broker properties of ``eos_cluster``; override this fixture to set some."""
    return {}


@pytest.fixture(scope="session")
def eos_cluster_backend() -> Backend | None:
    """Brokers of your own for ``eos_cluster`` (see ``eos.testing.backend``); override this fixture to give some."""
    return None


@pytest.fixture(scope="session")
def eos_cluster(
    request: pytest.FixtureRequest,
    eos_kafka: Choice,
    eos_cluster_properties: Mapping[str, str],
    eos_cluster_backend: Backend | None,
) -> Iterator[KafkaCluster]:
    """A real Kafka for the run (under xdist: one per worker); what a test broke is healed after it.

    See ``eos.testing.KafkaCluster``.
    """
    from eos.errors import EosError
    from eos.testing.cluster import KafkaCluster

    config = request.config
    cluster = KafkaCluster(
        int(_option(config, _BROKERS) or 1),
        kind=eos_kafka,
        properties=eos_cluster_properties,
        jars=os.environ.get("EOS_LOCAL__JARS") or config.rootpath / ".eos" / "jars",
        backend=eos_cluster_backend,
    )
    _say(config, "eos: starting Kafka; the first time, its jars are downloaded first")
    try:
        cluster.start()
    except EosError as error:
        text = "\n".join([f"eos_cluster: {error}", *getattr(error, "__notes__", ())])
        raise pytest.fail.Exception(text, pytrace=False) from None
    config.stash[_cluster] = cluster
    try:
        yield cluster
    finally:
        del config.stash[_cluster]
        cluster.stop()


@pytest.fixture
def eos_topic(eos_cluster: KafkaCluster, request: pytest.FixtureRequest) -> str:
    """The name of a fresh topic with one partition, which no other test uses."""
    from eos.testing.cluster import unique

    return eos_cluster.create_topic(unique(request.node.name))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Brokers that the test killed or paused serve the next one."""
    if (cluster := item.config.stash.get(_cluster, None)) is not None:
        cluster.heal()


def _say(config: pytest.Config, text: str) -> None:
    """A line on the terminal now: brokers take seconds to start, and without it a run looks as if it hung."""
    reporter, capture = (
        config.pluginmanager.get_plugin(name) for name in ("terminalreporter", "capturemanager")
    )
    if reporter is None:  # a worker of xdist
        return
    with capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext():
        reporter.ensure_newline()
        reporter.write_line(text)


def _described(config: pytest.Config) -> str:
    brokers = int(_option(config, _BROKERS) or 1)
    return f"eos: {_chosen(config)}" + (f", {brokers} brokers" if brokers > 1 else "")


def _chosen(config: pytest.Config) -> Choice | str:
    """The choice, or why there is none; the same one all through the run."""
    if _choice not in config.stash:
        config.stash[_choice] = _choose(config)
    return config.stash[_choice]


def _choose(config: pytest.Config) -> Choice | str:
    from eos.errors import ConfigError
    from eos.testing.choice import Choice, Kind, choose

    sent = getattr(config, "workerinput", {}).get(_WHERE)
    if isinstance(sent, str):
        return sent
    if sent is not None:
        kind, image, why = sent
        return Choice(Kind(kind), image, why)
    try:
        return choose(_option(config, _WHERE) or Kind.AUTO, _option(config, _IMAGE))
    except ConfigError as error:
        return f"no Kafka: {error}"


def _option(config: pytest.Config, name: str) -> str | None:
    """Command line, environment, ini: the first one that is set."""
    given: str | None = config.getoption(name)
    return given or os.environ.get(_variable(name)) or config.getini(name) or None


def _variable(name: str) -> str:
    return f"PYTEST_{name.upper()}"

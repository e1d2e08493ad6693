"""Arena: one broker for many small cells of this process, each with topics and groups of its own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from eos.local import LocalKafka
from eos.local.lock import locked
from eos.local.ports import free_port
from eos.local.versions import LOG4J_VERSION, MAVEN_DEPENDENCY_PLUGIN_VERSION, SCALA_VERSION
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.support.own_broker import JARS, own_broker

BEFORE_VERIFICATION = "3.5.2"  # KIP-890's first part came with 3.6
UNVERIFIED = ("transaction.partition.verification.enable", "false")
_FETCH_S = 300.0
_HEAP_MB = 512


@dataclass(frozen=True)
class Arena:
    """A broker, and the port at which a proxy stands in front of it."""

    kafka: LocalKafka
    proxy_port: int

    @property
    def bootstrap(self) -> str:
        """The broker's own address, for those who judge."""
        return self.kafka.bootstrap_servers

    @contextmanager
    def proxied(self) -> Iterator[HoldProxy]:
        """A proxy without rules."""
        with HoldProxy(self.proxy_port, self.kafka.proxied_listeners[self.proxy_port]) as proxy:
            yield proxy


def shared_arena(version: str | None = None, **properties: str) -> Arena:
    """The arena of this kind, started once; it ends with this process. A dot in a property is written as ``__``."""
    named = {name.replace("__", "."): value for name, value in properties.items()}
    return _started(version, tuple(sorted(named.items())))


@cache
def _started(version: str | None, properties: tuple[tuple[str, str], ...]) -> Arena:
    port = free_port()
    kafka = own_broker(
        Path(tempfile.mkdtemp(prefix="eos-proof-")),
        heap_mb=_HEAP_MB,
        kafka_home=None if version is None else kafka_of(version),
        proxy_ports=[port],
        properties=dict(properties),
    )
    return Arena(kafka.start(), port)


def kafka_of(version: str) -> Path:
    """A home with the jars of another Apache Kafka, fetched once. The proof runs against it; eos does not pin it.

    Raises:
        LookupError: there is no Maven to fetch them with, or it fetched nothing.
    """
    home = JARS / f"other-kafka-{version}"
    JARS.mkdir(parents=True, exist_ok=True)
    with locked(JARS / f"{home.name}.lock", timeout_s=_FETCH_S, purpose=f"fetching Kafka {version}"):
        if not home.exists():
            _fetch(version, home)
    return home


def _fetch(version: str, home: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise LookupError(f"Kafka {version} is fetched with Maven, and there is no mvn on PATH")
    wanted: Mapping[str, str] = {
        f"kafka_{SCALA_VERSION}": version,
        "kafka-tools": version,
        "log4j-slf4j-impl": LOG4J_VERSION,
    }
    dependencies = "".join(
        f"<dependency><groupId>{'org.apache.kafka' if 'kafka' in name else 'org.apache.logging.log4j'}</groupId>"
        f"<artifactId>{name}</artifactId><version>{number}</version></dependency>"
        for name, number in wanted.items()
    )
    with tempfile.TemporaryDirectory(dir=home.parent) as directory:
        work = Path(directory)
        (work / "pom.xml").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>eos</groupId>'
            f"<artifactId>other</artifactId><version>1</version><dependencies>{dependencies}</dependencies></project>"
        )
        plugin = f"org.apache.maven.plugins:maven-dependency-plugin:{MAVEN_DEPENDENCY_PLUGIN_VERSION}"
        command = [maven, "-q", "-B", "-f", str(work / "pom.xml"), f"{plugin}:copy-dependencies"]
        done = subprocess.run(
            [*command, f"-DoutputDirectory={work / 'home' / 'libs'}"],
            capture_output=True,
            text=True,
            timeout=_FETCH_S,
            check=False,
        )
        if done.returncode != 0:
            raise LookupError(f"Maven could not fetch Kafka {version}: {done.stdout[-500:]}")
        (work / "home").rename(home)

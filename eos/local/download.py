"""Fetch pinned jars with Maven, or with the Ivy that PySpark ships.

Both get the list of every single jar and resolve nothing, so both bring the same files.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from eos.errors import ConfigError, RetriableError
from eos.local.pins import Jar, JarSet
from eos.local.pyspark_home import find_pyspark
from eos.local.versions import MAVEN_DEPENDENCY_PLUGIN_VERSION

TIMEOUT_S = 600.0  # Kafka, 54 MB; seen: Maven 5-8 s, Ivy 24 s
_SHOWN_LINES = 8
_ESCAPES = re.compile("\x1b\\[[0-9;]*m")  # Maven colours even what does not go to a terminal


class Tool(NamedTuple):
    """A way to fetch jars: fetch(work directory) returns the directory below it that holds them."""

    name: str
    fetch: Callable[[Path], Path]


def find_tool(wanted: JarSet, java: str) -> Tool:
    """Maven if it is on PATH, else the Ivy inside an installed PySpark.

    Raises:
        ConfigError: neither is there. The message names all sources of the jars.
    """
    if maven := shutil.which("mvn"):
        return Tool("Maven", lambda work: _fetch_by_maven(maven, wanted, work))
    if ivy := find_ivy():
        return Tool("the Ivy of PySpark", lambda work: _fetch_by_ivy(java, ivy, wanted, work))
    raise ConfigError(
        f"no way to get the jars of {wanted.title}. Fix: one of (1) install Maven, so that `mvn` is on PATH; "
        "(2) install PySpark (`pip install 'eos-kafka[spark]'`), whose Ivy fetches them; "
        f"(3) {wanted.otherwise}."
    )


def find_ivy() -> Path | None:
    """The Ivy jar of an installed PySpark."""
    home = find_pyspark()
    return next(iter(sorted(home.glob("jars/ivy-*.jar"))), None) if home else None


def maven_project(jars: Sequence[Jar]) -> str:
    """A pom with exactly these jars, transitive dependencies shut out."""
    dependencies = "".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version><exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId>"
        "</exclusion></exclusions></dependency>\n"
        for jar in jars
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>eos</groupId><artifactId>fetched</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>\n{dependencies}</dependencies></project>\n"
    )


def ivy_module(jars: Sequence[Jar]) -> str:
    """An Ivy module with exactly these jars, each named as a file: packagings like "bundle" do not matter."""
    dependencies = "".join(
        f"<dependency org={quoteattr(jar.group)} name={quoteattr(jar.artifact)} rev={quoteattr(jar.version)} "
        f'transitive="false" conf="default-&gt;default"><artifact name={quoteattr(jar.artifact)} type="jar" ext="jar"/>'
        "</dependency>\n"
        for jar in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="eos" module="fetched"/>'
        '<configurations><conf name="default"/></configurations><publications/>'
        f"<dependencies>\n{dependencies}</dependencies></ivy-module>\n"
    )


def ivy_settings(cache: Path) -> str:
    """Maven Central alone, in a cache of our own: a local Maven repository may hold a pom without its jar."""
    return (
        f'<ivysettings><settings defaultResolver="central"/><caches defaultCacheDir={quoteattr(str(cache))}/>'
        '<resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers></ivysettings>\n'
    )


def _fetch_by_maven(maven: str, wanted: JarSet, work: Path) -> Path:
    (work / "pom.xml").write_text(maven_project(wanted.jars()))
    plugin = f"org.apache.maven.plugins:maven-dependency-plugin:{MAVEN_DEPENDENCY_PLUGIN_VERSION}"
    # -U: a failure that the local repository remembers must not be today's answer.
    command = [maven, "-q", "-B", "-U", "-Dstyle.color=never", "-f", str(work / "pom.xml")]
    command += [f"{plugin}:copy-dependencies", f"-DoutputDirectory={work / 'libs'}"]
    _run("Maven", wanted, command)
    return work / "libs"


def _fetch_by_ivy(java: str, ivy: Path, wanted: JarSet, work: Path) -> Path:
    (work / "ivysettings.xml").write_text(ivy_settings(work / "cache"))
    (work / "ivy.xml").write_text(ivy_module(wanted.jars()))
    command = [java, "-jar", str(ivy), "-settings", str(work / "ivysettings.xml")]
    command += ["-ivy", str(work / "ivy.xml")]
    command += ["-retrieve", str(work / "libs" / "[artifact]-[revision].[ext]")]
    _run("Ivy", wanted, command)
    return work / "libs"


def _run(name: str, wanted: JarSet, command: Sequence[str]) -> None:
    fix = "Fix: look at the network, a proxy or a mirror, and start again; nothing half-done was kept."
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RetriableError(f"{name} could not fetch the jars of {wanted.title}: {error}. {fix}") from error
    if done.returncode != 0:
        lines = [line for line in _ESCAPES.sub("", done.stdout).splitlines() if line.strip(" \t:")]
        said = "\n".join(f"  {line}" for line in lines[-_SHOWN_LINES:])
        raise RetriableError(
            f"{name} could not fetch the jars of {wanted.title} (exit code {done.returncode}). {fix} "
            f"Its last lines:\n{said}"
        )

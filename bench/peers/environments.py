"""Environments that peers run in, made once below ``.eos/peers``: nothing of them enters the project's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.results import say
from eos.errors import ConfigError, EosError
from eos.local.jars import jars_root, provide_jars
from eos.local.java import find_java
from eos.local.pins import Jar, JarSet, parse_pins
from eos.local.versions import KAFKA_JARS, KAFKA_VERSION

HOME = Path(".eos").absolute()
SOURCES = Path(__file__).with_name("java")
PINS = Path(__file__).with_name("streams.sha256")
INSTALL_SECONDS = 300.0
SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class _PinnedHere(JarSet):
    """A set whose list stands beside this module."""

    def jars(self) -> tuple[Jar, ...]:
        return parse_pins(PINS.read_text(), PINS.name)


STREAMS_JARS = _PinnedHere(
    title=f"Kafka Streams {KAFKA_VERSION}",
    pins=PINS.name,
    directory=f"kafka-streams-{KAFKA_VERSION}",
    megabytes=2,
    otherwise="leave the peers in Java out: --peers aiokafka,quix",
)


def java_program(name: str, *options: str) -> tuple[str, ...]:
    """The command of one of the programs in ``java/``, compiled if need be.

    Raises:
        ConfigError: no Java, no compiler in it, or no way to get the jars.
        RetriableError: the download failed.
    """
    java = find_java()
    root = jars_root(HOME, None)
    kafka = provide_jars(KAFKA_JARS, root / KAFKA_JARS.directory, java=java, progress=say)
    streams = provide_jars(STREAMS_JARS, root / STREAMS_JARS.directory, java=java, progress=say)
    path = os.pathsep.join(map(str, (*sorted(kafka.glob("*.jar")), *sorted(streams.glob("*.jar")))))
    return (java, *options, "-cp", f"{_classes(java, path)}{os.pathsep}{path}", name)


def _classes(java: str, path: str) -> Path:
    classes = HOME / "peers" / "classes"
    sources = sorted(SOURCES.glob("*.java"))
    newest = max(source.stat().st_mtime for source in sources)
    done = classes / ".compiled"
    if not done.exists() or done.stat().st_mtime < newest:
        shutil.rmtree(classes, ignore_errors=True)
        classes.mkdir(parents=True)
        # The compiler is a module of every JDK, so javac need not be on PATH; a bare runtime has none.
        _run(
            [
                java,
                "-m",
                "jdk.compiler/com.sun.tools.javac.Main",
                "-d",
                str(classes),
                "-cp",
                path,
                *map(str, sources),
            ]
        )
        done.touch()
    return classes


def python_module(requirement: str, module: str) -> tuple[str, ...]:
    """The command of a module of this package, in an environment that has ``requirement`` and not eos.

    Raises:
        ConfigError: it cannot be installed.
    """
    home = HOME / "peers" / requirement.replace("==", "-")
    python = home / "bin" / "python"
    done = home / ".installed"
    if not done.exists():
        say(f"installing {requirement} into {home.relative_to(Path.cwd())} (once)")
        shutil.rmtree(home, ignore_errors=True)
        if (uv := Path(sys.executable).with_name("uv")).exists():
            _run([str(uv), "venv", "--quiet", "--python", sys.executable, str(home)])
            _run(
                [
                    str(uv),
                    "pip",
                    "install",
                    "--quiet",
                    "--compile-bytecode",
                    "--python",
                    str(python),
                    requirement,
                ]
            )
        else:
            _run([sys.executable, "-m", "venv", str(home)])
            _run([str(python), "-m", "pip", "install", "--quiet", requirement])
        done.touch()
    return (str(python), "-m", f"bench.peers.{module}")


def reason(error: EosError) -> str:
    """Why a peer is left out, in one line."""
    return " ".join(str(error).split())[:SHOWN_CHARACTERS]


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{command[0]} could not be run: {error}") from error
    if done.returncode != 0:
        raise ConfigError(
            f"{' '.join(command[:4])} … ended with {done.returncode}: {(done.stderr or done.stdout)[:500]}"
        )

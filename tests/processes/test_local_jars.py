"""Where the jars come from, and that nothing but the pinned ones is ever used."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
import threading
from importlib import metadata
from pathlib import Path

import pytest

from eos.errors import ConfigError, RetriableError
from eos.local import download, jars
from eos.local.connector import provide_connector
from eos.local.kafka_jars import provide_kafka
from eos.local.pins import Jar, JarSet, parse_pins
from eos.local.pyspark_home import find_pyspark, pyspark_version, require_pyspark
from eos.local.versions import KAFKA_JARS, KAFKA_VERSION, ROOTS, SPARK_VERSIONS, connector_jars
from tests.support.patience import PATIENCE_S


def _jar(artifact: str, content: bytes) -> Jar:
    return Jar("org.example", artifact, "1.0", hashlib.sha256(content).hexdigest())


CONTENT = {"one": b"1", "two": b"22"}
JARS = [_jar(artifact, content) for artifact, content in CONTENT.items()]


@pytest.fixture(autouse=True)
def few_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JarSet, "jars", lambda _: tuple(JARS))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing but what a script needs; programs are put into it by the test."""
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    for name in ("sh", "mkdir", "sleep"):
        (bin_directory / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(bin_directory))
    return bin_directory


def _program(path: Path, body: str) -> None:
    path.write_text("#!/bin/sh\n" + textwrap.dedent(body))
    path.chmod(0o755)


def _maven(path: Path, *, one: str = "1", before: str = "") -> None:
    """A Maven that writes the jars to where copy-dependencies was told to."""
    _program(
        path / "mvn",
        f"""
        {before}
        for argument; do case $argument in -DoutputDirectory=*) out=${{argument#*=}};; esac; done
        mkdir -p "$out"
        printf '{one}' > "$out/one-1.0.jar"
        printf '22' > "$out/two-1.0.jar"
        """,
    )


def _provide(directory: Path, *, kafka_home: Path | None = None, said: list[str] | None = None) -> Path:
    lines = [] if said is None else said
    return provide_kafka(directory, java="java", kafka_home=kafka_home, progress=lines.append)


def _pins(wanted: JarSet) -> tuple[Jar, ...]:
    """The real list, which the tests below do without."""
    return parse_pins(Path(jars.__file__).with_name(wanted.pins).read_text(), wanted.pins)


def test_checked_in_list_is_the_whole_closure_of_the_roots() -> None:
    """The list names 92 jars, no file twice, and the roots in the versions that versions.py pins."""
    pins = _pins(KAFKA_JARS)
    assert len(pins) == 92
    assert len({pin.file_name for pin in pins}) == 92
    assert set(ROOTS) <= {pin.coordinates for pin in pins}
    assert all(pin.version == KAFKA_VERSION for pin in pins if pin.group == "org.apache.kafka")


@pytest.mark.parametrize("version", SPARK_VERSIONS)
def test_connector_is_of_the_version_of_pyspark_and_brings_nothing_that_pyspark_has(version: str) -> None:
    """Of two versions of one jar on the class path, Java takes the first that it finds."""
    pins = _pins(connector_jars(version))
    assert f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}" in {pin.coordinates for pin in pins}
    home = find_pyspark()
    assert home is not None
    there = {path.name.rpartition("-")[0] for path in home.glob("jars/*.jar")}
    assert there.isdisjoint(pin.artifact for pin in pins)


def test_locked_pyspark_is_a_tested_one() -> None:
    assert metadata.version("pyspark") == pyspark_version() == SPARK_VERSIONS[-1]


@pytest.mark.parametrize(
    ("installed", "nearest"),
    [
        ("4.0.4", "4.0.0"),
        ("4.1.0", "4.0.0"),
        ("4.1.10", "4.1.3"),
        ("4.3.0.dev1", "4.2.0"),
        ("3.5.6", "4.0.0"),
    ],
)
def test_connector_of_an_untested_pyspark_is_of_its_version_without_a_checksum(
    installed: str, nearest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the real lists
    listed = connector_jars(nearest).jars()
    wanted = connector_jars(installed)
    assert wanted.directory == f"spark-kafka-{installed}"
    changed = set(wanted.jars()) - set(listed)
    assert {(jar.artifact, jar.version, jar.sha256) for jar in changed} == {
        ("spark-sql-kafka-0-10_2.13", installed, "")
    }
    assert len(wanted.jars()) == len(listed)


def test_jar_without_a_checksum_is_taken_as_it_comes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beside it are compared as ever."""
    monkeypatch.setattr(JarSet, "jars", lambda _: (JARS[0]._replace(sha256=""), JARS[1]))
    _maven(path, one="anything")
    said: list[str] = []
    monkeypatch.setattr("eos.local.connector.pyspark_version", lambda: "4.9.0")
    found = provide_connector(tmp_path, java="java", progress=said.append, jars=tmp_path / "jars")
    assert [jar.read_bytes() for jar in found] == [b"anything", b"22"]
    assert "connector 4.9.0 (not tested, no checksum known)" in said[0]
    found[1].write_bytes(b"else")
    with pytest.raises(ConfigError, match=r"two-1\.0\.jar has SHA-256"):
        provide_connector(tmp_path, java="java", progress=said.append, jars=tmp_path / "jars")


def test_damaged_list_names_the_line() -> None:
    with pytest.raises(ConfigError, match=r"jars\.sha256, line 2"):
        parse_pins("# jars\nabc  org.example:one:1.0\n", "jars.sha256")


def test_maven_fetches_once_and_later_starts_reuse(path: Path, tmp_path: Path) -> None:
    _maven(path)
    said: list[str] = []
    libs = _provide(tmp_path / "jars" / "kafka", said=said)
    assert sorted(p.name for p in libs.glob("*.jar")) == ["one-1.0.jar", "two-1.0.jar"]
    (path / "mvn").unlink()
    assert _provide(tmp_path / "jars" / "kafka", said=said) == libs
    assert len(said) == 1
    assert "Maven" in said[0]


def test_jars_that_are_there_are_used_without_writing_anything(path: Path, tmp_path: Path) -> None:
    """Those of an image are on a read-only file system."""
    _maven(path)
    _provide(tmp_path / "jars" / "kafka")
    lock = tmp_path / "jars" / "kafka.lock"
    lock.unlink()
    _provide(tmp_path / "jars" / "kafka")
    assert not lock.exists()


def test_relative_directory_is_not_read_from_the_pom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _maven(path)
    monkeypatch.chdir(tmp_path)
    assert _provide(Path("jars/kafka")) == tmp_path / "jars/kafka"


def test_failed_download_shows_the_tools_words_and_keeps_nothing(path: Path, tmp_path: Path) -> None:
    _program(path / "mvn", "echo 'Could not resolve host'; exit 1")
    with pytest.raises(RetriableError, match=r"(?s)Maven could not fetch.*network.*Could not resolve host"):
        _provide(tmp_path / "jars" / "kafka")
    assert [p.name for p in (tmp_path / "jars").iterdir()] == ["kafka.lock"]


def test_hanging_download_ends(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(path / "mvn", "exec sleep 60")
    monkeypatch.setattr(download, "TIMEOUT_S", 0.1)
    with pytest.raises(RetriableError, match="timed out"):
        _provide(tmp_path / "jars" / "kafka")


def test_download_of_something_else_is_refused_and_not_kept(path: Path, tmp_path: Path) -> None:
    _maven(path, one="evil")
    with pytest.raises(ConfigError, match=r"Maven fetched something else.*one-1\.0\.jar has SHA-256"):
        _provide(tmp_path / "jars" / "kafka")
    assert not (tmp_path / "jars" / "kafka").exists()


def test_left_over_of_a_killed_download_is_cleared(path: Path, tmp_path: Path) -> None:
    _maven(path)
    left_over = tmp_path / "jars" / ".kafka.abc.tmp"
    left_over.mkdir(parents=True)
    _provide(tmp_path / "jars" / "kafka")
    assert not left_over.exists()


def test_two_processes_download_once(path: Path, tmp_path: Path) -> None:
    _maven(path, before="echo x >> ${0%/*}/runs; sleep 0.2")
    threads = [threading.Thread(target=_provide, args=[tmp_path / "jars" / "kafka"]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert (path / "runs").read_text() == "x\n"


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda d: (d / "one-1.0.jar").write_bytes(b"9"), "one-1.0.jar has SHA-256"),
        (lambda d: (d / "one-1.0.jar").unlink(), "one-1.0.jar is missing"),
        (lambda d: (d / "three-1.0.jar").write_bytes(b"3"), "three-1.0.jar does not belong there"),
    ],
    ids=["changed", "missing", "extra"],
)
def test_jars_that_changed_after_the_download_are_refused(
    path: Path, tmp_path: Path, damage: object, complaint: str
) -> None:
    """Same size, other content: the time gives it away."""
    _maven(path)
    libs = _provide(tmp_path / "jars" / "kafka")
    assert callable(damage)
    damage(libs)
    os.utime(libs / "two-1.0.jar")
    with pytest.raises(ConfigError, match=f"{complaint}.*Fix: delete {libs}"):
        _provide(tmp_path / "jars" / "kafka")


def test_unchanged_jars_are_not_hashed_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _maven(path)
    libs = _provide(tmp_path / "jars" / "kafka")
    monkeypatch.setattr(jars, "_sha256", lambda _: pytest.fail("hashed"))
    jars.verify(libs, KAFKA_JARS)


def test_without_maven_the_ivy_of_pyspark_is_taken(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark is found where it is installed, and never imported."""
    ivy = tmp_path / "site" / "pyspark" / "jars" / "ivy-2.5.3.jar"
    ivy.parent.mkdir(parents=True)
    ivy.touch()
    (tmp_path / "site" / "pyspark" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    assert download.find_ivy() == ivy
    assert download.find_tool(KAFKA_JARS, "java").name == "the Ivy of PySpark"


def test_without_any_source_the_error_names_all_three(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "find_ivy", lambda: None)
    with pytest.raises(ConfigError, match=r"Maven.*PySpark.*EOS_LOCAL__KAFKA_HOME"):
        _provide(tmp_path / "jars" / "kafka")
    with pytest.raises(ConfigError, match=r"Spark's Kafka connector.*Maven.*PySpark.*--packages"):
        provide_connector(tmp_path, java="java", progress=lambda _: None)


def test_connector_is_kept_beside_kafka(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of the setting, else of the variable, else below the directory: as LocalKafka does."""
    _maven(path)
    monkeypatch.setenv("EOS_LOCAL__JARS", str(tmp_path / "variable"))
    said: list[str] = []
    names = ["one-1.0.jar", "two-1.0.jar"]
    for jars_setting, kept in ((tmp_path / "setting", "setting"), (None, "variable")):
        found = provide_connector(tmp_path, java="java", progress=said.append, jars=jars_setting)
        assert found == [tmp_path / kept / f"spark-kafka-{SPARK_VERSIONS[-1]}" / name for name in names]
    monkeypatch.delenv("EOS_LOCAL__JARS")
    found = provide_connector(tmp_path, java="java", progress=said.append)
    assert {jar.parent.parent for jar in found} == {tmp_path / "jars"}
    assert all("2 jars of Spark's Kafka connector" in line for line in said)


def test_missing_pyspark_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eos.local.pyspark_home.find_pyspark", lambda: None)
    with pytest.raises(ConfigError, match=r"pip install 'eos-kafka\[spark\]'"):
        require_pyspark()


def test_unpacked_kafka_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "home" / "libs").mkdir(parents=True)
    (tmp_path / "home" / "libs" / "kafka_2.13-4.2.1.jar").touch()
    assert _provide(tmp_path / "jars", kafka_home=tmp_path / "home") == tmp_path / "home" / "libs"
    assert not (tmp_path / "jars").exists()


def test_kafka_home_that_is_no_kafka_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not an unpacked Kafka.*EOS_LOCAL__KAFKA_HOME"):
        _provide(tmp_path / "jars", kafka_home=tmp_path)


def test_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot keep the jars of .*Kafka.* in .*file/jars.*writable"):
        _provide(tmp_path / "file" / "jars" / "kafka")


def test_both_tools_are_told_every_jar_and_resolve_nothing() -> None:
    """Their conflict rules differ, so neither may apply its own."""
    assert download.maven_project(JARS).count("<artifactId>*</artifactId>") == len(JARS)
    assert download.ivy_module(JARS).count('transitive="false"') == len(JARS)
    for pin in JARS:
        assert f"<artifactId>{pin.artifact}</artifactId><version>1.0</version>" in download.maven_project(
            JARS
        )
        assert f'name="{pin.artifact}" rev="1.0"' in download.ivy_module(JARS)


def test_importing_the_room_does_not_import_pyspark() -> None:
    """That takes seconds; its Ivy is found as a file."""
    code = "import sys, eos.local, eos.local.connector; print('pyspark' in sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert shown.stdout.strip() == "False"

"""The pytest plugin in runs of its own: where Kafka comes from, what the header and the errors say, what it imports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from eos.testing.choice import IMAGES
from tests.support.fake_engine import fake_engine

pytest_plugins = ["pytester"]

REPOSITORY = Path(__file__).parents[2]
NOBODY = "unix:///nonexistent/engine.sock"
PASSES = "def test_nothing(): pass"
LOOKS = "def test_looks(eos_kafka): pass"  # asks where Kafka would run, and starts none
ASKS = "def test_asks(eos_cluster): pass"
RUN_S = 150


@pytest.fixture(autouse=True)
def _no_setting_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PYTEST_", "EOS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(
        "EOS_LOCAL__JARS", os.environ.get("EOS_LOCAL__JARS", str(REPOSITORY / ".eos" / "jars"))
    )
    monkeypatch.setenv("DOCKER_HOST", NOBODY)


@pytest.fixture
def engine_with_image(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with fake_engine([IMAGES[1]]) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        yield


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """In a process of its own, as pytest is run: the plugin is found by its entry point."""
    return pytester.runpytest_subprocess(
        "-W", "error", "-p", "no:randomly", "-o", "faulthandler_timeout=60", *arguments, timeout=RUN_S
    )


def header(pytester: pytest.Pytester, *arguments: str) -> str:
    pytester.makepyfile(LOOKS)
    result = run(pytester, *arguments)
    result.assert_outcomes(passed=1)
    (line,) = [line for line in result.outlines if line.startswith("eos: ")]
    return line


def test_the_header_says_processes_and_why(pytester: pytest.Pytester) -> None:
    line = header(pytester)
    assert line.startswith("eos: Kafka from processes (Apache Kafka ")
    assert "auto, because no container engine answers at /nonexistent/engine.sock" in line


@pytest.mark.usefixtures("engine_with_image")
def test_an_image_that_was_named_and_the_number_of_brokers_are_in_the_header(
    pytester: pytest.Pytester,
) -> None:
    line = header(pytester, "--eos-kafka-image=mine:7", "--eos-kafka-brokers=3")
    assert "containers of mine:7: auto, because an engine answers" in line
    assert line.endswith(", 3 brokers")


@pytest.mark.usefixtures("engine_with_image")
def test_command_line_goes_before_environment_and_that_before_ini(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\neos_kafka = process")
    assert "processes" in header(pytester)
    monkeypatch.setenv("PYTEST_EOS_KAFKA", "docker")
    assert "containers" in header(pytester)
    assert "processes" in header(pytester, "--eos-kafka=process")


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("--eos-kafka=podman", "--eos-kafka=podman: choose auto, docker or process"),
        ("--eos-kafka-brokers=2", "--eos-kafka-brokers=2: choose 1 or 3"),
    ],
)
def test_a_wrong_value_ends_the_run_before_it_begins(
    pytester: pytest.Pytester, argument: str, told: str
) -> None:
    pytester.makepyfile(PASSES)
    result = run(pytester, argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{told}*"])


def test_docker_without_an_engine_fails_the_tests_that_need_it_with_the_fix_and_no_others(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(PASSES + "\n" + ASKS)
    result = run(pytester, "--eos-kafka=docker")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["eos: no Kafka: no container engine answers at *Fix: start Docker*"])
    assert "Traceback" not in result.stdout.str()


def test_processes_without_java_fail_with_both_ways_out(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    pytester.makepyfile(ASKS)
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "eos_cluster: JAVA_HOME is*Fix: install a Java runtime*",
            "Processes were chosen: auto, because no *engine*",
        ]
    )
    assert "During handling" not in result.stdout.str()


def test_under_xdist_the_workers_do_what_the_header_says(pytester: pytest.Pytester) -> None:
    """The engine is asked once: a worker that asked again could be told something else."""
    pytester.makepyfile("def test_kind(eos_kafka): assert eos_kafka.why == 'asked for'")
    result = run(pytester, "-n", "2", "--eos-kafka=process")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["eos: Kafka from processes *: asked for"])


def test_under_xdist_without_an_option_a_worker_chooses_when_a_test_asks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_kind(eos_kafka): assert eos_kafka.why.startswith('auto, because no ')")
    run(pytester, "-n", "1").assert_outcomes(passed=1)


@pytest.mark.parametrize("arguments", [(), ("-n", "1")])
def test_a_run_without_kafka_imports_nothing_of_eos_and_prints_nothing(
    pytester: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    """The controller of xdist as well as its worker: what each has imported is printed at its end."""
    pytester.makeconftest(
        """
        import sys

        def pytest_unconfigure():
            loaded = sorted(name for name in sys.modules if name.partition(".")[0] in {"eos", "docker"})
            print("imported:", "eos_pytest" in sys.modules, loaded, file=sys.__stderr__)
        """
    )
    pytester.makepyfile(PASSES)
    result = run(pytester, *arguments)
    result.assert_outcomes(passed=1)
    told = [line for line in result.errlines if line.startswith("imported:")]
    assert told == ["imported: True []"] * (2 if arguments else 1)
    assert not [line for line in result.outlines if line.startswith("eos: ")]


def test_an_option_makes_a_header_though_no_test_asks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PASSES)
    result = run(pytester, "--eos-kafka=process")
    result.stdout.fnmatch_lines(["eos: Kafka from processes *: asked for"])


@pytest.mark.slow
@pytest.mark.broker
def test_brokers_that_a_test_broke_serve_the_next_one_in_the_same_worker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_1_kills(eos_cluster):
            eos_cluster.kill_broker(1)

        def test_2_pauses(eos_cluster, eos_topic):
            eos_cluster.produce(eos_topic, [b"x"])
            eos_cluster.pause_broker(1)

        def test_3_reads(eos_cluster, eos_topic):
            eos_cluster.produce(eos_topic, [b"y"])
            assert [one.value for one in eos_cluster.read_committed(eos_topic)] == [b"y"]
            assert eos_topic.startswith("test_3_reads-")
        """
    )
    run(pytester, "--eos-kafka=process").assert_outcomes(passed=3)


@pytest.mark.broker
def test_a_suite_can_set_properties_of_its_brokers(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def eos_cluster_properties():
            return {"message.max.bytes": "1000"}
        """
    )
    pytester.makepyfile(
        """
        import eos, pytest

        def test_too_large(eos_cluster, eos_topic):
            with pytest.raises(eos.RecordRefusedError):
                eos_cluster.produce(eos_topic, [b"x" * 5000])
        """
    )
    run(pytester, "--eos-kafka=process").assert_outcomes(passed=1)

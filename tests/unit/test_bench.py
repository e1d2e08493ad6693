"""The benchmark's own arithmetic and words: a wrong figure would be believed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from bench import copying, latency, pauses, peering
from bench.__main__ import main
from bench.check import Output
from bench.contenders import CONTENDERS, Contender
from bench.copying import Outcome, Workload, interleaved
from bench.goals import at_most, ratios
from bench.peering import _show
from bench.peers import environments, listed
from bench.process import Running, Sample
from bench.topics import value
from bench.visible import Seen, Visible
from eos.errors import ConfigError
from tests.support.bench_outcomes import outcome


class TestRates:
    """Of the broker's times of appending."""

    def test_the_rate_is_of_all_records_between_first_and_last_append(self) -> None:
        assert Output(((100, 0),), {1_000: 10, 1_500: 40, 2_000: 50}, 1).records_per_second == 100

    def test_the_rate_behind_a_share_leaves_out_what_was_there_by_then(self) -> None:
        output = Output(((100, 0),), {1_000: 10, 3_000: 10, 3_500: 40, 4_000: 40}, 1)
        assert output.rate_behind(0.2) == 80
        assert output.records_per_second == pytest.approx(100 / 3)

    def test_an_empty_output_has_no_rate(self) -> None:
        assert Output(((0, 0),), {}, 0).records_per_second == 0

    def test_the_cpu_of_a_start_does_not_count(self) -> None:
        assert outcome().cpu_per_million == 10

    def test_ratios_are_within_a_round(self) -> None:
        outcomes = [outcome("b", 1, 10), outcome("eos", 1, 20), outcome("b", 2, 100), outcome("eos", 2, 300)]
        assert ratios(outcomes, "eos", "b", "rate") == [2, 3]


class TestGoals:
    """What `make bench` says of a goal is believed, so it must be able to say that it is missed."""

    @pytest.mark.parametrize(
        ("rate", "said"), [(79, "MISSED  eos rate / b: 0.79 (0.79..0.79), aim at least 0.8"), (80, "met")]
    )
    def test_a_rate_is_held_against_its_goal(
        self, rate: float, said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        eos = Contender("eos", "", "", rate_targets={"b": 0.8})
        outcomes = [outcome("b", 1, 100), outcome("eos", 1, rate)]
        met = copying._goals_met(eos, outcomes, Workload(1000, 100))
        assert met == (said == "met")
        assert capsys.readouterr().out.startswith(said)

    def test_large_records_have_a_goal_of_their_own(self, capsys: pytest.CaptureFixture[str]) -> None:
        outcomes = [outcome("b", 1, 100), outcome("eos-record", 1, 90)]
        assert copying._goals_met(CONTENDERS["eos-record"], outcomes, Workload(1000, 100))
        assert not copying._goals_met(
            CONTENDERS["eos-record"], outcomes, Workload(1000, 100, value_bytes=10_000)
        )
        assert "aim at least 0.95" in capsys.readouterr().out

    def test_a_goal_that_was_not_measured_is_not_missed(self) -> None:
        assert at_most(0.1, "nothing", [])

    def test_on_spark_goals_and_limits_are_held_against_a_contender_that_writes(self) -> None:
        spark = pytest.importorskip("bench.spark", exc_type=ImportError)
        against = {one.reference for one in spark.CONTENDERS.values() if one.reference}
        assert against == {reference for _, reference, _ in spark.AIMS}
        assert all(spark.CONTENDERS[reference].writes for reference in against)
        assert all(spark.CONTENDERS[name].reference == reference for name, reference, _ in spark.AIMS)

    def test_on_spark_a_limit_stands_in_the_table_with_its_ratio(self) -> None:
        spark = pytest.importorskip("bench.spark", exc_type=ImportError)
        outcomes = [
            spark.SparkOutcome(name, 1, 1_000, seconds, exact=True)
            for name, seconds in (("stream-sink", 1.0), ("stream-shuffled", 1.25), ("stream-to-python", 0.8))
        ]
        rows = [spark._row(spark.CONTENDERS[one.contender], outcomes) for one in outcomes]
        assert [(row["against"], row["exact"]) for row in rows] == [
            ("-", "yes"),
            ("stream-sink 0.80 (0.80..0.80)", "yes"),
            ("stream-sink 1.25 (1.25..1.25)", "-"),
        ]

    def test_the_share_of_a_processor_leaves_the_start_out(self) -> None:
        run = Running(process=cast("Any", None), started_ms=0)
        run.samples = [Sample(0, 1, 0.0), Sample(1_000, 1, 0.9), Sample(11_000, 1, 1.9)]
        assert run.cpu_share(1_100, 10_900) == pytest.approx(0.1)


class TestRounds:
    def test_each_contender_comes_once_in_each_round_and_each_begins_one(self) -> None:
        three = [Contender(name, "", "") for name in "xyz"]
        order = [(number, one.name) for number, one in interleaved(three, 3)]
        assert order == [
            (1, "x"),
            (1, "y"),
            (1, "z"),
            (2, "y"),
            (2, "z"),
            (2, "x"),
            (3, "z"),
            (3, "x"),
            (3, "y"),
        ]


class TestProcesses:
    def test_a_contender_of_ours_runs_in_this_python(self) -> None:
        assert CONTENDERS["eos"].command == (sys.executable, "-m", "bench.contenders.eos_batch")


class TestSilence:
    def seen(self, *moments: tuple[int, float]) -> Visible:
        visible = Visible.__new__(Visible)
        visible.seen = [Seen(partition, 0, at) for partition, at in moments]
        return visible

    def test_it_is_the_longest_gap_of_that_partition_and_begins_before_the_moment(self) -> None:
        visible = self.seen((0, 1.0), (0, 5.0), (0, 5.5), (1, 5.2), (0, 8.0), (0, 8.1))
        assert visible.longest_silence(0, since=5.2) == 3.0 - 0.5
        assert visible.longest_silence(0, since=0.0) == 4.0

    def test_a_partition_that_was_not_seen_again_is_not_silent(self) -> None:
        assert self.seen((0, 1.0)).longest_silence(0, since=2.0) == 0.0


def _latency(contender: str, number: int, *, apart: float | None = 4.0) -> latency.Outcome:
    return latency.Outcome(
        contender=contender,
        round=number,
        records=1_000,
        missing=0,
        doubled=0,
        p50_ms=3.0,
        p99_ms=9.0,
        max_ms=20.0,
        slow_ms=1.0,
        slow_after_ms=8.0,
        commits=10,
        commit_ms=5.0,
        commit_p99_ms=6.0,
        cpu_seconds=1.0,
        cpu_share=0.1,
        peak_rss=1 << 20,
        apart_p99_ms=apart,
        broker_pauses=7,
    )


class TestNotMeasured:
    """A machine that is too slow for a figure: it ended in a traceback, behind which nothing was measured any more."""

    @staticmethod
    def run(
        monkeypatch: pytest.MonkeyPatch, of_eos: Callable[[int], latency.Outcome], names: list[str]
    ) -> bool:
        def measure(contender: Contender, number: int, **_: object) -> latency.Outcome:
            return of_eos(number) if contender.name == "eos" else _latency(contender.name, number)

        monkeypatch.setattr(latency, "_measure", measure)
        monkeypatch.setattr(latency, "broker", lambda *_: nullcontext("nowhere:1"))
        monkeypatch.setattr(latency, "write", lambda *_: None)
        return latency.run(names, rate=100, seconds=1.0, rounds=2, transaction_ms=100, bootstrap="nowhere:1")

    def test_a_run_in_which_every_record_met_a_pause_says_so_in_its_row_and_fails_at_the_end(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        delays = [latency._Delay(5.0, 1.0, float(at)) for at in range(1_000)]
        assert latency._p99_apart(delays, [pauses.Pause(0.0, 2_000.0)]) is None
        assert latency._p99_apart(delays, [pauses.Pause(0.0, 10.0)]) == 5.0
        assert not self.run(monkeypatch, lambda n: _latency("eos", n, apart=None), ["b", "eos"])
        row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("eos "))
        assert "not measured, all met one" in row
        assert self.run(monkeypatch, lambda n: _latency("eos", n), ["b", "eos"])

    @pytest.mark.parametrize("rounds", [{1}, {1, 2}])
    def test_a_round_with_too_few_records_is_said_and_fails_at_the_end_and_the_others_are_shown(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rounds: set[int]
    ) -> None:
        def of_eos(number: int) -> latency.Outcome:
            if number in rounds:
                raise latency.TooFewError("eos: 3 of 1000 records were seen")
            return _latency("eos", number)

        assert not self.run(monkeypatch, of_eos, ["b", "eos"])
        shown = capsys.readouterr().out
        assert shown.count("not measured: eos: 3 of 1000 records were seen") == len(rounds)
        rows = {line.split()[0]: line for line in shown.splitlines() if line.startswith(("b ", "eos "))}
        assert "3.0 3.0 3.0" in rows["b"]
        assert ("not measured" if len(rounds) == 2 else "3.0 3.0 3.0") in rows["eos"]


class TestPeers:
    def test_one_that_cannot_be_had_is_left_out_with_its_reason(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def missing() -> tuple[str, ...]:
            raise ConfigError("no Java found.\nFix: install one")

        known = {
            "streams": listed.Peer("streams", "Streams", missing),
            "quix": listed.Peer("quix", "Quix", lambda: ("python", "-m", "quix")),
        }
        monkeypatch.setattr(listed, "PEERS", known)
        ready, left_out = listed.make_ready(["streams", "quix"])
        assert [one.command for one in ready] == [("python", "-m", "quix")]
        assert left_out == {"streams": "no Java found. Fix: install one"}

    def test_it_stands_in_the_table_with_the_reason(self, capsys: pytest.CaptureFixture[str]) -> None:
        _show("peers", 1, [Contender("eos", "", "eos, batch function")], [outcome()], {"quix": "no wheel"})
        table = capsys.readouterr().out
        assert "quix       -" in table
        assert "quix was left out: no wheel" in table

    def test_one_that_fails_is_left_out_from_then_on_and_the_others_go_on(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        class Bench:
            def measure(self, contender: Contender, number: int) -> Outcome:
                if (contender.name, number) == ("dying", 1):
                    raise RuntimeError("dying ended with 1:\nno broker")
                return outcome(contender.name, number, exact=(contender.name, number) != ("torn", 2))

        monkeypatch.setattr(peering, "loaded", lambda *_: nullcontext(Bench()))
        failed: dict[str, str] = {}
        three = [Contender(name, "", name) for name in ("dying", "torn", "eos")]
        outcomes = peering._measured("here", three, Workload(1_000_000, 100), 3, failed)
        assert sorted((one.contender, one.round) for one in outcomes) == [
            ("eos", 1),
            ("eos", 2),
            ("eos", 3),
            ("torn", 1),
        ]
        assert failed == {
            "dying": "dying ended with 1: no broker",
            "torn": "NOT EXACT: 1,000,000 of 1,000,000 records",
        }
        assert "NOT EXACT" in capsys.readouterr().out
        assert peering._row("torn", outcomes, 3)["exact"] == "1 of 3"

    def test_an_environment_that_cannot_be_installed_is_not_taken_for_a_whole_one(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(environments, "HOME", tmp_path)

        def run(command: list[str]) -> None:
            calls.append(command[1:3])
            if "install" in command:
                raise ConfigError("no wheel")

        calls: list[list[str]] = []
        monkeypatch.setattr(environments, "_run", run)
        for _ in range(2):
            with pytest.raises(ConfigError, match="no wheel"):
                environments.python_module("nothing==1.0", "quix_app")
        assert len(calls) == 4


class TestWords:
    def test_a_value_has_the_size_that_was_asked_for(self) -> None:
        assert len(value(7, 12_345)) == 100
        assert len(value(7, 12_345, 10_000)) == 10_000
        assert json.loads(value(7, 12_345, 10_000))["amount"] == 12_345

    def test_a_workload_says_what_is_copied(self) -> None:
        assert str(Workload(1_000, 100, 500)) == (
            "1,000 records of 100 bytes, 500 partitions, transactions of 100 ms"
        )

    @pytest.mark.parametrize(
        "words", [["copy", "--contenders", "nobody"], ["peers", "--peers", "java,nobody"]]
    )
    def test_unknown_names_are_refused_with_the_known_ones(
        self, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            main(words)
        assert "nobody: known are" in capsys.readouterr().err


def test_what_met_a_pause_of_the_broker_is_known_by_its_log(tmp_path: Path) -> None:
    log = tmp_path / "pauses.log"
    log.write_text(
        "[2026-11-25T02:14:37.000+0000] Using G1\n"
        "[2026-11-25T02:14:38.040+0000] GC(3028) Pause Young (Normal) (G1 Evacuation Pause) 388M->111M(481M) 20.000ms\n"
        "[2026-11-25T02:14:39.000+0000] GC(3029) Concurrent Mark Cycle 55.120ms\n"
        "[2026-11-25T02:14:40.500+0000] GC(3030) Pause Remark 111M->111M(481M) 4.500ms\n"
    )
    first, second = found = pauses.read(log)
    assert first.ended_ms - first.began_ms == 20
    assert second.began_ms - first.ended_ms == 2_455.5
    began = first.began_ms
    assert pauses.met(began - 10, began, found)
    assert pauses.met(began + 5, began + 6, found)
    assert pauses.met(second.ended_ms, second.ended_ms + 1, found)
    assert not pauses.met(began - 10, began - 1, found)
    assert not pauses.met(first.ended_ms + 1, second.began_ms - 1, found)
    assert not pauses.met(second.ended_ms + 1, second.ended_ms + 2, found)
    assert pauses.within(found, began, second.began_ms - 1) == [first]

"""Text from outside cannot drive a terminal, hide itself, or look like a line of ours, wherever it is shown."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from eos.base.printable import printable, printable_json, printable_lines, printable_values
from eos.cli.exit import Errors, complain
from eos.cli.printing import print_table, say
from eos.errors import TransformError
from eos.ops.observe import Aggregator, configure_logs
from eos.ops.observe.log_lines import write
from eos.ops.observe.quoting import shown_error
from eos.ops.observe.server import serve
from eos.ops.observe.termination import TerminationLog, note_termination
from eos.settings.tables import ObserveSettings

_REPOSITORY = Path(__file__).parents[2]
HOSTILE = (
    "a\x1b[2J\x1b]0;title\x07\x9b31m\u202eb\u2066\u200b\u2028\ufeff\nInfo: transaction committed\r\x7f\x00"
)
_DANGEROUS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
ORDINARY = "Müller naïve 日本語 한국어 שלום 😀 👨\u200d👩\u200d👧 \u00a0\u3000é"


def test_ordinary_text_of_any_script_stays_as_it_is() -> None:
    for shown in (printable(ORDINARY), printable_lines(ORDINARY), printable_json(ORDINARY)):
        assert shown == ORDINARY


def test_what_drives_a_terminal_or_hides_is_escaped() -> None:
    assert not _DANGEROUS.search(printable(HOSTILE))
    assert "\n" not in printable(HOSTILE)
    assert printable("\x1b\u202e\n\U000e0041") == "\\x1b\\u202e\\n\\U000e0041"
    assert printable_values({HOSTILE: [HOSTILE, 1, None]}) == {
        printable(HOSTILE): [printable(HOSTILE), 1, None]
    }


def test_a_reader_of_json_gets_the_same_text() -> None:
    line = printable_json(json.dumps(HOSTILE + "\U000e0041", ensure_ascii=False))
    assert not _DANGEROUS.search(line)
    assert json.loads(line) == HOSTILE + "\U000e0041"


@pytest.mark.parametrize("form", ["human", "json"])
def test_a_log_line_is_one_line_that_drives_nothing(form: str) -> None:
    stream = io.StringIO()
    configure_logs(ObserveSettings(log_format=form), stream=stream)
    write("info", HOSTILE, group=HOSTILE, **{HOSTILE: "x"})
    written = stream.getvalue()
    assert not _DANGEROUS.search(written)
    assert not [line for line in written.splitlines()[1:] if not line.startswith("    ")]


def test_the_text_of_a_transforms_error_forges_no_line() -> None:
    error = TransformError("x", topic="t", partition=0, offset=1)
    error.__cause__ = ValueError(HOSTILE)
    assert not _DANGEROUS.search(shown_error(error, texts=True))
    assert "\n" not in shown_error(error, texts=True)
    assert "\n" not in shown_error(ValueError(HOSTILE), texts=True)


@pytest.mark.parametrize("columns", ["40", "80"])
def test_a_table_and_a_line_drive_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    print_table(("record", "value"), [(HOSTILE, HOSTILE)])
    say(HOSTILE)
    complain(HOSTILE)
    out, err = capsys.readouterr()
    assert not _DANGEROUS.search(out + err)
    assert not [line for line in (out + err).splitlines() if line.startswith("Info:")]


def test_the_last_line_and_the_termination_message_drive_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "termination-log"
    file.touch()
    monkeypatch.setattr(TerminationLog, "path", file)
    note_termination(HOSTILE)
    assert not _DANGEROUS.search(file.read_text())
    assert not [line for line in file.read_text().splitlines()[1:] if not line.startswith(" ")]


def test_the_page_and_the_metrics_show_names_that_drive_nothing() -> None:
    from urllib.request import urlopen

    aggregator = Aggregator({0}, about={"job": HOSTILE, "app": HOSTILE, "group": HOSTILE, "host": HOSTILE})
    server = serve(aggregator, ObserveSettings(http_port=0))
    assert server is not None
    with server:
        for path in ("/status.json", "/metrics", "/healthz", "/readyz"):
            try:
                with urlopen(server.url + path) as answer:  # noqa: S310 - its own server
                    text = answer.read().decode()
            except OSError:
                continue  # not ready: its answer is of the same door
            shown = json.dumps(json.loads(text), ensure_ascii=False) if "json" in path else text
            assert not _DANGEROUS.search(shown)


def test_no_command_prints_but_by_the_doors_that_escape() -> None:
    """``typer.echo`` stands where printing.py escapes, for JSON in ASCII, for what eos itself says, and to clear the screen."""
    allowed = re.compile(r"typer\.echo\((json\.dumps\((?!.*ensure_ascii)|as_json\(|_CLEAR|f?\"eos )")
    raw = [
        f"{file.name}: {line.strip()}"
        for file in sorted((_REPOSITORY / "eos" / "cli").glob("*.py"))
        if file.name != "printing.py"
        for line in file.read_text().splitlines()
        if "typer.echo(" in line and not allowed.search(line)
    ]
    assert raw == []


def test_the_last_line_of_a_job_whose_log_is_json_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(
        Errors, "in_the_log", configure_logs(ObserveSettings(log_format="json"), stream=stream)
    )
    complain("job ended with exit code 4 (poison)", page="docs/page.md#part")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "job ended with exit code 4 (poison)"
    assert json.loads(line)["level"] == "error"
    assert json.loads(line)["docs"] == "docs/page.md#part"


def test_a_table_in_a_narrow_terminal_has_each_text_in_one_piece(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_table(("partition", "committed", "owner"), [("settlements[0]", "1,000,000", "refunds.refunds.p.0")])
    out = capsys.readouterr().out
    assert "settlements[0]" in out
    assert "owner: refunds.refunds.p.0" in out


@pytest.mark.parametrize(("columns", "folds"), [("27", False), ("26", True)])
def test_a_table_of_records_that_would_be_folded_is_printed_below_each_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str, *, folds: bool
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    head, row = ("record", "headers"), ("0@0", "eos.topic=orders")
    print_table(head, [row], unbroken=True)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    expected = ["record: 0@0", "headers: eos.topic=orders"] if folds else ["0@0      eos.topic=orders"]
    assert lines[-len(expected) :] == expected

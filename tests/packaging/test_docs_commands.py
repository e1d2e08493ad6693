"""What the documents tell to type exists: every `eos …` line, metric and alert rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eos.exits import ExitCode
from eos.ops.observe import Aggregator, WorkerState
from tests.support.eos_lines import accept, mentions, whole_lines

_REPOSITORY = Path(__file__).parents[2]
_DOCUMENTS = [_REPOSITORY / "README.md", *sorted((_REPOSITORY / "docs").rglob("*.md"))]
_RUNBOOK = (_REPOSITORY / "docs/RUNBOOK.md").read_text()
_OPERATIONS = "\n".join(page.read_text() for page in sorted((_REPOSITORY / "docs/operations").glob("*.md")))
_MONITORING = (_REPOSITORY / "docs/reference/monitoring.md").read_text()


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: str(path.relative_to(_REPOSITORY)))
def test_every_command_line_of_the_documents_is_one_that_eos_has(document: Path) -> None:
    text = document.read_text()
    for arguments in whole_lines(text):
        accept(arguments)
    for arguments in mentions(text):
        accept(arguments, whole=False)


def test_commands_are_found_where_the_documents_have_them() -> None:
    """Else the test above would pass over nothing."""
    found = [" ".join(line) for line in whole_lines(f"{_RUNBOOK}\n{_OPERATIONS}")]
    assert any(line.startswith("verify jobs.refunds:job") for line in found)
    assert any(line.startswith("shard-id --parse") for line in found)
    assert any(line.startswith("spark run") for line in found)


@pytest.mark.parametrize(
    "line", ["verfy a:b", "run a:b --worker 2", "run", "local begin", "spark run a:b --nodes 3"]
)
def test_a_line_that_eos_does_not_have_is_noticed(line: str) -> None:
    with pytest.raises(Exception, match=r".") as refused:
        accept(line.split())
    assert refused.type.__name__ in {
        "NoSuchOption",
        "MissingParameter",
        "BadParameter",
        "UsageError",
        "NoArgsIsHelpError",
    }


def test_the_runbook_says_what_to_do_at_every_exit_code() -> None:
    rows = re.findall(r"^\| (\d) \|", _RUNBOOK, flags=re.MULTILINE)
    assert rows == [str(int(code)) for code in ExitCode]


def test_every_metric_of_runbook_and_monitoring_is_measured() -> None:
    listener = WorkerState()
    aggregator = Aggregator([0])
    families = [*listener.registry.collect(), *aggregator.collect()]
    measured = {
        f"{family.name}{ending}"
        for family in families
        for ending in ("", "_total", "_bucket", "_sum", "_count")
    }
    named = set(re.findall(r"\beos_[a-z_]+[a-z]\b", _RUNBOOK + _OPERATIONS + _MONITORING))
    assert named
    assert named <= measured


def test_the_runbook_says_what_every_alert_rule_means() -> None:
    rules = (_REPOSITORY / "docker/cluster/prometheus/alerts.yml").read_text()
    names = re.findall(r"- alert: (\w+)", rules)
    assert names
    assert [name for name in names if f"| `{name}` |" not in _RUNBOOK] == []


def test_the_page_of_monitoring_has_every_alert_rule() -> None:
    rules = (_REPOSITORY / "docker/cluster/prometheus/alerts.yml").read_text()
    names = re.findall(r"- alert: (\w+)", rules)
    assert [name for name in names if f"| `{name}` |" not in _MONITORING] == []

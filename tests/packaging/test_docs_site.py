"""`make docs`: the site is built without a warning, has its pages, and asks nothing of another host."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from eos import errors
from eos.cli.app import app
from eos.errors import EosError, TransformError
from eos.exits import ExitCode, exit_code_of
from eos.pages import ENTRIES, page_of
from eos.settings import Settings
from tests.support.documents import REPOSITORY
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.xdist_group("documentation site")  # it is built once

_ASKED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=\"?(https?:)?//", re.IGNORECASE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        check=False,
        text=True,
        timeout=PATIENCE_S,
    )
    assert built.returncode == 0, built.stderr
    return place


def _read(site: Path, page: str) -> str:
    return (site / page / "index.html").read_text()


def _commands(command: Any, path: str) -> Iterator[str]:
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, f"{path} {name}")


def test_every_document_is_a_page(site: Path) -> None:
    documents = [path.relative_to(REPOSITORY / "docs") for path in (REPOSITORY / "docs").rglob("*.md")]
    assert len(documents) > 15
    assert [page for page in documents if not (site / page.with_suffix("") / "index.html").is_file()] == []
    assert "Exactly-once for Python on Apache Kafka" in (site / "index.html").read_text()


def test_a_file_that_a_page_links_to_is_a_page(site: Path) -> None:
    assert 'href="repository/jobs/refunds.py/"' in (site / "index.html").read_text()
    assert "transform" in _read(site, "repository/jobs/refunds.py")


def test_the_reference_has_every_setting_and_every_command(site: Path) -> None:
    settings = _read(site, "reference/settings")
    assert [one.variable for one in Settings.described() if f">{one.variable}</code>" not in settings] == []
    commands = _read(site, "reference/cli")
    assert [
        path for path in _commands(get_command(app), "eos") if f"<code>{path}</code>" not in commands
    ] == []


@pytest.mark.parametrize("module", ["eos", "eos.local", "eos.spark", "eos.sql", "eos.testing"])
def test_the_reference_has_every_public_name(module: str, site: Path) -> None:
    pages = "".join(path.read_text() for path in (site / "reference/api").rglob("index.html"))
    names = importlib.import_module(module).__all__
    assert names
    assert [name for name in names if f'id="{module}.{name}"' not in pages] == []


def test_every_exit_code_is_on_its_page(site: Path) -> None:
    rows = re.findall(
        r"<td>(?:<a [^>]*>)?(\d)(?:</a>)?</td>\s*<td><code class=.name.>(\w+)</code></td>",
        _read(site, "reference/exit-codes"),
    )
    assert rows == [(str(int(code)), code.name) for code in ExitCode]


def test_every_error_that_ends_a_command_prints_a_place_that_there_is(site: Path) -> None:
    raised = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, EosError)]
    assert len(raised) > 15
    made: list[EosError] = [TransformError("said", topic="t", partition=0, offset=0)]
    made += [one("said") for one in raised if not issubclass(one, TransformError)]
    codes = {exit_code_of(one) for one in made}
    pages = [page_of(code) for code in {*codes, *ExitCode} - {ExitCode.DONE}]
    assert len(pages) == len(ExitCode) - 1
    pages += [page_of(ExitCode.UNEXPECTED, f"said: {entry}.") for entry in ENTRIES]
    assert len(set(pages)) == len(ExitCode) - 1 + len(ENTRIES)
    for page, _, anchor in (place.removeprefix("docs/").partition(".md#") for place in pages):
        assert f'id="{anchor}"' in _read(site, page)


def test_no_item_of_a_list_is_left_in_a_paragraph(site: Path) -> None:
    """GitHub and Python-Markdown differ on lists; ``docs/site/lists.py`` translates."""
    left = re.compile(r"<p>(?:(?!</p>).)*?\n *(?:[-*]|\d+\.) ", re.DOTALL)
    assert [
        str(page.relative_to(site)) for page in site.rglob("index.html") if left.search(page.read_text())
    ] == []


def test_a_page_with_a_drawing_has_the_script_that_draws_from_the_site_itself(site: Path) -> None:
    pages = {page: page.read_text() for page in site.rglob("index.html")}
    drawn = {page: text for page, text in pages.items() if 'class="mermaid"' in text}
    scripts = {page: re.findall(r'<script src="([^"]*mermaid[^"]*)"', text) for page, text in pages.items()}
    assert len(drawn) >= 2
    assert {page for page, found in scripts.items() if found} == set(drawn)
    script = (site / "assets/mermaid.tiny.js").resolve()
    assert all((page.parent / address).resolve() == script for page in drawn for address in scripts[page])
    version = re.search(r"@mermaid-js/tiny` ([\d.]+)", (REPOSITORY / "docs/LICENCES.md").read_text())
    assert version is not None
    assert f'version:"{version[1]}"' in script.read_text()


def test_no_page_asks_another_host_for_a_font_a_style_or_a_script(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    asking = {str(page.relative_to(site)) for page in pages if _ASKED.search(page.read_text())}
    assert asking == set()

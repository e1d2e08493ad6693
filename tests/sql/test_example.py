"""The examples of the guides to databases, by the commands that stand there, but for the cluster."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import eos
from tests.support.databases import Database
from tests.support.documents import blocks
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import PlainRecord, create_topics, produce_plain, read_committed, unique
from tests.support.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.broker


def books_of(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'books.db'}"


def done_one_by_one(lines: list[str], directory: Path, bootstrap: str, url: str) -> list[str]:
    """What each of these commands has printed; each has to end with 0."""
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "EOS_SQL__URL": url,
        "EOS_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
        "EOS_GROUP": unique("g"),
    }
    told = []
    for line in lines:
        done = subprocess.run(
            line.replace(" --local", "").split(),
            cwd=directory,
            env=environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        told.append(done.stdout)
    return told


def test_job_of_the_document_keeps_the_last_balance_of_each_merchant(bootstrap: str, tmp_path: Path) -> None:
    shown: dict[str, Any] = {}
    exec(blocks("docs/guides/topic-to-table.md")["An upsert"], shown)  # noqa: S102 - the case
    topic = unique("payments")
    create_topics(bootstrap, {topic: 1})
    produce_plain(bootstrap, topic, [PlainRecord(str(n).encode(), key=b"m%d" % (n % 3)) for n in range(30)])
    books = Database(books_of(tmp_path)).with_tables()
    try:
        with books.judge.begin() as connection:
            shown["balances"].metadata.create_all(connection)
        settings = settings_for(bootstrap, sql__url=books.url, group=unique("g"))
        eos.run(replace(shown["job"], inputs=[topic]), settings, until_caught_up=True)
        assert books.seen("SELECT * FROM balances ORDER BY 1") == [("m0", 27), ("m1", 28), ("m2", 29)]
    finally:
        books.close()


def test_loop_of_the_document_writes_each_record_once(bootstrap: str, tmp_path: Path) -> None:
    topic = unique("payments")
    create_topics(bootstrap, {topic: 2})
    produce_plain(bootstrap, topic, [PlainRecord(b"x", partition=n % 2) for n in range(40)])
    shutil.copy(REPOSITORY / "docs/examples/payments_table.py", tmp_path)
    books = Database(books_of(tmp_path)).with_tables()
    try:
        subprocess.run(
            [sys.executable, "payments_table.py", books.url], cwd=tmp_path, check=True, timeout=PATIENCE_S
        )
        (tmp_path / "books.toml").write_text(
            f'group = "{unique("g")}"\n[kafka]\nbootstrap_servers = "{bootstrap}"\n[input]\nstart = "earliest"\n'
            f'[sql]\nurl = "{books.url}"\n'
        )
        code = blocks("docs/guides/topic-to-table.md")["A loop of your own"].replace(
            '["payments"]', f'["{topic}"]'
        )
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", code],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert books.seen("SELECT count(*), sum(cents) FROM payments") == [(40, 40)]
    finally:
        books.close()


def test_example_of_the_document_runs_as_it_stands(bootstrap: str, tmp_path: Path) -> None:
    document = (REPOSITORY / "docs/guides/topic-to-table.md").read_text()
    block = document.split("```console\n", 1)[1].split("```", 1)[0]
    lines = [line.removeprefix("$ ").split("#")[0].strip() for line in block.splitlines()]
    ours = [line for line in lines if not line.startswith(("export", "eos local"))]
    assert len(ours) == 4, lines

    shutil.copy(REPOSITORY / "docs/examples/payments_table.py", tmp_path)
    topic = unique("payments")
    module = tmp_path / "payments_table.py"
    module.write_text(module.read_text().replace('inputs=["payments"]', f'inputs=["{topic}"]'))
    create_topics(bootstrap, {topic: 2})
    payments = [{"id": f"p{n}", "cents": n, "merchant": f"m{n % 2}", "balance": n} for n in range(40)]
    produce_plain(
        bootstrap,
        topic,
        [PlainRecord(json.dumps(one).encode(), partition=n % 2) for n, one in enumerate(payments)],
    )
    told = done_one_by_one(ours, tmp_path, bootstrap, "sqlite:///books.db")
    assert "exactly once" in told[-1]
    books = sqlite3.connect(tmp_path / "books.db")
    try:
        assert books.execute("SELECT count(*), sum(cents) FROM payments").fetchone() == (40, sum(range(40)))
        assert books.execute("SELECT * FROM balances ORDER BY 1").fetchall() == [("m0", 38), ("m1", 39)]
    finally:
        books.close()


def test_outbox_of_the_document_is_relayed_by_the_commands_that_stand_there(
    bootstrap: str, tmp_path: Path
) -> None:
    block = blocks("docs/guides/outbox.md", "console")["Try it"]
    lines = [line.removeprefix("$ ").split("#")[0].strip() for line in block.splitlines()]
    ours = [line for line in lines if not line.startswith(("export", "eos local"))]
    assert len(ours) == 5, lines

    topic = unique("orders")
    module = tmp_path / "orders_outbox.py"
    written = (REPOSITORY / "docs/examples/orders_outbox.py").read_text()
    assert written.count('"orders-placed"') == 2
    module.write_text(written.replace('"orders-placed"', f'"{topic}"'))
    create_topics(bootstrap, {topic: 2})
    told = done_one_by_one(ours, tmp_path, bootstrap, "sqlite:///orders.db")
    assert "exactly once" in told[-2]
    assert "0 rows would be deleted" in told[-1]
    assert sorted(json.loads(one.value or b"")["id"] for one in read_committed(bootstrap, topic)) == [
        "o1",
        "o2",
    ]

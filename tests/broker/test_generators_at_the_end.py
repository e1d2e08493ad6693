"""A generator holds a session or a producer in a `with` block, and nobody closes it: Python does, while the interpreter ends."""

from __future__ import annotations

import pytest

from eos import Session
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import assert_copied, create_topics, load, read_committed, unique
from tests.support.patience import PATIENCE_S
from tests.support.processes import running

pytestmark = pytest.mark.broker

RECORDS = 20
SESSION = """
import sys
from eos import Session
from tests.support.jobs_for_faults import settings_for

bootstrap, group, source, out = sys.argv[1:]

def copied():
    settings = settings_for(bootstrap, group=group, input__fetch_records=5)
    with Session(settings, app="kept", inputs=[source], outputs=[out]) as session:
        for batch in session:
            with session.transaction(batch) as txn:
                for record in batch:
                    txn.produce(out, record.value)
                    {where}
            {behind}

records = copied()
next(records)
print("the last line", flush=True)
"""
PRODUCER = """
import sys
from eos import TransactionalProducer
from tests.support.jobs_for_faults import settings_for

bootstrap, app, _, out = sys.argv[1:]

def written():
    with TransactionalProducer(settings_for(bootstrap), app=app) as producer, producer.transaction() as txn:
        txn.produce(out, b"never")
        yield

records = written()
next(records)
print("the last line", flush=True)
"""
SCRIPTS = {
    "in a block": SESSION.format(where="yield record", behind=""),
    "between blocks": SESSION.format(where="", behind="yield batch"),
    "a producer": PRODUCER,
}


@pytest.mark.parametrize("where", SCRIPTS)
def test_a_process_ends_where_a_generator_was_left_open(bootstrap: str, where: str) -> None:
    source, out, group = unique("in"), unique("out"), unique("kept")
    create_topics(bootstrap, {source: 1, out: 1})
    load(bootstrap, source, RECORDS, "v")
    with running(SCRIPTS[where], bootstrap, group, source, out) as child:
        child.wait_line("the last line", PATIENCE_S)
        assert child.wait(PATIENCE_S) == 0, child.lines
        assert not any("Traceback" in line or "Exception ignored" in line for line in child.lines), (
            child.lines
        )
    if where == "a producer":
        assert read_committed(bootstrap, out) == []  # it would wait for a transaction that is open
        return
    settings = settings_for(bootstrap, group=group)
    with Session(settings, app="kept", inputs=[source], outputs=[out], until_caught_up=True) as session:
        for batch in session:
            with session.transaction(batch) as txn:
                for record in batch:
                    txn.produce(out, record.value)
    assert_copied(bootstrap, group, source, out)

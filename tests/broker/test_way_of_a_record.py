"""How many files and classes one steady transaction runs through, and other sizes of what a reader has to hold in the head.

The limits are what was reached; they may be lowered, and are raised only with a reason in docs/DESIGN.md.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

import eos
from eos import InputRecord, Job, OutputRecord, Session, Transaction
from eos.events import Event, TransactionCommitted
from eos.runner.worker import run
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import create_topics, load, unique

RECORDS, WARM_UP = 500, 4  # of a transaction; transactions before those that are looked at
LOOKS = 3  # transactions that are looked at: a watch's turn, every second or so, is no part of one
HOME = Path(eos.__file__).parent


class Seen:
    """The code of eos that runs during each look, in the threads that begin after its making and in this one."""

    def __init__(self) -> None:
        self.on = False
        self.looks: list[set[CodeType]] = []

    def look(self) -> None:
        self.looks.append(set())
        self.on = True

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self.on and event == "call":
            self.looks[-1].add(frame.f_code)

    @property
    def files(self) -> list[str]:
        """Those of the look that ran through the fewest."""
        return min((sorted({home(code) for code in of_eos(look)}) for look in self.looks), key=len)

    @property
    def classes(self) -> list[str]:
        """Those of the look that ran through the fewest."""
        return min((sorted(classes(look)) for look in self.looks), key=len)


def of_eos(look: set[CodeType]) -> Iterator[CodeType]:
    return (code for code in look if HOME in Path(code.co_filename).parents)


def home(code: CodeType) -> str:
    return str(Path(code.co_filename).relative_to(HOME))


def classes(look: set[CodeType]) -> Iterator[str]:
    names = {
        (code.co_filename, code.co_qualname.split(".")[0]) for code in of_eos(look) if "." in code.co_qualname
    }
    return (name for _, name in names if "<" not in name and name[0].isupper())


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    threading.setprofile(seen)
    sys.setprofile(seen)
    yield seen
    sys.setprofile(None)
    threading.setprofile(None)


def shown(seen: Seen) -> str:
    return f"{len(seen.files)} files: {seen.files}; {len(seen.classes)} classes: {seen.classes}"


@pytest.mark.broker
def test_steady_transaction_of_a_block_runs_through_few_files_and_classes(bootstrap: str, seen: Seen) -> None:
    source, out = unique("in"), unique("out")
    create_topics(bootstrap, {source: 1, out: 1})
    load(bootstrap, source, RECORDS * (WARM_UP + LOOKS))
    settings = settings_for(bootstrap, group=unique("way"), input__fetch_records=RECORDS)
    done = 0
    with Session(settings, app="way", inputs=[source], outputs=[out]) as session:
        while done < WARM_UP + LOOKS:
            if done >= WARM_UP:
                seen.look()
            batch = session.fetch(RECORDS, 5.0)
            with session.transaction(batch) as txn:
                for record in batch:
                    txn.produce(out, record.value)
            seen.on = False
            assert txn.committed
            done += bool(batch)
    assert len(seen.files) <= 39, shown(seen)
    assert len(seen.classes) <= 34, shown(seen)


@pytest.mark.broker
def test_steady_transaction_of_the_loop_runs_through_few_files_and_classes(
    bootstrap: str, seen: Seen
) -> None:
    source, out, stop = unique("in"), unique("out"), threading.Event()
    create_topics(bootstrap, {source: 1, out: 1})
    load(bootstrap, source, RECORDS * (WARM_UP + LOOKS + 3))
    committed = 0

    def told(event: Event) -> None:
        nonlocal committed
        if isinstance(event, TransactionCommitted) and event.records_in:
            committed += 1
            seen.on = False
            if committed >= WARM_UP + LOOKS:
                stop.set()
            elif committed >= WARM_UP:
                seen.look()

    def transform(record: InputRecord) -> list[OutputRecord]:
        return [OutputRecord(out, record.value)]

    limits = {"input__fetch_records": RECORDS, "transaction__max_records": RECORDS}
    job = Job(name=unique("way"), inputs=[source], outputs=[out], transform=transform)
    run(job, settings_for(bootstrap, **limits), stop=stop, listener=told)
    assert len(seen.files) <= 49, shown(seen)
    assert len(seen.classes) <= 46, shown(seen)


def test_no_module_grows_past_what_one_can_read_at_once() -> None:
    lines = {str(path.relative_to(HOME)): len(path.read_text().splitlines()) for path in HOME.rglob("*.py")}
    assert max(lines.values()) <= 572, max(lines, key=lines.__getitem__)
    assert len([name for name, count in lines.items() if count > 350]) <= 14, sorted(
        lines, key=lines.__getitem__
    )[-16:]


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_what_a_user_meets_has_few_names() -> None:
    assert len(public(Session)) <= 9, public(Session)
    assert len(public(Transaction)) <= 6, public(Transaction)

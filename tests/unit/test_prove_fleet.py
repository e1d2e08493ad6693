"""An instance of a trial is known by what it wrote itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from eos.prove.fleet import Fleet


def test_what_an_earlier_instance_of_the_ordinal_wrote_is_not_read_as_the_next_ones(tmp_path: Path) -> None:
    (tmp_path / "instance-1.log").write_text(
        json.dumps({"event": "partitions assigned", "positions": "in[0] at 0"}) + "\n"
    )
    says = "import json; print(json.dumps({'event': 'started'}), flush=True)"
    fleet = Fleet([sys.executable, "-c", says], tmp_path)
    instance = fleet.start(1)
    assert instance.wait(30) == 0
    assert [entry["event"] for entry in instance.read()] == ["started"]
    fleet.forget(instance)

"""Contender d: the tuned raw loop with JSON parsed and written again, as a small transform would."""

import orjson

from bench.contenders.raw_loop import Value, copied, copy
from bench.contenders.raw_tuned import TUNED


def parse_and_write(value: Value) -> Value:
    """The same JSON, through Python objects."""
    return None if value is None else orjson.dumps(orjson.loads(value))


if __name__ == "__main__":
    copy(consumer_settings=TUNED, write=copied(parse_and_write))

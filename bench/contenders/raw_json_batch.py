"""Contender d-batch: b-batch with the JSON of d."""

from bench.contenders.raw_batch import by_columns
from bench.contenders.raw_json import parse_and_write
from bench.contenders.raw_loop import copy
from bench.contenders.raw_tuned import TUNED

if __name__ == "__main__":
    copy(consumer_settings=TUNED, write=by_columns(parse_and_write))

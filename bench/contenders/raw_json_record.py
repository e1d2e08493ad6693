"""Contender d-record: b-record with the JSON of d."""

from bench.contenders.raw_json import parse_and_write
from bench.contenders.raw_loop import copy
from bench.contenders.raw_record import one_by_one
from bench.contenders.raw_tuned import TUNED

if __name__ == "__main__":
    copy(consumer_settings=TUNED, write=one_by_one(parse_and_write))

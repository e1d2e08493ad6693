"""Contender c: the tuned raw loop without transactions: what is left when there is no guarantee."""

from bench.contenders.raw_loop import copy
from bench.contenders.raw_tuned import TUNED

if __name__ == "__main__":
    copy(consumer_settings=TUNED, transactional=False)

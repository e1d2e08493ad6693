"""Contender b-look: the tuned raw loop that looks before each commit whether its topics are still the same.

Without that look a topic that is deleted and created anew loses records in silence, so eos has it in each transaction. What is
slower here is its price, in the simplest loop that has it.
"""

from bench.contenders.raw_loop import copy
from bench.contenders.raw_tuned import TUNED

if __name__ == "__main__":
    copy(consumer_settings=TUNED, looks=True)

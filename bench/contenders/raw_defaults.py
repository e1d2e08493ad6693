"""Contender a: the raw loop with the clients' defaults."""

from bench.contenders.raw_loop import copy

if __name__ == "__main__":
    copy()

"""Benchmarks: how fast, how soon, and at what cost records are copied in transactions."""

"""Helpers that import nothing else of eos, and no Kafka client: deadlines, threads, lazy imports, text that meets a person."""

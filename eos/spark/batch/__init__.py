"""A batch: what is new in the input, once.

`batch` is `ExactlyOnceBatch`: plan, read, transform, write, look at the outcome. `planning` decides what a run reads.
`range_record` is its commit record: the committed offsets of the input.
"""

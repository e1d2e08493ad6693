"""Plans of DataFrames, looked at before anything runs.

`lineage`: whose input a frame is made of. `partition_local`: whether each row is made of records of one shard. `row_wise`: whether a
plan keeps each row in the task that has read it. If not, the rows must be shuffled before they are written: `shuffle` says it of a
batch, `query_tasks` of a streaming query's. `placement` is what a person is told of it.
"""

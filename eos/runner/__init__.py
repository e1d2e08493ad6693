"""What runs a job: `loop` drives the pipeline of one shard, in `worker` processes that a `supervisor` starts and replaces.

`pace` says when a transaction ends and how much is fetched, as numbers. `slow_records` reports a record whose transform takes longer
than `max.poll.interval.ms`; `refused` finds the input record of an output that a broker has refused; `at_work` and
`transform_clock` name a transform that takes long.

`worker` is one process: its shards (`shard_loops`), and those of partitions that are added. `worker_process` is the code of the child.
`processes` starts them, one in reserve; `messages` is what parent and child send each other; `killed` what to do about a signal. These,
`stopping` and `process_title` import little, so that a child can start before its parent has loaded everything.

It is not called `run`: a package `eos/run` would hide the function `eos.run`.
"""

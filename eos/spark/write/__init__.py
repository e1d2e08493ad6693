"""All that executors load: it knows neither batch nor stream.

`writer` has one transaction per shard, `commit_record` is what says that the shard is done, `endmarks` that all of its rows have
come, `output` which columns become records. `failures` brings a task's error to the driver, `executor_check` looks before all that.
"""

"""What drives sessions: the loop, the worker process, and the supervisor of several."""

"""Other ways to copy exactly once, and what it takes to run them. To add one: a program here and a line in ``PEERS``."""

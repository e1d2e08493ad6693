"""``python -m eos.cli``: the same as the console script."""

from eos.cli import main

if __name__ == "__main__":  # a spawned worker imports this module again under another name
    main()

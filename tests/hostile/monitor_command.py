"""The command line of lt-monitor for the attacks on it."""

import nursery


def monitor(*words: object) -> list[str]:
    """In a process of its own, without the third of a second of its start; see tests/train/nursery.py."""
    return [nursery.light_python(), "-m", "lt_monitor", *map(str, words)]
